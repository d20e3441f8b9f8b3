"""From C++ and device sources to one shared library.

With ninja, objects are kept and only what changed is compiled; without it everything is, by the same command lines.
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

from kernels.authoring.compile.compilers import compiler_version
from kernels.authoring.compile.objects import keep_objects
from kernels.errors import BuildError, RequestError

__all__ = ["Compilation", "CompileUnit", "compile_extension", "open_log"]

#: What begins a step in the log, since no compiler writes it: ASCII's record separator.
_STEP = "\x1e"

#: Lines of a compiler's output that an error shows; the log has them all.
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
        folder: The source folder, where the compilers run: what they write down of paths is then the same everywhere.
        units: The sources to compile, each once.
        link: The command line that links the objects, without objects and output.
        libraries: What stands after the objects.
        files: SHA-256 of the folder's files, by their path: which of them the objects were made from.
        against: The framework whose headers and libraries are used, with its version.
    """

    folder: Path
    units: tuple[CompileUnit, ...]
    link: tuple[str, ...]
    libraries: tuple[str, ...]
    files: tuple[tuple[str, str], ...] = ()
    against: str = ""

    def versions(self) -> list[str]:
        """What each compiler says of its version, and what it compiles against.

        Raises:
            CompilerNotFound: A compiler does not run.
        """
        commands = {self.link[0], *(unit.command[0] for unit in self.units)}
        return [self.against, *(f"{name}: {compiler_version([name])}" for name in sorted(commands))]

    def fingerprint(self) -> list[str]:
        """Everything but the sources that the result depends on: command lines and compiler versions.

        Raises:
            CompilerNotFound: A compiler does not run.
        """
        commands = [[*unit.command, unit.source] for unit in self.units] + [[*self.link, *self.libraries]]
        return [*map(shlex.join, commands), *self.versions()]


@dataclass(frozen=True)
class _Step:
    """A command that makes one file."""

    what: str
    command: list[str]
    inputs: list[str]
    output: Path


def compile_extension(
    compilation: Compilation, output: Path, object_dir: Path, log: Path, *, jobs: int | None = None
) -> None:
    """Compile and link an extension.

    Args:
        compilation: What to run.
        output: The shared library to write.
        object_dir: The folder of the objects; what stands there from the last build is used again where it can be.
        log: Where to write everything that the compilers say.
        jobs: Compilers to run at once, default one a processor.

    Raises:
        RequestError: A path or a flag has a line break or a null byte.
        BuildError: A compiler failed; the message has the output for the first source that failed. No further compiler
            is started then.
    """
    library = object_dir / "extension.so"
    steps = []
    for unit in compilation.units:
        made = object_dir / "objects" / f"{os.path.normpath(unit.source)}.o"
        # A name that begins like an option is a file all the same.
        source = f"./{unit.source}" if unit.source[0] in "-@" else unit.source
        steps.append(_Step(unit.source, [*unit.command, "-c", source, "-o", str(made)], [source], made))
    made_objects = [str(step.output) for step in steps]
    link = [*compilation.link, *made_objects, "-o", str(library), *compilation.libraries]
    steps.append(_Step(output.name, link, made_objects, library))
    for step in steps:
        if any(set(part) & set("\0\n\r") for part in step.command):
            raise RequestError(
                f"The command line for {step.what} has a line break or a null byte; allowed are paths and flags "
                "without one."
            )

    log.parent.mkdir(parents=True, exist_ok=True)
    with open_log(log) as out:
        keep_objects(object_dir, compilation.folder, dict(compilation.files), compilation.versions())
        for step in steps:
            step.output.parent.mkdir(parents=True, exist_ok=True)
        ninja = _ninja()
        # Ninja's files have no way to write this character in a path.
        if ninja is None or any("|" in path for step in steps for path in (*step.inputs, str(step.output))):
            _run_all(steps, compilation.folder, log, out, jobs)
        else:
            _run_changed(ninja, steps, compilation.folder, object_dir, log, out, jobs)
        shutil.copyfile(library, output)


