"""The main job, end to end: `make demo`.

Build the example kernels, serve them as a Hub, lock and download them for a project, get one with one line, swap all
three into a Llama-style model, compare its logits and its speed with the model's own, and take the kernels out again.
Exits with an error when anything is off.
"""

from __future__ import annotations

import logging
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "kernels"))

#: Where the built kernels stay, so that the second time is quick.
BUILT = Path(__file__).resolve().parent.parent / "build" / "examples"

#: Which kernels the demo's project asks for.
DEPENDENCIES = Path(__file__).resolve().parent.parent / "lockfiles" / "pyproject.toml"

#: What fp32 arithmetic in another order may change in logits of this size.
TOLERANCE = 1e-4

#: A model small enough for a laptop and large enough for its layers to take time.
MODEL = {
    "model_type": "llama",
    "vocab_size": 2048,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 1024,
}
TOKENS = 512
ROUNDS = 7


def main() -> None:
    """Run the demo."""
    build()
    with tempfile.TemporaryDirectory(prefix="kernels-demo-") as folder:
        os.environ["KERNELS_CACHE"] = str(Path(folder) / "cache")
        # The demo runs on the processor, also with a Torch that was built for a GPU.
        os.environ["KERNELS_BACKEND"] = "cpu"
        from build import PUBLISHER
        from kernels.server import HubServer

        with HubServer(BUILT, trusted=[PUBLISHER]) as hub:
            os.environ["KERNELS_HUB"] = hub.url
            say(f"Serving {BUILT} as a Hub at {hub.url}")
            lock_and_download(Path(folder) / "project")
            one_line()
            explain()
            whole_model()
    say("Everything is as it should be.")


def build() -> None:
    """The example kernels, from source."""
    from build import build_examples

    say("Building the example kernels; compiling takes some minutes the first time")
    started = time.perf_counter()
    built = build_examples(BUILT)
    say(f"Built {len(built.variants)} builds of the example kernels in {time.perf_counter() - started:.1f} s")
    for variant in built.variants:
        print(f"  {variant.relative_to(BUILT)}")
    for name, reason in built.not_compiled.items():
        print(f"  {name}: no compiled build, the noarch one will be used. {reason}")


def lock_and_download(project: Path) -> None:
    """A project's kernels pinned, and on disk; from here on nothing but them is loaded."""
    from kernels.cli.download import download
    from kernels.cli.lock import lock

    say("kernels lock project --hashes; kernels download project")
    project.mkdir()
    shutil.copy(DEPENDENCIES, project)
    lock(project, hashes=True)
    download([str(project)])
    os.environ |= {"KERNELS_LOCKFILE": str(project / "kernels.lock"), "KERNELS_LOCKED": "1"}


def one_line() -> None:
    """One kernel, with one line."""
    import torch

    from kernels import get_kernel

    say('rms_norm = get_kernel("kernels-examples/rms-norm", version=1)')
    rms_norm = get_kernel("kernels-examples/rms-norm", version=1)
    x, weight = torch.randn(4, 256), torch.rand(256)
    expected = torch.nn.functional.rms_norm(x.double(), (256,), weight.double(), 1e-6)
    difference = (rms_norm.rms_norm(x, weight, 1e-6) - expected).abs().max().item()
    print(f"  {rms_norm.__file__}")
    print(f"  largest difference from a float64 reference: {difference:.1e}")
    check(difference < 1e-5, "the kernel's result is not the reference's")


def explain() -> None:
    """Why that build."""
    say("kernels explain kernels-examples/rms-norm --version 1")
    from kernels.cli.explain import explain as command

    command("kernels-examples/rms-norm", version=1)


def whole_model() -> None:
    """All three kernels in a model, and out again."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.models.llama.modeling_llama import LlamaMLP

    from kernels import LayerRepository, kernelize, replace_kernel_forward_from_hub, unkernelize, use_kernel_mapping

    # The activation of an MLP is part of the kernel that replaces the whole MLP.
    logging.getLogger("kernels.layer").setLevel(logging.ERROR)  # no kernel is mapped to its SiLU
    torch.manual_seed(0)
    replace_kernel_forward_from_hub(LlamaMLP, "LlamaMLP")
    options = dict(MODEL)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(options.pop("model_type"), **options)).eval()
    tokens = torch.randint(MODEL["vocab_size"], (1, TOKENS))  # type: ignore[call-overload]
    mapping = {
        "RMSNorm": {"cpu": LayerRepository("kernels-examples/rms-norm", layer_name="RMSNorm", version=1)},
        "LlamaMLP": {"cpu": LayerRepository("kernels-examples/silu-and-mul", layer_name="GatedMLP", version=1)},
        "rotary_pos_emb": {
            "cpu": LayerRepository("kernels-examples/rotary", layer_name="ApplyRotaryPosEmb", version=1)
        },
    }

    own = logits(model, tokens)
    say("kernelize(model)")
    with use_kernel_mapping(mapping, inherit_mapping=False):
        report = kernelize(model, report=True)
    print(report)
    mapped = [row for row in report if row.layer in mapping]
    check(len(mapped) > 0, "no layer of the model is mapped")
    check(all(row.kernelized for row in mapped), "not every mapped layer runs through a kernel")

    with_kernels = logits(model, tokens)
    difference = (own - with_kernels).abs().max().item()
    say("The same model, before and with kernels")
    print(f"  largest difference of its logits: {difference:.1e} (largest logit {own.abs().max().item():.2f})")
    check(difference < TOLERANCE, f"the logits differ by more than {TOLERANCE}")

    before, after = tokens_per_second(model, tokens, lambda: unkernelize(model), lambda: again(model, mapping))
    print(f"  {before:,.0f} tokens/s before, {after:,.0f} with kernels: {after / before:.2f} times")
    print(f"  (medians of {ROUNDS} turns on a processor; a busy one makes them vary. On a GPU: docs/gpu-tests.md)")

    unkernelize(model)
    check(torch.equal(logits(model, tokens), own), "unkernelize did not restore the model")
    say("unkernelize(model): its logits are its own again")


def again(model: Any, mapping: Any) -> None:
    """Kernelize a model that was kernelized before."""
    from kernels import kernelize, use_kernel_mapping

    with use_kernel_mapping(mapping, inherit_mapping=False):
        kernelize(model)


def logits(model: Any, tokens: Any) -> Any:
    """What the model answers."""
    import torch

    with torch.inference_mode():
        return model(tokens).logits


def tokens_per_second(model: Any, tokens: Any, without: Any, with_kernels: Any) -> tuple[float, float]:
    """Medians, measured in turns so that a machine that slows down slows down both."""
    times: dict[Any, list[float]] = {without: [], with_kernels: []}
    for _ in range(ROUNDS):
        for prepare, seconds in times.items():
            prepare()
            started = time.perf_counter()
            logits(model, tokens)
            seconds.append(time.perf_counter() - started)
    before, after = (tokens.numel() / statistics.median(seconds) for seconds in times.values())
    return before, after


def say(text: str) -> None:
    """A step, set off from what it prints."""
    print(f"\n== {text}", flush=True)


def check(holds: bool, otherwise: str) -> None:
    """End with an error unless something holds."""
    if not holds:
        sys.exit(f"demo: {otherwise}")


if __name__ == "__main__":
    main()
