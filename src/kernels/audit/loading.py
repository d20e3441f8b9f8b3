"""What a variant does when it is loaded, seen from a process of its own."""

from __future__ import annotations

import importlib.util
import sys

import msgspec

from kernels.audit.subject import Subject
from kernels.backends.join.command import CommandFailed, run_command
from kernels.errors import KernelsError
from kernels.findings import Finding, failed, skipped
from kernels.offer import repository_info

__all__ = ["LOAD_SECONDS", "load_findings"]

#: How long a load may take: importing Torch and a kernel takes seconds, and a kernel may compile at its import.
LOAD_SECONDS = 300.0

#: What the process says is a few lines.
_MAX_OUTPUT = 1024 * 1024

#: The folder that the process is started in is not looked at for modules: it may be the kernel's own.
_PROGRAM = "import sys; sys.path[:] = [path for path in sys.path if path]; import kernels.audit.inside as it; it.main()"

_STEP = "loading"


def load_findings(subject: Subject, seconds: float = LOAD_SECONDS) -> list[Finding]:
    """Load a variant in a fresh process, and say what it did there.

    Args:
        subject: The variant; its code runs with the caller's rights.
        seconds: How long it may take. What it has started is ended with it.

    Returns:
        Findings of the steps `loading`, `operators` and `loaded layers`.
    """
    reason = _unfit(subject)
    if reason is not None:
        return [Finding(_STEP, *skipped(reason))]
    try:
        text = run_command(
            [sys.executable, "-c", _PROGRAM, str(subject.folder)], seconds=seconds, max_output=_MAX_OUTPUT
        )
        return msgspec.json.decode(text, type=list[Finding]) or [Finding(_STEP, *failed("it said nothing"))]
    except CommandFailed as error:
        return [Finding(_STEP, *failed(_shown(error)))]
    except msgspec.DecodeError:
        return [Finding(_STEP, *failed("the process that loads it ended early: the kernel ends the process"))]


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


def _shown(error: CommandFailed) -> str:
    """The error without the command, which is this package's own."""
    return str(error).replace(f"{sys.executable} ", "")[-500:]
