"""Warnings in the log: each is logged once for each line of the program that causes it."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from kernels.support import GENERATED
from kernels.support.forks import ForkLock
from kernels.support.text import clean

__all__ = ["forget", "on_behalf_of_the_caller", "warn_once"]


_PACKAGE = str(Path(__file__).parents[1])
#: Between frames of this package when a context manager is entered.
_STEPS = (contextlib.__file__, GENERATED)
_place: ContextVar[tuple[str, int] | None] = ContextVar("kernels_called_from", default=None)
_given: set[tuple[str, tuple[str, int]]] = set()
_lock = ForkLock()


def warn_once(log: logging.Logger, message: str) -> None:
    """Log a warning, once for each line of the code that calls this package.

    A call in a loop, or a model with many layers, logs it once; a call at another line logs it again.

    Args:
        log: The logger.
        message: The text.

    Example:
        >>> from kernels.support.logs import logger
        >>> for _ in range(3):
        ...     warn_once(logger("kernels.example"), "logged once")
    """
    message = clean(message)
    key = message, _place.get() or _outside()
    with _lock:
        if key in _given:
            return
        _given.add(key)
    log.warning("%s", message, stacklevel=2)


@contextmanager
def on_behalf_of_the_caller() -> Iterator[None]:
    """Let warnings of other threads, with this thread's context, count for the line that called this package."""
    token = _place.set(_place.get() or _outside())
    try:
        yield
    finally:
        _place.reset(token)


def _outside() -> tuple[str, int]:
    # The same as `skip_file_prefixes` of Python 3.12, for 3.10.
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_PACKAGE, *_STEPS)):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def forget() -> None:
    """Forget the warnings that were logged, so that they are logged again."""
    with _lock:
        _given.clear()
