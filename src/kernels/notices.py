"""Warnings that are given once."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from pathlib import Path

__all__ = ["KernelsWarning", "forget", "warn_once"]


class KernelsWarning(UserWarning):
    """What this package warns about: a choice made for the caller, or an answer that is older than it should be."""


_PACKAGE = str(Path(__file__).parent)
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
    with _lock:
        if message in _given:
            return
        _given.add(message)
    warnings.warn(message, KernelsWarning, stacklevel=_callers_level())


def _renew() -> None:
    # A lock that another thread of the parent held is held for ever in the child.
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def _callers_level() -> int:
    # The same as `skip_file_prefixes` of Python 3.12, for 3.10.
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
        level += 1
    return level


def forget() -> None:
    """Forget what was said, so that it is said again."""
    with _lock:
        _given.clear()
