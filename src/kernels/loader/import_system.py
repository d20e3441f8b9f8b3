"""How Python imports a kernel: under its own name, from its own listed files, all or nothing.

A finder at the start of `sys.meta_path` finds only modules of kernels, and only the files that a variant's snapshot
lists, whatever files are next to them. With Python's lock for each module, two threads that load one kernel get the
same module. Bytecode is neither read nor written.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
)
from types import CodeType, ModuleType
from typing import Any

from kernels.errors import KernelImportError
from kernels.loader import registry
from kernels.loader.dll_folders import dll_folders
from kernels.loader.registry import (
    KernelLoader,
    KernelPackage,
    LoadedKernel,
    current,
    loaded_kernels,
    packages,
    take_namespace,
)
from kernels.support.formatting import format_error, format_value
from kernels.support.logs import logger
from kernels.support.text import clean

__all__ = ["all_or_nothing", "install_finder"]

_log = logger(__name__)


def install_finder() -> None:
    """Put the finder of kernels first on `sys.meta_path`."""
    with registry.mutex:
        if _KernelFinder not in sys.meta_path:
            sys.meta_path.insert(0, _KernelFinder)


class _KernelFinder:
    """Finds the modules of kernels, and only in their own files."""

    @staticmethod
    def find_spec(fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        package = packages.get(fullname.partition(".")[0])
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
        # Not None: the next finders would take a planted `.pyc`.
        raise ModuleNotFoundError(f"No module named {fullname!r} in the {package}", name=fullname)


def _find(package: KernelPackage, fullname: str, folder: str) -> ModuleSpec | None:
    """A module in a folder, from the variant's listed files, in the order of Python's own finder."""
    inside = package.relative(folder)
    if package.files is None or inside is None:  # a folder that the kernel's own code has added
        return FileFinder(folder, *_LOADERS).find_spec(fullname)  # type: ignore[arg-type]
    name = fullname.rpartition(".")[2]
    listed = f"{inside}/{name}" if inside else name
    place = os.path.join(folder, name)
    for end, locations in (("/__init__", [place]), ("", None)):
        for loader, suffixes in _LOADERS:
            for suffix in suffixes:
                if f"{listed}{end}{suffix}" in package.files:
                    path = f"{place}{end.replace('/', os.sep)}{suffix}"
                    return importlib.util.spec_from_file_location(
                        fullname, path, loader=loader(fullname, path), submodule_search_locations=locations
                    )
    if any(file.startswith(f"{listed}/") for file in package.files):
        spec = ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = [place]
        return spec
    return None


class _SourceLoader(SourceFileLoader):
    """Compiles source each time: no digest covers a `__pycache__`, and the cache is huggingface_hub's to write."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        source: Any = self.get_data(path)
        package = packages.get(fullname.partition(".")[0])
        if package is not None and package.name != package.metadata.id:
            source = _SelfImports(package).visit(ast.parse(source, path))
        return compile(source, path, "exec", dont_inherit=True)


@KernelLoader.register
class _PackageLoader(_SourceLoader):
    """Imports a kernel's top-level module, under Python's lock for that module."""

    def exec_module(self, module: ModuleType) -> None:
        package = packages[module.__name__]
        with dll_folders(package), all_or_nothing(package):
            _call(package, "before_import", package.path, package.metadata)
            super().exec_module(module)
            if sys.modules.get(package.name) is not module:
                raise KernelImportError(
                    f"Cannot import the {package}. It removed or replaced itself in `sys.modules[{package.name!r}]`.",
                    name=package.name,
                )
            _call(package, "after_import", module, package.path, package.metadata)
        with registry.mutex:
            loaded_kernels.setdefault(package.key, LoadedKernel(package.metadata, module, package.repo_info))


class _NativeLoader(ExtensionFileLoader):
    """Loads a kernel's native extension, unless its Torch namespace is taken.

    On a second registration of a namespace Torch throws through the dynamic linker, which ends the process.
    """

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        package = packages[spec.name.partition(".")[0]]
        namespace = package.metadata.id
        if spec.name.rpartition(".")[2] == namespace:  # the library that registers `torch.ops.<id>`
            owner = take_namespace(namespace, self.path)
            if owner != os.path.realpath(self.path):
                raise KernelImportError(
                    f"The {package} registers the Torch namespace {namespace!r}, which {owner} has registered already: "
                    "Torch allows that once in a process. Use that kernel, or load this one in another process.",
                    name=package.name,
                )
        with dll_folders(package):  # a kernel can import it later than the rest
            return super().create_module(spec)


#: In the order of Python's own finder.
_LOADERS: tuple[tuple[Callable[[str, str], Any], list[str]], ...] = (
    (_NativeLoader, EXTENSION_SUFFIXES),
    (_SourceLoader, SOURCE_SUFFIXES),
)


class _SelfImports(ast.NodeTransformer):
    """Makes a kernel's absolute imports of its own `id` imports of the suffixed name that it is loaded under."""

    def __init__(self, package: KernelPackage) -> None:
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
def all_or_nothing(package: KernelPackage) -> Iterator[None]:
    """Run a kernel's code: it may call `get_kernel_dep`, and its modules are removed if it fails.

    Raises:
        KernelImportError: It called `sys.exit`, or raised what `except Exception` does not catch.
        Exception: Its own error, with a note that names the kernel and the line.
    """
    before = _modules_of(package)
    token = current.set(package)
    with registry.mutex:
        package.importing += 1
    try:
        yield
    except BaseException as error:  # also `sys.exit`: a failed import leaves no trace
        for name in _modules_of(package) - before:
            sys.modules.pop(name, None)
        ours = isinstance(error, KernelImportError) and error.name == package.name
        if ours or isinstance(error, GeneratorExit):
            raise
        if not isinstance(error, (Exception, KeyboardInterrupt)):
            raise _failure(package, error) from error
        _add_note(error, f"The {package} cannot be imported.")
        raise
    finally:
        with registry.mutex:
            package.importing -= 1
        current.reset(token)


def _failure(package: KernelPackage, error: BaseException) -> KernelImportError:
    """The error for one that no caller of a kernel expects, with the innermost line of the kernel's own code."""
    reason = format_error(error)
    if isinstance(error, SystemExit):
        reason = f"its code called `sys.exit({'' if error.code is None else format_value(error.code)})`"
    places = [
        (package.relative(frame.f_code.co_filename), line) for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    place = next((f" ({file}, line {line})" for file, line in reversed(places) if file is not None), "")
    return KernelImportError(f"Cannot import the {package}: {reason}{place}", name=package.name)


def _add_note(error: BaseException, note: str) -> None:
    """Add a note that a traceback shows; Python 3.10 shows none, so there it is logged."""
    if sys.version_info < (3, 11):
        _log.warning("%s", clean(note))
        return
    with suppress(Exception):  # the kernel's own class may refuse it
        BaseException.add_note(error, clean(note))


def _modules_of(package: KernelPackage) -> set[str]:
    inside = package.name + "."
    return {name for name in list(sys.modules) if name == package.name or name.startswith(inside)}


def _call(package: KernelPackage, name: str, *args: object) -> None:
    stage = package.stages.get(name)
    if stage is None:
        return
    try:
        stage(*args)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        raise _failure(package, error) from error
