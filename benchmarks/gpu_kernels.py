"""The example kernels on an NVIDIA GPU, beside a copy of the same bytes: `python benchmarks/gpu_kernels.py`.

Every kernel in CUDA C++ and in Triton, forward and backward, at sizes from some kilobytes to past the cache, beside
Torch's own operators and, where they are installed, Liger (`liger-kernel`) and the Triton kernels of
flash-linear-attention (`fla-core`), called through their public functions with the same tensors. Writes its part of
`docs/benchmarks.md`.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import cycle, islice
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from side_by_side import OUTPUT, write_section

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "kernels"))

WAYS = ("CUDA", "Triton", "Torch", "Liger", "FLA")
COLUMNS = 4096
#: Bytes of the first tensor.
SIZES = (2**16, 2**20, 2**22, 2**24, 2**26, 3 * 2**27)
LARGEST = SIZES[-1]
#: Inputs of one measurement take turns until together they are this large: the next call finds none in the cache.
PAST_CACHE = 256 * 2**20
MOST_SETS = 32
EAGER_CALLS = 300
EPS = 1e-6

Call = Callable[..., Any]
Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Kernel:
    """What is measured: tensors for a size, one function for each way, and how many bytes must move."""

    name: str
    make: Callable[[int, int, torch.dtype], Tensors]
    moved: Callable[[Tensors], int]
    ways: dict[str, Call]
    backward: bool = False


@dataclass
class Figures:
    """Seconds of a call on the device, and of a copy of the same bytes."""

    kernel: str
    dtype: str
    size: int
    columns: int
    copy: float
    seconds: dict[str, float] = field(default_factory=dict)
    eager: dict[str, float] = field(default_factory=dict)

    def share(self, way: str) -> float | None:
        """The speed of the copy that a way reaches."""
        return self.copy / self.seconds[way] if way in self.seconds else None


def main() -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hub", type=Path, help="folder of repositories with the example kernels; default: build them")
    parser.add_argument("--json", type=Path, help="write the figures to a file, too")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="the page to write")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("No CUDA device.", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        hub = options.hub or Path(folder)
        if options.hub is None:
            from build import build_examples

            for name, reason in build_examples(hub).not_compiled.items():
                print(f"{name} was not compiled. {reason}", file=sys.stderr)
        kernels = _kernels(hub)
        figures = list(_measure(kernels))
    if options.json is not None:
        options.json.write_text(json.dumps([vars(each) for each in figures], indent=1) + "\n")
    write_section(options.output, "gpu_kernels", _page(figures))
    return 0


def _measure(kernels: list[Kernel]) -> Iterator[Figures]:
    for kernel in kernels:
        for size in SIZES:
            yield _measured(kernel, size, COLUMNS, torch.bfloat16, WAYS, eager=size == SIZES[0])
    for kernel in kernels:
        if "RMSNorm" in kernel.name:
            for columns in (128, 8192, 16384, 32768, 65536):
                yield _measured(kernel, LARGEST, columns, torch.bfloat16, ("CUDA", "Triton", "Torch", "Liger"))
                if kernel.name == "RMSNorm backward":
                    yield _measured(kernel, LARGEST, columns, torch.float16, ("CUDA", "Triton", "Torch"))
    for kernel in kernels:
        for dtype in (torch.float16, torch.float32):
            yield _measured(kernel, LARGEST, COLUMNS, dtype, ("CUDA", "Triton", "Torch"))


def _measured(
    kernel: Kernel, size: int, columns: int, dtype: torch.dtype, among: Collection[str], eager: bool = False
) -> Figures:
    # A backward pass runs on the stream of its forward pass: all calls must be on the one whose graph is captured.
    with torch.cuda.stream(torch.cuda.Stream()):
        return _figures(kernel, size, columns, dtype, among, eager)


def _figures(
    kernel: Kernel, size: int, columns: int, dtype: torch.dtype, among: Collection[str], eager: bool
) -> Figures:
    first = kernel.make(size, columns, dtype)
    sets = max(1, min(MOST_SETS, -(-PAST_CACHE // sum(each.nbytes for each in first))))
    tensors = [first, *(kernel.make(size, columns, dtype) for _ in range(sets - 1))]
    moved = kernel.moved(first)
    figures = Figures(kernel.name, str(dtype).removeprefix("torch."), size, columns, _time_copy(moved, sets))
    for way, function in kernel.ways.items():
        if way not in among:
            continue
        try:
            calls = [_call(function, each, kernel.backward) for each in tensors]
            figures.seconds[way] = _time(calls)
            if eager:
                figures.eager[way] = _time_eager(calls)
        except Exception as error:  # noqa: BLE001  # another library may refuse a size: its cell stays empty
            torch.cuda.synchronize()
            print(f"{kernel.name}, {way}, {size}, {columns}, {dtype}: {str(error)[:300]}", file=sys.stderr)
    print(_line(figures), flush=True)
    return figures


def _time_copy(moved: int, sets: int) -> float:
    """Seconds of the faster of two copies that move as many bytes: into a new tensor, and into one that is there."""
    sources = [torch.empty(moved // 2, dtype=torch.uint8, device="cuda").fill_(1) for _ in range(sets)]
    target = torch.empty_like(sources[0])
    return min(_time([each.clone for each in sources]), _time([partial(target.copy_, each) for each in sources]))


def _call(function: Call, tensors: Tensors, backward: bool) -> Callable[[], Any]:
    if not backward:
        return lambda: function(*tensors)
    inputs = [tensor.detach().requires_grad_() for tensor in tensors]
    results = function(*inputs)
    results = results if isinstance(results, tuple) else (results,)
    grads = [_random(*each.shape, dtype=each.dtype) for each in results]
    return lambda: torch.autograd.grad(results, inputs, grads, retain_graph=True)


def _time(calls: list[Callable[[], Any]]) -> float:
    """Median seconds of a call on the device: the calls take turns in one CUDA graph, which is replayed."""
    for call in calls[:2] * 2:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    turns = list(islice(cycle(calls), max(len(calls), 4)))
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        for call in turns:
            call()
    graph.replay()
    samples = []
    for _ in range(7):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) / 1e3 / len(turns))
    return statistics.median(samples)


def _time_eager(calls: list[Callable[[], Any]]) -> float:
    """Median seconds of a call in a loop in Python, without a graph."""
    samples = []
    for _ in range(5):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for call in islice(cycle(calls), EAGER_CALLS):
            call()
        torch.cuda.synchronize()
        samples.append((time.perf_counter() - started) / EAGER_CALLS)
    return statistics.median(samples)


def _kernels(hub: Path) -> list[Kernel]:
    compiled = "torch[0-9]*-cu[0-9]*"
    norm, silu, rotary = (
        {"CUDA": _load(hub, name, compiled), "Triton": _load(hub, name, "torch-cuda")}
        for name in ("rms-norm", "silu-and-mul", "rotary")
    )
    liger, fla = _liger(), _fla()

    def ways(modules: dict[str, ModuleType | None], function: str, torchs: Call) -> dict[str, Call]:
        own = {way: getattr(module, function) for way, module in modules.items() if module is not None}
        others = {"Torch": torchs, "Liger": liger.get(function), "FLA": fla.get(function)}
        return {**own, **{way: call for way, call in others.items() if call is not None}}

    def rows(count: int) -> Callable[[int, int, torch.dtype], Tensors]:
        def make(size: int, columns: int, dtype: torch.dtype) -> Tensors:
            shape = size // dtype.itemsize // columns, columns
            return *(_random(*shape, dtype=dtype) for _ in range(count)), _random(columns, dtype=dtype)

        return make

    def gates(size: int, columns: int, dtype: torch.dtype) -> Tensors:
        shape = size // dtype.itemsize // columns, columns
        return _random(*shape, dtype=dtype), _random(*shape, dtype=dtype)

    def heads(size: int, columns: int, dtype: torch.dtype) -> Tensors:
        tokens = size // dtype.itemsize // columns
        q, k = (_random(1, tokens, count, 128, dtype=dtype).transpose(1, 2) for count in (columns // 128, 8))
        half = _random(1, tokens, 64, dtype=torch.float32)
        angles = torch.cat((half, half), dim=-1)
        return q, k, angles.cos().to(dtype), angles.sin().to(dtype)

    def first(times: int) -> Callable[[Tensors], int]:
        return lambda tensors: times * tensors[0].nbytes

    def turned(tensors: Tensors) -> int:
        q, k, cos, sin = tensors
        return 2 * (q.nbytes + k.nbytes) + cos.nbytes + sin.nbytes

    return [
        Kernel("RMSNorm", rows(1), first(2), ways(norm, "rms_norm", _torch_norm)),
        Kernel("RMSNorm backward", rows(1), first(3), ways(norm, "rms_norm", _torch_norm), backward=True),
        Kernel("fused add RMSNorm", rows(2), first(4), ways(norm, "fused_add_rms_norm", _torch_add_norm)),
        Kernel(
            "fused add RMSNorm backward",
            rows(2),
            first(4),
            ways(norm, "fused_add_rms_norm", _torch_add_norm),
            backward=True,
        ),
        Kernel("SiLU-and-mul", gates, first(3), ways(silu, "silu_mul", _torch_silu)),
        Kernel("SiLU-and-mul backward", gates, first(5), ways(silu, "silu_mul", _torch_silu), backward=True),
        Kernel("rotary", heads, turned, ways(rotary, "apply_rotary_pos_emb", _torch_rotary)),
    ]


def _torch_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, weight.shape, weight, EPS)


def _torch_add_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    summed = x + residual
    return _torch_norm(summed, weight), summed


def _torch_silu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(gate) * up


def _torch_rotary(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Tensors:
    def turn(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * cos.unsqueeze(1) + torch.cat((-second, first), dim=-1) * sin.unsqueeze(1)

    return turn(q), turn(k)


def _liger() -> dict[str, Call]:
    try:
        from liger_kernel.transformers import functional as liger
    except ImportError as error:
        print(f"Liger: {error}", file=sys.stderr)
        return {}
    # Not in place: the measured calls keep their gradients.
    return {
        "rms_norm": lambda x, weight: liger.liger_rms_norm(x, weight, EPS, in_place=False),
        "fused_add_rms_norm": lambda x, residual, weight: liger.liger_fused_add_rms_norm(
            x, residual, weight, EPS, in_place=False
        ),
        "silu_mul": liger.liger_swiglu,
        "apply_rotary_pos_emb": liger.liger_rope,
    }


def _fla() -> dict[str, Call]:
    try:
        from fla.modules.activations import swiglu
        from fla.modules.norm.layernorm import rms_norm
        from fla.modules.rotary import rotary_embedding
    except ImportError as error:
        print(f"FLA: {error}", file=sys.stderr)
        return {}

    def rotary(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Tensors:
        # It takes [B, T, H, D], and each angle once.
        half = cos[0, :, : cos.shape[-1] // 2].contiguous(), sin[0, :, : sin.shape[-1] // 2].contiguous()
        return tuple(rotary_embedding(x.transpose(1, 2), *half) for x in (q, k))

    return {
        "rms_norm": lambda x, weight: rms_norm(x, weight, None, eps=EPS),
        "fused_add_rms_norm": lambda x, residual, weight: rms_norm(x, weight, None, residual, eps=EPS, prenorm=True),
        "silu_mul": swiglu,
        "apply_rotary_pos_emb": rotary,
    }


def _random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    # Not from Torch's own generator, which a capture that fails leaves unusable.
    return torch.randn(shape, device="cuda", dtype=dtype, generator=_generator())


@cache
def _generator() -> torch.Generator:
    return torch.Generator("cuda").manual_seed(0)


def _load(hub: Path, name: str, pattern: str) -> ModuleType | None:
    from kernels import get_local_kernel

    found = sorted((hub / "kernels-examples" / name / "v1" / "build").glob(pattern))
    return get_local_kernel(found[0]) if found else None


def _line(figures: Figures) -> str:
    shares = "".join(f"  {way} {figures.copy / each:.0%}" for way, each in figures.seconds.items())
    what = f"{figures.kernel} {figures.dtype} {_size(figures.size)} x{figures.columns}"
    eager = "".join(f" {way} {each * 1e6:.1f}" for way, each in figures.eager.items())
    return f"{what:<52}{figures.copy * 1e6:>8.1f} us{shares}" + (f" | eager us:{eager}" if eager else "")


def _size(size: int) -> str:
    return f"{size // 2**20} MB" if size >= 2**20 else f"{size // 2**10} kB"


def _page(figures: list[Figures]) -> str:
    largest = next(each for each in figures if each.kernel == "RMSNorm" and each.size == LARGEST)
    sweep = [each for each in figures if each.dtype == "bfloat16" and each.columns == COLUMNS]
    return "\n".join(
        [
            "## The example kernels on a GPU",
            "",
            "Written by `benchmarks/gpu_kernels.py`; do not edit by hand.",
            "",
            *_environment(),
            f"- a copy of {_size(largest.size)} moves {2 * largest.size / largest.copy / 1e9:,.0f} GB/s, "
            "bytes read and written",
            "- CUDA and Triton: the builds of `examples/kernels/`; Torch: its own operators; Liger and FLA "
            "(flash-linear-attention): their public functions, the same tensors",
            "- time on the device: calls in one CUDA graph, over inputs that take turns, so that none is in the cache "
            f"where they are {_size(PAST_CACHE // MOST_SETS)} or larger; medians of 7 replays",
            "",
            "### Share of a copy's speed",
            "",
            "The time of a copy of the same bytes (`clone` or `copy_`, whichever is "
            "faster; every input read once, every output written once) over the "
            f"time of a call, bfloat16, rows of {COLUMNS} values (rotary: heads of 128). The size is the first "
            "tensor's. **Bold**: the target, 90% from 4 MB upward and no slower than Torch below, is met.",
            "",
            *_table([(f"{each.kernel}, {_size(each.size)}", each) for each in sweep]),
            "",
            f"Other types, {_size(LARGEST)}:",
            "",
            *_table(
                [
                    (f"{each.kernel}, {each.dtype}", each)
                    for each in figures
                    if each.dtype != "bfloat16" and each.columns == COLUMNS
                ]
            ),
            "",
            f"Short and long rows, {_size(LARGEST)}:",
            "",
            *_table(
                [(f"{each.kernel}, {each.columns}, {each.dtype}", each) for each in figures if each.columns != COLUMNS]
            ),
            "",
            "### A call in a loop in Python",
            "",
            f"Microseconds of a call, host and device, {_size(SIZES[0])}, bfloat16, without a graph. What is slower "
            "than Torch here waits for the host: Triton's launch and an operator registered from Python.",
            "",
            "| kernel | " + " | ".join(WAYS) + " |",
            "|---|" + "---|" * len(WAYS),
            *(
                f"| {each.kernel} | "
                + " | ".join(f"{each.eager[way] * 1e6:.1f}" if way in each.eager else "–" for way in WAYS)
                + " |"
                for each in figures
                if each.eager
            ),
            "",
            "### Where the target is missed",
            "",
            *_misses(figures),
            "",
            "A norm's backward pass adds up the weight's gradient in a second kernel, whose input is as many bytes as "
            "a few MB of rows. Of long rows a multiprocessor has one, or a part of one, at a time, and waits for its "
            "sum; Triton reads rows of more than 32,768 values twice. With 4 MB, a call takes hardly longer than the "
            "launch of its blocks.",
        ]
    )


def _misses(figures: list[Figures]) -> list[str]:
    """The measurements that are below the target, for each of our two ways and each kernel."""
    lines = []
    for way in ("CUDA", "Triton"):
        missed: dict[str, list[str]] = {}
        for each in figures:
            share = each.share(way)
            if share is None or _reaches(each, share):
                continue
            what = _size(each.size) if each.columns == COLUMNS else f"rows of {each.columns:,}"
            dtype = "" if each.dtype == "bfloat16" else f", {each.dtype}"
            missed.setdefault(each.kernel, []).append(f"{what}{dtype} {share:.1%}")
        lines += [f"- {way}, {kernel}: {'; '.join(each)}." for kernel, each in missed.items()]
        slower = [
            f"{each.kernel} {each.eager[way] * 1e6:.0f} µs ({each.eager['Torch'] * 1e6:.0f})"
            for each in figures
            if way in each.eager and "Torch" in each.eager and each.eager[way] > each.eager["Torch"]
        ]
        if slower:
            lines.append(f"- {way}, in a loop in Python, with Torch's in brackets: {'; '.join(slower)}.")
    return lines or ["Nowhere."]


def _reaches(figures: Figures, share: float) -> bool:
    """Whether a share of the copy's speed is the target's: 90% from 4 MB upward, and no slower than Torch below."""
    return share >= 0.9 if figures.size >= 2**22 else share >= (figures.share("Torch") or 0.0)


def _environment() -> list[str]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    gpu = subprocess.run(query, capture_output=True, text=True).stdout.strip().splitlines()
    versions = []
    for package in ("triton", "liger-kernel", "fla-core"):
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{package} not installed")
    return [
        f"- date: {datetime.datetime.now(datetime.timezone.utc).date()}",
        f"- GPU (name, driver, memory): {gpu[0] if gpu else torch.cuda.get_device_name()}",
        f"- Torch {torch.__version__}, CUDA {torch.version.cuda}, {', '.join(versions)}",
    ]


def _table(rows: list[tuple[str, Figures]]) -> list[str]:
    def cell(figures: Figures, way: str) -> str:
        share = figures.share(way)
        if share is None:
            return "–"
        reached = way in ("CUDA", "Triton") and _reaches(figures, share)
        # What is just below the target is not to be read as if it met it.
        text = f"{share:.1%}" if not reached and f"{share:.0%}" == "90%" else f"{share:.0%}"
        return f"**{text}**" if reached else text

    return [
        "| kernel | copy | " + " | ".join(WAYS) + " |",
        "|---|---|" + "---|" * len(WAYS),
        *(
            f"| {what} | {figures.copy * 1e6:,.1f} µs | " + " | ".join(cell(figures, way) for way in WAYS) + " |"
            for what, figures in rows
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
