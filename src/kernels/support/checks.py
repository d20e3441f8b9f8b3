"""What a check found, and how one step of it is run: within a time, and whatever a stranger's code does."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from kernels.support.formatting import error_on_one_line

__all__ = [
    "STEP_SECONDS",
    "Finding",
    "Said",
    "Statement",
    "Verdict",
    "failed",
    "missing",
    "ok",
    "run_step",
    "skipped",
]

#: `missing` is something optional, or something that this machine cannot show; only `failed` is wrong.
Verdict = Literal["ok", "missing", "failed", "skipped"]

#: How long a step may take: importing Torch with a vendor's extension takes seconds, a driver that hangs for ever.
STEP_SECONDS = 60.0

#: What is kept of one message: a stranger's error may be of any length.
_MAX_TEXT = 1000

_PACKAGE = str(Path(__file__).parent)


class Finding(msgspec.Struct, frozen=True):
    """One thing that a check found.

    Attributes:
        step: The step that found it.
        verdict: `ok`, `missing` (optional, or not to be seen on this machine), `failed` or `skipped`.
        what: What was found; for what is missing or wrong, what to write.
        backend: The backend's name, or None while nothing is registered.
    """

    step: str
    verdict: Verdict
    what: str
    backend: str | None = None


#: A verdict, and what was found.
Statement = tuple[Verdict, str]

#: What a step says, one after the other.
Said = Iterator[Statement]


def run_step(
    name: str, step: Callable[[], Said], backend: str | None = None, seconds: float = STEP_SECONDS
) -> list[Finding]:
    """What a step says; a step that raises has failed, and so has one that takes too long.

    Args:
        name: The step's name.
        step: What looks.
        backend: The backend that it looks at, if there is one yet.
        seconds: How long it may take.

    Example:
        >>> run_step("names", lambda: iter([("ok", "acme")]), "acme")
        [Finding(step='names', verdict='ok', what='acme', backend='acme')]
    """
    heard: list[Statement] = []

    def listen() -> None:
        try:
            for each in step():
                heard.append(each)
        except BaseException as error:  # noqa: BLE001 - a stranger's code, which may even call `sys.exit`
            heard.append(failed(f"{error_on_one_line(error, _MAX_TEXT)}{_where(error)}"))

    # A daemon: a step that never comes back must not keep the process from ending.
    thread = threading.Thread(target=listen, name=f"kernels-check-{name}", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        heard = [*heard, failed(f"no answer within {seconds:g} seconds")]
    return [Finding(name, verdict, _short(what), backend) for verdict, what in heard]


def ok(what: str) -> Statement:
    """Something is as it must be."""
    return "ok", what


def missing(what: str) -> Statement:
    """Something optional is not there, or this machine cannot show it."""
    return "missing", what


def failed(what: str) -> Statement:
    """Something is wrong; the text says what to write instead."""
    return "failed", what


def skipped(what: str) -> Statement:
    """A step had nothing to look at."""
    return "skipped", what


def _where(error: BaseException) -> str:
    """The place in the vendor's code that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or frames[-1].filename.startswith(_PACKAGE):
        return ""
    return f" (in {frames[-1].name}, {frames[-1].filename}, line {frames[-1].lineno})"


def _short(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"
