"""The kernels of this process: which variant has which module name, and which are loaded."""

from __future__ import annotations

import importlib.util
import keyword
import os
import sys
from abc import ABC
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import msgspec

from kernels.errors import KernelImportError
from kernels.models.metadata import Metadata
from kernels.models.requirement import RepoInfo
from kernels.support.forks import ForkLock
from kernels.support.html_table import TableList

__all__ = [
    "KernelLoader",
    "KernelPackage",
    "LoadedKernel",
    "LoadedKernelList",
    "current",
    "enter",
    "leave",
    "loaded_kernels",
    "mutex",
    "packages",
    "take_namespace",
]


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel that is loaded in this process.

    Attributes:
        metadata: Its `metadata.json`.
        module: Its module.
        repo_info: Its repository, and the revision that was asked for, or the commit of the version; None for a local
            path.
    """

    metadata: Metadata
    module: ModuleType
    repo_info: RepoInfo | None

    @property
    def path(self) -> Path | None:
        """The variant's directory; None if the kernel is not loaded in this process."""
        return next((Path(path) for path, each in loaded_kernels.items() if each.module is self.module), None)

    def _repr_html_(self) -> str:
        return LoadedKernelList([self])._repr_html_()


class LoadedKernelList(TableList[LoadedKernel]):
    """Loaded kernels: a list that a notebook shows as a table."""

    headings: ClassVar[tuple[str, ...]] = ("kernel", "repository", "revision", "variant", "module")

    @staticmethod
    def cells(item: LoadedKernel) -> tuple[str, ...]:
        info = item.repo_info
        repository, revision = (info.repo_id, info.revision) if info is not None else ("-", "-")
        variant = "-" if item.path is None else item.path.name
        return (item.metadata.name, repository, revision, variant, item.module.__name__)


class KernelLoader(ABC):  # noqa: B024
    """Marks the loaders of kernels' modules."""


class KernelPackage(msgspec.Struct, eq=False):
    """A variant with a module name: it is loaded, or is being loaded."""

    name: str
    path: Path  # the variant's directory
    init: Path  # its `__init__.py`
    metadata: Metadata
    deps: Mapping[str, ModuleType]
    repo_info: RepoInfo | None
    stages: Mapping[str, Callable[..., object]]
    files: frozenset[str] | None = None  # the listed files, relative to `path`; None: all files
    commit: str | None = None  # for messages
    users: int = 1  # calls of `load_variant` in progress
    importing: int = 0  # imports of its code in progress
    key: str = ""  # the variant's real path, looked up once

    def __post_init__(self) -> None:
        self.key = self.key or os.path.realpath(self.path)

    def __str__(self) -> str:
        if self.repo_info is None:
            return f"kernel {self.metadata.name!r} in {self.path}"
        origin = f"{self.repo_info.repo_id} at {self.repo_info.revision}"
        if self.commit is not None and self.commit != self.repo_info.revision:
            origin += f" (commit {self.commit[:12]})"
        return f"kernel {self.metadata.name!r}, variant {self.path.name}, of {origin}"

    def relative(self, path: str) -> str | None:
        """A POSIX path relative to the variant's directory, "" for the directory itself; None for one elsewhere."""
        path = os.path.abspath(path)
        for top in (str(self.path), self.key):
            if path == top:
                return ""
            if path.startswith(os.path.join(top, "")):
                return path[len(os.path.join(top, "")) :].replace(os.sep, "/")
        return None

    def lists(self, path: str) -> bool:
        """Whether a file is one of the variant's own, not one that was put beside them."""
        return self.files is None or self.relative(path) in self.files


# Guards the tables below. It is never held while code of a kernel, or another finder, runs.
mutex = ForkLock()
_by_path: dict[str, KernelPackage] = {}  # by the variant's real path
packages: dict[str, KernelPackage] = {}  # by module name
loaded_kernels: dict[str, LoadedKernel] = {}  # by the variant's real path
_namespaces: dict[str, str] = {}  # Torch namespace -> real path of the library that registers it

#: The kernel whose code is being imported.
current: ContextVar[KernelPackage | None] = ContextVar("kernel_being_loaded", default=None)


def enter(package: KernelPackage) -> KernelPackage:
    """Give a package a module name, or return the package that is registered for its path.

    Raises:
        KernelImportError: Its `id` is not an identifier, or is the name of another module.
    """
    identifier = package.metadata.id
    if not identifier.isidentifier() or keyword.iskeyword(identifier):
        raise _refused(package, "which is not a Python identifier")
    number = 1
    while True:
        name = identifier if number == 1 else f"{identifier}_{number}"
        with mutex:
            registered = _by_path.get(package.key)
            if registered is not None:
                registered.users += 1
                return registered
            taken = name in packages
        occupant = None if taken else _occupant(name, package.path)
        if occupant is not None and number == 1:
            raise _refused(package, f"which is the name of {occupant}")
        if taken or occupant is not None:
            number += 1
            continue
        with mutex:
            # Another thread may have taken the path or the name meanwhile: then try again.
            if package.key not in _by_path and name not in packages:
                package.name = name
                _by_path[package.key] = packages[name] = package
                return package


def leave(package: KernelPackage) -> None:
    """Give the name back, unless the package was loaded or another call uses it."""
    with mutex:
        package.users -= 1
        if not package.users and package.key not in loaded_kernels:
            del _by_path[package.key], packages[package.name]


def take_namespace(namespace: str, library: str) -> str:
    """Reserve a Torch namespace for a library, and return the library that has it."""
    # Two revisions may share one file of the cache; the dynamic linker loads that once.
    with mutex:
        return _namespaces.setdefault(namespace, os.path.realpath(library))


def _refused(package: KernelPackage, why: str) -> KernelImportError:
    return KernelImportError(
        f"The {package} has the id {package.metadata.id!r}, {why}. It is not loaded; ask its publisher for a build "
        "with an id of its own."
    )


def _occupant(name: str, folder: Path) -> str | None:
    """The other module that has a top-level name in this process, if any."""
    if name in sys.builtin_module_names or name in sys.stdlib_module_names:
        return "a module of Python's standard library"
    # Another thread may give the name to a kernel at this moment; `enter` checks that.
    absent = object()
    module = sys.modules.get(name, absent)
    if module is not absent:
        return None if _is_kernel(getattr(module, "__spec__", None)) else "a module that is loaded already"
    try:
        spec = importlib.util.find_spec(name)
    except KeyError:  # another thread's kernel of that name failed between two look-ups
        return None
    except (ImportError, AttributeError, TypeError, ValueError):  # a broken package, but a package
        return "an installed module"
    if spec is None or _is_kernel(spec):
        return None
    places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or [])
    inside = os.path.join(os.path.realpath(folder), "")
    # If the variant itself is on the path (the current directory), its own extension is found.
    if places and all(os.path.realpath(place).startswith(inside) for place in places):
        return None
    return f"an installed module ({', '.join(places)})"


def _is_kernel(spec: ModuleSpec | None) -> bool:
    # Any code may have put any object in a module's place.
    return isinstance(getattr(spec, "loader", None), KernelLoader)
