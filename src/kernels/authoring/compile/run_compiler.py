"""Run the compilers: from C++ and device sources to one shared library.

With ninja only what changed is compiled; without it everything is, with the same command lines.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kernels.authoring.compile.objects import keep_objects
from kernels.authoring.compile.toolchains import compiler_version
from kernels.errors import BuildError, RequestError

__all__ = ["Compilation", "CompileUnit", "compile_extension", "open_log"]

#: The beginning of a step in the log. No compiler writes it: ASCII's record separator.
_STEP = "\x1e"

#: Lines of a compiler's output in an error's message; the log has them all.
_SHOWN_LINES = 80


@dataclass(frozen=True)
class CompileUnit:
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
        folder: The source folder, where the compilers run: the paths in their output are then the same everywhere.
        units: The sources to compile, each once.
        link: The command line that links the objects, without objects and output.
        libraries: The arguments after the objects.
        files: SHA-256 of the folder's files, by their path.
        against: The framework whose headers and libraries are used, with its version.
    """

    folder: Path
    units: tuple[CompileUnit, ...]
    link: tuple[str, ...]
    libraries: tuple[str, ...]
    files: tuple[tuple[str, str], ...] = ()
    against: str = ""

    def versions(self) -> list[str]:
        """The versions of the framework and of each compiler."""
        commands = {self.link[0], *(unit.command[0] for unit in self.units)}
        return [self.against, *(f"{name}: {compiler_version(name)}" for name in sorted(commands))]

    def fingerprint(self) -> list[str]:
        """Everything that the result depends on, except the sources: command lines and versions."""
        commands = [[*unit.command, unit.source] for unit in self.units] + [[*self.link, *self.libraries]]
        return [*map(shlex.join, commands), *self.versions()]


@dataclass(frozen=True)
class _Step:
    """A command that makes one file; `name` is for messages."""

    name: str
    command: list[str]
    inputs: list[str]
    output: Path


def compile_extension(
    compilation: Compilation, output: Path, object_dir: Path, log: Path, *, jobs: int | None = None
) -> None:
    """Compile and link an extension.

    Args:
        compilation: The compiler runs.
        output: The shared library to write.
        object_dir: The folder of the objects; those of the last build are reused where possible.
        log: The file for the compilers' output.
        jobs: Compilers to run at once. Default: one for each processor.

    Raises:
        RequestError: A path or a flag has a line break or a null byte.
        BuildError: A compiler failed; the message has the output for the first source that failed. No further compiler
            is started.
    """
    library = object_dir / "extension.so"
    steps = []
    for unit in compilation.units:
        made = object_dir / "objects" / f"{os.path.normpath(unit.source)}.o"
        # A name that begins like an option must be read as a file.
        source = f"./{unit.source}" if unit.source[0] in "-@" else unit.source
        steps.append(_Step(unit.source, [*unit.command, "-c", source, "-o", str(made)], [source], made))
    made_objects = [str(step.output) for step in steps]
    link = [*compilation.link, *made_objects, "-o", str(library), *compilation.libraries]
    steps.append(_Step(output.name, link, made_objects, library))
    for step in steps:
        if any(set(part) & set("\0\n\r") for part in step.command):
            raise RequestError(f"A path or a flag for {step.name} has a line break or a null byte; remove it.")

    log.parent.mkdir(parents=True, exist_ok=True)
    with open_log(log) as out:
        keep_objects(object_dir, compilation.folder, dict(compilation.files), compilation.versions())
        for step in steps:
            step.output.parent.mkdir(parents=True, exist_ok=True)
        ninja = _ninja()
        # Ninja's build files cannot escape this character in a path.
        if ninja is None or any("|" in path for step in steps for path in (*step.inputs, str(step.output))):
            _run_all(steps, compilation.folder, log, out, jobs)
        else:
            _run_changed(ninja, steps, compilation.folder, object_dir, log, out, jobs)
        shutil.copyfile(library, output)


@contextmanager
def open_log(log: Path) -> Iterator[BinaryIO]:
    """Open a log for writing from its beginning, by one build at a time.

    Ninja inherits the lock: after a build was killed, the next one waits for its ninja, which may still write objects
    from older sources.
    """
    with log.open("ab") as out:
        if sys.platform != "win32":
            from fcntl import LOCK_EX, flock

            with suppress(OSError):  # a file system without locks
                flock(out, LOCK_EX)
        out.truncate(0)
        yield out


