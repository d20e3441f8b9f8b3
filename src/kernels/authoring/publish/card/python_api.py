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
#: The deepest blocks and classes that are followed, the most names of a package, and the most modules that are read.
_MAX_DEPTH = 8
_MAX_NAMES = 500
_MAX_MODULES = 200
#: Characters of a signature, and of a docstring.
_MAX_SIGNATURE = 2000
_MAX_DOC = 8000
#: The longest signature on one line.
_LINE = 88

#: The module of a package that has its layers, and the one that the builder writes.
_LAYERS = "layers"
_OPS = "_ops"

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
        functions: Its functions, classes and other objects, in the order of `__all__`; then functions in `layers`.
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
    for name in package.offered(()):
        found = package.find((), name)
        if found is not None:
            functions.append(_offer(name, found))
    functions += _functions_of_layers(package)
    return KernelApi(_doc(top.tree), tuple(functions), tuple(_layers(package)))


class _Module:
    """A parsed module.

    Attributes:
        path: Its path in the package.
        tree: Its syntax tree.
        package: Whether it is a package itself.
        offered: The names in `__all__`; None without one that can be read.
        bound: What its names are bound to, the last time: a definition, or an import of a name from another module.
        stars: The modules that it imports all names from.
    """

    def __init__(self, path: tuple[str, ...], tree: ast.Module, *, package: bool) -> None:
        self.path = path
        self.tree = tree
        self.package = package
        self.offered = _all(tree)
        self.bound: dict[str, _Definition | _From | None] = {}
        self.stars: list[tuple[str, ...]] = []
        for node in _statements(tree.body):
            self._add(node)

    @property
    def inside(self) -> tuple[str, ...]:
        """The package that its relative imports start from."""
        return self.path if self.package else self.path[:-1]

    def _add(self, node: ast.stmt) -> None:
        if isinstance(node, _Definition):
            self.bound[node.name] = node
        elif isinstance(node, ast.Import):
            self.bound.update((alias.asname or alias.name.partition(".")[0], None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            target = self._target(node) if node.level else None
            for alias in node.names:
                if alias.name != "*":
                    self.bound[alias.asname or alias.name] = _From(target, alias.name)
                elif target is not None:
                    self.stars.append(target)

    def _target(self, node: ast.ImportFrom) -> tuple[str, ...]:
        base = self.inside[: len(self.inside) - node.level + 1] if node.level > 1 else self.inside
        return (*base, *(node.module.split(".") if node.module else ()))


@dataclass(frozen=True)
class _From:
    """An import of a name from a module of the package; None for another package."""

    module: tuple[str, ...] | None
    name: str


@dataclass(frozen=True)
class _Found:
    """A definition and its module; no definition if the sources do not have it."""

    node: _Definition | None = None
    module: _Module | None = None


class _Package:
    """The modules of a package, each parsed once, and their names, each looked up once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._modules: dict[tuple[str, ...], _Module | None] = {}
        self._found: dict[tuple[tuple[str, ...], str], _Found | None] = {}
        self._offered: dict[tuple[str, ...], list[str]] = {}

    def module(self, path: tuple[str, ...]) -> _Module | None:
        if path not in self._modules:
            self._modules[path] = self._read(path) if len(self._modules) < _MAX_MODULES else None
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
                    return _Module(path, ast.parse(data), package=package)
            except FileNotFoundError:
                continue
            except (OSError, SyntaxError, TooComplex, ValueError, RecursionError, MemoryError):
                return None
        return None

    def offered(self, path: tuple[str, ...]) -> list[str]:
        """The names of `__all__`, else the public ones that are defined or imported from the package itself."""
        if path not in self._offered:
            self._offered[path] = []  # for a module that imports from itself
            self._offered[path] = self._names(self.module(path))
        return self._offered[path]

    def _names(self, module: _Module | None) -> list[str]:
        if module is None:
            return []
        names = module.offered
        if names is None:
            own = [name for name, bound in module.bound.items() if not _foreign(bound)]
            names = [*own, *(name for star in module.stars for name in self.offered(star))]
            names = [name for name in names if not name.startswith("_")]
        return list(dict.fromkeys(name for name in names if name.isidentifier()))[:_MAX_NAMES]

    def find(self, path: tuple[str, ...], name: str) -> _Found | None:
        """What a name of a module is; None for a module."""
        key = path, name
        if key not in self._found:
            self._found[key] = _Found()  # for a name that is imported from itself
            self._found[key] = self._look_up(path, name)
        return self._found[key]

    def _look_up(self, path: tuple[str, ...], name: str) -> _Found | None:
        module = self.module(path)
        if path[-1:] == (_OPS,):
            return None  # the handle to the operators
        if module is None:
            return _Found()  # native code has no sources
        if name in module.bound:
            bound = module.bound[name]
            if isinstance(bound, _From):
                return _Found() if bound.module is None else self._imported(bound.module, bound.name)
            return None if bound is None else _Found(bound, module)
        for star in module.stars:
            if name in self.offered(star):
                return self.find(star, name)
        return None if self.module((*module.inside, name)) is not None else _Found()

    def _imported(self, path: tuple[str, ...], name: str) -> _Found | None:
        module = self.module(path)
        own = None if module is None else module.bound.get(name, _From(path, name))
        if own in (None, _From(path, name)) and self.module((*path, name)) is not None:
            return None  # a submodule
        return self.find(path, name)


def _foreign(bound: _Definition | _From | None) -> bool:
    return bound is None or (isinstance(bound, _From) and bound.module is None)


def _root(folder: Path) -> Path:
    if (folder / "__init__.py").is_file():
        return folder
    packages = sorted(folder.glob("*/__init__.py"))  # as in older builds
    return packages[0].parent if len(packages) == 1 else folder


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


def _functions_of_layers(package: _Package) -> Iterator[Offer]:
    """The functions that `layers` lists in its `__all__`: they replace a model's functions."""
    module = package.module((_LAYERS,))
    for name in package.offered((_LAYERS,)) if module is not None and module.offered is not None else ():
        found = package.find((_LAYERS,), name)
        if found is not None and isinstance(found.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            offer = _offer(name, found)
            yield Offer(f"{_LAYERS}.{name}", "function", f"{_LAYERS}.{offer.signature}", offer.doc)


def _classes(package: _Package, found: _Found | None, depth: int = 0) -> list[ast.ClassDef]:
    """A class and those of this package that it inherits from, nearest first."""
    if found is None or found.module is None or not isinstance(found.node, ast.ClassDef) or depth > _MAX_DEPTH:
        return []
    classes = [found.node]
    for base in found.node.bases:
        if isinstance(base, ast.Name):
            classes += _classes(package, package.find(found.module.path, base.id), depth + 1)
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
