"""Run a vendor's command: no shell, bounded time, bounded output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import IO

from kernels.support.formatting import shortened
from kernels.support.tasks import Task

__all__ = [
    "SECONDS",
    "CommandFailed",
    "CommandStatus",
    "CommandTimeout",
    "rounded",
    "run_command",
]

#: How long a command may take: a query of a driver answers in well under one second.
SECONDS = 5.0

#: The most bytes of output. `nvidia-smi --query-gpu` prints some 100 bytes a device.
_MAX_OUTPUT = 64 * 1024

#: How many bytes of the end of standard error are kept (C++ prints an uncaught exception before a stack of any depth),
#: and how many characters of its last line are quoted.
_MAX_MESSAGES, _MAX_LINE = 1024 * 1024, 200

#: How long to wait for the rest of standard error after the end: a process that it left running may keep it open.
_MESSAGE_SECONDS = 0.2

#: How long to wait for a killed process. One that waits for a device in the kernel cannot be killed.
_REAP_SECONDS = 1.0


class CommandFailed(RuntimeError):
    """A command failed; the message has the command and the reason."""


class CommandStatus(CommandFailed):
    """It ended with another exit status than 0.

    Attributes:
        status: The exit status; for a signal its number, negative.
        messages: The end of its standard error.
    """

    def __init__(self, message: str, status: int, messages: str) -> None:
        super().__init__(message)
        self.status = status
        self.messages = messages


class CommandTimeout(CommandFailed):
    """It did not end in time."""


def run_command(
    command: Sequence[str],
    *,
    seconds: float = SECONDS,
    max_output: int = _MAX_OUTPUT,
    given: bytes = b"",
    environment: Mapping[str, str] | None = None,
    errors: str = "replace",
) -> str:
    """Run a command and return its standard output.

    It runs without a shell and in the C locale, so that its output is the same everywhere. When its time is over or it
    prints too much, it is killed with all processes that it has started.

    Args:
        command: The program, searched on `PATH` unless it is a path, and its arguments.
        seconds: How long it may take.
        max_output: The most bytes that it may print.
        given: Its standard input.
        environment: Its environment variables. Default: this process's.
        errors: What becomes of bytes of the output that are not UTF-8, as for `bytes.decode`.

    Returns:
        The output as text.

    Raises:
        CommandStatus: It ended with another exit status than 0.
        CommandTimeout: It did not end in time.
        CommandFailed: It cannot be run, or printed more than `max_output` bytes.

    Example:
        >>> import sys
        >>> run_command([sys.executable, "-c", "print('acme 1.2')"]).strip()
        'acme 1.2'
    """
    end = time.monotonic() + seconds
    process = _start(command, given, os.environ if environment is None else environment)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        output = Task(partial(_head, process.stdout, max_output), name="command")
        end_of_messages = bytearray()
        messages = Task(partial(_keep_end, process.stderr, end_of_messages), name="command-messages")
        if not output.wait(seconds):
            raise CommandTimeout(f"{_quoted(command)} did not answer within {rounded(seconds)} seconds")
        content = output.result()
        if len(content) > max_output:
            raise CommandFailed(f"{_quoted(command)} printed more than {max_output} bytes")
        try:
            status = process.wait(max(0.05, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise CommandTimeout(f"{_quoted(command)} did not end within {rounded(seconds)} seconds") from None
    except BaseException:  # Ctrl-C, too, must not leave it running
        _kill(process)
        raise
    if status != 0:
        ended = f"was ended by signal {-status}" if status < 0 else f"ended with exit status {status}"
        messages.wait(_MESSAGE_SECONDS)
        said = end_of_messages.decode("utf-8", errors="replace")
        raise CommandStatus(f"{_quoted(command)} {ended}{_last_line(said)}", status, said)
    return content.decode("utf-8", errors)


def rounded(seconds: float) -> str:
    """A time limit for a message.

    Example:
        >>> rounded(2.99842), rounded(0.5), rounded(120.0)
        ('3', '0.5', '120')
    """
    return f"{round(seconds, 1):g}"


def _head(pipe: IO[bytes], limit: int) -> bytes:
    """What a pipe gives, up to a byte more than the limit."""
    with pipe:
        return pipe.read(limit + 1)


def _keep_end(pipe: IO[bytes], end: bytearray) -> None:
    """Keep the end of what a pipe gives, all of which is read: the command never waits."""
    with pipe:
        while chunk := os.read(pipe.fileno(), 65536):
            end += chunk
            del end[:-_MAX_MESSAGES]


def _last_line(messages: str) -> str:
    """The last line that is not empty, quoted for a message."""
    lines = [line.strip() for line in messages.splitlines() if line.strip()]
    return f": {shortened(lines[-1], _MAX_LINE)!r}" if lines else ""


def _start(command: Sequence[str], given: bytes, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with tempfile.TemporaryFile() if given else open(os.devnull, "rb") as stdin:
        if given:
            stdin.write(given)
            stdin.seek(0)
        try:
            return subprocess.Popen(
                list(command),
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**environment, "LC_ALL": "C"},
                # A group of its own, so that what it starts ends with it, and Ctrl-C reaches only us.
                start_new_session=True,
                creationflags=_windows("CREATE_NEW_PROCESS_GROUP") | _windows("CREATE_NO_WINDOW"),
            )
        except (OSError, ValueError) as error:  # a ValueError: a zero byte in an argument
            reason = (error.strerror if isinstance(error, OSError) else None) or error
            raise CommandFailed(f"{_quoted(command)} cannot be run: {reason}") from None


def _windows(flag: str) -> int:
    return int(getattr(subprocess, flag, 0))


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process, and all processes that it has started."""
    if process.returncode is not None:  # another process may have its number by now
        return
    if sys.platform == "win32":
        with suppress(OSError, subprocess.SubprocessError):
            tree = ["taskkill", "/T", "/F", "/PID", str(process.pid)]
            subprocess.run(tree, capture_output=True, timeout=_REAP_SECONDS, check=False)
    else:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    with suppress(OSError):
        process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_REAP_SECONDS)


def _quoted(command: Sequence[str]) -> str:
    return repr(shortened(" ".join(command), 80))
