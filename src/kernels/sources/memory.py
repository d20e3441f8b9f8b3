"""What this process knows of the addresses that it asked, shared by all its sources."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from kernels.support.forks import ForkLock, after_fork

if TYPE_CHECKING:
    from kernels.cache.records import Answer
    from kernels.models.mirror import RepositoryIndex
    from kernels.models.snapshot import Heads, Snapshot

__all__ = ["AWAY_SECONDS", "Memory", "forget", "memory_of"]

#: Seconds after a failed request in which an address is not asked what the cache can answer.
AWAY_SECONDS = 30.0


class Memory:
    """The answers of one address, and whether it failed to answer recently.

    Attributes:
        kind: Whether a Hub or a mirror has answered; None before the first answer.
        answers: What was said of each repository.
        stored: What the cache had of it when it was first looked at; None for nothing.
        heads: The branches of each repository; without an answer those that the cache has.
        snapshots: The files of each commit, by repository and commit.
        documents: The documents of a mirror that were read, by repository and commit; of a repository's index None.
        published: Whether a branch or tag leads to a commit, by repository and commit.
        answered: Whether any question was answered but one about a publisher.
        warned: Whether it was said that the cache is used in place of an answer.
        last_error: Why there was no answer the last time.
    """

    def __init__(self) -> None:
        self.kind: Literal["hub", "mirror"] | None = None
        self.answers: dict[str, Answer] = {}
        self.stored: dict[str, Answer | None] = {}
        self.heads: dict[str, Heads] = {}
        self.snapshots: dict[tuple[str, str], Snapshot] = {}
        self.documents: dict[tuple[str, str | None], RepositoryIndex] = {}
        self.published: dict[tuple[str, str], bool] = {}
        self.answered = False
        self.warned = False
        self.last_error = ""
        self._failed = float("-inf")
        self._guard = threading.Lock()
        self._locks: dict[str, threading.RLock] = {}

    def lock(self, name: str) -> threading.RLock:
        """The lock of one question, so that it is asked once."""
        with self._guard:
            return self._locks.setdefault(name, threading.RLock())

    def note_away(self, error: Exception) -> None:
        """Record that there was no answer, and why."""
        self.last_error = str(error)
        self._failed = time.monotonic()

    @property
    def away(self) -> bool:
        """Whether there was no answer recently."""
        return time.monotonic() - self._failed < AWAY_SECONDS


_memories: dict[tuple[str, Path], Memory] = {}
_guard = ForkLock()


def memory_of(address: str, cache: Path) -> Memory:
    """The memory of one address with one cache.

    Args:
        address: What its answers are stored for.
        cache: The cache's folder.
    """
    with _guard:
        return _memories.setdefault((address, cache), Memory())


@after_fork
def forget() -> None:
    """Forget all answers, so that the next call asks again."""
    _memories.clear()
