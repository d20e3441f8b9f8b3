"""Check the sources in a variant; they are parsed, never run."""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from collections.abc import Iterable, Iterator

from kernels import backends
from kernels.authoring.check.checked_variant import MAX_TEXT_BYTES, CheckedVariant
from kernels.authoring.check.faults import report_faults
from kernels.authoring.check.namespaces import foreign_registrations
from kernels.models.snapshot import METADATA_FILE
from kernels.resolver.variant import UNIVERSAL
from kernels.support.checks import StepResults, ok, skipped
from kernels.support.documents import TooComplex, check_source
from kernels.support.formatting import plural

__all__ = ["forbidden_lines", "namespaces", "parsed", "static_layers"]

#: Class attributes of `nn.Module` that a layer may set
#: (https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html).
_MODULE_ATTRIBUTES = frozenset({"call_super_init", "dump_patches", "training"})


def namespaces(checked: CheckedVariant) -> StepResults:
    """Whether all operators that the sources register by a literal name are in the kernel's own namespace."""
    if checked.metadata is None:
        yield skipped("the metadata, which has the kernel's namespace, is missing or invalid")
        return
    count, faults = 0, []
    for name, module in parsed(checked, checked.python_files()):
        count += 1
        if isinstance(module, str):
            faults.append(f"{name}: {module}")
            continue
        faults += [
            f"{name}, line {line}: {call} registers operators outside of the kernel's namespace "
            f"{checked.metadata.id!r}; take the namespace from _ops.py (add_op_namespace_prefix)"
            for line, call in foreign_registrations(module, checked)
        ]
    yield from report_faults(faults)
    if not faults:
        yield ok(f"{plural(count, 'Python file')} without foreign registrations")


def parsed(checked: CheckedVariant, names: Iterable[str]) -> Iterator[tuple[str, ast.Module | str]]:
    """Parse Python sources of a variant: yields each path with its syntax tree, or the reason why it has none."""
    for name in names:
        data = checked.read(name)
        if data is None:
            yield name, f"it has more than {MAX_TEXT_BYTES} bytes"
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about the kernel's code, such as an invalid escape
                check_source(data)
                yield name, ast.parse(data, name)
        except SyntaxError as error:
            yield name, f"line {error.lineno}: {error.msg}"
        except TooComplex as error:
            yield name, str(error)
        except (ValueError, RecursionError, MemoryError) as error:  # a zero byte, or nested too deeply
            yield name, f"cannot be parsed ({type(error).__name__})"


def forbidden_lines(checked: CheckedVariant) -> StepResults:
    """Whether the sources have text that the variant's backend forbids."""
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
    yield from report_faults(faults)
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


def static_layers(checked: CheckedVariant) -> StepResults:
    """Whether the sources of the layers define constructors or additional members, which is not allowed."""
    names = [name for name in checked.python_files() if name == "layers.py" or name.startswith("layers/")]
    files = list(parsed(checked, names))
    if not files:
        yield skipped("the kernel has no layers")
        return
    found, faults = 0, []
    for name, module in files:
        if isinstance(module, ast.Module):
            layers = list(_layers_of(module))
            found += len(layers)
            faults += [f"{name}, line {line}: {what}" for layer in layers for line, what in _layer_faults(layer)]
    yield from report_faults(faults)
    if not faults:
        yield ok(plural(found, "layer"))


def _layers_of(module: ast.Module) -> Iterator[ast.ClassDef]:
    """The public layer classes of a module: those in `__all__`, else those without `_`."""
    offered = next((names for node in module.body if (names := _all(node)) is not None), None)
    layers: set[str] = set()
    for node in module.body:
        if not isinstance(node, ast.ClassDef):
            continue
        bases = {base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in node.bases}
        if "Module" in bases or bases & layers:
            layers.add(node.name)
            if node.name in offered if offered is not None else not node.name.startswith("_"):
                yield node


def _all(node: ast.stmt) -> list[str] | None:
    if not isinstance(node, ast.Assign) or not isinstance(node.value, (ast.List, ast.Tuple)):
        return None
    if not any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets):
        return None
    return [each.value for each in node.value.elts if isinstance(each, ast.Constant) and isinstance(each.value, str)]


def _layer_faults(layer: ast.ClassDef) -> Iterator[tuple[int, str]]:
    from kernels.layer.validate import ALLOWED_MEMBERS

    allowed = ALLOWED_MEMBERS | _MODULE_ATTRIBUTES
    for node in layer.body:
        # Other methods may be those of `nn.Module`; the check of the loaded layers knows.
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name in ("__init__", "__new__"):
            yield node.lineno, f"{layer.name} has a constructor; a layer uses the members of the layer that it replaces"
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Name) and target.id not in allowed and not target.id.startswith("__"):
                yield node.lineno, f"{layer.name} has the member {target.id!r}; put it outside the class"
