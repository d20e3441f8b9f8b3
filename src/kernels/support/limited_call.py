"""Call a function in a new process with limits of time and memory, for what parses hostile content.

No bound on a text's size or signs says what parsing it costs: CPython takes 5 GB for `import a.b.b…` of 140 kB.
"""

from __future__ import annotations

import base64
import os
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from kernels.support.command import CommandFailed, CommandTimeout, run_command

__all__ = ["LimitExceeded", "call_limited", "main"]

#: The time of a call: the sources of the largest published kernels are parsed in seconds.
_SECONDS = 60.0

#: Bytes of memory, for all that the process has. Linux keeps this limit; macOS and Windows have none of this kind.
_MEMORY = 2 * 1024**3

#: Bytes of a result, as text.
_MAX_OUTPUT = 64 * 1024 * 1024

#: No module is imported from the current folder, which may be the kernel's.
_PROGRAM = (
    "import sys; sys.path[:] = [path for path in sys.path if path]; "
    "import kernels.support.limited_call as it; it.main()"
)

_T = TypeVar("_T")


class LimitExceeded(RuntimeError):
    """A call took too much time or memory, or ended its process; the message is a clause."""


def call_limited(function: Callable[..., _T], *args: Any, seconds: float = _SECONDS, memory: int = _MEMORY) -> _T:
    """The result of a function that is called in a new process.

    Args:
        function: A function of a module. What it returns and raises can be pickled.
        args: Its arguments, which can be pickled.
        seconds: The time limit.
        memory: The most bytes of memory.

    Raises:
        LimitExceeded: It took more, or ended the process.
        Exception: What the function raised.

    Example:
        >>> call_limited(divmod, 7, 2)
        (3, 1)
    """
    command = [sys.executable, "-c", _PROGRAM, str(memory)]
    given = pickle.dumps((function, args))
    try:
        text = run_command(command, seconds=seconds, max_output=_MAX_OUTPUT, given=given)
    except CommandTimeout:
        raise LimitExceeded(f"it takes more than {seconds:g} seconds") from None
    except CommandFailed as error:
        raise LimitExceeded(f"the process that read it ended early ({error})") from error
    # It is of our own code, which has the rights of this process anyway: the limits are against costs, not intruders.
    result, raised = pickle.loads(base64.b64decode(text, validate=True))
    if isinstance(raised, MemoryError):
        raise LimitExceeded(f"it takes more than {memory >> 20} MiB of memory")
    if raised is not None:
        raise raised
    return result  # type: ignore[no-any-return]


def main() -> None:
    """Call the function on standard input, and print what it returns or raises."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        memory = int(sys.argv[1])
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    out = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no answer
    function, args = pickle.load(sys.stdin.buffer)
    try:
        answer = pickle.dumps((function(*args), None))
    except Exception as error:  # noqa: BLE001 - the caller raises it
        answer = pickle.dumps((None, error))
    with open(out, "wb") as file:
        file.write(base64.b64encode(answer))
