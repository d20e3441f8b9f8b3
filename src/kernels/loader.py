"""A variant directory becomes a module, all or nothing.

The module is imported under the `id` of its metadata by Python's own import system, whose lock for each module makes
two threads that load one kernel get one module, and different kernels load side by side. A finder of ours stands first
on `sys.meta_path` and answers for the kernels alone, so that nothing but a variant's own files is found under its name,
and bytecode is neither read nor written.

What a failed import registered with Torch (operators, by native code or `torch.library`) cannot be taken back: Torch
has no way to. Everything else it left behind is removed.
"""

from __future__ import annotations

import ast
import importlib.util
import keyword
import os
import sys
import threading
from collections.abc import Iterator, Mapping
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
from types import CodeType, MappingProxyType, ModuleType
from typing import Any

from kernels.errors import DependencyOutsideLoad, InvalidRepository, KernelImportError
from kernels.metadata import Metadata
from kernels.requirement import RepoInfo, check_repo_id

__all__ = [
    "LoadedKernel",
    "check_contained",
    "get_kernel_dep",
    "get_loaded_kernels",
    "kernel_attribute",
    "kernel_layers",
    "load_variant",
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


@dataclass(eq=False)
class _Package:
    """A variant that has a module name: it is loaded, or being loaded."""

    name: str
    path: Path  # the variant's directory
    init: Path  # its `__init__.py`
    metadata: Metadata
    deps: Mapping[str, ModuleType]
    repo_info: RepoInfo | None
    backend: object | None
    users: int = 1  # calls of `load_variant` in progress
    importing: int = field(default=0)  # imports of its code in progress

    @property
    def key(self) -> str:
        return os.path.realpath(self.path)

    def __str__(self) -> str:
        if self.repo_info is None:
            return f"kernel {self.metadata.name!r} in {self.path}"
        origin = f"{self.repo_info.repo_id} at {self.repo_info.revision}"
        return f"kernel {self.metadata.name!r}, variant {self.path.name}, of {origin}"


# Guards the four tables below. Never held while code of a kernel, or another finder, runs.
_mutex = threading.Lock()
_packages: dict[str, _Package] = {}  # by the variant's real path
_names: dict[str, _Package] = {}  # by module name
_loaded: dict[str, LoadedKernel] = {}  # by the variant's real path
_namespaces: dict[str, str] = {}  # Torch namespace -> real path of the library that registers it

_current: ContextVar[_Package | None] = ContextVar("kernel_being_loaded", default=None)


def _renew_mutex() -> None:
    global _mutex
    _mutex = threading.Lock()


if hasattr(os, "register_at_fork"):
    # A thread that held it while another one forked does not exist in the child, and would never release it there.
    os.register_at_fork(after_in_child=_renew_mutex)


def load_variant(
    path: os.PathLike[str] | str,
    metadata: Metadata,
    *,
    deps: Mapping[str, ModuleType] = MappingProxyType({}),
    repo_info: RepoInfo | None = None,
    backend: object | None = None,
    root: os.PathLike[str] | str | None = None,
) -> ModuleType:
    """Import a variant as a module, once.

    Args:
        path: The variant's directory.
        metadata: Its parsed `metadata.json`; the module is named after its `id`. Where another path was loaded under
            that `id`, the name gets a suffix: `<id>_2`, `<id>_3`, and so on.
        deps: The modules that the kernel may ask for with `get_kernel_dep`, by repository.
        repo_info: Where the variant came from; None for a local path.
        backend: The variant's backend. Its methods `before_import(path, metadata)` and
            `after_import(module, path, metadata)`, where it has them, are called around the import.
        root: The folder that no symbolic link in the variant may leave: the repository's folder in the cache. None for
            a local path, which is the user's own.

    Returns:
        The module. The same path gives the same module, in every thread; called for a kernel that is being imported
        further up in the same thread, its unfinished module.

    Raises:
        KernelImportError: The `id` cannot be a module's name or names a module that is no kernel, the variant holds no
            module, the Torch namespace it registers is taken, or its own code failed. Nothing of it stays loaded.
        InvalidRepository: A symbolic link leaves `root`.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "__init__.py").write_text("def double(x): return 2 * x")
        >>> text = b'{"name": "double", "id": "_double_cpu_1a2b3c4", "backend": {"type": "cpu"}}'
        >>> load_variant(folder, Metadata.from_bytes(text)).double(21)
        42
    """
    folder = Path(os.path.abspath(path))
    if (loaded := _loaded.get(os.path.realpath(folder))) is not None:
        return loaded.module
    init = _init_file(folder, metadata)
    if root is not None:
        check_contained(folder, root)
    package = _enter(_Package(metadata.id, folder, init, metadata, deps, repo_info, backend))
    try:
        while True:
            # Not `import_module`: the built-in hands out the unfinished module where two threads wait for each other.
            module: ModuleType = __import__(package.name)
            # It also hands it out after the import failed in the thread that was waited for: then try it here.
            if sys.modules.get(package.name) is module:
                return module
    finally:
        _leave(package)


def get_loaded_kernels() -> list[LoadedKernel]:
    """Every kernel loaded into this process, in the order they were loaded.

    Returns:
        A new list, one entry for each variant's path.

    Example:
        >>> all(isinstance(kernel, LoadedKernel) for kernel in get_loaded_kernels())
        True
    """
    return list(_loaded.values())


def get_kernel_dep(repo_id: str) -> ModuleType:
    """The module of another kernel that the calling kernel depends on.

    A kernel calls it while it is imported, for the repositories in the `kernel-depends` of its metadata.

    Args:
        repo_id: The dependency, `org/name` as the metadata spells it.

    Raises:
        DependencyOutsideLoad: The caller is no kernel being imported, or does not declare the dependency.
        RequestError: The name is not `org/name`.

    Example:
        >>> get_kernel_dep("org/relu")
        Traceback (most recent call last):
            ...
        kernels.errors.DependencyOutsideLoad: `get_kernel_dep('org/relu')` was called outside of the import of a \
kernel. A kernel calls it at the top of its modules; everyone else calls `get_kernel`.
    """
    check_repo_id(repo_id)
    # The caller's own module decides, so that a kernel called by another one during its import gets its own
    # dependencies, and a thread started by a kernel's import gets that kernel's.
    caller = sys._getframe(1).f_globals.get("__name__")
    package = _names.get(caller.partition(".")[0]) if isinstance(caller, str) else None
    if package is None:
        package = _current.get()
    if package is None or not package.importing:
        raise DependencyOutsideLoad(
            f"`get_kernel_dep({repo_id!r})` was called outside of the import of a kernel. A kernel calls it at the top "
            "of its modules; everyone else calls `get_kernel`."
        )
    module = package.deps.get(repo_id)
    if module is None:
        declared = ", ".join(sorted(package.deps)) or "none"
        raise DependencyOutsideLoad(
            f"`get_kernel_dep({repo_id!r})` was called by the {package}, whose declared dependencies are: {declared}. "
            "Add it to `kernel-depends` in the kernel's build.toml."
        )
    return module


def kernel_layers(module: ModuleType) -> Any | None:
    """The `layers` of a kernel: the attribute, or the submodule of that name, which is imported when it is there.

    Args:
        module: A kernel's module.

    Returns:
        The layers, or None when the kernel has none.

    Raises:
        KernelImportError: The submodule failed to import. It leaves no trace; the kernel stays loaded.

    Example:
        >>> kernel_layers(ModuleType("empty")) is None
        True
    """
    layers = kernel_attribute(module, "layers")
    package = _names.get(module.__name__)
    if layers is not None or package is None:
        return layers
    name = f"{package.name}.layers"
    if name not in sys.modules:
        try:
            importlib.util.find_spec(name)
        except ModuleNotFoundError:
            return None
        with _all_or_nothing(package):
            importlib.import_module(name)
    return sys.modules[name]


def kernel_attribute(kernel: ModuleType, name: str, *, of: Any = None) -> Any | None:
    """An attribute of a kernel, which the kernel's own code may make when it is asked for.

    Args:
        kernel: The kernel's module.
        name: The attribute's name.
        of: What of the kernel has the attribute, such as its `layers`; default the module itself.

    Returns:
        The attribute, or None when there is none.

    Raises:
        KernelImportError: The kernel's code failed. What it had imported leaves no trace; the kernel stays loaded.

    Example:
        >>> kernel_attribute(ModuleType("empty"), "layers") is None
        True
    """
    owner = kernel if of is None else of
    if isinstance(owner, ModuleType) and (found := vars(owner).get(name)) is not None:
        return found
    package = _names.get(kernel.__name__)
    if package is None:
        return getattr(owner, name, None)
    with _all_or_nothing(package):  # a `__getattr__` imports, as a kernel does that is slow to load
        return getattr(owner, name, None)


def check_contained(path: os.PathLike[str] | str, root: os.PathLike[str] | str) -> None:
    """Check that no symbolic link in a folder leads out of another folder that holds it.

    Args:
        path: The folder whose links, at any depth, are followed.
        root: The folder they must stay in.

    Raises:
        InvalidRepository: A link, or the folder itself, is elsewhere.

    Example:
        >>> import tempfile
        >>> check_contained(tempfile.mkdtemp(), tempfile.gettempdir())
    """
    inside = os.path.join(os.path.realpath(root), "")

    def check(link: str) -> None:
        target = os.path.realpath(link)
        if not os.path.join(target, "").startswith(inside):
            raise InvalidRepository(
                f"{link} leads to {target}, outside of {os.fspath(root)}. Delete the repository's folder from the "
                "cache and download it again; if it comes back, do not use the repository."
            )

    check(os.fspath(path))
    pending = [os.fspath(path)]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_symlink():
                    check(entry.path)
                elif entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)


