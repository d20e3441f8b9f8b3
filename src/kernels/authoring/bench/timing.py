"""The times of a function's calls, each with the wait until the device has done its work."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
    most_seconds: float | None = None,
    clock: Clock = time.perf_counter,
) -> Times:
    """Time a function: `warmup` calls that do not count, then `iterations` that do.

    A call's time includes starting the work and waiting for the device; the device is idle before each.

    Args:
        call: The function.
        synchronize: Waits until the device has done its work.
        iterations: Calls that are timed, at least 1.
        warmup: Calls before them: compilers, caches and clock rates settle meanwhile.
        most_seconds: Where these have passed, fewer calls do, but at least one is timed; None for no such limit.
        clock: Where the time is read.

    Returns:
        The times.

    Example:
        >>> ticks = iter(range(100))
        >>> time_calls(lambda: None, lambda: None, iterations=3, warmup=2, clock=lambda: float(next(ticks))).calls
        3
    """
    began = clock()

    def late() -> bool:
        return most_seconds is not None and clock() - began >= most_seconds

    seconds: list[float] = []
    with _no_collection():
        for _ in range(warmup):
            call()
            synchronize()
            if late():
                break
        for _ in range(iterations):
            start = clock()
            call()
            synchronize()
            seconds.append(clock() - start)
            if late():
                break
    return Times.of(seconds)


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection in between, as in Python's own `timeit`: it would count for whichever call it meets."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
