"""Warnings that are shown once."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from kernels.support.text import SafeText, clean

__all__ = ["KernelsWarning", "forget", "on_behalf_of_the_caller", "warn_once"]


class KernelsWarning(SafeText, UserWarning):
    """A warning of this package: a choice was made for the caller, or an answer may be outdated."""


_PACKAGE = str(Path(__file__).parents[1])
#: Between frames of this package when a context manager is entered.
_STEPS = (contextlib.__file__,)
_place: ContextVar[tuple[str, int] | None] = ContextVar("kernels_called_from", default=None)
_given: set[str] = set()
_lock = threading.Lock()


def warn_once(message: str) -> None:
    """Warn with `message`, at the line of the code that called this package, once per process and message.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     warn_once("example: said once")
        ...     warn_once("example: said once")
        >>> len(caught)
        1
    """
    message = clean(message)
    with _lock:
        if message in _given:
            return
        _given.add(message)
    place = _place.get() or _outside()
    warnings.warn_explicit(message, KernelsWarning, *place)


def _renew() -> None:
    # A lock that another thread of the parent holds would never be released in the child.
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


@contextmanager
def on_behalf_of_the_caller() -> Iterator[None]:
    """Let warnings of other threads, with this thread's context, have the line that called this package."""
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
    """Forget the warnings that were shown, so that they are shown again."""
    with _lock:
        _given.clear()