def _init_file(folder: Path, metadata: Metadata) -> Path:
    # Older builds hold the package in a folder of its own.
    candidates = (folder / "__init__.py", folder / metadata.name.python_name / "__init__.py")
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise KernelImportError(
        f"Kernel {metadata.name!r} has no module: neither {candidates[0]} nor {candidates[1]} exists. "
        "Check the path, or download the kernel again."
    )


# Names


def _enter(package: _Package) -> _Package:
    """Give a package a module name, or return the one that has its path already."""
    identifier = package.metadata.id
    if not identifier.isidentifier() or keyword.iskeyword(identifier):
        raise _refused(package, "which is not a Python identifier")
    number = 1
    while True:
        name = identifier if number == 1 else f"{identifier}_{number}"
        with _mutex:
            entered = _packages.get(package.key)
            if entered is not None:
                entered.users += 1
                return entered
            ours = name in _names
        occupant = None if ours else _occupant(name, package.path)
        if occupant is not None and number == 1:
            raise _refused(package, f"which is the name of {occupant}")
        if ours or occupant is not None:
            number += 1
            continue
        with _mutex:
            # Another thread may have taken the path or the name meanwhile: then go round again.
            if package.key not in _packages and name not in _names:
                package.name = name
                _packages[package.key] = _names[name] = package
                if _KernelFinder not in sys.meta_path:
                    sys.meta_path.insert(0, _KernelFinder)
                return package


