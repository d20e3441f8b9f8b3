"""The numbers of a measurement."""

from __future__ import annotations

import msgspec
import pytest

from kernels.authoring.bench import Machine, Report, Times, WorkloadOutcome

MACHINE = Machine(
    target="torch2.13-cpu-x86_64-linux",
    backend="cpu",
    device="cpu",
    device_name="A processor",
    torch="2.13.0",
    threads=2,
    python="3.11.7",
    kernels="0.0.0",
    date="2026-01-02T03:04:05+00:00",
)


@pytest.mark.parametrize(
    ("kernel", "reference", "noise"),
    [
        ([1.0, 1.1, 1.2, 1.3], [2.0, 2.1, 2.2], ""),
        ([1.0, 1.0, 1.0, 1000.0], None, "quartiles 250.8x apart (kernel)"),
        ([1.0], [1.0, 1.0, 5.0, 5.0], "quartiles 5.0x apart (reference)"),
        ([1.0, 1.0, 2.0, 2.0], [1.0, 1.0, 3.0, 3.0], "quartiles 2.0x apart (kernel), 3.0x apart (reference)"),
        ([0.0, 0.0], [0.0, 0.0], ""),
    ],
    ids=["none", "kernel", "reference", "both", "no clock"],
)
def test_times_that_are_wide_apart_are_noise(kernel: list[float], reference: list[float] | None, noise: str) -> None:
    times = None if reference is None else Times.of(reference)
    assert WorkloadOutcome(script="benchmark_x.py", times=Times.of(kernel), reference=times).noise == noise


@pytest.mark.parametrize(
    ("seconds", "median", "quartiles", "extremes"),
    [
        ([2.0], 2.0, (2.0, 2.0), (2.0, 2.0)),
        ([4.0, 2.0], 3.0, (2.5, 3.5), (2.0, 4.0)),
        ([5.0, 1.0, 4.0, 2.0, 3.0], 3.0, (2.0, 4.0), (1.0, 5.0)),
        # One call that was interrupted moves neither the median nor the quartiles.
        ([1.0, 1.0, 1.0, 1.0, 1000.0], 1.0, (1.0, 1.0), (1.0, 1000.0)),
    ],
)
def test_times_are_summed_up_by_the_median_and_the_quartiles(
    seconds: list[float], median: float, quartiles: tuple[float, float], extremes: tuple[float, float]
) -> None:
    times = Times.of(seconds)
    assert (times.median_seconds, times.calls) == (median, len(seconds))
    assert (times.q1_seconds, times.q3_seconds) == quartiles
    assert (times.min_seconds, times.max_seconds) == extremes


def test_no_calls_have_no_times() -> None:
    with pytest.raises(ValueError, match="`seconds` is empty"):
        Times.of([])


@pytest.mark.parametrize(
    ("verdicts", "ok"), [((), True), (("ok", "ok"), True), (("ok", "wrong"), False), (("crashed",), False)]
)
def test_a_report_is_ok_when_each_of_its_outcomes_is(verdicts: tuple[str, ...], ok: bool) -> None:
    outcomes = tuple(WorkloadOutcome(script="benchmark_x.py", verdict=verdict) for verdict in verdicts)
    report = Report(
        kernel="a/b", commit=None, variant="torch-cpu", machine=MACHINE, iterations=1, warmup=0, outcomes=outcomes
    )
    assert report.ok is ok
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report
