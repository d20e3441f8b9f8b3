"""Versions of two numbers."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

__all__ = ["MajorMinor"]


class MajorMinor(NamedTuple):
    """A version of two numbers, as variant names carry it.

    Attributes:
        major: The first number.
        minor: The second number.

    Example:
        >>> str(MajorMinor(12, 8)), MajorMinor.parse("12.8.93"), MajorMinor.parse("8.2.RC1")
        ('12.8', MajorMinor(major=12, minor=8), MajorMinor(major=8, minor=2))
    """

    major: int
    minor: int

    @staticmethod
    @lru_cache(maxsize=64)  # the few versions of a machine are compared with each build of a kernel
    def parse(text: str) -> MajorMinor | None:
        """The version that a text starts with, or None when it starts with none.

        Args:
            text: Such as `12.8.93`.
        """
        match = re.match(r"([0-9]{1,4})\.([0-9]{1,4})", text)
        return None if match is None else MajorMinor(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"
