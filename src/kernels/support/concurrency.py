"""Parallel work that can be cancelled: Ctrl-C, or an error in one piece, does not wait for the others.

Workers ask here whether they are cancelled, and wait here.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextvars import ContextVar
from typing import TypeVar

from kernels.support.warn import on_behalf_of_the_caller

__all__ = ["Cancelled", "check_cancelled", "is_cancelled", "pause", "side_by_side"]

_T = TypeVar("_T")
_R = TypeVar("_R")

_ended: ContextVar[threading.Event | None] = ContextVar("kernels_work_ended", default=None)


class Cancelled(Exception):
    """The caller has cancelled the work, and does not wait for its result."""


def side_by_side(
    work: Callable[[_T], _R],
    items: Iterable[_T],
    *,
    at_once: int,
    name: str,
    done: Callable[[], None] = lambda: None,
) -> list[_R]:
    """Run a function on several items in parallel threads.

    Args:
        work: The function.
        items: The items.
        at_once: The most threads.
        name: Part of the threads' names.
        done: Called in the caller's thread after each item.

    Returns:
        The results, in the order of the items.

    Raises:
        BaseException: The first error of any item, or Ctrl-C. The others end at their next pause or chunk of bytes, and
            are not waited for.

    Example:
        >>> side_by_side(len, ["a", "bc"], at_once=2, name="example")
        [1, 2]
    """
    listed = list(items)
    if not listed:
        return []
    ended = threading.Event()
    outer = _ended.get()
    token = _ended.set(_Either(ended, outer) if outer is not None else ended)
    pool = ThreadPoolExecutor(min(at_once, len(listed)), thread_name_prefix=f"kernels-{name}")
    try:
        with on_behalf_of_the_caller():
            jobs = [pool.submit(contextvars.copy_context().run, work, item) for item in listed]
        for job in as_completed(jobs):
            job.result()
            done()
        return [job.result() for job in jobs]
    except BaseException:  # Ctrl-C too
        ended.set()
        raise
    finally:
        _ended.reset(token)
        pool.shutdown(wait=False, cancel_futures=True)


def pause(seconds: float) -> None:
    """Wait, unless the work is cancelled meanwhile.

    Raises:
        Cancelled: It was.
    """
    ended = _ended.get()
    if ended is None:
        time.sleep(seconds)
    elif ended.wait(seconds):
        raise Cancelled


def is_cancelled() -> bool:
    """Whether the work was cancelled."""
    ended = _ended.get()
    return ended is not None and ended.is_set()


def check_cancelled() -> None:
    """Raise `Cancelled` when the work was cancelled."""
    if is_cancelled():
        raise Cancelled


class _Either(threading.Event):
    """Set when the work, or the work around it, is cancelled."""

    def __init__(self, inner: threading.Event, outer: threading.Event) -> None:
        super().__init__()
        self._inner, self._outer = inner, outer

    def is_set(self) -> bool:
        return self._inner.is_set() or self._outer.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        # No wait covers two events: check the outer one now and then.
        while not self.is_set():
            left = 0.2 if deadline is None else min(0.2, deadline - time.monotonic())
            if left <= 0:
                return False
            self._inner.wait(left)
        return True
