"""What a declaration asks of the machine, and the answers that are kept: `get_kernel` needs them at every call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

from kernels.backends.plugins.json_probe import Clock, NoAnswer, absence, ask_archs, ask_version
from kernels.backends.plugins.json_schema import Declaration, Query
from kernels.support.version import MajorMinor

__all__ = ["Look", "Questions", "Standing"]


class Standing(NamedTuple):
    """Whether a backend is there (`absent` says why not), and its version.

    Attributes:
        absent: Why it is not there, or None.
        version: Its version, or None.
        notes: What did not answer, and why.
    """

    absent: str | None
    version: MajorMinor | None = None
    notes: tuple[str, ...] = ()


class Look(NamedTuple):
    """What a look at the machine gave: `archs` is None where none are declared, or nothing told them."""

    standing: Standing
    archs: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()


class Questions:
    """The questions of a declaration, with the last answers.

    Example:
        >>> questions = Questions(Declaration(version="1.2", archs=("a100x",)))
        >>> questions.kept().version, questions.look(str, "names").archs
        (MajorMinor(major=1, minor=2), ('a100x',))
    """

    def __init__(self, declaration: Declaration) -> None:
        self._declaration = declaration
        self._kept: Standing | None = None
        self._told = False

    def kept(self) -> Standing:
        """Whether the backend is there and its version, asked for once."""
        return self._standing(Clock())

    def look(self, read: Callable[[str], str | None], allowed: str) -> Look:
        """What the machine answers now.

        Args:
            read: Makes of an architecture what builds declare, or None when it is none.
            allowed: Which architectures it reads, for a person.
        """
        clock = Clock()
        # Answers that were kept before anyone looked are as good as new: a command that hangs is waited for once.
        if self._told:
            self._kept = None
        standing = self._standing(clock)
        self._told = True
        if standing.absent is not None or self._declaration.archs is None:
            return Look(standing, None, standing.notes)
        try:
            answers = ask_archs(self._declaration.archs, clock)
        except NoAnswer as error:
            return Look(standing, None, (*standing.notes, f"architectures: {error}"))
        # A device whose architecture makes no sense stays: those after it have the numbers that Torch gives them.
        archs = [(arch, read(arch)) for arch in answers]
        unread = [arch[:80] for arch, known in archs if known is None]
        patterned = isinstance(self._declaration.archs, Query) and self._declaration.archs.pattern
        hint = ": narrow the pattern to the part that is one" if patterned else ""
        notes = (f"architectures: {unread[0]!r} is none; allowed are {allowed}{hint}",) if unread else ()
        return Look(standing, tuple(known or "" for _, known in archs), (*standing.notes, *notes))

    def _standing(self, clock: Clock) -> Standing:
        kept = self._kept
        if kept is None:
            kept = self._ask(clock)
            # An answer that only Torch can give may come later.
            query = self._declaration.version
            if query is None or isinstance(query, str) or not query.torch or "torch" in sys.modules:
                self._kept, self._told = kept, False
        return kept

    def _ask(self, clock: Clock) -> Standing:
        absent = absence(self._declaration.detect, clock)
        if absent is not None:
            return Standing(absent, None, (f"not there: {absent}",))
        if self._declaration.version is None:
            return Standing(None)
        try:
            return Standing(None, ask_version(self._declaration.version, clock))
        except NoAnswer as error:
            return Standing(None, None, (f"version: {error}",))