def _leave(package: _Package) -> None:
    with _mutex:
        package.users -= 1
        if not package.users and package.key not in _loaded:
            del _packages[package.key], _names[package.name]


def _refused(package: _Package, why: str) -> KernelImportError:
    return KernelImportError(
        f"The {package} has the id {package.metadata.id!r}, {why}. It is not loaded; ask its publisher for a build "
        "with an id of its own."
    )


def _occupant(name: str, folder: Path) -> str | None:
    """What else a top-level module name stands for in this process, if anything."""
    if name in sys.builtin_module_names or name in sys.stdlib_module_names:
        return "a module of Python's standard library"
    # Another thread may give the name to a kernel just now; `_enter` finds that out.
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
        package = _names.get(fullname.partition(".")[0])
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
            finder = FileFinder(folder, (_NativeLoader, EXTENSION_SUFFIXES), (_SourceLoader, SOURCE_SUFFIXES))
            spec = finder.find_spec(fullname)
            if spec is not None:
                return spec
        # Not None: the finders after this one would take a planted `.pyc`.
        raise ModuleNotFoundError(f"No module named {fullname!r} in the {package}", name=fullname)


class _SourceLoader(SourceFileLoader):
    """Compiles source each time. A `__pycache__` beside it is not covered by any digest, so it is not read, and a file
    in huggingface_hub's cache that huggingface_hub did not put there would be in its way, so none is written."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        source: Any = self.get_data(path)
        package = _names.get(fullname.partition(".")[0])
        if package is not None and package.name != package.metadata.id:
            source = _SelfImports(package).visit(ast.parse(source, path))
        return compile(source, path, "exec", dont_inherit=True)


class _PackageLoader(_SourceLoader):
    """Imports a kernel's top-level module; runs under Python's lock for that module."""

    def exec_module(self, module: ModuleType) -> None:
        package = _names[module.__name__]
        with _all_or_nothing(package):
            _call(package.backend, "before_import", package.path, package.metadata)
            super().exec_module(module)
            if sys.modules.get(package.name) is not module:
                raise ImportError(f"it removed or replaced itself in `sys.modules[{package.name!r}]`")
            _call(package.backend, "after_import", module, package.path, package.metadata)
        with _mutex:
            _loaded.setdefault(
                package.key, LoadedKernel(package.metadata, module, package.repo_info, path=package.path)
            )


class _NativeLoader(ExtensionFileLoader):
    """Loads a kernel's native extension, unless its Torch namespace is taken.

    Torch answers a second registration of a namespace by throwing through the dynamic linker, which ends the process;
    so it is found out before.
    """

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        package = _names[spec.name.partition(".")[0]]
        namespace = package.metadata.id
        if spec.name.rpartition(".")[2] == namespace:  # the library that registers `torch.ops.<id>`
            # Two revisions may share one file of the cache; the dynamic linker loads that once.
            library = os.path.realpath(self.path)
            with _mutex:
                owner = _namespaces.setdefault(namespace, library)
            if owner != library:
                raise _NamespaceTaken(
                    f"The {package} registers the Torch namespace {namespace!r}, which {owner} has registered in this "
                    "process, and Torch allows that once. Use that kernel, or load this one in another process."
                )
        return super().create_module(spec)


class _NamespaceTaken(KernelImportError):
    """Passes through the kernel's own import unchanged."""