def _ninja() -> str | None:
    """Ninja from this Python's environment, else from the path; None if it is not installed."""
    return shutil.which("ninja", path=sysconfig.get_path("scripts")) or shutil.which("ninja")


def _run_changed(
    ninja: str, steps: Sequence[_Step], folder: Path, object_dir: Path, log: Path, out: BinaryIO, jobs: int | None
) -> None:
    script = object_dir / "build.ninja"
    script.write_text(_ninja_script(steps, object_dir), encoding="utf-8")
    command = [ninja, "-f", str(script), *([] if jobs is None else ["-j", str(jobs)])]
    environment = {**os.environ, "NINJA_STATUS": _STEP}
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
    )
    try:
        status = process.wait()
    except BaseException:  # Ctrl-C, too, must not leave compilers running
        process.terminate()  # it ends the compilers and removes their unfinished files
        process.wait()
        raise
    if status != 0:
        raise _failure(log.read_text(encoding="utf-8", errors="replace"), steps, log)


def _ninja_script(steps: Sequence[_Step], object_dir: Path) -> str:
    """A build file (https://ninja-build.org/manual.html). The compilers list the headers that they read."""
    lines = ["ninja_required_version = 1.5", f"builddir = {_escaped(str(object_dir))}"]
    for number, step in enumerate(steps):
        depends = ["-MD", "-MF", f"{step.output}.d"] if step is not steps[-1] else []
        text = shlex.join([*step.command, *depends]).replace("$", "$$")
        lines += ["", f"rule step{number}", f"  command = {text}", f"  description = {step.name.replace('$', '$$')}"]
        if depends:
            lines += [f"  depfile = {_escaped(f'{step.output}.d')}", "  deps = gcc"]
        lines.append(f"build {_escaped(str(step.output))}: step{number} {' '.join(map(_escaped, step.inputs))}")
    return "\n".join(lines) + "\n"


def _escaped(path: str) -> str:
    return path.replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def _run_all(steps: Sequence[_Step], folder: Path, log: Path, out: BinaryIO, jobs: int | None) -> None:
    *units, link = steps
    outputs: list[str] = []
    try:
        with ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
            runs = [pool.submit(_run, step, folder, outputs) for step in units]
            try:
                for run in runs:
                    run.result()
            except BaseException:  # after Ctrl-C, too, no further compiler is started
                pool.shutdown(cancel_futures=True)
                raise
        _run(link, folder, outputs)
    except _StepFailed:
        raise _failure("".join(outputs), steps, log) from None
    finally:
        out.write("".join(outputs).encode())


class _StepFailed(Exception):
    """A command failed; its output is in the log."""


def _run(step: _Step, folder: Path, outputs: list[str]) -> None:
    try:
        done = subprocess.run(
            step.command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise BuildError(f"Building {step.name} failed: {step.command[0]} did not start: {error}") from error
    failed = f"FAILED: [code={done.returncode}] {step.output}\n{shlex.join(step.command)}\n"
    outputs.append(f"{_STEP}{step.name}\n{failed if done.returncode else ''}{done.stdout}")
    if done.returncode:
        raise _StepFailed


def _failure(text: str, steps: Sequence[_Step], log: Path) -> BuildError:
    """The error for the first step that failed, in the order of the log."""
    for step_text in text.split(_STEP):
        name, _, rest = step_text.partition("\n")
        if rest.startswith("FAILED: "):
            _, command, output = [*rest.split("\n", 2), "", ""][:3]
            output = output.split("\nninja: ")[0]
            return BuildError(f"Building {name} failed; the full log: {log}\n$ {command}\n{_shortened(output)}")
    return BuildError(f"Building {steps[-1].name} failed; the full log: {log}\n{_shortened(text)}")


def _shortened(output: str) -> str:
    lines = output.strip("\n").split("\n")
    if len(lines) <= _SHOWN_LINES:
        return "\n".join(lines)
    # Many warnings can come before the first error.
    first = next((number for number, line in enumerate(lines) if "error" in line.lower()), 0)
    start = 0 if first < _SHOWN_LINES // 2 else first - 5
    shown = lines[start : start + _SHOWN_LINES]
    before = [f"({start} lines left out)"] if start else []
    rest = len(lines) - start - len(shown)
    return "\n".join([*before, *shown, *([f"({rest} more lines)"] if rest > 0 else [])])
