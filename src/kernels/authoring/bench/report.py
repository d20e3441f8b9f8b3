"""The result of a measurement, as data."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

__all__ = ["CRASHED", "FAILED", "NOISY", "OK", "TIMED_OUT", "WRONG", "Machine", "Report", "Times", "WorkloadOutcome"]

#: Quartiles this many times apart are noise: another program used the processor, or a clock rate changed. On an idle
#: device they are within a few percent of each other.
NOISY = 1.5

#: The verdicts on a workload.
OK, WRONG, FAILED, TIMED_OUT, CRASHED = "ok", "wrong", "failed", "timed out", "crashed"


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """How long the calls of one function took, in seconds.

    Median and quartiles (`q1`, `q3`) do not move if another program interrupts a few of the calls, as a mean and a
    standard deviation would.
    """

    median_seconds: float
    q1_seconds: float
    q3_seconds: float
    min_seconds: float
    max_seconds: float
    calls: int
    mean_seconds: float = 0.0
    std_seconds: float = 0.0
    outliers: int = 0  # calls further than 1.5 times the distance of the quartiles from them

    @property
    def spread(self) -> float:
        """The upper quartile divided by the lower one: near 1 if all calls take equally long."""
        return self.q3_seconds / self.q1_seconds if self.q1_seconds > 0 else 1.0

    @staticmethod
    def of(seconds: Sequence[float]) -> Times:
        """The summary of at least one call.

        Example:
            >>> times = Times.of([3.0, 1.0, 2.0, 5.0, 4.0])
            >>> times.median_seconds, times.q1_seconds, times.q3_seconds
            (3.0, 2.0, 4.0)
        """
        if not seconds:
            raise ValueError("`seconds` is empty; expected at least one call's time.")
        # As numpy.quantile does; Python before 3.13 needs two values.
        values = [*seconds, *seconds] if len(seconds) == 1 else seconds
        q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
        beyond = 1.5 * (q3 - q1)
        return Times(
            median_seconds=median,
            q1_seconds=q1,
            q3_seconds=q3,
            min_seconds=min(seconds),
            max_seconds=max(seconds),
            calls=len(seconds),
            mean_seconds=statistics.fmean(seconds),
            std_seconds=statistics.pstdev(seconds),
            outliers=sum(each < q1 - beyond or each > q3 + beyond for each in seconds),
        )


class WorkloadOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one workload.

    Attributes:
        script: Name of the file.
        benchmark: Name of the class; "" if the file itself failed.
        workload: What follows `benchmark_`; "" if the file itself failed.
        verdict: `ok`, `wrong`, `failed`, `timed out` or `crashed`.
        reason: Why it is not `ok`, else "".
        verified: Whether the result agreed with the reference; None without a reference.
        max_difference: The largest difference from the reference; None if not computed.
        times: The kernel's times; None unless the verdict is `ok`.
        reference: The reference's times.
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

    @staticmethod
    def of(key: tuple[str, str, str], verdict: str, reason: str = "") -> WorkloadOutcome:
        """An outcome without times; `key` is the script, the class and the workload."""
        script, benchmark, workload = key
        return WorkloadOutcome(script=script, benchmark=benchmark, workload=workload, verdict=verdict, reason=reason)

    @property
    def name(self) -> str:
        """The name in tables and plots.

        Example:
            >>> WorkloadOutcome(script="benchmark_relu.py", benchmark="Relu", workload="small").name
            'Relu.small'
        """
        return f"{self.benchmark}.{self.workload}" if self.benchmark else self.script

    @property
    def noise(self) -> str:
        """Which times vary too much for the speedup to be reliable; "" if none do.

        Example:
            >>> WorkloadOutcome(script="benchmark_relu.py", times=Times.of([1.0, 1.0, 4.0, 4.0])).noise
            'quartiles 4.0x apart (kernel)'
        """
        sides = (("kernel", self.times), ("reference", self.reference))
        wide = [f"{times.spread:.1f}x apart ({side})" for side, times in sides if times and times.spread > NOISY]
        return f"quartiles {', '.join(wide)}" if wide else ""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that was measured on."""

    target: str  # as `Target` writes it
    backend: str
    device: str  # Torch's name
    device_name: str  # the vendor's name, or the processor's
    torch: str
    threads: int  # of Torch on the processor
    python: str
    kernels: str
    date: str  # ISO 8601, UTC


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel's measurement."""

    kernel: str  # the repository, or the folder
    commit: str | None  # None for a folder
    variant: str
    machine: Machine
    iterations: int  # calls that were timed
    warmup: int  # calls before them
    outcomes: tuple[WorkloadOutcome, ...]  # in the order of the files
    id: str = ""  # the build's, in its metadata
    scripts_sha256: str = ""  # of the benchmarks' content, one after the other
    notes: tuple[str, ...] = ()  # remarks on the scripts and the build

    @property
    def ok(self) -> bool:
        """Whether every workload's verdict is `ok`."""
        return all(outcome.verdict == OK for outcome in self.outcomes)
