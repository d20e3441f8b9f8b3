"""One workload, from a fresh instance to its times."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from kernels.authoring.bench.comparison import compare
from kernels.authoring.bench.report import FAILED, OK, WRONG, Outcome
from kernels.authoring.bench.scripts import Workload, explain
from kernels.authoring.bench.timing import Clock, time_calls
from kernels.benchmark import Benchmark

__all__ = ["REFERENCE_SECONDS", "run_workload", "synchronizer"]

#: A reference is written to be right, not to be fast: it is called less often where it takes long.
REFERENCE_SECONDS = 10.0


def run_workload(
    workload: Workload,
    kernel: Any,
    device: str,
    *,
    iterations: int,
    warmup: int,
    clock: Clock = time.perf_counter,
) -> Outcome:
    """Run a workload: seed, setup, one call, comparison with the reference, times of the reference and of the kernel.

    Args:
        workload: The workload.
        kernel: The kernel's module.
        device: Name of the Torch device.
        iterations: Calls that are timed.
        warmup: Calls before them.
        clock: Where the time is read.

    Returns:
        What became of it; never raises for what the workload's own code raises.
    """
    step = "its constructor"
    try:
        instance = workload.benchmark()
        instance.kernel, instance.device = kernel, device
        synchronize = synchronizer(device)
        _seed(instance.seed)
        step = f"setup_{workload.name}" if hasattr(instance, f"setup_{workload.name}") else "setup"
        getattr(instance, step)()
        call = getattr(instance, step := f"benchmark_{workload.name}")
        call()
        synchronize()
        verified, largest, reference = None, None, None
        verify = getattr(instance, f"verify_{workload.name}", None)
        if verify is not None:
            step = f"verify_{workload.name}"
            # Before anything is timed: further calls may change what was the input.
            comparison = _verify(instance, verify, synchronize)
            largest = comparison.largest
            if comparison.reason:
                outcome = workload.outcome(WRONG, comparison.reason)
                return _with(outcome, verified=False, max_difference=largest)
            verified = True
            reference = time_calls(
                verify,
                synchronize,
                iterations=iterations,
                warmup=warmup,
                most_seconds=REFERENCE_SECONDS,
                clock=clock,
            )
        step = f"benchmark_{workload.name}"
        times = time_calls(call, synchronize, iterations=iterations, warmup=warmup, clock=clock)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a stranger's code raises is its verdict
        return workload.outcome(FAILED, f"{step} raised {explain(error, workload.script)}")
    speedup = None
    if reference is not None and times.median_seconds > 0:
        speedup = reference.median_seconds / times.median_seconds
    return _with(
        workload.outcome(OK, ""),
        verified=verified,
        max_difference=largest,
        times=times,
        reference=reference,
        speedup=speedup,
    )


def _with(outcome: Outcome, **changes: Any) -> Outcome:
    return msgspec.structs.replace(outcome, **changes)


def _verify(instance: Benchmark, verify: Callable[[], Any], synchronize: Callable[[], object]) -> Any:
    wanted = verify()
    synchronize()
    return compare(instance.out, wanted, rtol=instance.rtol, atol=instance.atol)


def _seed(seed: int | None) -> None:
    if seed is None:
        return
    import torch

    torch.manual_seed(seed)  # of every device
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def synchronizer(device: str) -> Callable[[], object]:
    """The function that waits for a Torch device, made the current one; one that does nothing where Torch has none.

    Raises:
        RuntimeError: This Torch has no such device.
    """
    import torch

    place = torch.device(device)
    module = torch.get_device_module(place)
    if place.index is not None and hasattr(module, "set_device"):
        module.set_device(place)
    wait: Callable[[], object] = getattr(module, "synchronize", lambda: None)
    return wait
