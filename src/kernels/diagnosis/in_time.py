"""Questions asked at the same time, none of which is waited for beyond its limit or may raise."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from kernels.support.tasks import Task

__all__ = ["ask_all"]

_STDLIB = os.path.dirname(os.__file__) + os.sep


def ask_all(questions: Mapping[str, tuple[float, Callable[[], Any]]]) -> dict[str, Any]:
    """The answer to each question; an exception in its place where it raised, or did not answer in time.

    A call that hangs in a driver or a file system cannot be ended, only left alone.

    Args:
        questions: By name, the longest time in seconds and the function to call.

    Example:
        >>> answers = ask_all({"one": (1.0, lambda: 1), "none": (1.0, lambda: 1 / 0)})
        >>> answers["one"], answers["none"]
        (1, ZeroDivisionError('division by zero'))
    """
    begun = time.monotonic()
    tasks = {name: Task(ask, name=f"doctor-{name}") for name, (_, ask) in questions.items()}
    answers: dict[str, Any] = {}
    for name, (seconds, _) in questions.items():
        task = tasks[name]
        if not task.wait(begun + seconds - time.monotonic()):
            answers[name] = TimeoutError(f"no answer within {seconds:g} seconds{_place(task.thread)}")
            continue
        try:
            answers[name] = task.result()
        except Exception as error:  # noqa: BLE001 - a check that fails is reported
            answers[name] = error
    return answers


def _place(thread: threading.Thread) -> str:
    """Where a thread hangs: the innermost line that is not of the standard library, such as a plugin's."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_STDLIB, "<")):
            return f", at {file}, line {frame.f_lineno}"
        frame = frame.f_back
    return ""
