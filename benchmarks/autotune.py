"""Models of transformers on a GPU: plain, with all kernels of its mapping, and after `autotune`.

    python benchmarks/autotune.py [--families llama,olmo2] [--compiled] [--json FILE] [--device cpu]
    python benchmarks/autotune.py --write FILE …

Each model has the sizes of a small real one. Its kernels are the layers of the package liger-kernel and those of
examples/kernels, as kernel repositories under the names of transformers' own mapping, which is used unmodified. The
three ways take turns. `--json` keeps the samples.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import gc
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from side_by_side import OUTPUT, write_section

ROUNDS, CALLS = 24, 3  # in each round every way has its turn, of so many timed calls
SECONDS = 3.0  # for about so long a case is measured
MOST_APART = 0.2  # of bfloat16, also of gradients through eight layers; what is wrong is apart by a multiple
COMPILED_APART = 2.0  # so many times as far as the plain model, compiled, is from itself, uncompiled
ROOT = Path(__file__).parents[1]
SIZES = {
    "vocab_size": 8192,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FAMILIES = (
    *("llama", "mistral", "qwen2", "qwen3", "phi3", "olmo2", "glm4", "granite"),
    *("smollm3", "ministral", "gemma", "gemma2", "gemma3_text", "starcoder2", "olmo3"),
)

LIGER = """
import torch
from torch import nn
from liger_kernel.ops import LigerGELUMulFunction, LigerRMSNormFunction, LigerSiLUMulFunction


class LigerRMSNorm(nn.Module):
    can_torch_compile = True

    def forward(self, hidden_states):
        return LigerRMSNormFunction.apply(hidden_states, self.weight, self.variance_epsilon, 0.0, "llama", True, None)


class LigerSwiGLUMLP(nn.Module):
    can_torch_compile = True

    def forward(self, x):
        return self.down_proj(LigerSiLUMulFunction.apply(self.gate_proj(x), self.up_proj(x), 1.0, 1.0))


LigerTiledSwiGLUMLP = LigerSwiGLUMLP


class LigerGEGLUMLP(nn.Module):
    can_torch_compile = True

    def forward(self, x):
        return self.down_proj(LigerGELUMulFunction.apply(self.gate_proj(x), self.up_proj(x)))


LigerTiledGEGLUMLP = LigerGEGLUMLP
"""

ROTARY = """
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _turn(x_ptr, cos_ptr, sin_ptr, y_ptr, heads, tokens, xb, xh, xs, cb, cs, half: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0)
    s, h, b = row % tokens, row // tokens % heads, row // tokens // heads
    at = tl.arange(0, block)
    known = at < half
    x = x_ptr + b * xb + h * xh + s * xs
    y = y_ptr + row * 2 * half
    cos, sin = cos_ptr + b * cb + s * cs, sin_ptr + b * cb + s * cs
    first, second = tl.load(x + at, known).to(tl.float32), tl.load(x + half + at, known).to(tl.float32)
    c1, s1 = tl.load(cos + at, known).to(tl.float32), tl.load(sin + at, known).to(tl.float32)
    c2, s2 = tl.load(cos + half + at, known).to(tl.float32), tl.load(sin + half + at, known).to(tl.float32)
    tl.store(y + at, (first * c1 - second * s1).to(y_ptr.dtype.element_ty), known)
    tl.store(y + half + at, (second * c2 + first * s2).to(y_ptr.dtype.element_ty), known)


def _turned(x, cos, sin):
    batch, heads, tokens, width = x.shape
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(width // 2)
    shared = 0 if cos.shape[0] == 1 else cos.stride(0)
    _turn[(batch * heads * tokens,)](
        x, cos, sin, y, heads, tokens, x.stride(0), x.stride(1), x.stride(2), shared, cos.stride(1), width // 2, block
    )
    return y


class apply_rotary_transformers(nn.Module):
    has_backward = False

    def forward(self, q, k, cos, sin, unsqueeze_dim=1):
        if cos.dtype != q.dtype:
            raise ValueError(f"cos must be of q's dtype, expected {q.dtype}, got {cos.dtype}")
        return _turned(q, cos, sin), _turned(k, cos, sin)
"""

ACTIVATION = """
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _silu(x_ptr, y_ptr, n, kind: tl.constexpr, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    x = tl.load(x_ptr + at, at < n).to(tl.float32)
    if kind == 0:
        y = x * tl.sigmoid(x)
    elif kind == 1:
        y = x * 0.5 * (1 + tl.erf(x * 0.7071067811865476))
    else:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        y = 0.5 * x * (1 + 2 * tl.sigmoid(2 * inner) - 1)
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), at < n)


def _run(x, kind):
    x = x.contiguous()
    y = torch.empty_like(x)
    _silu[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), kind, 1024)
    return y


def _layer(kind):
    class Activation(nn.Module):
        has_backward = False
        can_torch_compile = True

        def forward(self, input):
            return _run(input, kind)

    return Activation


