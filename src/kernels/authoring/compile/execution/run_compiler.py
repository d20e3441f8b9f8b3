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
from pathlib import Path
from typing import BinaryIO

from kernels.authoring.compile.execution.compiler_steps import Compilation, Step, compiler_steps, working_folder
from kernels.authoring.compile.execution.known_failures import advice_for
from kernels.authoring.compile.execution.objects import keep_objects
from kernels.errors import BuildError

__all__ = ["compile_extension", "joined", "open_log"]

#: The beginning of a step in the log. No compiler writes it: ASCII's record separator.
_STEP = "\x1e"

#: Lines of a compiler's output in an error's message; the log has them all.
_SHOWN_LINES = 80

#: The longest command line that is passed as it is; a longer one is passed in a file. Windows starts no process with
#: more than 32,767 characters, and Linux has a limit of 131,072 bytes for one argument: ninja passes a line as one.
_LONGEST_COMMAND = 30_000


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
    waves = compiler_steps(compilation, output.name, object_dir)
    steps = [step for wave in waves for step in wave]
    log.parent.mkdir(parents=True, exist_ok=True)
    with open_log(log) as out:
        keep_objects(object_dir, compilation.folder, dict(compilation.files), compilation.versions())
        folder = working_folder(compilation, object_dir)
        for made in (folder, *(step.output.parent for step in steps)):
            made.mkdir(parents=True, exist_ok=True)
        ninja, paths = _ninja(), [path for step in steps for path in (*step.inputs, *step.others, str(step.output))]
        # Ninja's build files cannot escape this character in a path.
        if ninja is None or any("|" in path for path in paths):
            _run_all(waves, compilation, folder, log, out, jobs)
        else:
            _run_changed(ninja, steps, compilation, folder, object_dir, log, out, jobs)
        shutil.copyfile(steps[-1].output, output)


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
    ninja: str,
    steps: Sequence[Step],
    compilation: Compilation,
    folder: Path,
    object_dir: Path,
    log: Path,
    out: BinaryIO,
    jobs: int | None,
) -> None:
    script = object_dir / "build.ninja"
    script.write_text(_ninja_script(steps, object_dir), encoding="utf-8")
    command = [ninja, "-f", str(script), *([] if jobs is None else ["-j", str(jobs)])]
    environment = {**os.environ, **dict(compilation.environment), "NINJA_STATUS": _STEP}
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


def _ninja_script(steps: Sequence[Step], object_dir: Path) -> str:
    """A build file (https://ninja-build.org/manual.html). The compilers list the headers that they read."""
    lines = ["ninja_required_version = 1.5", f"builddir = {_escaped(str(object_dir))}"]
    for number, step in enumerate(steps):
        depends = step.spelling.listing_headers(step.output) if step.compiles else []
        command, file = _shortened_command([*step.command, *depends], step)
        text = joined(command).replace("$", "$$")
        lines += ["", f"rule step{number}", f"  command = {text}", f"  description = {step.name.replace('$', '$$')}"]
        if file is not None:
            content = " ".join(map(_in_file, file)).replace("$", "$$")
            lines += [f"  rspfile = {_escaped(str(_response_file(step)))}", f"  rspfile_content = {content}"]
        if step.compiles:
            lines += [f"  {line}" for line in step.spelling.ninja_deps(_escaped(f"{step.output}.d"))]
        if step.others:
            lines.append("  restat = 1")  # what it left as it was makes nothing out of date
        made = "".join(f" {_escaped(path)}" for path in step.needed)
        inputs = " ".join(map(_escaped, step.inputs)) + (f" |{made}" if made else "")
        outputs = " ".join(map(_escaped, (str(step.output), *step.others)))
        lines.append(f"build {outputs}: step{number} {inputs}")
    return "\n".join(lines) + "\n"


def _escaped(path: str) -> str:
    return path.replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def joined(command: Sequence[str]) -> str:
    """A command line as this system's processes get it: ninja passes it to a shell, or on Windows to the process.

    Example:
        >>> joined(["c++", "two words.cpp"]) in ("c++ 'two words.cpp'", 'c++ "two words.cpp"')
        True
    """
    return subprocess.list2cmdline(command) if sys.platform == "win32" else shlex.join(command)


def _shortened_command(command: list[str], step: Step) -> tuple[list[str], list[str] | None]:
    """The command, and what of it goes into a file if it is too long for this system."""
    if not step.movable or sum(len(part) + 3 for part in command) <= _LONGEST_COMMAND:
        return command, None
    return [*command[: -step.movable], f"@{_response_file(step)}"], command[-step.movable :]


def _response_file(step: Step) -> Path:
    return step.output.with_name(f"{step.output.name}.rsp")


def _in_file(part: str) -> str:
    """An argument in such a file: compilers read quotes and backslashes there (GCC, "Overall Options", @file)."""
    if sys.platform == "win32":
        return subprocess.list2cmdline([part])
    return '"' + part.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _run_all(
    waves: Sequence[Sequence[Step]],
    compilation: Compilation,
    folder: Path,
    log: Path,
    out: BinaryIO,
    jobs: int | None,
) -> None:
    outputs: list[str] = []
    try:
        with ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
            for wave in waves:
                runs = [pool.submit(_run, step, compilation, folder, outputs) for step in wave]
                try:
                    for run in runs:
                        run.result()
                except BaseException:  # after Ctrl-C, too, no further compiler is started
                    pool.shutdown(cancel_futures=True)
                    raise
    except _StepFailed:
        raise _failure("".join(outputs), [step for wave in waves for step in wave], log) from None
    finally:
        out.write("".join(outputs).encode())


class _StepFailed(Exception):
    """A command failed; its output is in the log."""


def _run(step: Step, compilation: Compilation, folder: Path, outputs: list[str]) -> None:
    command, file = _shortened_command(step.command, step)
    if file is not None:
        _response_file(step).write_text(" ".join(map(_in_file, file)), encoding="utf-8")
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **dict(compilation.environment)},
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


def _failure(text: str, steps: Sequence[Step], log: Path) -> BuildError:
    """The error for the first step that failed, in the order of the log."""
    for step_text in text.split(_STEP):
        name, _, rest = step_text.partition("\n")
        if rest.startswith("FAILED: "):
            _, command, output = [*rest.split("\n", 2), "", ""][:3]
            output = output.split("\nninja: ")[0]
            said = f"$ {command}\n{_shortened(output)}{_advice(output)}{_note(name, steps)}"
            return BuildError(f"Building {name} failed; the full log: {log}\n{said}")
    return BuildError(f"Building {steps[-1].name} failed; the full log: {log}\n{_shortened(text)}")


def _advice(output: str) -> str:
    advice = advice_for(output)
    return f"\n> {advice}" if advice else ""


def _note(name: str, steps: Sequence[Step]) -> str:
    note = next((step.note for step in steps if step.name == name), "")
    return f"\n> {note}" if note else ""


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
