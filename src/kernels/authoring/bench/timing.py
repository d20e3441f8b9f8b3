"""Time a function's calls, each with the wait until the device has finished.

Neither Torch's nor Triton's timer does this: `torch.utils.benchmark` averages over blocks of calls and waits for few
kinds of devices; `triton.testing.do_bench` runs for a time, not for a number of calls, and needs a GPU.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

from kernels.authoring.bench.report import Times

__all__ = ["Clock", "time_calls"]

#: Seconds since any fixed moment.
Clock = Callable[[], float]


def time_calls(
    call: Callable[[], object],
    synchronize: Callable[[], object],
    *,
    iterations: int,
    warmup: int,
    max_seconds: float = float("inf"),
    clock: Clock = time.perf_counter,
) -> Times:
    """Time a function: `warmup` calls that are not counted, then `iterations` that are.

    A call's time includes starting the work and waiting for the device (`synchronize`); the device is idle before each
    call. After `max_seconds` no further call is made, but at least one is timed.

    Example:
        >>> ticks = iter(range(100))
        >>> time_calls(lambda: None, lambda: None, iterations=3, warmup=2, clock=lambda: float(next(ticks))).calls
        3
    """
    end = clock() + max_seconds
    seconds: list[float] = []
    collecting = gc.isenabled()
    gc.disable()  # as Python's `timeit` does: a collection would count for the call that it interrupts
    try:
        for _ in range(warmup):
            call()
            synchronize()
            if clock() >= end:
                break
        while len(seconds) < iterations and (not seconds or clock() < end):
            start = clock()
            call()
            synchronize()
            seconds.append(clock() - start)
    finally:
        if collecting:
            gc.enable()
    return Times.of(seconds)
