"""What became of each build, in words that a person reads."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from kernels.backends import listed
from kernels.resolver.selection import Decision, Resolution, VariantRejected
from kernels.support.html_table import TableList

__all__ = ["VariantList", "Verdict", "verdicts"]


class Verdict(msgspec.Struct, frozen=True):
    """What became of a build.

    Attributes:
        variant: Its name.
        verdict: Whether it is the one to use, would do, or does not.
        reason: Why.
    """

    variant: str
    verdict: Literal["chosen", "accepted", "rejected"]
    reason: str


def verdicts(resolution: Resolution) -> list[Verdict]:
    """A verdict for each build, in the order of the decisions."""
    best = None if resolution.best is None else resolution.best.name
    found = []
    for decision in resolution.decisions:
        name = decision.variant.name
        if isinstance(decision, VariantRejected):
            found.append(Verdict(name, "rejected", decision.reason))
        elif name == best:
            found.append(Verdict(name, "chosen", _why_chosen(resolution)))
        else:
            found.append(Verdict(name, "accepted", f"fits, but {best} is preferred"))
    return found


class VariantList(TableList[Decision]):
    """The decision for each build of a kernel: a list that a notebook shows as a table."""

    headings: ClassVar[tuple[str, ...]] = ("variant", "verdict", "reason")

    @staticmethod
    def cells(item: Decision) -> tuple[str, ...]:
        if isinstance(item, VariantRejected):
            return (item.variant.name, "rejected", item.reason)
        return (item.variant.name, "accepted", "")


def _why_chosen(resolution: Resolution) -> str:
    reason = "the best that fits" if len(resolution.accepted) > 1 else "the only one that fits"
    uncovered = [f"{device.index} ({device.arch})" for device in resolution.uncovered_devices]
    return f"{reason}; does not cover device {listed(uncovered)}" if uncovered else reason
