"""The sources in a variant: read and parsed, never run."""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from collections.abc import Iterable, Iterator

from kernels import backends
from kernels.authoring.check.namespaces import foreign_registrations
from kernels.authoring.check.subject import MAX_TEXT_BYTES, Subject
from kernels.models.snapshot import METADATA_FILE
from kernels.resolver.variant import UNIVERSAL
from kernels.support.checks import StepResults, failed, ok, skipped
from kernels.support.documents import TooComplex, check_source
from kernels.support.formatting import plural

__all__ = ["forbidden_lines", "namespaces", "parsed", "static_layers"]

#: Faults of one kind that are shown.
_SHOWN = 20

#: What a layer may say about itself: a class attribute, beyond what `nn.Module` has
#: (https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html).
_MODULE_ATTRIBUTES = frozenset({"call_super_init", "dump_patches", "training"})


def namespaces(subject: Subject) -> StepResults:
    """Whether every operator that the sources register by a literal name is under the kernel's own namespace."""
    if subject.metadata is None:
        yield skipped("the metadata, which names the kernel's namespace, is not known")
        return
    count, faults = 0, []
    for name, module in parsed(subject, subject.python_files()):
        count += 1
        if isinstance(module, str):
            faults.append(f"{name}: {module}")
            continue
        faults += [
            f"{name}, line {line}: {call} registers operators under another namespace than the kernel's own, "
            f"{subject.metadata.id!r}; take the namespace from _ops.py (add_op_namespace_prefix)"
            for line, call in foreign_registrations(module, subject)
        ]
    yield from _limited(faults)
    if not faults:
        yield ok(f"{plural(count, 'Python file')} with nothing foreign")


def parsed(subject: Subject, names: Iterable[str]) -> Iterator[tuple[str, ast.Module | str]]:
    """Python sources of a variant, parsed; where that cannot be, why.

    Args:
        subject: The variant.
        names: Their paths in it.

    Yields:
        The file's path in the variant, and its syntax tree or the reason.
    """
    for name in names:
        data = subject.read(name)
        if data is None:
            yield name, f"more than {MAX_TEXT_BYTES} bytes, which are not read"
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the kernel's own making, such as an escape that is none
                check_source(data)
                yield name, ast.parse(data, name)
        except SyntaxError as error:
            yield name, f"line {error.lineno}: {error.msg}"
        except TooComplex as error:
            yield name, str(error)
        except (ValueError, RecursionError, MemoryError) as error:  # a zero byte; nested beyond reason
            yield name, f"cannot be parsed ({type(error).__name__})"


def forbidden_lines(subject: Subject) -> StepResults:
    """Whether the sources hold what must not stand in a kernel for the variant's backend."""
    if subject.variant is None or subject.variant.backend == UNIVERSAL:
        yield skipped("the variant is for no backend of its own")
        return
    backend = backends.known(subject.variant.backend)
    hacks = () if backend is None else tuple(backend.cuda_hacks_to_strip)
    if not hacks:
        yield skipped(f"{subject.variant.backend} names no source lines that must not stand in a kernel")
        return
    faults = [
        f"{name}, line {number}: {line.strip()[:100]!r} has {hack!r}, which must not stand in a kernel for "
        f"{subject.variant.backend}"
        for name, text in _texts(subject)
        for number, line in enumerate(text.splitlines(), 1)
        for hack in hacks
        if hack in line
    ]
    yield from _limited(faults)
    if not faults:
        yield ok(f"none of {plural(len(hacks), 'pattern')}")


def _texts(subject: Subject) -> Iterator[tuple[str, str]]:
    """The text files of a variant, Python's without their comments."""
    for name in subject.files.sizes:
        if name == METADATA_FILE or b"\0" in subject.start(name, 8192):
            continue
        data = subject.read(name)
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
        return text  # no valid Python: a comment cannot be told from the rest
    return "".join(lines)


def static_layers(subject: Subject) -> StepResults:
    """Whether the kernel's layers bring no constructor and no members of their own, as far as the sources show."""
    names = [name for name in subject.python_files() if name == "layers.py" or name.startswith("layers/")]
    files = list(parsed(subject, names))
    if not files:
        yield skipped("the kernel has no layers")
        return
    found, faults = 0, []
    for name, module in files:
        if isinstance(module, ast.Module):
            layers = list(_layers_of(module))
            found += len(layers)
            faults += [f"{name}, line {line}: {what}" for layer in layers for line, what in _layer_faults(layer)]
    yield from _limited(faults)
    if not faults:
        yield ok(plural(found, "layer"))


def _layers_of(module: ast.Module) -> Iterator[ast.ClassDef]:
    """The classes of a module that other code may use as layers: those in `__all__`, else those without `_`."""
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
        # Other methods may be ones that `nn.Module` has: which they are shows when the kernel is loaded.
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name in ("__init__", "__new__"):
            yield node.lineno, f"{layer.name} has a constructor: its members are those of the layer it replaces"
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Name) and target.id not in allowed and not target.id.startswith("__"):
                yield node.lineno, f"{layer.name} has the member {target.id!r}; put it outside the class"


def _limited(faults: list[str]) -> StepResults:
    yield from map(failed, faults[:_SHOWN])
    if len(faults) > _SHOWN:
        yield failed(f"and {len(faults) - _SHOWN} more")
