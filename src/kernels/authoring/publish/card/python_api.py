"""What a kernel's package offers, read from its sources: functions, classes and layers. None of its code is run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kernels.authoring.publish.card.package_index import MAX_DEPTH, Definition, FoundName, IndexedPackage
from kernels.support.limited_call import LimitExceeded, call_limited

__all__ = ["KernelApi", "LayerOffer", "Offer", "read_api"]

#: Characters of a signature, and of a docstring.
_MAX_SIGNATURE = 2000
_MAX_DOC = 8000
#: The most classes that one inherits from.
_MAX_CLASSES = 100
#: The longest signature on one line.
_LINE = 88

#: The module of a package that has its layers.
_LAYERS = "layers"

OfferKind = Literal["function", "class", "object"]


@dataclass(frozen=True)
class Offer:
    """A name that a package offers.

    Attributes:
        name: The name.
        kind: What it is; an `object` is a name whose definition is not found in the sources.
        signature: How it is called, `name(x: Tensor) -> Tensor`, on one or several lines; "" for an object.
        doc: Its docstring, or "".
    """

    name: str
    kind: OfferKind
    signature: str = ""
    doc: str = ""


@dataclass(frozen=True)
class LayerOffer:
    """A layer that a package offers: its name, its `forward`, its docstring and its marks."""

    name: str
    forward: str = ""
    doc: str = ""
    has_backward: bool = True
    can_torch_compile: bool = False


@dataclass(frozen=True)
class KernelApi:
    """What a kernel's package offers.

    Attributes:
        doc: The docstring of the package.
        functions: Its functions, classes and other objects, in the order of `__all__`; then functions in `layers`.
        layers: Its layers.
    """

    doc: str = ""
    functions: tuple[Offer, ...] = ()
    layers: tuple[LayerOffer, ...] = ()


def read_api(folder: Path) -> KernelApi:
    """What the package in a build's folder offers.

    A file that is missing, too large or not valid Python offers nothing. The sources are parsed in a process with
    limits of time and memory.

    Args:
        folder: The variant, with `__init__.py` at its top, or in its one package.

    Example:
        >>> import tempfile
        >>> place = Path(tempfile.mkdtemp())
        >>> _ = (place / "__init__.py").write_text("def relu(x: int = 0) -> int:\\n    'Clamp.'")
        >>> read_api(place).functions
        (Offer(name='relu', kind='function', signature='relu(x: int = 0) -> int', doc='Clamp.'),)
    """
    try:
        return call_limited(_read_api, folder)
    except LimitExceeded:
        return KernelApi()


def _read_api(folder: Path) -> KernelApi:
    package = IndexedPackage(_root(folder))
    top = package.module(())
    if top is None:
        return KernelApi()
    functions = []
    for name in package.offered(()):
        found = package.find((), name)
        if found is not None:
            functions.append(_offer(name, found))
    functions += _functions_of_layers(package)
    return KernelApi(_doc(top.tree), tuple(functions), tuple(_layers(package)))


def _root(folder: Path) -> Path:
    if (folder / "__init__.py").is_file():
        return folder
    packages = sorted(folder.glob("*/__init__.py"))  # as in older builds
    return packages[0].parent if len(packages) == 1 else folder


def _offer(name: str, found: FoundName) -> Offer:
    node = found.node
    if node is None:
        return Offer(name, "object")
    if isinstance(node, ast.ClassDef):
        init = next((each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"), None)
        return Offer(name, "class", name if init is None else _signature(name, init, method=True), _doc(node))
    return Offer(name, "function", _signature(name, node), _doc(node))


def _signature(name: str, node: ast.FunctionDef | ast.AsyncFunctionDef, *, method: bool = False) -> str:
    arguments = node.args
    if method:
        if arguments.posonlyargs:
            del arguments.posonlyargs[0]
        elif arguments.args:
            del arguments.args[0]
    try:
        parts = list(_parts(arguments))
        returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None and node.name != "__init__" else ""
        whole = f"{name}({', '.join(parts)}){returns}"
        if len(whole) > _LINE:
            whole = f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){returns}"
    except (RecursionError, ValueError):
        return f"{name}(…)"
    return whole if len(whole) <= _MAX_SIGNATURE else f"{name}(…)"


def _parts(arguments: ast.arguments) -> Iterator[str]:
    """The parameters, one at a time, as they are written."""
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    for index, (argument, default) in enumerate(zip(plain, defaults, strict=True), 1):
        yield _parameter(argument, default)
        if index == len(arguments.posonlyargs):
            yield "/"
    if arguments.vararg is not None:
        yield f"*{ast.unparse(arguments.vararg)}"
    elif arguments.kwonlyargs:
        yield "*"
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _parameter(argument, default)
    if arguments.kwarg is not None:
        yield f"**{ast.unparse(arguments.kwarg)}"


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    written = ast.unparse(argument)
    if default is None:
        return written
    equals = "=" if argument.annotation is None else " = "
    return f"{written}{equals}{ast.unparse(default)}"


def _doc(node: ast.Module | Definition) -> str:
    return (ast.get_docstring(node) or "")[:_MAX_DOC]


def _layers(package: IndexedPackage) -> Iterator[LayerOffer]:
    for name in package.offered((_LAYERS,)):
        classes = _classes(package, package.find((_LAYERS,), name))
        if not classes or not any(map(_is_module, classes)):
            continue
        forward = next((node for each in classes for node in each.body if _is_forward(node)), None)
        assert forward is None or isinstance(forward, ast.FunctionDef)
        yield LayerOffer(
            name,
            "" if forward is None else _signature("forward", forward, method=True),
            _doc(classes[0]),
            _mark(classes, "has_backward", default=True),
            _mark(classes, "can_torch_compile", default=False),
        )


def _functions_of_layers(package: IndexedPackage) -> Iterator[Offer]:
    """The functions that `layers` lists in its `__all__`: they replace a model's functions."""
    module = package.module((_LAYERS,))
    for name in package.offered((_LAYERS,)) if module is not None and module.offered is not None else ():
        found = package.find((_LAYERS,), name)
        if found is not None and isinstance(found.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            offer = _offer(name, found)
            yield Offer(f"{_LAYERS}.{name}", "function", f"{_LAYERS}.{offer.signature}", offer.doc)


def _classes(package: IndexedPackage, found: FoundName | None, depth: int = 0) -> list[ast.ClassDef]:
    """A class and those of this package that it inherits from, nearest first."""
    if found is None or found.module is None or not isinstance(found.node, ast.ClassDef) or depth > MAX_DEPTH:
        return []
    classes = [found.node]
    for base in found.node.bases:
        if isinstance(base, ast.Name) and len(classes) < _MAX_CLASSES:
            classes += _classes(package, package.find(found.module.path, base.id), depth + 1)
    return classes[:_MAX_CLASSES]


def _is_module(node: ast.ClassDef) -> bool:
    """Whether a class names `torch.nn.Module` as its base."""
    return any(ast.unparse(base) in ("Module", "nn.Module", "torch.nn.Module") for base in node.bases)


def _is_forward(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == "forward"


def _mark(classes: list[ast.ClassDef], name: str, *, default: bool) -> bool:
    for node in (node for each in classes for node in each.body):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        value = getattr(getattr(node, "value", None), "value", None)
        if isinstance(value, bool) and any(isinstance(each, ast.Name) and each.id == name for each in targets):
            return value
    return default
