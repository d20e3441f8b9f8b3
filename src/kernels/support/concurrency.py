"""Work side by side that ends when the caller ends it.

Ctrl-C, or an error in one piece of work, must not wait for the others: workers look here for whether they are still
wanted, and pause here.
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

__all__ = ["NotWanted", "check_wanted", "pause", "side_by_side"]

_T = TypeVar("_T")
_R = TypeVar("_R")

_ended: ContextVar[threading.Event | None] = ContextVar("kernels_work_ended", default=None)


class NotWanted(Exception):
    """The work was given up by who asked for it; nobody waits for its result."""


def side_by_side(
    work: Callable[[_T], _R],
    items: Iterable[_T],
    *,
    at_once: int,
    name: str,
    done: Callable[[], None] = lambda: None,
) -> list[_R]:
    """The results of `work` on each item, in order, several at once.

    Args:
        work: What to do.
        items: What to do it on.
        at_once: How many at the same time.
        name: What to call the threads.
        done: Called in the caller's thread after each piece.

    Raises:
        BaseException: The first error of any piece, or Ctrl-C. The others end at their next pause or chunk of bytes,
            and are not waited for.

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
    except BaseException:  # Ctrl-C too: the others end, and what was raised goes on
        ended.set()
        raise
    finally:
        _ended.reset(token)
        pool.shutdown(wait=False, cancel_futures=True)


def pause(seconds: float) -> None:
    """Wait, unless the work is given up meanwhile.

    Raises:
        NotWanted: It was.
    """
    ended = _ended.get()
    if ended is None:
        time.sleep(seconds)
    elif ended.wait(seconds):
        raise NotWanted


def check_wanted() -> None:
    """Raise `NotWanted` when the work was given up."""
    ended = _ended.get()
    if ended is not None and ended.is_set():
        raise NotWanted


class _Either(threading.Event):
    """Set when work is given up here, or further out."""

    def __init__(self, inner: threading.Event, outer: threading.Event) -> None:
        super().__init__()
        self._inner, self._outer = inner, outer

    def is_set(self) -> bool:
        return self._inner.is_set() or self._outer.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        # Two events cannot be waited for at once: look at the outer one now and then.
        while not self.is_set():
            left = 0.2 if deadline is None else min(0.2, deadline - time.monotonic())
            if left <= 0:
                return False
            self._inner.wait(left)
        return True
