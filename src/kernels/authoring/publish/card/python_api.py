"""What a kernel's package offers, read from its sources: functions, classes and layers. None of its code is run."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kernels.support.documents import TooComplex, check_source
from kernels.support.files import read_bounded

__all__ = ["KernelApi", "LayerOffer", "Offer", "read_api"]

#: The largest source that is read, as `kernels check` reads.
_MAX_SOURCE_BYTES = 4 * 1024 * 1024
#: How many imports a name is followed through, and the most names of a package.
_MAX_DEPTH = 8
_MAX_NAMES = 500
#: Characters of a signature, and of a docstring.
_MAX_SIGNATURE = 2000
_MAX_DOC = 8000
#: The longest signature on one line.
_LINE = 88

#: The module of a package that has its layers, and the one that the builder writes.
_LAYERS = "layers"

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
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
        functions: Its functions, classes and other objects, in the order of `__all__`.
        layers: Its layers.
    """

    doc: str = ""
    functions: tuple[Offer, ...] = ()
    layers: tuple[LayerOffer, ...] = ()


def read_api(folder: Path) -> KernelApi:
    """What the package in a build's folder offers.

    A file that is missing, too large or not valid Python offers nothing.

    Args:
        folder: The variant, with `__init__.py` at its top, or in its one package.

    Example:
        >>> import tempfile
        >>> place = Path(tempfile.mkdtemp())
        >>> _ = (place / "__init__.py").write_text("def relu(x: int = 0) -> int:\\n    'Clamp.'")
        >>> read_api(place).functions
        (Offer(name='relu', kind='function', signature='relu(x: int = 0) -> int', doc='Clamp.'),)
    """
    package = _Package(_root(folder))
    top = package.module(())
    if top is None:
        return KernelApi()
    functions = []
    for name in package.offered(top):
        found = package.find(top, name)
        if found is not None:
            functions.append(_offer(name, found))
    return KernelApi(_doc(top.tree), tuple(functions), tuple(_layers(package)))


@dataclass(frozen=True)
class _Module:
    """A parsed module: its dotted path in the package, and whether it is a package itself."""

    path: tuple[str, ...]
    tree: ast.Module
    package: bool


@dataclass(frozen=True)
class _Found:
    """A definition and its module; no definition if the name is assigned or comes from elsewhere."""

    node: _Definition | None = None
    module: _Module | None = None


