"""A Llama-style model on a GPU: plain, kernelized, and with the same kernels called by hand.

    python benchmarks/gpu_model.py [--hub FOLDER] [--device cpu] [--output PAGE]

`kernelize` must cost nothing: the kernelized model should be as fast as one whose classes were edited to call the
kernels. The three take turns. A model of a size that is used says what the kernels gain; a small one, one token, says
what a call costs the host: as it is, compiled, and as one CUDA graph. Writes its part of `docs/benchmarks.md`.

`--device cpu` tries the small model without a GPU: its counts are those of a GPU, its times are not.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from side_by_side import OUTPUT, write_section

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "kernels"))

ROUNDS = 15
WARM_UP = 3
LARGE = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 8,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}
SMALL = {**LARGE, "vocab_size": 1000, "hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8}
TOKENS = ((1, 1), (1, 512), (1, 4096), (8, 1024))  # batch, length
KERNELS = {
    "RMSNorm": ("rms-norm", "RMSNorm"),
    "LlamaMLP": ("silu-and-mul", "GatedMLP"),
    "rotary_pos_emb": ("rotary", "ApplyRotaryPosEmb"),
}
MODES = ("eager", "torch.compile", "CUDA graph")


@dataclass(frozen=True)
class Way:
    """A model, and what to enter while it runs."""

    model: Any
    enter: Callable[[], AbstractContextManager[None]]


Ways = dict[str, Way]


def main() -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hub", type=Path, help="folder of repositories with the example kernels; default: build them")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="page to write to; nothing is written for a CPU")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("No CUDA device.", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        hub = options.hub or Path(folder)
        if options.hub is None:
            from build import build_examples

            build_examples(hub, noarch_only=options.device == "cpu")
        os.environ.update(KERNELS_HUB=str(hub.absolute()), KERNELS_TRUSTED_PUBLISHERS="kernels-examples")
        small = _small(options.device)
        if options.device == "cpu":
            print("\n".join(small))
            return 0
        page = "\n".join([*_head(), *_large(), "", *small])
    print(page)
    write_section(options.output, "gpu_model", page)
    return 0


def _head() -> list[str]:
    import transformers

    import kernels

    now = datetime.datetime.now(datetime.timezone.utc)
    return [
        "## What kernelize costs on a GPU",
        "",
        "Written by `benchmarks/gpu_model.py`; do not edit by hand.",
        "",
        f"- date: {now:%Y-%m-%d %H:%M} UTC",
        f"- {torch.cuda.get_device_name()}, CUDA {torch.version.cuda}, Torch {torch.__version__}",
        f"- transformers {transformers.__version__}, kernels {kernels.__version__}",
        f"- a Llama with random weights, bfloat16; medians of {ROUNDS} rounds, in which the ways take turns "
        f"({2 * ROUNDS} for the small model), and medians of the ratios within a round",
        "- by hand: the model's classes edited to call the same kernels; how far two such models differ is the noise",
        "",
    ]


def _llama(config: dict[str, int], device: str) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **config), dtype=torch.bfloat16).eval()


def _ways(config: dict[str, int], device: str) -> Ways:
    """The ways in which a model's layers can run.

    Each has a model of its own, with the same weights, which is kernelized once: what a program does. The compiler
    checks a model that was changed between its calls anew.
    """
    from transformers.models.llama import modeling_llama as llama

    from kernels import (
        LayerRepository,
        Mode,
        get_kernel,
        kernelize,
        replace_kernel_forward_from_hub,
        use_kernel_forward_from_hub,
        use_kernel_mapping,
    )

    replace_kernel_forward_from_hub(llama.LlamaMLP, "LlamaMLP")
    plain, kernelized, edited, again = (_llama(config, device) for _ in range(4))
    mapping = {
        layer: {device: LayerRepository(f"kernels-examples/{repository}", layer_name=name, version=1)}
        for layer, (repository, name) in KERNELS.items()
    }
    with use_kernel_mapping(mapping, inherit_mapping=False):
        report = kernelize(kernelized, mode=Mode.INFERENCE | Mode.TORCH_COMPILE, report=True)
    assert sum(row.kernelized for row in report) == 8 * 4 + 1, report
    backend = "cpu" if device == "cpu" else None
    norm, mlp, rotary = (
        get_kernel(f"kernels-examples/{name}", version=1, backend=backend) for name, _ in KERNELS.values()
    )
    # The function of transformers is one object for all models, which is kernelized now.
    plain_rotary = use_kernel_forward_from_hub("rotary_pos_emb")(llama.apply_rotary_pos_emb.__wrapped__)

    def norm_forward(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        return norm.rms_norm(hidden_states, self.weight, self.variance_epsilon)  # type: ignore[no-any-return]

    def mlp_forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(mlp.silu_mul(self.gate_proj(x), self.up_proj(x)))  # type: ignore[no-any-return]

    def by_hand() -> AbstractContextManager[None]:
        return _replaced(
            (llama.LlamaRMSNorm, "forward", norm_forward),
            (llama.LlamaMLP, "forward", mlp_forward),
            (llama, "apply_rotary_pos_emb", rotary.apply_rotary_pos_emb),
        )

    return {
        "plain": Way(plain, lambda: _replaced((llama, "apply_rotary_pos_emb", plain_rotary))),
        "kernelized": Way(kernelized, nullcontext),
        "by hand": Way(edited, by_hand),
        "by hand, again": Way(again, by_hand),
    }


@contextmanager
def _replaced(*attributes: tuple[Any, str, Any]) -> Iterator[None]:
    own = [(where, name, getattr(where, name)) for where, name, _ in attributes]
    for each in attributes:
        setattr(*each)
    try:
        yield
    finally:
        for each in own:
            setattr(*each)


# A model of a size that is used


def _large() -> list[str]:
    ways = _ways(LARGE, "cuda")
    lines = [
        f"Tokens per second of a forward pass, {LARGE['num_hidden_layers']} layers of {LARGE['hidden_size']}:",
        "",
        *_heading("batch x tokens", ways),
    ]
    for batch, length in TOKENS:
        tokens = torch.randint(LARGE["vocab_size"], (batch, length), device="cuda")
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(ROUNDS + WARM_UP):
            for name, way in _in_turn(ways, number):
                with way.enter(), torch.inference_mode():
                    elapsed = _seconds(partial(way.model, tokens), 5)
                if number >= WARM_UP:  # the first rounds compile and warm up
                    seconds[name].append(elapsed)
        figures = [f"{tokens.numel() / statistics.median(each):,.0f}" for each in seconds.values()]
        lines.append(_row(f"{batch} x {length}", figures, _ratios(seconds)))
        print(lines[-1], flush=True)
    return lines


# A small model, whose calls are bound by the host


def _small(device: str) -> list[str]:
    """A pass of one token: microseconds, calls of Python functions, and graphs that the compiler makes."""
    from torch._dynamo.utils import counters

    ways = _ways(SMALL, device)
    tokens = torch.randint(SMALL["vocab_size"], (1, 1), device=device)
    backend = "inductor" if device == "cuda" else "eager"
    runs: dict[str, dict[str, Callable[[], Any]]] = {"eager": {}, "torch.compile": {}}
    for name, way in ways.items():
        runs["eager"][name] = partial(way.model, tokens, use_cache=False)
        runs["torch.compile"][name] = partial(torch.compile(way.model, backend=backend), tokens, use_cache=False)
    calls: dict[str, int] = {}
    graphs: dict[str, int] = {}
    outputs: dict[str, torch.Tensor] = {}
    for name, way in ways.items():
        with way.enter(), torch.inference_mode():
            outputs[name] = runs["eager"][name]().logits
            calls[name] = _calls(runs["eager"][name])
            before = counters["stats"]["unique_graphs"]
            for _ in range(WARM_UP):
                runs["torch.compile"][name]()
            graphs[name] = counters["stats"]["unique_graphs"] - before
            if device == "cuda":
                runs.setdefault("CUDA graph", {})[name] = _captured(runs["eager"][name])
    assert torch.equal(outputs["kernelized"], outputs["by hand"])
    made = counters["stats"]["unique_graphs"]
    seconds: dict[tuple[str, str], list[float]] = {}
    rounds, repeats = (2 * ROUNDS, 20) if device == "cuda" else (2, 2)
    gc.collect()
    gc.freeze()  # else a collection of Torch's objects falls into one way or another
    for number in range(rounds):
        for name, way in _in_turn(ways, number):
            with way.enter(), torch.inference_mode():
                for mode, each in runs.items():
                    seconds.setdefault((mode, name), []).append(_seconds(each[name], repeats))
    recompiled = counters["stats"]["unique_graphs"] - made
    lines = [
        f"Microseconds of a forward pass of one token, {SMALL['num_hidden_layers']} layers of {SMALL['hidden_size']}, "
        "whose time is the host's:",
        "",
        *_heading("", ways),
    ]
    for mode in runs:
        of_mode = {way: seconds[mode, way] for way in ways}
        figures = [f"{statistics.median(each) * 1e6:,.1f}" for each in of_mode.values()]
        lines.append(_row(mode, figures, _ratios(of_mode)))
    counted = {"Python functions called, eager": calls, "graphs of `torch.compile`": graphs}
    for what, each in counted.items():
        lines.append(_row(what, [f"{each[way]:,}" for way in ways], ["", ""]))
    return [
        *lines,
        "",
        "The ratios are medians within a round, not of the medians beside them. Graphs that were compiled when the "
        f"ways took turns: {recompiled}; the second model that was edited by hand uses the graph of the first. "
        "Compiled, so small a model may be slower with kernels than plain, by hand too: the compiler fuses the plain "
        "operators.",
    ]


# What both show


def _in_turn(ways: Ways, number: int) -> list[tuple[str, Way]]:
    """The ways in the order of a round: forwards and backwards in turn."""
    return list(ways.items())[:: -1 if number % 2 else 1]


def _ratios(seconds: dict[str, list[float]]) -> list[str]:
    """How fast the kernelized model is, and a second one that was edited by hand, over the one edited by hand."""
    by_hand = seconds["by hand"]
    return [
        f"{statistics.median(hand / other for hand, other in zip(by_hand, seconds[way], strict=True)):.3f}"
        for way in ("kernelized", "by hand, again")
    ]


def _heading(what: str, ways: Ways) -> list[str]:
    names = [what, *ways, "speed of kernelized / by hand", "of by hand, again / by hand"]
    return [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]


def _row(what: str, figures: list[str], ratios: list[str]) -> str:
    return f"| {' | '.join([what, *figures, *ratios])} |"


def _calls(run: Callable[[], Any]) -> int:
    """How many Python functions a call of the model calls."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    run()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def _captured(run: Callable[[], Any]) -> Callable[[], Any]:
    """A function that replays a call as one CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = run()

    def replay() -> Any:
        graph.replay()
        return output

    return replay


def _seconds(run: Callable[[], Any], repeats: int) -> float:
    """Seconds of a call, after one that is not measured."""
    synchronize = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    run()
    synchronize()
    started = time.perf_counter()
    for _ in range(repeats):
        run()
    synchronize()
    return (time.perf_counter() - started) / repeats


if __name__ == "__main__":
    sys.exit(main())
