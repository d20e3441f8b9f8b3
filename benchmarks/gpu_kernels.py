"""How close the example kernels come to the GPU's memory bandwidth: `python benchmarks/gpu_kernels.py [--json FILE]`.

Each kernel's bytes (every input read once, every output written once) over its time, beside the same figure of a
device-to-device copy of 1 GiB and of Torch's own operators. Times are medians, measured by CUDA events, of calls that
were all queued before the first began, so what the host does for a call is not in them; sizes are past the cache.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "kernels"))

REPEATS = 30
# The device waits this long, some 50 ms, while the host queues the calls.
HEAD_START_CYCLES = 100_000_000


def main() -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hub", type=Path, help="folder of repositories with the example kernels; default: build them")
    parser.add_argument("--json", type=Path, help="write the figures to a file, too")
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
        figures = measure(hub)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def measure(hub: Path) -> dict[str, Any]:
    """Measure every kernel and print a table.

    Args:
        hub: The folder of repositories.

    Returns:
        The figures, as plain data.
    """
    copy = _copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}, Torch {torch.__version__}; a copy of 1 GiB: {copy:.0f} GB/s")
    print(f"{'kernel':<44}{'us':>9}{'GB/s':>8}{'of copy':>9}{'Torch us':>10}{'Torch is':>10}")
    rows = []
    for label, run, moved, eager in _cases(hub):
        seconds, eager_seconds = _time(run), _time(eager)
        rate = moved / seconds / 1e9
        rows.append(
            {
                "kernel": label,
                "seconds": seconds,
                "gb_per_s": rate,
                "of_copy": rate / copy,
                "torch_seconds": eager_seconds,
            }
        )
        print(
            f"{label:<44}{seconds * 1e6:>9.1f}{rate:>8.0f}{rate / copy:>8.0%} {eager_seconds * 1e6:>10.1f}"
            f"{eager_seconds / seconds:>8.1f} x"
        )
    return {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "copy_gb_per_s": copy, "kernels": rows}


Case = tuple[str, Callable[[], Any], int, Callable[[], Any]]


def _cases(hub: Path) -> Iterator[Case]:
    compiled, triton = _load(hub, "rms-norm", "torch[0-9]*-cu[0-9]*"), _load(hub, "rms-norm", "torch-cuda")
    silu, rotary = _load(hub, "silu-and-mul", "torch-cuda"), _load(hub, "rotary", "torch-cuda")
    functional = torch.nn.functional
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        name = str(dtype).removeprefix("torch.")
        for rows, n in ((65536, 4096), (32768, 8192), (2097152, 128)):
            x, weight = _random(rows, n, dtype=dtype), _random(n, dtype=dtype)
            moved = 2 * x.nbytes + weight.nbytes

            def torchs(x: torch.Tensor = x, weight: torch.Tensor = weight) -> torch.Tensor:
                return functional.rms_norm(x, weight.shape, weight, 1e-6)

            for kind, kernel in (("CUDA", compiled), ("Triton", triton)):
                if kernel is not None:
                    run = kernel.rms_norm
                    label = f"RMSNorm {kind} {name} {rows} x {n}"
                    yield label, lambda run=run, x=x, weight=weight: run(x, weight), moved, torchs
            if triton is not None:
                yield _backward(f"RMSNorm Triton backward {name} {rows} x {n}", triton.rms_norm, torchs, x, weight)
            del x, weight, torchs
        if silu is not None:
            gate, up = _random(16384, 14336, dtype=dtype), _random(16384, 14336, dtype=dtype)
            run = silu.silu_mul
            yield (
                f"SiLU-and-mul Triton {name} 16384 x 14336",
                lambda run=run, gate=gate, up=up: run(gate, up),
                3 * gate.nbytes,
                lambda gate=gate, up=up: functional.silu(gate) * up,
            )
            del gate, up
        if rotary is not None:
            q, k = (_random(4, 8192, heads, 128, dtype=dtype).transpose(1, 2) for heads in (32, 8))
            cos, sin = _random(1, 8192, 128, dtype=dtype), _random(1, 8192, 128, dtype=dtype)
            run = rotary.apply_rotary_pos_emb
            yield (
                f"rotary Triton {name} 4 x 8192 x (32 + 8) x 128",
                lambda run=run, q=q, k=k, cos=cos, sin=sin: run(q, k, cos, sin),
                2 * (q.nbytes + k.nbytes) + cos.nbytes + sin.nbytes,
                lambda q=q, k=k, cos=cos, sin=sin: (_rotated(q, cos, sin), _rotated(k, cos, sin)),
            )
            del q, k, cos, sin


def _backward(
    label: str,
    run: Callable[..., torch.Tensor],
    torchs: Callable[..., torch.Tensor],
    x: torch.Tensor,
    weight: torch.Tensor,
) -> Case:
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    results = run(x, weight), torchs(x, weight)
    grad = torch.randn_like(results[0])

    def backward(result: torch.Tensor) -> Any:
        return torch.autograd.grad(result, (x, weight), grad, retain_graph=True)

    return label, lambda: backward(results[0]), 3 * x.nbytes, lambda: backward(results[1])


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos.unsqueeze(1) + torch.cat((-second, first), dim=-1) * sin.unsqueeze(1)


def _random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype)


def _load(hub: Path, name: str, pattern: str) -> ModuleType | None:
    from kernels import get_local_kernel

    found = sorted((hub / "kernels-examples" / name / "v1" / "build").glob(pattern))
    return get_local_kernel(found[0]) if found else None


def _copy_bandwidth() -> float:
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / _time(lambda: target.copy_(source)) / 1e9


def _time(run: Callable[[], Any]) -> float:
    """Median seconds of a call."""
    for _ in range(3):
        run()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(REPEATS + 1)]
    torch.cuda.synchronize()
    torch.cuda._sleep(HEAD_START_CYCLES)
    events[0].record()
    for event in events[1:]:
        run()
        event.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in pairwise(events)) / 1e3


if __name__ == "__main__":
    sys.exit(main())
