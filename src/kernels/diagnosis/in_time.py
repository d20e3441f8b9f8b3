"""Questions asked at the same time, none of which is waited for beyond its limit or may raise."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

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
    answers: dict[str, Any] = {}
    started = time.monotonic()

    def run(name: str, ask: Callable[[], Any]) -> None:
        try:
            answers[name] = ask()
        except BaseException as error:  # noqa: BLE001 - a check that fails is reported, also if it calls `sys.exit`
            answers[name] = error

    threads = {}
    for name, (_, ask) in questions.items():
        # A daemon: a call that never returns must not keep the process from ending.
        threads[name] = threading.Thread(target=run, args=(name, ask), name=f"kernels-doctor-{name}", daemon=True)
        threads[name].start()
    for name, (seconds, _) in questions.items():
        threads[name].join(max(0.0, started + seconds - time.monotonic()))
    late = {
        name: TimeoutError(f"no answer within {seconds:g} seconds{_place(threads[name])}")
        for name, (seconds, _) in questions.items()
        if name not in answers
    }
    return late | dict(answers)


def _place(thread: threading.Thread) -> str:
    """Where a thread hangs: the innermost line that is not of the standard library, such as a plugin's."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_STDLIB, "<")):
            return f", at {file}, line {frame.f_lineno}"
        frame = frame.f_back
    return ""
