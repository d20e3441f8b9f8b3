"""How Python imports a kernel: under a name of its own, from its own files, all or nothing.

A finder of ours stands first on `sys.meta_path` and answers for kernels alone, so that nothing but a variant's own
files is found under its name: those that its snapshot lists, whatever lies beside them. One that was cleared away from
the cache since is fetched again. Python's lock for each module makes two threads that load one kernel get one module.
Bytecode is neither read nor written.
"""

from __future__ import annotations

import ast
import importlib.util
import keyword
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
)
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from kernels.errors import KernelImportError, KernelsError
from kernels.models.metadata import Metadata
from kernels.models.requirement import RepoInfo
from kernels.support.formatting import format_error, format_value

__all__ = [
    "FilesGone",
    "LoadedKernel",
    "Package",
    "all_or_nothing",
    "current",
    "enter",
    "leave",
    "loaded_kernels",
    "mutex",
    "names",
]


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel that was loaded into this process.

    Attributes:
        metadata: What its `metadata.json` said.
        module: The module.
        repo_info: Where it came from; None for a local path.
        path: The variant's directory.
    """

    metadata: Metadata
    module: ModuleType
    repo_info: RepoInfo | None
    path: Path | None = None


class FilesGone(KernelImportError):
    """A file that the snapshot lists is not on disk any more."""


@dataclass(eq=False)
class Package:
    """A variant that has a module name: it is loaded, or being loaded."""

    name: str
    path: Path  # the variant's directory
    init: Path  # its `__init__.py`
    metadata: Metadata
    deps: Mapping[str, ModuleType]
    repo_info: RepoInfo | None
    stages: Mapping[str, Callable[..., object]]
    files: frozenset[str] | None = (
        None  # those that are listed, relative to `path`; None where all that are there count
    )
    fetch: Callable[[], object] | None = None  # brings back what was cleared away
    gone: bool = False  # whether something was missing that could not be brought back
    users: int = 1  # calls of `load_variant` in progress
    importing: int = field(default=0)  # imports of its code in progress

    @property
    def key(self) -> str:
        """The variant's real path."""
        return os.path.realpath(self.path)

    def __str__(self) -> str:
        if self.repo_info is None:
            return f"kernel {self.metadata.name!r} in {self.path}"
        origin = f"{self.repo_info.repo_id} at {self.repo_info.revision}"
        return f"kernel {self.metadata.name!r}, variant {self.path.name}, of {origin}"

    def inside(self, path: str) -> str | None:
        """A path relative to the variant's directory, POSIX, "" for itself; None for one elsewhere."""
        path = os.path.abspath(path)
        for top in (str(self.path), self.key):
            if path == top:
                return ""
            if path.startswith(os.path.join(top, "")):
                return path[len(os.path.join(top, "")) :].replace(os.sep, "/")
        return None

    def lists(self, path: str) -> bool:
        """Whether a file is one of the variant's own, and not something that was put beside them."""
        return self.files is None or self.inside(path) in self.files

    def ensure(self, path: str) -> None:
        """Have a listed file on disk, also where the cache was cleared since it was fetched.

        Raises:
            FilesGone: It cannot be had again.
        """
        if self.files is None or not self.lists(path) or os.path.isfile(path):
            return
        why = "Get the kernel again."
        try:
            if self.fetch is not None:
                self.fetch()
        except (KernelsError, OSError) as error:
            why = f"It cannot be fetched again: {error}"
        if not os.path.isfile(path):
            self.gone = True
            raise FilesGone(
                f"{path} of the {self} is not there any more: the cache was cleared since it was fetched. {why}",
                name=self.name,
            )


# Guards the four tables below. Never held while code of a kernel, or another finder, runs.
mutex = threading.Lock()
_packages: dict[str, Package] = {}  # by the variant's real path
names: dict[str, Package] = {}  # by module name
loaded_kernels: dict[str, LoadedKernel] = {}  # by the variant's real path
_namespaces: dict[str, str] = {}  # Torch namespace -> real path of the library that registers it

current: ContextVar[Package | None] = ContextVar("kernel_being_loaded", default=None)


def _renew_mutex() -> None:
    global mutex
    mutex = threading.Lock()


if hasattr(os, "register_at_fork"):
    # A thread that held it while another one forked does not exist in the child, and would never release it there.
    os.register_at_fork(after_in_child=_renew_mutex)


# Names


def enter(package: Package) -> Package:
    """Give a package a module name, or return the one that has its path already."""
    identifier = package.metadata.id
    if not identifier.isidentifier() or keyword.iskeyword(identifier):
        raise _refused(package, "which is not a Python identifier")
    number = 1
    while True:
        name = identifier if number == 1 else f"{identifier}_{number}"
        with mutex:
            entered = _packages.get(package.key)
            if entered is not None:
                entered.users += 1
                return entered
            ours = name in names
        occupant = None if ours else _occupant(name, package.path)
        if occupant is not None and number == 1:
            raise _refused(package, f"which is the name of {occupant}")
        if ours or occupant is not None:
            number += 1
            continue
        with mutex:
            # Another thread may have taken the path or the name meanwhile: then go round again.
            if package.key not in _packages and name not in names:
                package.name = name
                _packages[package.key] = names[name] = package
                if _KernelFinder not in sys.meta_path:
                    sys.meta_path.insert(0, _KernelFinder)
                return package


