"""Find compilers and ask them for their versions."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from kernels.errors import CompilerNotFound
from kernels.support.formatting import format_value
from kernels.support.version import MajorMinor

__all__ = [
    "compiler_complaints",
    "compiler_output",
    "compiler_version",
    "find_command",
    "present_libraries",
    "version_in_answer",
]

#: The time limit for a compiler's `--version`.
_VERSION_SECONDS = 60


def find_command(variable: str, names: Iterable[str], install: str) -> list[str]:
    """The command of a compiler: the one in an environment variable, else the first of some names that exists.

    Args:
        variable: The variable: a command, which may have arguments.
        names: Commands on the path, and paths.
        install: What to install, for the error.

    Raises:
        CompilerNotFound: There is none.
    """
    given = shlex.split(os.environ.get(variable, ""))
    for name in given[:1] or names:
        found = shutil.which(name)
        if found is not None:
            return [found, *given[1:]]
    looked_for = given[0] + f" (from ${variable})" if given else ", ".join(names)
    raise CompilerNotFound(f"Compiler not found: looked for {looked_for}. Install {install}.")


@cache
def compiler_version(*command: str, asked: tuple[str, ...] = ("--version",)) -> str:
    """What a compiler says of its version.

    Args:
        command: The compiler.
        asked: The arguments that make it say so.

    Raises:
        CompilerNotFound: The compiler cannot be run.
    """
    return compiler_output(*command, *asked)


def version_in_answer(command: Sequence[str], pattern: str) -> MajorMinor:
    """The version in what a compiler says of itself.

    Args:
        command: The compiler.
        pattern: A regular expression whose first group is the version.

    Raises:
        CompilerNotFound: The compiler cannot be run, or its answer has no version.
    """
    answer = compiler_version(*command)
    match = re.search(pattern, answer)
    version = None if match is None else MajorMinor.parse(match[1])
    if version is None:
        asked = shlex.join([*command, "--version"])
        raise CompilerNotFound(f"`{asked}` has no version in its output: {format_value(answer.strip(), 200)}.")
    return version


def compiler_output(*command: str) -> str:
    """What a command prints, within a minute.

    Raises:
        CompilerNotFound: It cannot be run, or fails.
    """
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=_VERSION_SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or "").strip().splitlines()
        reason = format_value(said[-1], 300) if said else str(error)
        raise CompilerNotFound(f"`{shlex.join(command)}` failed: {reason}") from error
    return done.stdout or done.stderr  # Microsoft's compiler says its version as if it were an error


def compiler_complaints(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """What a command that may fail prints to its error output, within a minute; "" if it cannot be run.

    Args:
        command: The command.
        environment: Environment variables that it needs beside this process's.
    """
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stderr


def present_libraries(torch_lib: Path | None, *names: str) -> list[str]:
    """The flags to link those of some libraries that Torch has.

    Args:
        torch_lib: The folder of Torch's libraries; None for none.
        names: The libraries, without what a system adds to the name.
    """
    if torch_lib is None:
        return []
    there = {path.name for path in torch_lib.glob("*") if path.suffix in (".so", ".dylib", ".lib")}
    return [f"-l{name}" for name in names if there & {f"lib{name}.so", f"lib{name}.dylib", f"{name}.lib"}]
