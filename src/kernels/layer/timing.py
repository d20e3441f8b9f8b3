"""How long a call takes: the whole of it, or the device's share alone; by Python's and Triton's own tools."""

from __future__ import annotations

import importlib.util
import math
import random
import statistics
import time
import timeit
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kernels.support.distributed import gathered, rank_count

if TYPE_CHECKING:
    import torch

__all__ = [
    "Seconds",
    "Taken",
    "calls_side_by_side",
    "clock",
    "is_accelerator",
    "ratio",
    "side_by_side",
    "summary",
    "taken",
]

#: How often each contender is measured, in turn with the others.
_ROUNDS = 7
#: How often a whole call is, at most.
_CALL_ROUNDS = 40
#: For how long one measurement runs, about, in seconds.
_BLOCK = 0.003
#: How often a call is repeated in a measurement, at most: a device's queue holds some thousand launches.
_MOST_REPEATS = 50


class Seconds(NamedTuple):
    """How long a call takes.

    Attributes:
        median: The median of the measurements, in seconds.
        noise: How far apart the middle half of them is, in seconds.
    """

    median: float
    noise: float

    def is_faster_than(self, other: Seconds) -> bool:
        """Whether the difference is more than the noise of both."""
        return other.median - self.median > self.noise + other.noise


class Taken(NamedTuple):
    """How long one call took, in seconds.

    Attributes:
        whole: Until the device was done.
        host: Until it returned.
    """

    whole: float
    host: float


def side_by_side(calls: Sequence[Callable[[], Any]], device: torch.device, *, device_alone: bool) -> list[Seconds]:
    """Measure calls in turn, each several times, after one call that is not measured.

    Args:
        calls: What to measure.
        device: Where it runs.
        device_alone: Measure the device's share alone, where Triton can; else the host's share counts, too.
    """
    several = rank_count() > 1  # a layer may wait for the others: each rank has to call it as often as they do
    if device_alone and is_accelerator(device) and not several and importlib.util.find_spec("triton") is not None:
        return _summed([[_on_device(call) for call in calls] for _ in range(_ROUNDS)])
    blocks = [(call, _repeats(max(gathered(_whole(call, 1))))) for call in calls]
    return _summed([[_whole(call, repeats) for call, repeats in blocks] for _ in range(_ROUNDS)])


def calls_side_by_side(
    calls: Sequence[Callable[[], Callable[[], Any]]], before: Sequence[Callable[[], Any]], seconds: float
) -> list[list[Taken]]:
    """Measure whole calls of a model in turn.

    Args:
        calls: What makes a call ready, untimed, and returns it.
        before: What to do before each: one for each call.
        seconds: How long one of them takes, about.

    Returns:
        The measurements of each call, in the same order of rounds.
    """
    repeats = max(1, min(10, int(0.02 / max(seconds, 1e-6))))
    rounds = max(3, min(_CALL_ROUNDS, int(3.0 / max(seconds * (repeats + 1) * len(calls), 1e-6))))
    found: list[list[Taken]] = [[] for _ in calls]
    order = list(range(len(calls)))
    shuffle = random.Random(0).shuffle  # the same order on all ranks, so that none waits for another
    for _ in range(rounds):
        shuffle(order)
        for place in order:
            before[place]()
            calls[place]()()  # the first one after a change of forwards misses caches of the host
            each = [taken(calls[place]()) for _ in range(repeats)]
            # The least: what else the host does makes a call slower, never faster.
            found[place].append(Taken(*map(min, zip(*each, strict=True))))
    return found


def taken(call: Callable[[], Any]) -> Taken:
    """How long a call takes."""
    began = clock()
    call()
    returned = clock(wait=False)
    return Taken(clock() - began, returned - began)


def ratio(samples: Sequence[Taken], before: Sequence[Taken], *, host: float = 1.0) -> Seconds:
    """How long a call takes by what it took before, and how sure that is.

    Those of one round are compared, since a host gets faster and slower within seconds.

    Args:
        samples: The measurements.
        before: Those before.
        host: On a host that takes how many times as long: where the device waits for the host, so does the call.
    """
    each = summary([_on_host(one, host) / _on_host(other, host) for one, other in zip(samples, before, strict=True)])
    return Seconds(each.median, 2 * each.noise / math.sqrt(len(samples)))


def _on_host(each: Taken, slower: float) -> float:
    return max(each.whole, slower * each.host)


def is_accelerator(device: torch.device) -> bool:
    """Whether the host only gives a device its work, so that the device's share can be measured alone."""
    import torch

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator is not None and device.type == accelerator.type


def summary(samples: Sequence[float]) -> Seconds:
    """The median of measurements, and how far apart their middle half is."""
    low, median, high = statistics.quantiles(samples, n=4) if len(samples) > 1 else [samples[0]] * 3
    return Seconds(median, (high - low) / 2)


def _summed(rounds: Sequence[Sequence[float]]) -> list[Seconds]:
    return [summary(samples) for samples in zip(*rounds, strict=True)]


def _repeats(seconds: float) -> int:
    return max(1, min(_MOST_REPEATS, int(_BLOCK / max(seconds, 1e-7))))


def _whole(call: Callable[[], Any], repeats: int) -> float:
    """The seconds of one call, with the host's share; the timer waits for the device."""
    call()
    return timeit.Timer(call, timer=clock).timeit(repeats) / repeats


def clock(*, wait: bool = True) -> float:
    """Now, in seconds; by default when the device has done what it was given."""
    import torch

    # As torch.utils.benchmark does, which cannot be imported in every process: it needs setuptools.
    if wait and torch.accelerator.is_available():
        torch.accelerator.synchronize()
    return time.perf_counter()


def _on_device(call: Callable[[], Any]) -> float:
    from triton.testing import do_bench

    return float(do_bench(call, warmup=2, rep=10, return_mode="median")) / 1000
