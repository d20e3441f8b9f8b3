"""What a forked process must not take over from its parent: the locks of threads that it does not have.

Python's own locks of modules that another thread imports in the moment of a fork stay locked in the child. Nothing here
changes that: such a program starts its processes by "spawn" or "forkserver", or loads its kernels before it forks.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

__all__ = ["ForkLock", "after_fork"]

_F = TypeVar("_F", bound=Callable[[], object])


def after_fork(function: _F) -> _F:
    """Call a function in each process that is forked from this one, before anything else runs there.

    Args:
        function: It is kept as long as this process lives.

    Example:
        >>> @after_fork
        ... def forget() -> None: ...
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)
    return function


class ForkLock:
    """A lock of a module that is free in a forked process. One thread may take it several times.

    A lock that another thread of the parent held in the moment of the fork would never be released in the child.

    Example:
        >>> lock = ForkLock()
        >>> with lock:
        ...     pass
    """

    def __init__(self) -> None:
        self._renew()
        after_fork(self._renew)

    def _renew(self) -> None:
        self._lock = threading.RLock()

    def acquire(self, timeout: float = -1) -> bool:
        """Take the lock.

        Args:
            timeout: The most seconds to wait. Default: no limit.

        Returns:
            Whether it is held.
        """
        return self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        """Let go of the lock."""
        with suppress(RuntimeError):  # the thread that held it has forked: the child's lock is a new one
            self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
