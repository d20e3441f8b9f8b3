"""What a variant does when it is loaded, seen from a process of its own."""

from __future__ import annotations

import importlib.util
import re
import signal
import sys
from pathlib import Path

import msgspec

from kernels.authoring.check.subject import Subject
from kernels.errors import KernelsError
from kernels.operations.info import repository_info
from kernels.support.checks import CheckResult, failed, skipped
from kernels.support.command import CommandFailed, CommandStatus, run_command
from kernels.support.documents import check_json

__all__ = ["LOAD_SECONDS", "crash_reason", "load_findings", "thrown"]

#: How long a load may take: importing Torch and a kernel takes seconds, and a kernel may compile at its import.
LOAD_SECONDS = 300.0

#: What the process says is a few lines.
_MAX_OUTPUT = 1024 * 1024

#: What C++ says of an exception that nobody caught stands before a stack of any depth.
_MAX_MESSAGES = 1024 * 1024

#: Where the exception's own words end: Torch adds where it was raised, and the stack; Python's faulthandler its own.
_AFTER_WHAT = re.compile(
    r"^(?:Exception raised from |frame #|Fatal Python error|C\+\+ CapturedTraceback|\Z)", re.MULTILINE
)

#: The folder that the process is started in is not looked at for modules: it may be the kernel's own.
_PROGRAM = (
    "import sys; sys.path[:] = [path for path in sys.path if path]; "
    "import kernels.authoring.check.inside as it; it.main()"
)

_STEP = "loading"


def load_findings(subject: Subject, seconds: float = LOAD_SECONDS) -> list[CheckResult]:
    """Load a variant in a fresh process, and say what it did there.

    Args:
        subject: The variant; its code runs with the caller's rights.
        seconds: How long it may take. What it has started is ended with it.

    Returns:
        Findings of the steps `loading`, `operators` and `loaded layers`.
    """
    reason = _unfit(subject)
    if reason is not None:
        return [CheckResult(_STEP, *skipped(reason))]
    try:
        text = _run(subject.folder, seconds)
        check_json(text)
        return msgspec.json.decode(text, type=list[CheckResult]) or [CheckResult(_STEP, *failed("it said nothing"))]
    except CommandFailed as error:
        return [CheckResult(_STEP, *failed(_shown(error)))]
    except ValueError:
        return [CheckResult(_STEP, *failed("the process that loads it ended early: the kernel ends the process"))]


def _unfit(subject: Subject) -> str | None:
    """Why the variant cannot be loaded here."""
    if subject.metadata is None or subject.variant is None:
        return "the variant's name or metadata is not valid"
    if importlib.util.find_spec("torch") is None:
        return "Torch is not installed"
    try:
        [build] = repository_info(subject.folder).builds
    except KernelsError as error:
        return str(error)
    return None if build.reason is None else f"does not fit this machine: {build.reason}"


def crash_reason(folder: Path, seconds: float = LOAD_SECONDS) -> str | None:
    """How a process that loads a variant ends before its time; None where it does not.

    Args:
        folder: The variant; its code runs with the caller's rights.
        seconds: How long it may take.
    """
    try:
        _run(folder, seconds)
    except CommandFailed as error:
        return _shown(error)
    return None


def thrown(messages: str) -> str | None:
    """What a C++ exception that ended a process said, in a line, from the messages of that process.

    Example:
        >>> thrown("terminate called after throwing\\n  what():  no such type\\nException raised from a.cpp:7")
        'no such type'
    """
    _, found, rest = messages.rpartition("what():")
    if not found:
        return None
    end = _AFTER_WHAT.search(rest)
    return " ".join(rest[: None if end is None else end.start()].split()) or None


def _run(folder: Path, seconds: float) -> str:
    command = [sys.executable, "-c", _PROGRAM, str(folder)]
    return run_command(command, seconds=seconds, max_output=_MAX_OUTPUT, max_messages=_MAX_MESSAGES)


def _shown(error: CommandFailed) -> str:
    """The error without the command, which is this package's own, and with the reason that C++ gave."""
    what = thrown(error.messages) if isinstance(error, CommandStatus) else None
    if what is None or not isinstance(error, CommandStatus):
        return str(error).replace(f"{sys.executable} ", "")[-500:]
    name = next((each.name for each in signal.Signals if each == -error.status), f"status {error.status}")
    return f"C++ ended the process ({name}), with an exception that nobody caught: {what}"
