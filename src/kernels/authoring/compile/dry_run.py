"""The commands of a build, to read or to paste into a shell; nothing is run or written."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernels.authoring.compile.execution.compiler_steps import compiler_steps, working_folder
from kernels.authoring.compile.plan.build_plan import BuildPlan
from kernels.authoring.compile.sources.python_files import package_files
from kernels.authoring.compile.write_variant import OPS_FILE, metadata_bytes, ops_module
from kernels.models.metadata import Digest
from kernels.models.snapshot import BUILD_FOLDER, METADATA_FILE

__all__ = ["BuildCommand", "build_commands", "shell_script"]


@dataclass(frozen=True)
class BuildCommand:
    """A command of a build, or a file that it writes.

    Attributes:
        argv: The command line, to run in the source folder; empty for a file.
        makes: The file that it makes; None for a command that makes none.
        content: The content of the file.
        folder: The folder to run in if it is another one: that of the translated sources.
    """

    argv: tuple[str, ...] = ()
    makes: Path | None = None
    content: str = ""
    folder: Path | None = None


def build_commands(plan: BuildPlan, out: Path, work: Path) -> list[BuildCommand]:
    """The commands that build a variant, in their order.

    They make the same files as a build. `metadata.json` of a compiled variant lacks the digest: it is that of the
    compiled files.

    Args:
        plan: The variant.
        out: The folder that gets `build/<variant>`.
        work: The folder of the objects.
    """
    variant_dir = out / BUILD_FOLDER / plan.variant
    commands = list(_compiling(plan, variant_dir, work))
    files = package_files(plan.source)
    folders = dict.fromkeys([variant_dir, *((variant_dir / name).parent for name, _ in files)])
    commands += [BuildCommand(("mkdir", "-p", *map(str, folders)))]
    if plan.compilation is not None:
        linked = [command.makes for command in commands if command.makes is not None][-1]
        commands.append(_copied(linked, variant_dir / plan.extension_file))
    commands += [_copied(path, variant_dir / name) for name, path in files]
    ops = ops_module(plan)
    digest = None
    if plan.compilation is None:
        contents = {str(name): path.read_bytes() for name, path in files} | {OPS_FILE: ops.encode()}
        digest = Digest("sha256", {name: _sha256(contents[name]) for name in sorted(contents)})
    commands.append(BuildCommand(makes=variant_dir / OPS_FILE, content=ops))
    metadata = metadata_bytes(plan, digest).decode()
    return [*commands, BuildCommand(makes=variant_dir / METADATA_FILE, content=metadata)]


def _compiling(plan: BuildPlan, variant_dir: Path, work: Path) -> Iterator[BuildCommand]:
    if plan.compilation is not None:
        waves = compiler_steps(plan.compilation, plan.extension_file, work / plan.variant)
        steps = [step for wave in waves for step in wave]
        here = working_folder(plan.compilation, work / plan.variant)
        other = None if here == plan.compilation.folder else here
        folders = dict.fromkeys(map(str, [*([other] if other else []), *(step.output.parent for step in steps)]))
        yield BuildCommand(("mkdir", "-p", *folders))
        for step in steps:
            yield BuildCommand(tuple(step.command), step.output, folder=other)
    yield BuildCommand(("rm", "-rf", str(variant_dir)))


def _copied(path: Path, to: Path) -> BuildCommand:
    return BuildCommand(("cp", str(path), str(to)), to)


def _sha256(data: bytes) -> str:
    return base64.b64encode(hashlib.sha256(data).digest()).decode()


def shell_script(plan: BuildPlan, commands: list[BuildCommand], note: str = "") -> Iterator[str]:
    """The lines of a shell script that runs the commands of a variant.

    Args:
        plan: The variant.
        commands: Its commands.
        note: What to say about it in a comment.
    """
    yield f"# {plan.variant}{note and ': '}{note}"
    here = plan.source.folder
    yield f"cd {shlex.quote(str(here))}"
    if plan.compilation is not None:
        yield from (f"export {name}={shlex.quote(value)}" for name, value in plan.compilation.environment)
    for command in commands:
        if command.argv and here != (command.folder or plan.source.folder):
            here = command.folder or plan.source.folder
            yield f"cd {shlex.quote(str(here))}"
        if command.argv:
            yield shlex.join(command.argv)
        elif command.makes is not None:
            end = "END"
            while f"\n{end}\n" in f"\n{command.content}\n":
                end += "_"
            yield f"cat > {shlex.quote(str(command.makes))} <<'{end}'"
            yield from command.content.removesuffix("\n").split("\n")
            yield end
