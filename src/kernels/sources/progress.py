"""Who is told of files and bytes as they arrive: a bar for each repository, or one watcher for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

__all__ = ["Arrived", "silent_bar", "watched", "watcher"]

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


def silent_bar(count: Callable[[int], None]) -> type:
    """A class that huggingface_hub takes for its bar: it draws nothing, and counts bytes.

    Args:
        count: Called with the bytes of each step.
    """

    class Bar:
        def __init__(self, *args: Any, **options: Any) -> None:
            self.total = options.get("total")
            self.n = options.get("initial", 0)

        def update(self, size: float | None = 1) -> None:
            count(int(size or 0))

        def update_transfer(self, size: float | None = 1) -> None:
            """Bytes on their way, which are counted when they are on disk."""

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *args, **options: None  # what else a bar can be told is about how it looks

    return Bar
