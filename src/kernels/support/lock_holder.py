"""Which process holds a lock, as far as the system says."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from kernels.support.text import one_line

__all__ = ["lock_holder"]

#: A line of `/proc/locks` (proc_locks(5)): the process, and the file of a lock that is held, not waited for.
_HELD = r"(?m)^\d+: (?:FLOCK|OFDLCK|POSIX)\s+\S+\s+\S+\s+(\d+)\s+(\S+)\s"

#: The most characters of a command line.
_MAX_COMMAND = 120


def lock_holder(path: str | os.PathLike[str]) -> str:
    """The process that holds a lock on a file: its number and command on Linux, elsewhere only that there is one.

    Args:
        path: The file.

    Example:
        >>> lock_holder("/no/such.lock")
        'another process'
    """
    with suppress(OSError, ValueError):
        facts = os.stat(path)
        file = f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x}:{facts.st_ino}"
        for process, held in re.findall(_HELD, Path("/proc/locks").read_text()):
            if held == file:
                return f"process {process}{_command(process)}"
    return "another process"


def _command(process: str) -> str:
    with suppress(OSError):
        words = Path(f"/proc/{process}/cmdline").read_bytes()[:4096].decode(errors="replace").split("\0")
        text = " ".join(filter(None, words))
        return f" ({one_line(text[:_MAX_COMMAND])}{'…' * (len(text) > _MAX_COMMAND)})" if text else ""
    return ""
