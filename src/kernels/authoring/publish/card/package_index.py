"""The modules of a package and what their names are, from their sources: parsed and indexed, never imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernels.authoring.python_syntax import parse_source
from kernels.support.files import read_bounded

__all__ = ["MAX_DEPTH", "Definition", "FoundName", "IndexedModule", "IndexedPackage"]

#: The largest source that is read, as `kernels check` reads.
_MAX_SOURCE_BYTES = 4 * 1024 * 1024

#: The deepest blocks and classes that are followed, the most names of a package, and the most modules that are read.
MAX_DEPTH = 8
_MAX_NAMES = 500
_MAX_MODULES = 200

#: The module that the builder writes, with the handle to the operators.
_OPS = "_ops"

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class IndexedModule:
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
        self.bound: dict[str, Definition | _From | None] = {}
        self.stars: list[tuple[str, ...]] = []
        for node in _statements(tree.body):
            self._add(node)

    @property
    def inside(self) -> tuple[str, ...]:
        """The package that its relative imports start from."""
        return self.path if self.package else self.path[:-1]

    def _add(self, node: ast.stmt) -> None:
        if isinstance(node, Definition):
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
class FoundName:
    """A definition and its module; no definition if the sources do not have it."""

    node: Definition | None = None
    module: IndexedModule | None = None


class IndexedPackage:
    """The modules of a package, each parsed once, and their names, each looked up once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._modules: dict[tuple[str, ...], IndexedModule | None] = {}
        self._found: dict[tuple[tuple[str, ...], str], FoundName | None] = {}
        self._offered: dict[tuple[str, ...], list[str]] = {}

    def module(self, path: tuple[str, ...]) -> IndexedModule | None:
        if path not in self._modules:
            self._modules[path] = self._read(path) if len(self._modules) < _MAX_MODULES else None
        return self._modules[path]

    def _read(self, path: tuple[str, ...]) -> IndexedModule | None:
        place = self._root.joinpath(*path)
        files = [(place / "__init__.py", True)]
        if path:
            files.insert(0, (place.with_name(f"{path[-1]}.py"), False))
        for file, package in files:
            try:
                return IndexedModule(path, parse_source(read_bounded(file, _MAX_SOURCE_BYTES)), package=package)
            except FileNotFoundError:
                continue
            except (OSError, SyntaxError, ValueError, RecursionError):
                return None
        return None

    def offered(self, path: tuple[str, ...]) -> list[str]:
        """The names of `__all__`, else the public ones that are defined or imported from the package itself."""
        if path not in self._offered:
            self._offered[path] = []  # for a module that imports from itself
            self._offered[path] = self._names(self.module(path))
        return self._offered[path]

    def _names(self, module: IndexedModule | None) -> list[str]:
        if module is None:
            return []
        names = module.offered
        if names is None:
            own = [name for name, bound in module.bound.items() if not _foreign(bound)]
            names = [*own, *(name for star in module.stars for name in self.offered(star))]
            names = [name for name in names if not name.startswith("_")]
        return list(dict.fromkeys(name for name in names if name.isidentifier()))[:_MAX_NAMES]

    def find(self, path: tuple[str, ...], name: str) -> FoundName | None:
        """What a name of a module is; None for a module."""
        key = path, name
        if key not in self._found:
            self._found[key] = FoundName()  # for a name that is imported from itself
            self._found[key] = self._look_up(path, name)
        return self._found[key]

    def _look_up(self, path: tuple[str, ...], name: str) -> FoundName | None:
        module = self.module(path)
        if path == (_OPS,):
            return None  # the handle to the operators
        if module is None:
            return FoundName()  # native code has no sources
        if name in module.bound:
            bound = module.bound[name]
            if isinstance(bound, _From):
                return FoundName() if bound.module is None else self._imported(bound.module, bound.name)
            return None if bound is None else FoundName(bound, module)
        for star in module.stars:
            if name in self.offered(star):
                return self.find(star, name)
        return None if self.module((*module.inside, name)) is not None else FoundName()

    def _imported(self, path: tuple[str, ...], name: str) -> FoundName | None:
        module = self.module(path)
        own = None if module is None else module.bound.get(name, _From(path, name))
        if own in (None, _From(path, name)) and self.module((*path, name)) is not None:
            return None  # a submodule
        return self.find(path, name)


def _foreign(bound: Definition | _From | None) -> bool:
    return bound is None or (isinstance(bound, _From) and bound.module is None)


def _statements(body: list[ast.stmt], depth: int = 0) -> Iterator[ast.stmt]:
    """The statements of a module, also those under `if` and `try`."""
    for node in body:
        yield node
        if depth < MAX_DEPTH:
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