Silu, Gelu, GeluTanh, NewGELU = _layer(0), _layer(1), _layer(2), _layer(2)
"""


def repositories(root: Path) -> str:
    """Kernel repositories under the names of transformers' mapping, as `LOCAL_KERNELS` names them."""
    named = []
    for name, text in (("liger-kernels", LIGER), ("rotary", ROTARY), ("activation", ACTIVATION)):
        folder = root / name / "build" / "torch-cuda"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("from . import layers\n")
        (folder / "layers.py").write_text(text)
        metadata = {
            "name": name, "id": f"_{name.replace('-', '_')}_cuda_0000000", "version": 1, "license": "Apache-2.0",
            "python-depends": [], "backend": {"type": "cuda"},
        }  # fmt: skip
        (folder / "metadata.json").write_text(json.dumps(metadata))
        named.append(f"kernels-community/{name}={root / name}")
    return ":".join(named)


def made(family: str, device: str) -> torch.nn.Module:
    """A model of a family, in bfloat16."""
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    sizes = dict(SIZES)
    if family == "gpt2":
        sizes = {"n_embd": 1024, "n_layer": 8, "n_head": 16, "vocab_size": 8192, "bos_token_id": 1, "eos_token_id": 2}
    if family == "gemma3_text":
        sizes["sliding_window"] = 512
    config = AutoConfig.for_model(family, **sizes)
    torch.manual_seed(0)
    cls: Any = AutoModelForCausalLM if family != "bert" else AutoModel
    model: torch.nn.Module = cls.from_config(config, dtype=torch.bfloat16)
    return model.to(device)


def outcome(model: torch.nn.Module, call: Callable[[], Any]) -> list[torch.Tensor]:
    for parameter in model.parameters():
        parameter.grad = None
    result = call()
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    return [each.detach().float().clone() for each in ([result.logits] if result is not None else gradients)]


