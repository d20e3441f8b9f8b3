"""A command on a terminal: what it writes there, as the terminal gets it."""

from __future__ import annotations

import os
import subprocess
import sys

__all__ = ["on_a_terminal"]

#: Registers a token as what reads one does, and runs the command.
_PROGRAM = """
import os, sys
from kernels.support import secrets
secrets.register(os.environ.get("KERNELS_HUB_TOKEN"))
from kernels.cli import main
main()
"""


def on_a_terminal(*arguments: str, **env: str) -> tuple[int, str]:
    """Run a command of this package with a terminal for its output and its errors.

    Args:
        arguments: The command.
        env: What is added to the environment.

    Returns:
        Its exit status, and all that it wrote, with the terminal's own line ends as Python's.
    """
    import pty

    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, *arguments],
        env={**os.environ, "TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "200", **env},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    written = bytearray()
    try:
        while chunk := os.read(ours, 65536):
            written += chunk
    except OSError:  # Linux's way to say that nobody writes there any more
        pass
    finally:
        os.close(ours)
    return process.wait(timeout=120), written.decode("utf-8", "surrogateescape").replace("\r\n", "\n")
