"""Run one workload: from a new instance of its class to its times."""

from __future__ import annotations

import gc
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from kernels.authoring.bench.comparison import compare
from kernels.authoring.bench.report import FAILED, OK, WRONG, WorkloadOutcome
from kernels.authoring.bench.scripts import Workload, explain
from kernels.authoring.bench.timing import Clock, time_calls

__all__ = ["REFERENCE_SECONDS", "run_workload", "synchronizer"]

#: A reference is written to be right, not fast: a slow one is called less often.
REFERENCE_SECONDS = 10.0


def run_workload(
    workload: Workload,
    kernel: Any,
    device: str,
    *,
    iterations: int,
    warmup: int,
    clock: Clock = time.perf_counter,
) -> WorkloadOutcome:
    """Run a workload: seed, setup, one call, comparison with the reference, times of the reference and of the kernel.

    An exception of the workload's own code is an outcome too. `clock` gives the time in seconds.
    """
    step = "its constructor"
    counts = {"iterations": iterations, "warmup": warmup}
    verified = largest = reference = speedup = None
    gc.collect()  # the memory of the workload before
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
        verify = getattr(instance, f"verify_{workload.name}", None)
        if verify is not None:
            step = f"verify_{workload.name}"
            # Before anything is timed: further calls may change the input.
            expected = verify()
            synchronize()
            comparison = compare(instance.out, expected, rtol=instance.rtol, atol=instance.atol)
            verified, largest = not comparison.reason, comparison.largest
            if comparison.reason:
                outcome = WorkloadOutcome.of(workload.key, WRONG, comparison.reason)
                return msgspec.structs.replace(outcome, verified=False, max_difference=largest)
            reference = time_calls(verify, synchronize, **counts, max_seconds=REFERENCE_SECONDS, clock=clock)
        step = f"benchmark_{workload.name}"
        times = time_calls(call, synchronize, **counts, clock=clock)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - an error of third-party code is its verdict
        return WorkloadOutcome.of(workload.key, FAILED, f"{step} raised {explain(error, workload.script)}")
    if reference is not None and times.median_seconds > 0:
        speedup = reference.median_seconds / times.median_seconds
    return msgspec.structs.replace(
        WorkloadOutcome.of(workload.key, OK),
        verified=verified,
        max_difference=largest,
        times=times,
        reference=reference,
        speedup=speedup,
    )


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
    """Make a Torch device the current one, and return the function that waits for it.

    The function does nothing on a device that Torch never needs to wait for.

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
