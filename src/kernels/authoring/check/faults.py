"""Report a list of faults: the first ones, and how many more there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernels.support.checks import StepResult, StepResults, failed, hint

__all__ = ["report_faults", "report_hints"]

#: A hostile folder may have any number of faults.
_MAX_SHOWN = 20


def report_faults(faults: Sequence[str], noun: str = "") -> StepResults:
    """A failure for each of the first faults, and one for the rest.

    Example:
        >>> list(report_faults(["a"] * 22, " files"))[-1]
        ('failed', 'and 2 more files')
    """
    yield from _first(failed, faults, noun)


def report_hints(faults: Sequence[str], noun: str = "") -> StepResults:
    """The same, as hints: the kernel is of use without a change.

    Example:
        >>> list(report_hints(["a"]))
        [('hint', 'a')]
    """
    yield from _first(hint, faults, noun)


def _first(verdict: Callable[[str], StepResult], faults: Sequence[str], noun: str) -> StepResults:
    yield from map(verdict, faults[:_MAX_SHOWN])
    if len(faults) > _MAX_SHOWN:
        yield verdict(f"and {len(faults) - _MAX_SHOWN} more{noun}")
