"""Load a variant in a separate process, and report what it did there."""

from __future__ import annotations

import importlib.util
import re
import signal
import sys
from pathlib import Path

from kernels.authoring.check.checked_variant import CheckedVariant
from kernels.errors import KernelsError
from kernels.operations.explain import explain_folder
from kernels.support.checks import CheckResult, failed, skipped
from kernels.support.command import CommandFailed, CommandStatus, run_command
from kernels.support.record_file import decode_json

__all__ = ["LOAD_SECONDS", "crash_reason", "load_findings", "thrown"]

#: Time limit of a load: importing Torch and a kernel takes seconds, and a kernel may compile at its import.
LOAD_SECONDS = 300.0

#: Bytes of output; the findings are a few lines.
_MAX_OUTPUT = 1024 * 1024

#: The end of an exception's message: Torch adds its place and the stack, Python's faulthandler another stack.
_AFTER_WHAT = re.compile(
    r"^(?:Exception raised from |frame #|Fatal Python error|C\+\+ CapturedTraceback|\Z)", re.MULTILINE
)

#: No module is imported from the current folder, which may be the kernel's.
_PROGRAM = (
    "import sys; sys.path[:] = [path for path in sys.path if path]; "
    "import kernels.authoring.check.load_process as it; it.main()"
)

_STEP = "loading"


def load_findings(checked: CheckedVariant, seconds: float = LOAD_SECONDS) -> list[CheckResult]:
    """Load a variant in a new process, which runs with the caller's rights; all that it starts ends with it.

    Returns:
        Results of the steps `loading`, `operators` and `loaded layers`.
    """
    reason = _unfit(checked)
    if reason is not None:
        return [CheckResult(_STEP, *skipped(reason))]
    try:
        text = _run(checked.folder, seconds)
        findings = decode_json(text, list[CheckResult])
        return findings or [CheckResult(_STEP, *failed("the loading process reported nothing"))]
    except CommandFailed as error:
        return [CheckResult(_STEP, *failed(_shown(error)))]
    except ValueError:
        return [CheckResult(_STEP, *failed("the loading process ended early: the kernel ends the process"))]


def _unfit(checked: CheckedVariant) -> str | None:
    """Why the variant cannot be loaded on this machine."""
    if checked.metadata is None or checked.variant is None:
        return "the variant's name or metadata is invalid"
    if importlib.util.find_spec("torch") is None:
        return "Torch is not installed"
    try:
        [found] = explain_folder(checked.folder).resolution.decisions
    except KernelsError as error:
        return str(error)
    return f"does not fit this machine: {found.reason}" if found.verdict == "rejected" else None


def crash_reason(folder: Path, seconds: float = LOAD_SECONDS) -> str | None:
    """Why a process that loads a variant ends early; None if it does not. It runs with the caller's rights."""
    try:
        _run(folder, seconds)
    except CommandFailed as error:
        return _shown(error)
    return None


def thrown(messages: str) -> str | None:
    """The message of the C++ exception that ended a process, in one line, from the process's messages.

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
    return run_command(command, seconds=seconds, max_output=_MAX_OUTPUT)


def _shown(error: CommandFailed) -> str:
    """The error without the command, and with the message of a C++ exception."""
    what = thrown(error.messages) if isinstance(error, CommandStatus) else None
    if what is None or not isinstance(error, CommandStatus):
        return str(error).replace(f"{sys.executable} ", "")[-500:]
    name = next((each.name for each in signal.Signals if each == -error.status), f"status {error.status}")
    return f"an uncaught C++ exception ended the process ({name}): {what}"
