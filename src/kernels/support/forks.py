"""A fork waits for what other threads of this package must not be in the middle of.

A fork has the locks of all threads, and only the thread that forks: a lock that another one holds is never released in
it. The locks of Python's imports and of huggingface_hub's session cannot be renewed from here. So a fork during a first
call, such as that of a data loader's workers, would leave a process that hangs at its own first call.
"""

from __future__ import annotations

import logging  # noqa: F401 - its lock is taken before each fork: the wait must come first, so be registered later
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import TypeVar

__all__ = ["no_fork_during"]

_F = TypeVar("_F", bound=Callable[..., object])

#: The most seconds that a fork waits: enough to import Torch. A thread that waits for a lock of the thread that forks
#: would never end.
_MOST_SECONDS = 5.0

_POLL_SECONDS = 0.001

#: How the names of the files of this package's code begin.
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

_IMPORTING = "<frozen importlib._bootstrap>"

_functions: set[CodeType] = set()


def no_fork_during(function: _F) -> _F:
    """Let a fork in another thread wait until a function of this package has returned, as for what is imported.

    Example:
        >>> @no_fork_during
        ... def connect(): ...
    """
    _functions.add(function.__code__)
    return function


def _wait() -> None:
    deadline = time.monotonic() + _MOST_SECONDS
    own = threading.get_ident()
    while any(_is_in_the_middle(frame) for thread, frame in sys._current_frames().items() if thread != own):
        if time.monotonic() > deadline:
            return
        time.sleep(_POLL_SECONDS)


def _is_in_the_middle(innermost: FrameType) -> bool:
    """Whether a thread imports something for this package, or is in one of the functions."""
    importing = False
    for frame in _outwards(innermost):
        importing = importing or frame.f_code.co_filename == _IMPORTING
        if frame.f_code in _functions or (importing and frame.f_code.co_filename.startswith(_OWN)):
            return True
    return False


def _outwards(innermost: FrameType) -> Iterator[FrameType]:
    frame: FrameType | None = innermost
    while frame is not None:
        yield frame
        frame = frame.f_back


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait)