class _Package:
    """The modules of a package, each parsed once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._modules: dict[tuple[str, ...], _Module | None] = {}

    def module(self, path: tuple[str, ...]) -> _Module | None:
        if path not in self._modules:
            self._modules[path] = self._read(path)
        return self._modules[path]

    def _read(self, path: tuple[str, ...]) -> _Module | None:
        place = self._root.joinpath(*path)
        files = [(place / "__init__.py", True)]
        if path:
            files.insert(0, (place.with_name(f"{path[-1]}.py"), False))
        for file, package in files:
            try:
                data = read_bounded(file, _MAX_SOURCE_BYTES)
                check_source(data)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # about the kernel's code, such as an invalid escape
                    return _Module(path, ast.parse(data), package)
            except FileNotFoundError:
                continue
            except (OSError, SyntaxError, TooComplex, ValueError, RecursionError, MemoryError):
                return None
        return None

    def offered(self, module: _Module) -> list[str]:
        """The names of `__all__`, else the public ones that are defined or imported from the package itself."""
        names = _all(module.tree)
        if names is None:
            names = [name for name in self._public(module) if not name.startswith("_")]
        return list(dict.fromkeys(name for name in names if name.isidentifier()))[:_MAX_NAMES]

    def _public(self, module: _Module, depth: int = 0) -> Iterator[str]:
        for node in _statements(module.tree.body):
            if isinstance(node, _Definition):
                yield node.name
            elif isinstance(node, ast.ImportFrom) and node.level:
                for alias in node.names:
                    if alias.name != "*":
                        yield alias.asname or alias.name
                    elif depth < _MAX_DEPTH and (other := self.module(_target(module, node))) is not None:
                        yield from _all(other.tree) or self._public(other, depth + 1)

    def find(self, module: _Module, name: str, depth: int = 0) -> _Found | None:
        """The definition of a name in a module; None for a submodule."""
        found: _Found | None = _Found()
        for node in _statements(module.tree.body):
            if isinstance(node, _Definition) and node.name == name:
                found = _Found(node, module)
            elif isinstance(node, ast.ImportFrom) and node.level and depth < _MAX_DEPTH:
                target = _target(module, node)
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        found = self._imported(target, alias.name, depth)
                    elif alias.name == "*" and name in self._offered_at(target):
                        found = self._imported(target, name, depth)
            elif isinstance(node, (ast.Import, ast.ImportFrom)) and name in map(_bound, node.names):
                found = None  # another package's
        if found == _Found() and self.module((*_inside(module), name)) is not None:
            return None  # a submodule that is imported some other way
        return found

    def _offered_at(self, path: tuple[str, ...]) -> list[str]:
        other = self.module(path)
        return [] if other is None else self.offered(other)

    def _imported(self, target: tuple[str, ...], name: str, depth: int) -> _Found | None:
        if self.module((*target, name)) is not None:
            other = self.module(target)
            if other is None or not any(
                isinstance(node, _Definition) and node.name == name for node in other.tree.body
            ):
                return None
        other = self.module(target)
        if other is None:
            # `_ops` is the handle to the operators; other modules may be native code.
            return None if target and target[-1] == "_ops" else _Found()
        found = self.find(other, name, depth + 1)
        return None if target[-1:] == ("_ops",) else found


def _root(folder: Path) -> Path:
    if (folder / "__init__.py").is_file():
        return folder
    packages = sorted(folder.glob("*/__init__.py"))  # as in older builds
    return packages[0].parent if len(packages) == 1 else folder


def _bound(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _inside(module: _Module) -> tuple[str, ...]:
    return module.path if module.package else module.path[:-1]


def _target(module: _Module, node: ast.ImportFrom) -> tuple[str, ...]:
    base = _inside(module)
    up = node.level - 1
    base = base[: len(base) - up] if up else base
    return (*base, *(node.module.split(".") if node.module else ()))


def _statements(body: list[ast.stmt], depth: int = 0) -> Iterator[ast.stmt]:
    """The statements of a module, also those under `if` and `try`."""
    for node in body:
        yield node
        if depth < _MAX_DEPTH:
            for inner in ("body", "orelse", "finalbody"):
                if isinstance(node, (ast.If, ast.Try, ast.With)):
                    yield from _statements(getattr(node, inner, []), depth + 1)
            for handler in getattr(node, "handlers", []):
                yield from _statements(handler.body, depth + 1)


def _all(tree: ast.Module) -> list[str] | None:
    """The names in `__all__`, which may be extended; None without one that can be read."""
    names: list[str] | None = None
    for node in _statements(tree.body):
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign)) and node.value is not None:
            targets, value = [node.target], node.value
        else:
            continue
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            texts = [each.value for each in ast.walk(value) if isinstance(each, ast.Constant)]
            strings = [each for each in texts if isinstance(each, str)]
            names = [*(names or []), *strings] if isinstance(node, ast.AugAssign) else strings
    return names


def _offer(name: str, found: _Found) -> Offer:
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
    return (
        f"{written} = {ast.unparse(default)}"
        if argument.annotation is not None
        else f"{written}={ast.unparse(default)}"
    )


def _doc(node: ast.Module | _Definition) -> str:
    return (ast.get_docstring(node) or "")[:_MAX_DOC]


def _layers(package: _Package) -> Iterator[LayerOffer]:
    module = package.module((_LAYERS,))
    for name in [] if module is None else package.offered(module):
        assert module is not None
        classes = _classes(package, package.find(module, name))
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


def _classes(package: _Package, found: _Found | None, depth: int = 0) -> list[ast.ClassDef]:
    """A class and those of this package that it inherits from, nearest first."""
    if found is None or found.module is None or not isinstance(found.node, ast.ClassDef) or depth > _MAX_DEPTH:
        return []
    classes = [found.node]
    for base in found.node.bases:
        if isinstance(base, ast.Name):
            classes += _classes(package, package.find(found.module, base.id), depth + 1)
    return classes[:_MAX_NAMES]


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
