"""The answers of a Hub in this process, shared by all its sources."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from kernels.models.snapshot import Heads, Snapshot

__all__ = ["HubMemory", "forget", "memory_of"]

#: Seconds after a failed request in which the Hub is not asked what the cache can answer.
REST_SECONDS = 30.0


class HubMemory:
    """The heads and snapshots of one Hub, and whether it failed to answer recently."""

    def __init__(self) -> None:
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
_memories_guard = threading.Lock()


def memory_of(endpoint: str, cache: Path) -> HubMemory:
    """The memory of one Hub with one cache."""
    with _memories_guard:
        return _memories.setdefault((endpoint, cache), HubMemory())


def _renew() -> None:
    # A lock that another thread of the parent held is never released in the child.
    global _memories_guard
    _memories_guard = threading.Lock()
    _memories.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def forget() -> None:
    """Forget the answers of all Hubs, so that the next call asks again."""
    with _memories_guard:
        _memories.clear()
