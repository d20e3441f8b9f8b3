"""Find operators that the sources register outside of the kernel's own namespace.

Only literal arguments are known; nothing of the kernel runs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from kernels.authoring.check.checked_variant import CheckedVariant
from kernels.models.metadata import Metadata
from kernels.resolver.variant import Variant

__all__ = ["dotted_name", "foreign_registrations", "imported_names", "is_own", "is_torchs"]

_LIBRARY = "torch.library"

#: Functions of `torch.library` that take an operator's name and register nothing
#: (https://docs.pytorch.org/docs/stable/library.html).
_READS = frozenset({"get_kernel", "infer_schema", "opcheck"})

#: Parameters of `torch.library`'s functions for an operator or a namespace, when passed by keyword.
_KEYWORDS = ("name", "op", "qualname", "ns", "op_name")


#: Namespaces of Torch's own operators.
_TORCHS = frozenset({"_", "aten", "c10d", "c10d_functional", "inductor", "onednn", "prim", "prims", "profiler"})
_TORCHS_STARTS = ("_c10d", "_quantized", "mkl", "quantized", "torch", "xnnpack")


def is_torchs(namespace: str) -> bool:
    """Whether a namespace has operators of Torch itself.

    Example:
        >>> is_torchs("aten"), is_torchs("fla")
        (True, False)
    """
    return namespace in _TORCHS or namespace.startswith(_TORCHS_STARTS)


def is_own(namespace: str, metadata: Metadata, variant: Variant | None) -> bool:
    """Whether a kernel may register operators in a namespace, the part before `::` of an operator's name.

    It is the `id` in the metadata. A noarch build chooses its backend at its import, so its namespace may have another
    backend than the `id`.

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


def foreign_registrations(module: ast.Module, checked: CheckedVariant) -> Iterator[tuple[int, str, str]]:
    """Calls of `torch.library` with a literal namespace that is not the kernel's: the line, the call, the namespace.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> data = b'{"name": "relu", "id": "_relu_cpu_1a2b3c4", "backend": {"type": "cpu"}}'
        >>> checked = CheckedVariant.of(folder)
        >>> checked.metadata = Metadata.from_bytes(data)
        >>> source = "from torch.library import Library\\nlib = Library('aten', 'IMPL')"
        >>> list(foreign_registrations(ast.parse(source), checked))
        [(2, "torch.library.Library('aten', …)", 'aten')]
    """
    assert checked.metadata is not None
    names, texts = imported_names(module), _constants(module)
    for node in ast.walk(module):
        if not isinstance(node, ast.Call):
            continue
        called = dotted_name(node.func, names)
        if called is None or not called.startswith(f"{_LIBRARY}."):
            continue
        function = called.removeprefix(f"{_LIBRARY}.")
        if function in _READS:
            continue
        for text in _named(node, texts):
            namespace, found, _ = text.partition("::")
            if (found or function == "Library") and not is_own(namespace, checked.metadata, checked.variant):
                yield node.lineno, f"{called}({text[:80]!r}, …)", namespace
                break


def imported_names(module: ast.Module) -> dict[str, str]:
    """The names that absolute imports of a module bind, with what they refer to.

    Example:
        >>> imported_names(ast.parse("import torch.nn as n, os.path\\nfrom torch import nn"))
        {'n': 'torch.nn', 'os': 'os', 'nn': 'torch.nn'}
    """
    names: dict[str, str] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                names[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def _constants(module: ast.Module) -> dict[str, str]:
    """The string constants at the top of a module, by name."""
    texts: dict[str, str] = {}
    for node in module.body:
        if isinstance(node, ast.Assign) and (text := _text(node.value, texts)) is not None:
            texts.update({target.id: text for target in node.targets if isinstance(target, ast.Name)})
    return texts


def dotted_name(node: ast.expr, names: Mapping[str, str]) -> str | None:
    """What an expression such as `nn.Module` refers to; None if it does not start with an imported name."""
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
    """A literal string, or the literal start of an f-string."""
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
