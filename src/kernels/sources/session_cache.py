"""The answers of a Hub in this process, shared by all its sources."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from kernels.support.forks import ForkLock, after_fork

if TYPE_CHECKING:
    from kernels.models.mirror import RepositoryIndex
    from kernels.models.snapshot import Heads, Snapshot

__all__ = ["HubMemory", "forget", "memory_of"]

#: Seconds after a failed request in which the Hub is not asked what the cache can answer.
REST_SECONDS = 30.0


class HubMemory:
    """The heads and snapshots of one Hub or mirror, which of the two it is, and whether it failed to answer recently.

    Attributes:
        kind: Whether a Hub or a mirror has answered; None before the first answer.
        indexes: The index of each repository of a mirror, as it was read.
        commits: The document of each commit of a mirror, by repository and commit.
        published: Whether a branch or tag leads to a commit, by repository and commit.
    """

    def __init__(self) -> None:
        self.indexes: dict[str, RepositoryIndex] = {}
        self.commits: dict[tuple[str, str], RepositoryIndex] = {}
        self.published: dict[tuple[str, str], bool] = {}
        self.kind: Literal["hub", "mirror"] | None = None
        self.heads: dict[str, Heads] = {}
        self.snapshots: dict[tuple[str, str], Snapshot] = {}
        self.warned = False
        self.answered = False  # whether the Hub answered any request but the one about a publisher
        self._locks: dict[str, threading.RLock] = {}
        self._guard = threading.Lock()
        self._away = float("-inf")
        self.failure = ""
        """What was said when the Hub last failed to answer."""

    def lock(self, name: str) -> threading.RLock:
        """The lock of one request, so that it is sent once."""
        with self._guard:
            return self._locks.setdefault(name, threading.RLock())

    def rest(self, failure: Exception) -> None:
        """Record that the Hub did not answer, and why."""
        self.failure = str(failure)
        self._away = time.monotonic()

    def resting(self) -> bool:
        """Whether the Hub did not answer recently."""
        return time.monotonic() - self._away < REST_SECONDS


_memories: dict[tuple[str, Path], HubMemory] = {}
_memories_guard = ForkLock()


def memory_of(endpoint: str, cache: Path) -> HubMemory:
    """The memory of one Hub with one cache."""
    with _memories_guard:
        return _memories.setdefault((endpoint, cache), HubMemory())


@after_fork
def _renew() -> None:
    _memories.clear()


def forget() -> None:
    """Forget the answers of all Hubs, so that the next call asks again."""
    with _memories_guard:
        _memories.clear()
