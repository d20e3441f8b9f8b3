"""What this process learned from a Hub, shared by every source for it."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from kernels.models.snapshot import Heads, Snapshot

__all__ = ["HubMemory", "forget", "memory_of"]

#: After a Hub did not answer, for how long what the cache can answer is not asked of it again.
REST_SECONDS = 30.0


class HubMemory:
    """What was learned from one Hub: heads and snapshots, and whether it was away a moment ago."""

    def __init__(self) -> None:
        self.heads: dict[str, Heads] = {}
        self.snapshots: dict[tuple[str, str], Snapshot] = {}
        self.warned = False
        self.answered = False  # whether the Hub answered anything but the question about a publisher
        self._locks: dict[str, threading.RLock] = {}
        self._guard = threading.Lock()
        self._away = float("-inf")

    def lock(self, name: str) -> threading.RLock:
        """The lock under which something is asked for, so that it is asked for once."""
        with self._guard:
            return self._locks.setdefault(name, threading.RLock())

    def rest(self) -> None:
        """Remember that the Hub did not answer."""
        self._away = time.monotonic()

    def resting(self) -> bool:
        """Whether the Hub did not answer a moment ago."""
        return time.monotonic() - self._away < REST_SECONDS


_memories: dict[tuple[str, Path], HubMemory] = {}
_memories_guard = threading.Lock()


def memory_of(endpoint: str, cache: Path) -> HubMemory:
    """The memory of one Hub with one cache."""
    with _memories_guard:
        return _memories.setdefault((endpoint, cache), HubMemory())


def _renew() -> None:
    # A lock that another thread of the parent held is held for ever in the child.
    global _memories_guard
    _memories_guard = threading.Lock()
    _memories.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def forget() -> None:
    """Forget what this process learned from Hubs, so that the next call asks again."""
    with _memories_guard:
        _memories.clear()
