"""What the builder asks of a compiler."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from kernels.support.version import MajorMinor

__all__ = ["Toolchain"]


class Toolchain(Protocol):
    """A compiler. Every method but `flags` and `link_flags` raises `CompilerNotFound` if it is not installed.

    Attributes:
        suffixes: Suffixes of the sources it compiles, with the dot.
        device: Whether it compiles for an accelerator; then it also links.
    """

    suffixes: frozenset[str]
    device: bool

    def compiled_archs(self, archs: Sequence[str]) -> tuple[str, ...]:
        """The device architectures to compile for: the supported ones of `archs`, or all if `archs` is empty."""
        ...

    def command(self) -> list[str]:
        """The command that runs the compiler."""
        ...

    def flags(self, archs: Sequence[str], extra: Sequence[str]) -> list[str]:
        """The flags to compile a source as position-independent code for some device architectures."""
        ...

    def link_flags(self, torch_lib: Path | None) -> list[str]:
        """The flags to link a shared library: its own libraries, and Torch's if their folder `torch_lib` is given."""
        ...

    def toolkit_version(self) -> MajorMinor:
        """The version of the accelerator's toolkit that the compiler belongs to."""
        ...
