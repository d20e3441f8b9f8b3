"""From C++ and device sources to one shared library."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kernels.build.toolchains import compiler_version
from kernels.errors import BuildError

__all__ = ["Compilation", "Unit", "compile_extension"]


@dataclass(frozen=True)
class Unit:
    """A source to compile.

    Attributes:
        source: Its path, relative to the source folder.
        command: The compiler's command line, without source and object.
    """

    source: str
    command: tuple[str, ...]


@dataclass(frozen=True)
class Compilation:
    """The compiler runs of one extension.

    Attributes:
        folder: The source folder, where the compilers run: what they write down of paths is then the same everywhere.
        units: The sources to compile.
        link: The command line that links the objects, without objects and output.
        libraries: What stands after the objects.
    """

    folder: Path
    units: tuple[Unit, ...]
    link: tuple[str, ...]
    libraries: tuple[str, ...]

    def fingerprint(self) -> list[str]:
        """Everything but the sources that the result depends on: command lines and compiler versions.

        Raises:
            CompilerNotFound: A compiler does not run.
        """
        commands = [[*unit.command, unit.source] for unit in self.units] + [[*self.link, *self.libraries]]
        versions = {command[0]: compiler_version(command[:1]) for command in commands}
        return [*map(shlex.join, commands), *(f"{name}: {version}" for name, version in sorted(versions.items()))]


def compile_extension(compilation: Compilation, output: Path, object_dir: Path, *, jobs: int | None = None) -> None:
    """Compile and link an extension.

    Args:
        compilation: What to run.
        output: The shared library to write.
        object_dir: An existing folder for the objects.
        jobs: Compilers to run at once, default one a processor.

    Raises:
        BuildError: A compiler failed; the message has its output. No further compiler is started then.
    """
    objects = [object_dir / f"{number}.o" for number, _ in enumerate(compilation.units)]
    with ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
        runs = [
            pool.submit(_run, [*unit.command, "-c", unit.source, "-o", str(object)], compilation.folder, unit.source)
            for unit, object in zip(compilation.units, objects, strict=True)
        ]
        try:
            for run in runs:
                run.result()
        except BuildError:
            pool.shutdown(cancel_futures=True)
            raise
    link = [*compilation.link, *map(str, objects), "-o", str(output), *compilation.libraries]
    _run(link, compilation.folder, output.name)


def _run(command: Sequence[str], folder: Path, what: str) -> None:
    try:
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except OSError as error:
        raise BuildError(f"Building {what} failed: {command[0]} did not start: {error}") from error
    if done.returncode != 0:
        raise BuildError(
            f"Building {what} failed with status {done.returncode}.\n$ {shlex.join(command)}\n{done.stdout}"
        )
