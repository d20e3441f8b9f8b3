"""Who is told of files and bytes as they arrive: a bar for each repository, or one watcher for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

__all__ = ["Arrived", "watched", "watcher"]

#: Told of `(files, bytes)` that have arrived since it was last told, from any thread.
Arrived = Callable[[int, int], None]
_Arrived = TypeVar("_Arrived", bound=Arrived)

_watcher: ContextVar[Arrived | None] = ContextVar("kernels_download_watcher", default=None)


def watcher() -> Arrived | None:
    """Who watches the downloads of this call, in the place of a bar for each repository."""
    return _watcher.get()


@contextmanager
def watched(arrived: _Arrived) -> Iterator[_Arrived]:
    """Have the downloads of a block told to a watcher; no bar is drawn for them.

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
