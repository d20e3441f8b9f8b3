"""Pieces that are made in one thread and used in another at the same time."""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import Enum
from typing import TypeVar

from kernels.support.concurrency import Cancelled

__all__ = ["feed"]

_T = TypeVar("_T")


def feed(pieces: Iterable[_T], use: Callable[[Iterator[_T]], object], *, ahead: int, name: str) -> None:
    """Make pieces in this thread, and use them in another one at the same time.

    Args:
        pieces: The pieces. No more of them are made after an error of `use`.
        use: Called with all pieces, in a thread that has ended when this function does.
        ahead: The most pieces that wait to be used.
        name: The end of the thread's name.

    Raises:
        BaseException: The error of making the pieces, else that of `use`.

    Example:
        >>> feed("abc", lambda pieces: print(*pieces), ahead=2, name="example")
        a b c
    """
    waiting: queue.Queue[_T | _End] = queue.Queue(ahead)
    problem: list[BaseException] = []

    def given() -> Iterator[_T]:
        while not isinstance(piece := waiting.get(), _End):
            yield piece
        if piece is _End.BROKEN:
            raise Cancelled

    def work() -> None:
        rest = given()
        try:
            use(rest)
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that made the pieces
            problem.append(error)
        with suppress(Cancelled):
            for _ in rest:  # the other thread may wait for a place
                pass

    thread = threading.Thread(target=contextvars.copy_context().run, args=(work,), name=f"kernels-{name}", daemon=True)
    thread.start()
    end = _End.BROKEN
    try:
        for piece in pieces:
            waiting.put(piece)
            if problem:
                break
        end = _End.COMPLETE
    finally:
        waiting.put(end)
        thread.join()
    if problem:
        try:
            raise problem[0]
        finally:
            problem.clear()


class _End(Enum):
    """Why there are no more pieces."""

    COMPLETE = 0
    BROKEN = 1
