"""The progress of downloads: one bar for all that is downloaded at once, or a watcher in its place."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from kernels import settings
from kernels.support.forks import after_fork

__all__ = ["Arrived", "EachByteOnce", "downloading", "report", "watched"]

#: Called with the `(files, bytes)` that arrived since the last call, from any thread.
Arrived = Callable[[int, int], None]
_Arrived = TypeVar("_Arrived", bound=Arrived)

#: A download that takes less has no bar.
_DELAY_SECONDS = 0.5

#: The columns of a bar beside the name: percentage, sizes, times and rate.
_OTHER_COLUMNS = 60

#: The shortest name that is shown.
_SHORTEST_NAME = 16

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


class EachByteOnce:
    """Reports what arrived, also if it arrives again at a later try."""

    def __init__(self) -> None:
        self._reported = self._now = (0, 0)

    def begin(self) -> None:
        """Begin a try."""
        self._now = (0, 0)

    def arrived(self, files: int, size: int) -> None:
        """Report what no earlier try brought."""
        self._now = (self._now[0] + files, self._now[1] + size)
        more = [max(0, now - before) for now, before in zip(self._now, self._reported, strict=True)]
        self._reported = (self._reported[0] + more[0], self._reported[1] + more[1])
        report(*more)


@contextmanager
def downloading(name: str, size: int) -> Iterator[None]:
    """Show a bar while a block downloads, unless there is a watcher, or a bar is not wanted.

    Downloads at the same time share one bar. A download that is over within half a second has none, nor has one whose
    standard error is neither a terminal nor a notebook.

    Args:
        name: What is downloaded.
        size: Its bytes.

    Example:
        >>> with downloading("acme/relu", 100):
        ...     report(1, 100)
    """
    if _watcher.get() is not None or not _has_bar():
        yield
        return
    with _shared.part(name, size) as arrived, watched(arrived):
        yield


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
        self._timer: threading.Timer | None = None

    @contextmanager
    def part(self, name: str, size: int) -> Iterator[Arrived]:
        """One download among those of the bar; its bytes are counted once, also if they are downloaded again."""
        left = size

        def arrived(files: int, more: int) -> None:
            nonlocal left
            with self._guard:
                more = min(more, left)
                left -= more
                if self._bar is not None:
                    self._bar.update(more)

        try:
            self._begin(name, size)
            yield arrived
        finally:
            self._end(name)

    def _begin(self, name: str, size: int) -> None:
        with self._guard:
            self._names.append(name)  # `_end` removes it, also where no bar can be made
            if self._bar is None:
                self._bar = _bar(size)
                self._timer = threading.Timer(_DELAY_SECONDS, self._show)
                self._timer.daemon = True
                self._timer.start()
            else:
                self._bar.total += size
            self._bar.set_description_str(_description(self._names), refresh=False)

    def _show(self) -> None:
        with self._guard:
            if self._bar is not None:
                self._bar.update(0)  # also where no byte has come yet

    def _end(self, name: str) -> None:
        with self._guard:
            self._names.remove(name)
            if self._names or self._bar is None:
                return
            if self._timer is not None:
                self._timer.cancel()
            self._bar.close()
            self._bar = self._timer = None


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


def _description(names: list[str]) -> str:
    """What is downloaded, in the space that the terminal has for it.

    Example:
        >>> _description(["acme/relu"]), _description(["acme/relu", "acme/gelu"])
        ('Fetching acme/relu', 'Fetching 2 kernels')
    """
    kernels = list(dict.fromkeys(names))
    text = kernels[0] if len(kernels) == 1 else f"{len(kernels)} kernels"
    room = max(shutil.get_terminal_size().columns - _OTHER_COLUMNS - len("Fetching "), _SHORTEST_NAME)
    return f"Fetching {text if len(text) <= room else f'…{text[1 - room :]}'}"
