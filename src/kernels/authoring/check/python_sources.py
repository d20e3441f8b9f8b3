"""Check the sources in a variant, in a process with limits (`source_steps`); they are parsed, never run."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from kernels.authoring.check.checked_variant import CheckedVariant
from kernels.authoring.check.faults import report_faults, report_hints
from kernels.authoring.check.namespaces import foreign_registrations, is_torchs
from kernels.authoring.check.package_files import PackageFiles
from kernels.authoring.check.static_layers import static_layers
from kernels.models.snapshot import METADATA_FILE
from kernels.support.checks import StepResult, StepResults, failed, ok, skipped
from kernels.support.documents import TooComplex
from kernels.support.formatting import plural

__all__ = ["SourceFindings", "read_sources"]


@dataclass(frozen=True)
class SourceFindings:
    """What the sources of a variant show.

    Attributes:
        namespaces: The results of the step of that name.
        layers: The results of the step of that name.
        lines: Those of the step `source lines`.
        imports: The packages that a load imports, with file and line.
    """

    namespaces: list[StepResult]
    layers: list[StepResult]
    lines: list[StepResult]
    imports: list[tuple[str, int, str]] = field(default_factory=list)


def read_sources(checked: CheckedVariant, hacks: Sequence[str]) -> SourceFindings:
    """Read a variant's sources in this process.

    Args:
        checked: The variant.
        hacks: Texts that its backend forbids.
    """
    files = PackageFiles(checked)
    try:
        imports = list(_imports_at_load(files))
    except TooComplex:  # the other steps say so
        imports = []
    return SourceFindings(
        _results(lambda: _namespaces(files)),
        _results(lambda: static_layers(files)),
        list(_forbidden_lines(checked, hacks)) if hacks else [],
        imports,
    )


def _results(step: Callable[[], StepResults]) -> list[StepResult]:
    try:
        return list(step())
    except TooComplex as error:
        return [failed(str(error))]


def _namespaces(files: PackageFiles) -> StepResults:
    """Whether all operators that the sources register by a literal name are in the kernel's own namespace.

    A namespace that is not Torch's, in a file that loading the kernel does not import, is a hint.
    """
    checked = files.checked
    if checked.metadata is None:
        yield skipped("the metadata, which has the kernel's namespace, is missing or invalid")
        return
    imported = files.imported_at_load()
    count = 0
    faults: list[str] = []
    hints: list[str] = []
    for name in checked.python_files():
        module = files.module(name)
        count += 1
        if isinstance(module, str):
            faults.append(f"{name}: {module}")
            continue
        for line, call, namespace in foreign_registrations(module, checked):
            what = (
                f"{name}, line {line}: {call} registers operators outside of the kernel's namespace "
                f"{checked.metadata.id!r}; take the namespace from _ops.py (add_op_namespace_prefix)"
            )
            (faults if name in imported or is_torchs(namespace) else hints).append(what)
    yield from report_faults(faults)
    yield from report_hints(hints)
    if not faults and not hints:
        yield ok(f"{plural(count, 'Python file')} without foreign registrations")


def _imports_at_load(files: PackageFiles) -> Iterator[tuple[str, int, str]]:
    """The packages that a load imports at the top of a file, with the file and the line."""
    for file in sorted(files.imported_at_load()):
        module = files.module(file)
        for node in [] if isinstance(module, str) else module.body:
            imported = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                imported = [node.module or ""]
            for name in dict.fromkeys(each.partition(".")[0] for each in imported):
                yield file, node.lineno, name


def _forbidden_lines(checked: CheckedVariant, hacks: Sequence[str]) -> StepResults:
    """Whether the sources have text that the variant's backend forbids: a hint, as the line may not run there."""
    assert checked.variant is not None
    faults = [
        f"{name}, line {number}: {line.strip()[:100]!r} has {hack!r}, which is forbidden for {checked.variant.backend}"
        for name, text in _texts(checked)
        for number, line in enumerate(text.splitlines(), 1)
        for hack in hacks
        if hack in line
    ]
    yield from report_hints(faults)
    if not faults:
        yield ok(f"none of {plural(len(hacks), 'pattern')}")


def _texts(checked: CheckedVariant) -> Iterator[tuple[str, str]]:
    """The text files of a variant, Python sources without comments."""
    for name in checked.files.sizes:
        if name == METADATA_FILE or b"\0" in checked.start(name, 8192):
            continue
        data = checked.read(name)
        if data is not None:
            text = data.decode("utf-8", "replace")
            yield name, _without_comments(text) if name.endswith((".py", ".pyi")) else text


def _without_comments(text: str) -> str:
    lines = text.splitlines(keepends=True)
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                row, column = token.start
                lines[row - 1] = lines[row - 1][:column] + "\n"
    except (tokenize.TokenError, SyntaxError, IndexError):
        return text  # not valid Python, so comments are unknown
    return "".join(lines)