def apart(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    """The largest difference of two outcomes: of each tensor the norm of the difference by that of the tensor."""
    if len(one) != len(other):
        return float("inf")
    found = [float((a - b).norm() / b.norm().clamp_min(1e-30)) for a, b in zip(one, other, strict=True)]
    return max(found, default=0.0)


Way = tuple[Callable[[], Any], Callable[[], Any]]  # what makes the model ready, and the call


def times(ways: dict[str, Way]) -> dict[str, float]:
    """The seconds of a call each way, and how many times as fast as plain it is: the ways take turns in random order.

    Of each turn the fastest call counts, since what else the host does makes a call slower, never faster; and those of
    one round are compared, since a host gets faster and slower within seconds.
    """
    samples: dict[str, list[float]] = {name: [] for name in ways}
    gc.collect()
    gc.disable()
    began = time.perf_counter()
    for number in range(ROUNDS):
        order = list(ways.items())
        random.Random(number).shuffle(order)
        for name, (prepare, call) in order:
            prepare()
            for _ in range(2):
                call()  # the first ones after a change of forwards miss caches of the host
            samples[name].append(min(_seconds(call) for _ in range(CALLS)))
        if time.perf_counter() - began > SECONDS and number >= 8:
            break
    gc.enable()
    plain = samples["plain"]
    found = {name: statistics.median(each) for name, each in samples.items()}
    for name, each in samples.items():
        found[f"ratio_{name}"] = statistics.median(one / other for one, other in zip(plain, each, strict=True))
    return found


def _seconds(call: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def cases(device: str) -> dict[str, tuple[bool, Callable[[torch.nn.Module], Callable[[], Any]]]]:
    """What is measured: whether it trains, and the call of a model."""
    shapes = (32, 1024), (8, 1024), (4, 512), (1, 1)
    most, more, many, one = (torch.randint(3, 8000, shape, device=device) for shape in shapes)

    def inference(ids: torch.Tensor) -> Callable[[torch.nn.Module], Callable[[], Any]]:
        def of(model: Any) -> Callable[[], Any]:
            def call() -> Any:
                with torch.no_grad():
                    return model(input_ids=ids, use_cache=False)

            return call

        return of

    def training(model: Any) -> Callable[[], Any]:
        def call() -> None:
            model.zero_grad()
            model(input_ids=many, labels=many, use_cache=False).loss.backward()

        return call

    return {
        "32 x 1024": (False, inference(most)),
        "8 x 1024": (False, inference(more)),
        "4 x 512": (False, inference(many)),
        "1 token": (False, inference(one)),
        "training": (True, training),
    }


def measured(family: str, device: str, compiled: bool) -> list[dict[str, Any]]:
    import transformers
    from transformers.integrations import hub_kernels

    from kernels import Mode, autotune, kernelize, unkernelize

    rows = []
    about = {
        "date": str(datetime.date.today()),
        "machine": torch.cuda.get_device_name() if device == "cuda" else device,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    mapping = hub_kernels._build_kernel_mapping()
    for train in (False, True):
        model = made(family, device).train(train)
        mode = Mode.TRAINING if train else Mode.INFERENCE
        mode = mode | Mode.TORCH_COMPILE if compiled else mode
        mine = {name: make for name, (trains, make) in cases(device).items() if trains is train}
        if compiled:
            for name in ("32 x 1024", "8 x 1024"):
                mine.pop(name, None)  # four more compilations of each model
        began = time.perf_counter()
        report = autotune(model, *[make(model) for make in mine.values()], mapping=mapping, mode=mode)
        seconds = time.perf_counter() - began
        print(f"== {family} {mode}: autotune {seconds:.1f} s\n{report}", flush=True)
        make_ready: dict[str, Callable[[Any], Any]] = {
            "plain": unkernelize,
            "all": partial(kernelize, mapping=mapping, mode=mode, autotuned=False),
            "tuned": partial(kernelize, mapping=mapping, mode=mode),  # by the decisions in the cache
            "same": unkernelize,
        }
        # A compiled model has the forwards in its code, so each way has a model of its own.
        models = {way: copy.deepcopy(unkernelize(model)) if compiled else model for way in make_ready}
        for number, (name, make) in enumerate(mine.items()):
            row: dict[str, Any] = {"family": family, "case": name, "compiled": compiled, "autotune": seconds}
            row |= about
            wanted = outcome(unkernelize(model), make(model))
            ways: dict[str, Way] = {}
            for way, ready in make_ready.items():
                each: Any = models[way]
                prepare = partial(ready, each)
                try:
                    prepare()
                    used: Any = torch.compile(each, dynamic=False) if compiled else each
                    call = make(used)
                    row[f"apart_{way}"] = apart(outcome(each, call), wanted)
                    ways[way] = (lambda: None) if compiled else prepare, call
                except Exception as error:  # noqa: BLE001 - whatever a kernel raises
                    row[f"error_{way}"] = f"{type(error).__name__}: {error}"[:200]
            row |= times(ways)
            row["own"] = not any(each.chosen for each in report)
            row["said"] = report.calls[number].gain if report.calls else 1.0
            rows.append(row)
            print(json.dumps(row), flush=True)
            if compiled:
                torch.compiler.reset()
        unkernelize(model)
        del model, models, ways, each, used, call, prepare
        gc.collect()
        torch.cuda.empty_cache()
    return rows


def page(rows: list[dict[str, Any]]) -> str:
    """The part of docs/benchmarks.md."""
    names = list(dict.fromkeys((row["compiled"], row["case"]) for row in rows))
    # Of a case that was measured twice, the file that is named first counts.
    found = {(row["family"], row["compiled"], row["case"]): row for row in reversed(rows)}
    titles = [f"{case}, compiled" if compiled else case for compiled, case in names]
    lines = [f"| family | {' | '.join(titles)} | autotune |", f"|---{'|---' * len(names)}|---|"]
    for family in dict.fromkeys(row["family"] for row in rows):
        cells = [_cell(found.get((family, *name))) for name in names]
        seconds = {row["autotune"] for row in rows if row["family"] == family and row["autotune"] > 1}
        lines.append(f"| {family} | {' | '.join(cells)} | {min(seconds):.0f} to {max(seconds):.0f} s |")
    first = rows[0]
    about = [
        f"- {first['date']}, {first['machine']}, Torch {first['torch']}, transformers {first['transformers']}",
        "- the mapping of transformers, with the layers of liger-kernel, a rotary embedding and activations in Triton",
        "- models: 8 layers, hidden size 1024, bfloat16, random weights; a training step has 4 x 512 tokens",
        "- times as fast as the plain model: with all kernels / after `autotune`; in brackets the plain model once "
        f"more, which is the noise. Medians of up to {ROUNDS} rounds, in each of which every way takes its turn",
        "- own: no kernel pays, so what was timed after `autotune` is the plain model",
        "- wrong: a result or a gradient is another one",
    ]
    return "\n".join(["## After `autotune`, on a GPU", "", *about, "", *lines, ""])


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    own = " own" if row["own"] else ""
    return f"{_result(row, 'all')} / {_result(row, 'tuned')}{own} ({row['ratio_same']:.2f})"


def _result(row: dict[str, Any], way: str) -> str:
    if f"ratio_{way}" not in row:
        return "fails"
    wrong = row[f"apart_{way}"] > max(MOST_APART, COMPILED_APART * row["apart_plain"])
    return f"{row[f'ratio_{way}']:.2f}" + (" **wrong**" if wrong else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write", nargs="+", type=Path, help="such files: write their part of docs/benchmarks.md")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further family after this time")
    options = parser.parse_args()
    if options.write:
        rows = [row for path in options.write for row in json.loads(path.read_text())]
        write_section(OUTPUT, "autotune", page(rows))
        return
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(
            LOCAL_KERNELS=repositories(Path(folder)), HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1",
            KERNELS_CACHE=f"{folder}/cache",
        )  # fmt: skip
        rows = []
        for family in options.families.split(","):
            if time.perf_counter() - began > options.seconds:
                break
            rows += measured(family, options.device, options.compiled)
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1))
    print(page(rows))


if __name__ == "__main__":
    main()
