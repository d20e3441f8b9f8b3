"""Run one step of a check, third-party code included: bounded in time, and every exception becomes a result."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from kernels.support.formatting import format_error, shortened
from kernels.support.tasks import Task

__all__ = [
    "STEP_SECONDS",
    "CheckResult",
    "StepResult",
    "StepResults",
    "Verdict",
    "failed",
    "hint",
    "missing",
    "ok",
    "run_step",
    "skipped",
]

#: `missing` is optional, or cannot be seen on this machine; `hint` is what may be a mistake; only `failed` is wrong.
Verdict = Literal["ok", "missing", "hint", "failed", "skipped"]

#: How long a step may take: importing Torch with a vendor's extension takes seconds, a driver may hang for ever.
STEP_SECONDS = 60.0

#: The most characters of one message: a third party's error may have any length.
_MAX_TEXT = 1000

_PACKAGE = str(Path(__file__).parents[1])


class CheckResult(msgspec.Struct, frozen=True):
    """One result of a check.

    Attributes:
        step: The step that it is from.
        verdict: `ok`, `missing` (optional, or cannot be seen on this machine), `hint` (may be a mistake), `failed` or
            `skipped`.
        what: What was found; for what is missing or wrong, what to write instead.
        backend: The backend's name, or None while none is registered.
    """

    step: str
    verdict: Verdict
    what: str
    backend: str | None = None


#: A verdict and what was found.
StepResult = tuple[Verdict, str]

#: What a step yields.
StepResults = Iterator[StepResult]


def run_step(
    name: str, step: Callable[[], StepResults], backend: str | None = None, seconds: float = STEP_SECONDS
) -> list[CheckResult]:
    """The results of one step; a step that raises or takes too long has failed.

    Args:
        name: The step's name.
        step: Yields the results.
        backend: The backend that is checked, if one is registered yet.
        seconds: How long the step may take.

    Example:
        >>> run_step("names", lambda: iter([("ok", "acme")]), "acme")
        [CheckResult(step='names', verdict='ok', what='acme', backend='acme')]
    """
    results: list[StepResult] = []

    def collect() -> None:
        try:
            for result in step():
                results.append(result)
        except BaseException as error:  # noqa: BLE001 - third-party code, which may even call `sys.exit`
            results.append(failed(f"{format_error(error, _MAX_TEXT)}{_where(error)}"))

    in_time = Task(collect, name=f"check-{name}").wait(seconds)
    late = [] if in_time else [failed(f"no answer within {seconds:g} seconds")]
    return [CheckResult(name, verdict, shortened(what, _MAX_TEXT), backend) for verdict, what in [*results, *late]]


def ok(what: str) -> StepResult:
    """Something is right."""
    return "ok", what


def missing(what: str) -> StepResult:
    """Something optional is missing, or cannot be seen on this machine."""
    return "missing", what


def hint(what: str) -> StepResult:
    """Something may be a mistake, and does no harm; the text says what to write instead."""
    return "hint", what


def failed(what: str) -> StepResult:
    """Something is wrong; the text says what to write instead."""
    return "failed", what


def skipped(what: str) -> StepResult:
    """A step had nothing to check."""
    return "skipped", what


def _where(error: BaseException) -> str:
    """The line of third-party code that raised an error; empty where this package raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or frames[-1].filename.startswith(_PACKAGE):
        return ""
    return f" (in {frames[-1].name}, {frames[-1].filename}, line {frames[-1].lineno})"
