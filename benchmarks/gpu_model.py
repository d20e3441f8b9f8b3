"""A Llama-style model on a GPU: plain, kernelized, and with the same kernels called by hand.

    python benchmarks/gpu_model.py [--hub FOLDER]

`kernelize` must cost nothing: the kernelized model should be as fast as one whose classes were edited to call the
kernels. The three take turns, and the medians of whole forward passes are printed, as tokens per second.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "kernels"))

ROUNDS = 15
CONFIG = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 8,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}
KERNELS = {
    "RMSNorm": ("rms-norm", "RMSNorm"),
    "LlamaMLP": ("silu-and-mul", "GatedMLP"),
    "rotary_pos_emb": ("rotary", "ApplyRotaryPosEmb"),
}


def main() -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hub", type=Path, help="folder of repositories with the example kernels; default: build them")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("No CUDA device.", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        hub = options.hub or Path(folder)
        if options.hub is None:
            from build import build_examples

            build_examples(hub)
        os.environ.update(KERNELS_HUB=str(hub), KERNELS_TRUSTED_PUBLISHERS="kernels-examples")
        measure()
    return 0


def measure() -> None:
    """Print the table."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.models.llama import modeling_llama as llama

    from kernels import LayerRepository, kernelize, replace_kernel_forward_from_hub, unkernelize, use_kernel_mapping

    replace_kernel_forward_from_hub(llama.LlamaMLP, "LlamaMLP")
    torch.manual_seed(0)
    config = AutoConfig.for_model("llama", **CONFIG)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    mapping = {
        layer: {"cuda": LayerRepository(f"kernels-examples/{repository}", layer_name=name, version=1)}
        for layer, (repository, name) in KERNELS.items()
    }

    @contextmanager
    def kernelized() -> Iterator[None]:
        with use_kernel_mapping(mapping, inherit_mapping=False):
            report = kernelize(model, report=True)
        assert sum(row.kernelized for row in report) == 8 * 4 + 1, report
        yield
        unkernelize(model)

    @contextmanager
    def plain() -> Iterator[None]:
        yield

    ways: dict[str, Callable[[], Any]] = {"plain": plain, "kernelized": kernelized, "by hand": by_hand}
    print(f"{torch.cuda.get_device_name()}, Torch {torch.__version__}: tokens/s of a Llama with 8 layers of 4096, bf16")
    print(f"{'batch x tokens':>16}" + "".join(f"{way:>14}" for way in ways) + f"{'by hand/kernelized':>22}")
    for batch, length in [(1, 1), (1, 512), (1, 4096), (8, 1024)]:
        tokens = torch.randint(CONFIG["vocab_size"], (batch, length), device="cuda")
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(ROUNDS + 3):
            for way, enter in ways.items():
                with enter():
                    elapsed = forward(model, tokens)
                if number >= 3:  # the first rounds compile and warm up
                    seconds[way].append(elapsed)
        medians = {way: statistics.median(each) for way, each in seconds.items()}
        figures = "".join(f"{tokens.numel() / median:>14,.0f}" for median in medians.values())
        print(f"{batch:>8} x {length:<5}" + figures + f"{medians['by hand'] / medians['kernelized']:>22.3f}")


def forward(model: Any, tokens: torch.Tensor, repeats: int = 5) -> float:
    """Seconds of a forward pass."""
    with torch.inference_mode():
        model(tokens)
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(repeats):
            model(tokens)
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / repeats


@contextmanager
def by_hand() -> Iterator[None]:
    """The model's classes as a person would edit them to call the same kernels."""
    from transformers.models.llama import modeling_llama as llama

    from kernels import get_kernel

    norm, mlp, rotary = (get_kernel(f"kernels-examples/{name}", version=1) for name, _ in KERNELS.values())

    def norm_forward(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        return norm.rms_norm(hidden_states, self.weight, self.variance_epsilon)  # type: ignore[no-any-return]

    def mlp_forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(mlp.silu_mul(self.gate_proj(x), self.up_proj(x)))  # type: ignore[no-any-return]

    own = llama.LlamaRMSNorm.forward, llama.LlamaMLP.forward, llama.apply_rotary_pos_emb
    llama.LlamaRMSNorm.forward, llama.LlamaMLP.forward = norm_forward, mlp_forward
    llama.apply_rotary_pos_emb = rotary.apply_rotary_pos_emb
    try:
        yield
    finally:
        llama.LlamaRMSNorm.forward, llama.LlamaMLP.forward, llama.apply_rotary_pos_emb = own


if __name__ == "__main__":
    sys.exit(main())
