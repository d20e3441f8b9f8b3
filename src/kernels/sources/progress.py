"""The progress of downloads: a bar for each repository, or one watcher for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

__all__ = ["Arrived", "watched", "watcher"]

#: Called with the `(files, bytes)` that arrived since the last call, from any thread.
Arrived = Callable[[int, int], None]
_Arrived = TypeVar("_Arrived", bound=Arrived)

_watcher: ContextVar[Arrived | None] = ContextVar("kernels_download_watcher", default=None)


def watcher() -> Arrived | None:
    """The watcher of the downloads of this call, instead of a bar for each repository."""
    return _watcher.get()


@contextmanager
def watched(arrived: _Arrived) -> Iterator[_Arrived]:
    """Report the downloads of a block to a watcher; they have no bar.

    Example:
        >>> with watched(lambda files, size: None):
        ...     watcher() is not None
        True
    """
    token = _watcher.set(arrived)
    try:
        yield arrived
    finally:
        _watcher.reset(token)
