"""The progress of downloads: one bar for all that is downloaded at once, or a watcher in its place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, TypeVar

from kernels import settings
from kernels.support.forks import after_fork

__all__ = ["Arrived", "downloading", "report", "watched"]

#: Called with the `(files, bytes)` that arrived since the last call, from any thread.
Arrived = Callable[[int, int], None]
_Arrived = TypeVar("_Arrived", bound=Arrived)

#: A download that takes less has no bar.
_DELAY_SECONDS = 0.5

_watcher: ContextVar[Arrived | None] = ContextVar("kernels_download_watcher", default=None)


@contextmanager
def watched(arrived: _Arrived) -> Iterator[_Arrived]:
    """Report the downloads of a block to a watcher; they have no bar.

    Example:
        >>> with watched(lambda files, size: print(files, size)):
        ...     report(1, 20)
        1 20
    """
    token = _watcher.set(arrived)
    try:
        yield arrived
    finally:
        _watcher.reset(token)


def report(files: int, size: int) -> None:
    """Tell the watcher or the bar of the running download what has arrived.

    Args:
        files: The number of files since the last call.
        size: The number of bytes since the last call.
    """
    arrived = _watcher.get()
    if arrived is not None:
        arrived(files, size)


@contextmanager
def downloading(name: str, size: int, files: int = 0) -> Iterator[Arrived]:
    """Report a download to the watcher, or show a bar while a block downloads if there is none and a bar is wanted.

    What is downloaded again counts once, and at the end all of it has been reported. Downloads at the same time share
    one bar. A download that is over within half a second has none, nor has one whose standard error is neither a
    terminal nor a notebook.

    Args:
        name: What is downloaded.
        size: Its bytes.
        files: Its files.

    Yields:
        What `report` calls during the block, for threads that began before it.

    Example:
        >>> with watched(lambda files, size: print(files, size)), downloading("acme/relu", 100, files=1):
        ...     report(0, 60)
        ...     report(0, 60)
        0 60
        0 40
        1 0
    """
    left, guard, watcher = [files, size], threading.Lock(), _watcher.get()
    with _shared.part(name, size) if watcher is None else nullcontext(watcher) as arrived:

        def count(more_files: int, more_bytes: int) -> None:
            with guard:
                new = min(more_files, left[0]), min(more_bytes, left[1])
                left[:] = left[0] - new[0], left[1] - new[1]
            arrived(*new)

        with watched(count):
            yield count
        count(files, size)


def _has_bar() -> bool:
    try:
        return not settings.progress_disabled()
    except RuntimeError:  # the interpreter ends: the library's bars import a pool of threads, which is too late
        return False


class _SharedBar:
    """The bar of all downloads of this process that run now."""

    def __init__(self) -> None:
        self._guard = threading.RLock()
        self._names: list[str] = []
        self._bar: Any = None

    @contextmanager
    def part(self, name: str, size: int) -> Iterator[Arrived]:
        """One download among those of the bar, if one is wanted."""
        if not _has_bar():
            yield self._arrived
            return
        with self._guard:
            if self._bar is None:
                self._bar = _bar(size)
            else:
                self._bar.total += size
            self._names.append(name)
            self._describe()
        try:
            yield self._arrived
        finally:
            with self._guard:
                self._names.remove(name)
                if not self._names:
                    self._bar.close()
                    self._bar = None

    def _arrived(self, files: int, size: int) -> None:
        with self._guard:
            if self._bar is not None:
                self._bar.update(size)

    def _describe(self) -> None:
        kernels = list(dict.fromkeys(self._names))
        text = kernels[0] if len(kernels) == 1 else f"{len(kernels)} kernels"
        self._bar.set_description_str(f"Fetching {text}", refresh=False)


_shared = _SharedBar()


@after_fork
def _renew() -> None:
    # The parent's bar is the parent's, and a lock that another thread of it holds would never be released.
    global _shared
    _shared = _SharedBar()


def _bar(size: int) -> Any:
    from huggingface_hub import utils

    bar: Any = utils.tqdm
    # `disable=None` shows nothing where standard error is no terminal; in a notebook it is a widget.
    return bar(
        total=size, unit="B", unit_scale=True, delay=_DELAY_SECONDS, dynamic_ncols=True, disable=None, mininterval=0.2
    )
