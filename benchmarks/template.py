"""How fast a kernel made by `kernels init --backends cuda` is: `python benchmarks/template.py [--json FILE]`.

Its bandwidth (the input read once, the output written once) by size and type, beside Torch's own ReLU and a
device-to-device copy. "device" is the time of a call that was queued before the first began, measured by CUDA events;
"host" is the time of a call in a loop in Python, where small sizes wait for the host.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

#: The number of values, by powers of two: from one block to far past the cache.
EXPONENTS = (8, 12, 14, 16, 18, 20, 22, 24, 26, 28, 29)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
SAMPLES = 7
# While the host queues a call, the device waits: some 100 us of cycles for each.
HEAD_START_CYCLES = 200_000


def main() -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures to a file, too")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("No CUDA device.", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(_templates(Path(folder)))
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def measure(kernels: dict[str, ModuleType]) -> dict[str, Any]:
    """Measure the kernels' `relu` for every size and type, and print a table.

    Args:
        kernels: The modules, by the name of their template.

    Returns:
        The figures, as plain data: seconds and GB/s.
    """
    print(f"{torch.cuda.get_device_name()}, Torch {torch.__version__}. Device time: GB/s (share of copy). Host: us.")
    names = ["copy", "torch", *kernels]
    print(f"{'type':<9}{'values':>11}" + "".join(f"{name:>16}" for name in names) + "   host " + ", ".join(names[1:]))
    rows = []
    for dtype in DTYPES:
        for exponent in EXPONENTS:
            # The second is a view that starts at an address that no vector may start at.
            for offset in (0, 1) if exponent in (14, 22, 28) else (0,):
                rows.append(_row(kernels, dtype, 2**exponent, offset))
                _print(rows[-1], names)
    return {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}


def _row(kernels: dict[str, ModuleType], dtype: torch.dtype, count: int, offset: int) -> dict[str, Any]:
    x = torch.randn(count + offset, device="cuda", dtype=dtype)[offset:]
    y = torch.empty(count, device="cuda", dtype=dtype)
    runs: dict[str, Callable[[], Any]] = {"copy": lambda: y.copy_(x), "torch": lambda: torch.relu(x)}
    for name, kernel in kernels.items():
        assert torch.equal(kernel.relu(x), torch.relu(x)), name
        runs[name] = lambda relu=kernel.relu: relu(x)
    calls = 20 if count <= 2**22 else 4
    device = {name: _device_seconds(run, calls) for name, run in runs.items()}
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "values": count,
        "aligned": offset == 0,
        "device_seconds": device,
        "host_seconds": {name: _host_seconds(run) for name, run in runs.items()} if count <= 2**22 else {},
        "gb_per_s": {name: 2 * x.nbytes / seconds / 1e9 for name, seconds in device.items()},
    }


def _print(row: dict[str, Any], names: list[str]) -> None:
    rate = row["gb_per_s"]
    shares = (f"{rate[name]:>9.0f} ({rate[name] / rate['copy']:>4.0%})" for name in names)
    host = ", ".join(f"{row['host_seconds'][name] * 1e6:.1f}" for name in names[1:] if row["host_seconds"])
    values = f"{row['values']}{'' if row['aligned'] else '*'}"
    print(f"{row['dtype']:<9}{values:>11}{''.join(shares)}   {host}", flush=True)


def _templates(folder: Path) -> dict[str, ModuleType]:
    """The kernels of the CUDA and of the Triton template, built here."""
    from kernels import get_local_kernel
    from kernels.authoring.compile import build_variants
    from kernels.authoring.scaffold import new_kernel

    found = {}
    for name, noarch in (("cuda", False), ("triton", True)):
        source = new_kernel(f"{name}-relu", folder / name, backends=["cuda"], noarch=noarch)
        [built] = build_variants(source, folder / f"{name}-build", this_gpu=not noarch)
        if built.path is None:
            print(f"{name} was not built. {built.reason}\n{built.detail}", file=sys.stderr)
        else:
            found[name] = get_local_kernel(built.path)
    return found


def _device_seconds(run: Callable[[], Any], calls: int) -> float:
    """Median seconds of a call on the device."""
    for _ in range(3):
        run()
    times = []
    for _ in range(SAMPLES):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        torch.cuda._sleep(HEAD_START_CYCLES * calls)
        start.record()
        for _ in range(calls):
            run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / calls)
    return statistics.median(times)


def _host_seconds(run: Callable[[], Any], calls: int = 200) -> float:
    """Median seconds of a call in a loop, with the host's part."""
    times = []
    for _ in range(SAMPLES):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            run()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / calls)
    return statistics.median(times)


if __name__ == "__main__":
    sys.exit(main())
