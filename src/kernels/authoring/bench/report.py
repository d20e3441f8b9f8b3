"""What a measurement gives, as data."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

__all__ = ["CRASHED", "FAILED", "NOISY", "OK", "TIMED_OUT", "WRONG", "Machine", "Outcome", "Report", "Times"]

#: Quartiles this many times apart are noise: another program had the processor, or a clock changed its speed. Where a
#: device is a run's own they are within a few percent of each other.
NOISY = 1.5

#: The verdicts on a workload.
OK, WRONG, FAILED, TIMED_OUT, CRASHED = "ok", "wrong", "failed", "timed out", "crashed"


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """How long the calls of one function took, in seconds.

    Half of them took no longer than the median, half between the quartiles `q1` and `q3`. None of these moves when
    another program takes the processor for a few of the calls, as a mean and a standard deviation would.
    """

    median_seconds: float
    q1_seconds: float
    q3_seconds: float
    min_seconds: float
    max_seconds: float
    calls: int

    @property
    def spread(self) -> float:
        """How many times the lower quartile the upper one is: near 1 where calls take alike."""
        return self.q3_seconds / self.q1_seconds if self.q1_seconds > 0 else 1.0

    @staticmethod
    def of(seconds: Sequence[float]) -> Times:
        """The summary of at least one call.

        Raises:
            ValueError: There is none.

        Example:
            >>> times = Times.of([3.0, 1.0, 2.0, 5.0, 4.0])
            >>> times.median_seconds, times.q1_seconds, times.q3_seconds
            (3.0, 2.0, 4.0)
        """
        if not seconds:
            raise ValueError("`seconds` is empty; allowed is at least one call's time.")
        ordered = sorted(seconds)
        return Times(
            median_seconds=_quantile(ordered, 0.5),
            q1_seconds=_quantile(ordered, 0.25),
            q3_seconds=_quantile(ordered, 0.75),
            min_seconds=ordered[0],
            max_seconds=ordered[-1],
            calls=len(ordered),
        )


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Between neighbours by their distance: definition 7 of Hyndman and Fan (1996), numpy's default."""
    place = (len(ordered) - 1) * share
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one workload.

    Attributes:
        script: Name of the file.
        benchmark: Name of the class; "" where the file itself failed.
        workload: What follows `benchmark_`; "" where the file itself failed.
        verdict: `ok`, `wrong`, `failed`, `timed out` or `crashed`.
        reason: Why it is not `ok`, else "".
        verified: Whether the result was compared with a reference and agreed; None where there is no reference.
        max_difference: The largest difference from the reference, where one was computed.
        times: The kernel's times; None unless the verdict is `ok`.
        reference: The times of the method that gives the reference.
        speedup: The reference's median over the kernel's.
    """

    script: str
    benchmark: str = ""
    workload: str = ""
    verdict: str = OK
    reason: str = ""
    verified: bool | None = None
    max_difference: float | None = None
    times: Times | None = None
    reference: Times | None = None
    speedup: float | None = None

    @property
    def name(self) -> str:
        """What to call it in a table or a plot.

        Example:
            >>> Outcome(script="benchmark_relu.py", benchmark="Relu", workload="small").name
            'Relu.small'
        """
        return f"{self.benchmark}.{self.workload}" if self.benchmark else self.script

    @property
    def noise(self) -> str:
        """Whose times are too wide apart for the speed to say much; "" where nobody's are.

        Example:
            >>> Outcome(script="benchmark_relu.py", times=Times.of([1.0, 1.0, 4.0, 4.0])).noise
            'quartiles 4.0x apart (kernel)'
        """
        sides = (("kernel", self.times), ("reference", self.reference))
        wide = [
            f"{times.spread:.1f}x apart ({side})" for side, times in sides if times is not None and times.spread > NOISY
        ]
        return f"quartiles {', '.join(wide)}" if wide else ""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured on.

    Attributes:
        target: The machine as `Target` writes it.
        backend: The backend's name.
        device: Torch's name of the device.
        device_name: What the device's vendor calls it, or the processor's name.
        torch: Version of Torch.
        threads: Threads that Torch uses on the processor.
        python: Version of Python.
        kernels: Version of this package.
        date: When it was measured, in ISO 8601 and UTC.
    """

    target: str
    backend: str
    device: str
    device_name: str
    torch: str
    threads: int
    python: str
    kernels: str
    date: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel's measurement.

    Attributes:
        kernel: The repository, or the folder.
        commit: The repository's commit; None for a folder.
        variant: The build that was measured.
        machine: What was measured on.
        iterations: Calls that were timed.
        warmup: Calls before them.
        outcomes: One for each workload, in the order they stand in the files.
        notes: What is worth knowing beside them.
    """

    kernel: str
    commit: str | None
    variant: str
    machine: Machine
    iterations: int
    warmup: int
    outcomes: tuple[Outcome, ...]
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every workload ran and none was wrong."""
        return all(outcome.verdict == OK for outcome in self.outcomes)