def leave(package: Package) -> None:
    """Give the name back, unless the package was loaded or another call still wants it."""
    with mutex:
        package.users -= 1
        if not package.users and package.key not in loaded_kernels:
            del _packages[package.key], names[package.name]


def _refused(package: Package, why: str) -> KernelImportError:
    return KernelImportError(
        f"The {package} has the id {package.metadata.id!r}, {why}. It is not loaded; ask its publisher for a build "
        "with an id of its own."
    )


def _occupant(name: str, folder: Path) -> str | None:
    """What else a top-level module name stands for in this process, if anything."""
    if name in sys.builtin_module_names or name in sys.stdlib_module_names:
        return "a module of Python's standard library"
    # Another thread may give the name to a kernel just now; `enter` finds that out.
    absent = object()
    module = sys.modules.get(name, absent)
    if module is not absent:
        return None if _is_kernel(getattr(module, "__spec__", None)) else "a module that is loaded already"
    try:
        spec = importlib.util.find_spec(name)
    except KeyError:  # another thread's kernel of that name failed between two look-ups
        return None
    except (ImportError, AttributeError, TypeError, ValueError):  # a broken package on the path, but a package
        return "an installed module"
    if spec is None or _is_kernel(spec):
        return None
    places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or [])
    inside = os.path.join(os.path.realpath(folder), "")
    # With the variant itself on the path (a shell standing in it), its own extension is found.
    if places and all(os.path.realpath(place).startswith(inside) for place in places):
        return None
    return f"an installed module ({', '.join(places)})"


def _is_kernel(spec: ModuleSpec | None) -> bool:
    return isinstance(getattr(spec, "loader", None), _PackageLoader)


# Import


