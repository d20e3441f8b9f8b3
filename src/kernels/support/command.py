"""Run a vendor's command: no shell, no input, a bounded time and a bounded output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

__all__ = [
    "MAX_OUTPUT",
    "SECONDS",
    "CommandFailed",
    "CommandNotStarted",
    "CommandStatus",
    "CommandTimeout",
    "CommandTooLoud",
    "run_command",
]

#: How long a command may take: a query of a driver answers in well under one second.
SECONDS = 5.0

#: How many bytes of output are read. `nvidia-smi --query-gpu` prints some 100 bytes a device.
MAX_OUTPUT = 64 * 1024

#: How much is kept of what it says on its standard error, and how much of the last line a message quotes.
_MAX_MESSAGE, _MAX_LINE = 4096, 200

#: How long to wait for the rest of its messages once it has ended: something that it left running may hold them open.
_MESSAGE_SECONDS = 0.2

#: How long to wait for what was killed. A process that waits for a device in the kernel cannot be killed at all.
_REAP_SECONDS = 1.0


class CommandFailed(RuntimeError):
    """A command gave no answer; the message says which and why."""


class CommandNotStarted(CommandFailed):
    """There is no such program, or it may not be run."""


class CommandStatus(CommandFailed):
    """It ended with an exit status that is not 0.

    Attributes:
        status: The exit status; the number of a signal, negative.
        messages: The end of what it said on its standard error.
    """

    def __init__(self, message: str, status: int, messages: str) -> None:
        super().__init__(message)
        self.status = status
        self.messages = messages


class CommandTimeout(CommandFailed):
    """It had not ended when its time was over."""


class CommandTooLoud(CommandFailed):
    """It printed more than is read."""


def run_command(
    command: Sequence[str],
    *,
    seconds: float = SECONDS,
    max_output: int = MAX_OUTPUT,
    given: bytes = b"",
    max_messages: int = _MAX_MESSAGE,
) -> str:
    """What a command prints to its standard output.

    It runs without a shell and in the C locale, so that what it prints is the same everywhere. Of its messages
    (standard error) only the last line counts, and only when it fails. Whatever it has started is killed with it when
    its time is over or it prints too much.

    Args:
        command: The program, looked for on `PATH` unless it is a path, and its arguments.
        seconds: How long it may take.
        max_output: How many bytes it may print.
        given: Bytes for its standard input, which is empty otherwise.
        max_messages: How many bytes are kept of the end of what it says on its standard error.

    Returns:
        The output as text; bytes that are no UTF-8 are replaced.

    Raises:
        CommandNotStarted: There is no such program, or it may not be run.
        CommandStatus: It ended with an exit status that is not 0.
        CommandTimeout: It had not ended in time.
        CommandTooLoud: It printed more than `max_output` bytes.

    Example:
        >>> import sys
        >>> run_command([sys.executable, "-c", "print('acme 1.2')"]).strip()
        'acme 1.2'
    """
    end = time.monotonic() + seconds
    process = _start(command, given)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        messages = _Tail(process.stderr, max_messages)
        output = _Output(process.stdout, max_output)
        output.reader.join(max(0.0, end - time.monotonic()))
        if output.too_much:
            raise CommandTooLoud(f"{_said(command)} printed more than {max_output} bytes")
        if output.reader.is_alive():
            raise CommandTimeout(f"{_said(command)} did not answer within {seconds:g} seconds")
        try:
            status = process.wait(max(0.05, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise CommandTimeout(f"{_said(command)} did not end within {seconds:g} seconds") from None
    except BaseException:  # Ctrl-C, too, must not leave it running
        _kill(process)
        raise
    if status != 0:
        ended = f"was ended by signal {-status}" if status < 0 else f"ended with exit status {status}"
        messages.reader.join(_MESSAGE_SECONDS)
        text = messages.kept.decode("utf-8", errors="replace")
        raise CommandStatus(f"{_said(command)} {ended}{_last_line(messages.kept)}", status, text)
    return b"".join(output.chunks).decode("utf-8", errors="replace")


class _Output:
    """What a process has printed so far. A thread reads it: on Windows nothing else can wait for a pipe."""

    def __init__(self, pipe: IO[bytes], limit: int) -> None:
        self.chunks: list[bytes] = []
        self.too_much = False
        # A daemon: what the command has left running elsewhere may keep the pipe open for ever.
        self.reader = threading.Thread(
            target=self._read, args=(pipe, limit), name="kernels-command-output", daemon=True
        )
        self.reader.start()

    def _read(self, pipe: IO[bytes], limit: int) -> None:
        with pipe, suppress(OSError):
            while chunk := os.read(pipe.fileno(), 65536):
                self.chunks.append(chunk)
                limit -= len(chunk)
                if limit < 0:
                    self.too_much = True
                    return


class _Tail:
    """The end of what a process has said on its standard error so far: all of it is read, so that it never waits."""

    def __init__(self, pipe: IO[bytes], limit: int) -> None:
        self.kept = b""
        self.limit = limit
        self.reader = threading.Thread(target=self._read, args=(pipe,), name="kernels-command-messages", daemon=True)
        self.reader.start()

    def _read(self, pipe: IO[bytes]) -> None:
        with pipe, suppress(OSError):
            while chunk := os.read(pipe.fileno(), 65536):
                self.kept = (self.kept + chunk)[-self.limit :]


def _last_line(messages: bytes) -> str:
    """The last line that says something, as a part of a message: quoted, so that control characters show."""
    lines = [line.strip() for line in messages.decode("utf-8", errors="replace").splitlines() if line.strip()]
    if not lines:
        return ""
    line = lines[-1]
    return f": {line if len(line) <= _MAX_LINE else line[: _MAX_LINE - 1] + '…'!r}"


def _start(command: Sequence[str], given: bytes) -> subprocess.Popen[bytes]:
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
                bufsize=0,
                env={**os.environ, "LC_ALL": "C"},
                # A group of its own, so that what it starts ends with it, and Ctrl-C reaches only us.
                start_new_session=True,
                creationflags=_windows("CREATE_NEW_PROCESS_GROUP") | _windows("CREATE_NO_WINDOW"),
            )
        except OSError as error:
            raise CommandNotStarted(f"{_said(command)} cannot be run: {error.strerror or error}") from None
        except ValueError as error:  # a zero byte in an argument
            raise CommandNotStarted(f"{_said(command)} cannot be run: {error}") from None


def _windows(flag: str) -> int:
    return int(getattr(subprocess, flag, 0))


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process, and all that it started."""
    if process.returncode is not None:  # its number may be another's by now
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


def _said(command: Sequence[str]) -> str:
    """A command as a message names it."""
    text = " ".join(command)
    return repr(text if len(text) <= 80 else text[:77] + "…")
