"""Check the sources in a variant; they are parsed, never run."""

from __future__ import annotations

import io
import tokenize
from collections.abc import Iterator

from kernels import backends
from kernels.authoring.check.checked_variant import CheckedVariant
from kernels.authoring.check.faults import report_faults, report_hints
from kernels.authoring.check.namespaces import foreign_registrations, is_torchs
from kernels.authoring.check.package_files import PackageFiles
from kernels.authoring.check.parsed_sources import parsed
from kernels.models.snapshot import METADATA_FILE
from kernels.resolver.variant import UNIVERSAL
from kernels.support.checks import StepResults, ok, skipped
from kernels.support.formatting import plural

__all__ = ["forbidden_lines", "namespaces"]


def namespaces(checked: CheckedVariant) -> StepResults:
    """Whether all operators that the sources register by a literal name are in the kernel's own namespace.

    A namespace that is not Torch's, in a file that loading the kernel does not import, is a hint.
    """
    if checked.metadata is None:
        yield skipped("the metadata, which has the kernel's namespace, is missing or invalid")
        return
    imported = PackageFiles(checked).imported_at_load()
    count = 0
    faults: list[str] = []
    hints: list[str] = []
    for name, module in parsed(checked, checked.python_files()):
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


def forbidden_lines(checked: CheckedVariant) -> StepResults:
    """Whether the sources have text that the variant's backend forbids: a hint, as the line may not run there."""
    if checked.variant is None or checked.variant.backend == UNIVERSAL:
        yield skipped("the variant is not for one backend")
        return
    backend = backends.known(checked.variant.backend)
    hacks = () if backend is None else tuple(backend.cuda_hacks_to_strip)
    if not hacks:
        yield skipped(f"{checked.variant.backend} forbids no source lines")
        return
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
