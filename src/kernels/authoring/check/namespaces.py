"""Operators registered under another namespace than the kernel's own, as far as the sources show.

What a call registers is read from its literal arguments; nothing of the kernel runs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from kernels.authoring.check.subject import Subject
from kernels.models.metadata import Metadata
from kernels.resolver.variant import Variant

__all__ = ["foreign_registrations", "is_own"]

_LIBRARY = "torch.library"

#: Of `torch.library`, what takes an operator's name and registers nothing
#: (https://docs.pytorch.org/docs/stable/library.html).
_READS = frozenset({"get_kernel", "infer_schema", "opcheck"})

#: The parameters of `torch.library`'s functions that name an operator or a namespace, where they are not the first.
_KEYWORDS = ("name", "op", "qualname", "ns", "op_name")


def is_own(namespace: str, metadata: Metadata, variant: Variant | None) -> bool:
    """Whether a namespace is one that the kernel may register operators under.

    Args:
        namespace: What stands before `::` in an operator's name.
        metadata: The kernel's metadata: a compiled build's namespace is its `id`.
        variant: The variant. A noarch build finds out at its import for which backend it runs, so that its namespace
            may have another backend than its `id`.

    Example:
        >>> data = b'{"name": "relu", "id": "_relu_cpu_1a2b3c4", "backend": {"type": "cpu"}}'
        >>> metadata = Metadata.from_bytes(data)
        >>> is_own("_relu_cpu_1a2b3c4", metadata, None), is_own("aten", metadata, None)
        (True, False)
    """
    if namespace == metadata.id:
        return True
    return (
        variant is not None
        and variant.noarch
        and re.fullmatch(rf"_{re.escape(metadata.name.python_name)}_[a-z0-9]+_[a-z0-9_]+", namespace) is not None
    )


def foreign_registrations(module: ast.Module, subject: Subject) -> Iterator[tuple[int, str]]:
    """Calls of `torch.library` with a literal namespace that is not the kernel's.

    Args:
        module: One of its source files, parsed.
        subject: The variant, with its metadata.

    Yields:
        The line, and what is registered there.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> data = b'{"name": "relu", "id": "_relu_cpu_1a2b3c4", "backend": {"type": "cpu"}}'
        >>> subject = Subject.of(folder)
        >>> subject.metadata = Metadata.from_bytes(data)
        >>> source = "from torch.library import Library\\nlib = Library('aten', 'IMPL')"
        >>> list(foreign_registrations(ast.parse(source), subject))
        [(2, "torch.library.Library('aten', …)")]
    """
    assert subject.metadata is not None
    names, texts = _imports(module), _constants(module)
    for node in ast.walk(module):
        if not isinstance(node, ast.Call):
            continue
        called = _dotted(node.func, names)
        if called is None or not called.startswith(f"{_LIBRARY}."):
            continue
        function = called.removeprefix(f"{_LIBRARY}.")
        if function in _READS:
            continue
        for text in _named(node, texts):
            namespace, found, _ = text.partition("::")
            if (found or function == "Library") and not is_own(namespace, subject.metadata, subject.variant):
                yield node.lineno, f"{called}({text[:80]!r}, …)"
                break


def _imports(module: ast.Module) -> dict[str, str]:
    """What the names of a module stand for, as far as its imports say."""
    names: dict[str, str] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def _constants(module: ast.Module) -> dict[str, str]:
    """The strings that names at the top of a module are given."""
    texts: dict[str, str] = {}
    for node in module.body:
        if isinstance(node, ast.Assign) and (text := _text(node.value, texts)) is not None:
            texts.update({target.id: text for target in node.targets if isinstance(target, ast.Name)})
    return texts


def _dotted(node: ast.expr, names: Mapping[str, str]) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in names:
        return None
    return ".".join([names[node.id], *reversed(parts)])


def _named(call: ast.Call, texts: Mapping[str, str]) -> Iterator[str]:
    given = [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg in _KEYWORDS)]
    for node in given:
        text = _text(node, texts)
        if text is not None:
            yield text


def _text(node: ast.expr, texts: Mapping[str, str]) -> str | None:
    """A literal string, or what begins like one: an f-string up to its first unknown part."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.Name):
        return texts.get(node.id)
    if not isinstance(node, ast.JoinedStr):
        return None
    start = ""
    for value in node.values:
        part = _text(value.value if isinstance(value, ast.FormattedValue) else value, texts)
        if part is None:
            break
        start += part
    return start