@contextmanager
def open_log(log: Path) -> Iterator[BinaryIO]:
    """A log, opened to be written from its beginning, by one build at a time.

    Ninja has it open as well: one that outlives a build that was killed is waited for, lest it write objects from the
    sources of then while others are made from those of now.

    Args:
        log: The file.
    """
    with log.open("ab") as out:
        if sys.platform != "win32":
            from fcntl import LOCK_EX, flock

            with suppress(OSError):  # a file system without locks
                flock(out, LOCK_EX)
        out.truncate(0)
        yield out


def _ninja() -> str | None:
    """Ninja from this Python's environment, else from the path; None without one."""
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
        process.terminate()  # it ends the compilers, and removes what they had begun to write
        process.wait()
        raise
    if status != 0:
        raise _failure(log.read_text(encoding="utf-8", errors="replace"), steps, log)


def _ninja_script(steps: Sequence[_Step], object_dir: Path) -> str:
    """A build file (https://ninja-build.org/manual.html). Compilers list every header that they read, Torch's too."""
    lines = ["ninja_required_version = 1.5", f"builddir = {_escaped(str(object_dir))}"]
    for number, step in enumerate(steps):
        depends = ["-MD", "-MF", f"{step.output}.d"] if step is not steps[-1] else []
        text = shlex.join([*step.command, *depends]).replace("$", "$$")
        lines += ["", f"rule step{number}", f"  command = {text}", f"  description = {step.what.replace('$', '$$')}"]
        if depends:
            lines += [f"  depfile = {_escaped(f'{step.output}.d')}", "  deps = gcc"]
        lines.append(f"build {_escaped(str(step.output))}: step{number} {' '.join(map(_escaped, step.inputs))}")
    return "\n".join(lines) + "\n"


def _escaped(path: str) -> str:
    return path.replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def _run_all(steps: Sequence[_Step], folder: Path, log: Path, out: BinaryIO, jobs: int | None) -> None:
    *units, link = steps
    said: list[str] = []
    try:
        with ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
            runs = [pool.submit(_run, step, folder, said) for step in units]
            try:
                for run in runs:
                    run.result()
            except BaseException:  # after Ctrl-C, too, no further compiler is started
                pool.shutdown(cancel_futures=True)
                raise
        _run(link, folder, said)
    except _StepFailed:
        raise _failure("".join(said), steps, log) from None
    finally:
        out.write("".join(said).encode())


class _StepFailed(Exception):
    """A command failed; what it said is in the log."""


def _run(step: _Step, folder: Path, said: list[str]) -> None:
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
        raise BuildError(f"Building {step.what} failed: {step.command[0]} did not start: {error}") from error
    failed = f"FAILED: [code={done.returncode}] {step.output}\n{shlex.join(step.command)}\n"
    said.append(f"{_STEP}{step.what}\n{failed if done.returncode else ''}{done.stdout}")
    if done.returncode:
        raise _StepFailed


def _failure(text: str, steps: Sequence[_Step], log: Path) -> BuildError:
    """The error for the first step that failed, in the order in which they ended."""
    for step_text in text.split(_STEP):
        what, _, rest = step_text.partition("\n")
        if rest.startswith("FAILED: "):
            _, command, said = [*rest.split("\n", 2), "", ""][:3]
            said = said.split("\nninja: ")[0]
            return BuildError(f"Building {what} failed; all that was said: {log}\n$ {command}\n{_shortened(said)}")
    return BuildError(f"Building {steps[-1].what} failed; all that was said: {log}\n{_shortened(text)}")


def _shortened(said: str) -> str:
    lines = said.strip("\n").split("\n")
    if len(lines) <= _SHOWN_LINES:
        return "\n".join(lines)
    # A flood of warnings may stand before the first error.
    first = next((number for number, line in enumerate(lines) if "error" in line.lower()), 0)
    start = 0 if first < _SHOWN_LINES // 2 else first - 5
    shown = lines[start : start + _SHOWN_LINES]
    before = [f"({start} lines left out)"] if start else []
    rest = len(lines) - start - len(shown)
    return "\n".join([*before, *shown, *([f"({rest} more lines)"] if rest > 0 else [])])