class _SelfImports(ast.NodeTransformer):
    """Turns a kernel's absolute imports of its own `id` into imports of the suffixed name it was loaded under."""

    def __init__(self, package: _Package) -> None:
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
def _all_or_nothing(package: _Package) -> Iterator[None]:
    """Run a kernel's code: it may ask for its dependencies, and when it fails its modules are forgotten."""
    before = _modules_of(package)
    token = _current.set(package)
    with _mutex:
        package.importing += 1
    try:
        yield
    except BaseException as error:
        for name in _modules_of(package) - before:
            sys.modules.pop(name, None)
        if isinstance(error, (_NamespaceTaken, KeyboardInterrupt, GeneratorExit)):
            raise
        raise KernelImportError(f"Cannot import the {package}. {_reason(error)}", name=package.name) from error
    finally:
        with _mutex:
            package.importing -= 1
        _current.reset(token)


#: What kernels import without declaring it, as every kernel of their kind does: the package has the module's name.
_NEEDED = frozenset({"torch", "triton"})


def _reason(error: BaseException) -> str:
    """What a kernel's error says; how it says it is the kernel's code too, and may fail."""
    try:
        if isinstance(error, SystemExit):
            return f"its code called `sys.exit({'' if error.code is None else repr(error.code)})`"
        missing = error.name if isinstance(error, ModuleNotFoundError) and error.name in _NEEDED else None
        hint = f" (it needs {missing}: pip install {missing})" if missing else ""
        return f"{type(error).__name__}: {error}{hint}"
    except KeyboardInterrupt:
        raise
    except BaseException as failure:  # noqa: BLE001 -- `sys.exit` in a `__str__`, say
        return f"{type(error).__name__}, whose message cannot be had ({type(failure).__name__})"


def _modules_of(package: _Package) -> set[str]:
    inside = package.name + "."
    return {name for name in list(sys.modules) if name == package.name or name.startswith(inside)}


def _call(backend: object | None, hook: str, *args: object) -> None:
    method = getattr(backend, hook, None)
    if method is not None:
        method(*args)
