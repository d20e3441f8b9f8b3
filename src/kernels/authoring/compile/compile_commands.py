"""`compile_commands.json`: how each source is compiled, for clangd and other editors.

The format: https://clang.llvm.org/docs/JSONCompilationDatabase.html. clangd looks for the file in the folders above a
source.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from kernels.authoring.compile.execution.compiler_steps import CompileUnit, compiler_steps, working_folder
from kernels.authoring.compile.plan.build_plan import BuildPlan
from kernels.authoring.compile.sources.source_files import COMPILE_COMMANDS
from kernels.authoring.compile.toolchains.nvcc_for_clang import clang_command
from kernels.authoring.compile.toolchains.spelling import NVCC

__all__ = ["compile_commands", "write_compile_commands"]


def compile_commands(plans: Iterable[BuildPlan], work: Path) -> dict[Path, list[dict[str, Any]]]:
    """The entries of the file, by the source folder that it belongs in.

    A source that several variants compile has one entry, of the first of them: editors read no other. nvcc's command
    lines are written as clang's. Of sources that are translated, the entries are those of the translation.

    Args:
        plans: The variants.
        work: The folder of the objects.
    """
    found: dict[Path, dict[str, dict[str, Any]]] = {}
    for plan in plans:
        compilation = plan.compilation
        if compilation is None:
            continue
        units = {unit.source: unit for unit in compilation.units}
        *_, compiled, _ = compiler_steps(compilation, plan.extension_file, work / plan.variant)
        entries = found.setdefault(compilation.folder, {})
        here = working_folder(compilation, work / plan.variant)
        for step in compiled:
            path = str(here / step.name)
            entry = {"directory": str(here), "file": path, "output": str(step.output)}
            entries.setdefault(path, {**entry, "arguments": _arguments(units[step.name], step.command)})
    return {folder: list(entries.values()) for folder, entries in found.items()}


def _arguments(unit: CompileUnit, command: list[str]) -> list[str]:
    if unit.spelling != NVCC:
        return command
    return clang_command(command, unit.compiler or unit.command[:1])


def write_compile_commands(entries: Mapping[Path, list[dict[str, Any]]]) -> list[Path]:
    """Write the file of each folder.

    Args:
        entries: What `compile_commands` returns.

    Returns:
        The files.

    Raises:
        OSError: A file cannot be written; the previous one is unchanged.
    """
    written = []
    for folder, commands in entries.items():
        path = folder / COMPILE_COMMANDS
        text = json.dumps(commands, indent=2) + "\n"
        # A hidden name: another build that hashes the sources at this moment does not see it.
        with NamedTemporaryFile(
            "w", dir=folder, prefix=f".{COMPILE_COMMANDS}-", delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
        try:
            os.chmod(file.name, 0o644)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
        written.append(path)
    return written