class _KernelFinder:
    """Finds the modules of kernels, and only in their own files."""

    @staticmethod
    def find_spec(fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        package = names.get(fullname.partition(".")[0])
        if package is None:
            return None
        if fullname == package.name:
            return importlib.util.spec_from_file_location(
                fullname,
                package.init,
                loader=_PackageLoader(fullname, str(package.init)),
                submodule_search_locations=[str(package.init.parent)],
            )
        for folder in path or ():
            spec = _find(package, fullname, folder)
            if spec is not None:
                return spec
        # Not None: the finders after this one would take a planted `.pyc`.
        raise ModuleNotFoundError(f"No module named {fullname!r} in the {package}", name=fullname)


def _find(package: Package, fullname: str, folder: str) -> ModuleSpec | None:
    """A module in a folder: in the order of Python's own finder, of the variant's listed files alone."""
    inside = package.inside(folder)
    if package.files is None or inside is None:  # a folder that the kernel's own code named
        return FileFinder(folder, *_LOADERS).find_spec(fullname)  # type: ignore[arg-type]
    name = fullname.rpartition(".")[2]
    listed = f"{inside}/{name}" if inside else name
    place = os.path.join(folder, name)
    for end, locations in (("/__init__", [place]), ("", None)):
        for loader, suffixes in _LOADERS:
            for suffix in suffixes:
                if f"{listed}{end}{suffix}" in package.files:
                    path = f"{place}{end.replace('/', os.sep)}{suffix}"
                    package.ensure(path)
                    return importlib.util.spec_from_file_location(
                        fullname, path, loader=loader(fullname, path), submodule_search_locations=locations
                    )
    if any(file.startswith(f"{listed}/") for file in package.files):
        spec = ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = [place]
        return spec
    return None


class _SourceLoader(SourceFileLoader):
    """Compiles source each time. A `__pycache__` beside it is not covered by any digest, so it is not read, and a file
    in huggingface_hub's cache that huggingface_hub did not put there would be in its way, so none is written."""

    def get_data(self, path: str) -> bytes:
        try:
            return super().get_data(path)
        except FileNotFoundError:
            package = names.get(self.name.partition(".")[0])
            if package is None or not package.lists(path):
                raise
            package.ensure(path)
            return super().get_data(path)

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        source: Any = self.get_data(path)
        package = names.get(fullname.partition(".")[0])
        if package is not None and package.name != package.metadata.id:
            source = _SelfImports(package).visit(ast.parse(source, path))
        return compile(source, path, "exec", dont_inherit=True)


class _PackageLoader(_SourceLoader):
    """Imports a kernel's top-level module; runs under Python's lock for that module."""

    def exec_module(self, module: ModuleType) -> None:
        package = names[module.__name__]
        package.gone = False
        with all_or_nothing(package):
            _call(package, "before_import", package.path, package.metadata)
            super().exec_module(module)
            if sys.modules.get(package.name) is not module:
                raise ImportError(f"it removed or replaced itself in `sys.modules[{package.name!r}]`")
            if package.gone:  # its own code may have taken that for a part that this build does not have
                raise FilesGone(f"The cache was cleared while the {package} was imported.", name=package.name)
            _call(package, "after_import", module, package.path, package.metadata)
        with mutex:
            loaded_kernels.setdefault(
                package.key, LoadedKernel(package.metadata, module, package.repo_info, path=package.path)
            )


class _NativeLoader(ExtensionFileLoader):
    """Loads a kernel's native extension, unless its Torch namespace is taken.

    Torch answers a second registration of a namespace by throwing through the dynamic linker, which ends the process;
    so it is found out before.
    """

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        package = names[spec.name.partition(".")[0]]
        namespace = package.metadata.id
        if spec.name.rpartition(".")[2] == namespace:  # the library that registers `torch.ops.<id>`
            # Two revisions may share one file of the cache; the dynamic linker loads that once.
            library = os.path.realpath(self.path)
            with mutex:
                owner = _namespaces.setdefault(namespace, library)
            if owner != library:
                raise _NamespaceTaken(
                    f"The {package} registers the Torch namespace {namespace!r}, which {owner} has registered in this "
                    "process, and Torch allows that once. Use that kernel, or load this one in another process."
                )
        package.ensure(self.path)
        return super().create_module(spec)


#: In the order of Python's own finder.
_LOADERS: tuple[tuple[Callable[[str, str], Any], list[str]], ...] = (
    (_NativeLoader, EXTENSION_SUFFIXES),
    (_SourceLoader, SOURCE_SUFFIXES),
)


class _NamespaceTaken(KernelImportError):
    """Passes through the kernel's own import unchanged."""


class _SelfImports(ast.NodeTransformer):
    """Turns a kernel's absolute imports of its own `id` into imports of the suffixed name it was loaded under."""

    def __init__(self, package: Package) -> None:
        self.id = package.metadata.id
        self.name = package.name

    def _renamed(self, name: str) -> str:
        first, dot, rest = name.partition(".")
        return f"{self.name}{dot}{rest}" if first == self.id else name

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        if node.level == 0 and node.module is not None:
            node.module = self._renamed(node.module)
        return node

    def visit_Import(self, node: ast.Import) -> list[ast.AST]:
        nodes: list[ast.AST] = []
        for alias in node.names:
            name = self._renamed(alias.name)
            nodes.append(ast.copy_location(ast.Import([ast.alias(name, alias.asname)]), node))
            if name != alias.name and alias.asname is None:
                # `import id.layers` binds `id`.
                nodes.append(ast.copy_location(ast.Import([ast.alias(self.name, self.id)]), node))
        return [ast.fix_missing_locations(each) for each in nodes]


@contextmanager
def all_or_nothing(package: Package) -> Iterator[None]:
    """Run a kernel's code: it may ask for its dependencies, and when it fails its modules are forgotten."""
    before = _modules_of(package)
    token = current.set(package)
    with mutex:
        package.importing += 1
    try:
        yield
    except BaseException as error:  # whatever a kernel's code raises, `sys.exit` too, must leave no trace
        for name in _modules_of(package) - before:
            sys.modules.pop(name, None)
        if isinstance(error, (_NamespaceTaken, FilesGone, KeyboardInterrupt, GeneratorExit)):
            raise
        reason = f"{_reason(error)}{_place(package, error)}"
        raise KernelImportError(f"Cannot import the {package}. {reason}", name=package.name) from error
    finally:
        with mutex:
            package.importing -= 1
        current.reset(token)


#: What kernels import without declaring it, as every kernel of their kind does: the package has the module's name.
_NEEDED = frozenset({"torch", "triton"})

#: What is quoted of a kernel's error: a compiler's, say, has many lines.
_MAX_MESSAGE = 10_000


def _reason(error: BaseException) -> str:
    """What a kernel's error says."""
    if isinstance(error, SystemExit):
        return f"its code called `sys.exit({'' if error.code is None else format_value(error.code)})`"
    # A kernel's own kind of error may do anything when it is asked for its name.
    missing = error.name if type(error) is ModuleNotFoundError and isinstance(error.name, str) else None
    hint = f" (it needs {missing}: pip install {missing})" if missing in _NEEDED else ""
    return format_error(error, _MAX_MESSAGE) + hint


def _place(package: Package, error: BaseException) -> str:
    """The line of the kernel's own code that was running, the innermost; its compiled code has none."""
    tops = {os.path.join(top, "") for top in (str(package.path), package.key)}
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        name = frame.f_code.co_filename
        top = next((top for top in tops if name.startswith(top)), None)
        if top is not None:
            found = f" ({name.removeprefix(top)}, line {line})"
    return found


def _modules_of(package: Package) -> set[str]:
    inside = package.name + "."
    return {name for name in list(sys.modules) if name == package.name or name.startswith(inside)}


def _call(package: Package, stage: str, *args: object) -> None:
    if stage in package.stages:
        package.stages[stage](*args)
