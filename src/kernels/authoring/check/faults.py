"""Report a list of faults: the first ones, and how many more there are."""

from __future__ import annotations

from collections.abc import Sequence

from kernels.support.checks import StepResults, failed

__all__ = ["report_faults"]

#: A hostile folder may have any number of faults.
_MAX_SHOWN = 20


def report_faults(faults: Sequence[str], noun: str = "") -> StepResults:
    """A failure for each of the first faults, and one for the rest.

    Example:
        >>> list(report_faults(["a"] * 22, " files"))[-1]
        ('failed', 'and 2 more files')
    """
    yield from map(failed, faults[:_MAX_SHOWN])
    if len(faults) > _MAX_SHOWN:
        yield failed(f"and {len(faults) - _MAX_SHOWN} more{noun}")
