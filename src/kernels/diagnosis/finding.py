"""What a check of `kernels doctor` finds: a problem, or a note."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from kernels.support.formatting import format_text

__all__ = ["CheckName", "Finding", "Findings"]

#: The checks, by the name that `kernels doctor --json` gives them.
CheckName = Literal[
    "autotune", "backends", "cache", "hub", "lock", "packages", "system", "toolkits", "torch", "variables"
]

#: The most characters of a message.
_LONGEST = 1000


class Finding(msgspec.Struct, frozen=True):
    """One line about what is so, and one about what to do.

    Attributes:
        check: The check that found it.
        message: What is so.
        fix: What to do about it.
    """

    check: CheckName
    message: str
    fix: str


class Findings:
    """The problems and notes of one check.

    Args:
        check: The check's name.

    Example:
        >>> found = Findings("cache")
        >>> found.problem("/x is not writable.", "Name another folder with KERNELS_CACHE.")
        >>> found.problems[0].message
        '/x is not writable.'
    """

    def __init__(self, check: CheckName) -> None:
        self.check = check
        self.problems: list[Finding] = []
        self.notes: list[Finding] = []

    def problem(self, message: str, fix: str) -> None:
        """Add something that is wrong."""
        self.problems.append(self._finding(message, fix))

    def note(self, message: str, fix: str) -> None:
        """Add something that is meant, or harmless, but good to know."""
        self.notes.append(self._finding(message, fix))

    def add(self, other: Iterable[Finding]) -> None:
        """Add problems that another check has found."""
        self.problems += other

    def _finding(self, message: str, fix: str) -> Finding:
        lines = (" ".join(line.strip() for line in text.splitlines()) for text in (message, fix))
        return Finding(self.check, *(format_text(line, _LONGEST) for line in lines))
