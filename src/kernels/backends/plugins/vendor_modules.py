"""The modules of vendors' folders: imported under names of their own, and gone when their backends are.

A vendor's code may ask for backends while it is imported, and wait for other threads' imports. So nothing is locked
here meanwhile but what Python's import itself locks: two threads that want a module get one, which is complete.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import os
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from kernels.backends import registry
from kernels.backends.base import Backend
from kernels.errors import RequestError
from kernels.support.formatting import format_error

__all__ = ["Package", "package_of", "vendor_module"]


@dataclass(eq=False)
class Package:
    """A folder as a package, for as long as someone uses it or a backend has it.

    Attributes:
        name: The package's name.
        folder: The folder.
        ours: Whether it is imported here, under a name that no other module has.
        shared: Whether others who want the folder get it too.
        users: How many calls use it now.
        owners: The backends whose folder it is.
        backend: The backend that is made of it.
    """

    name: str
    folder: Path
    ours: bool
    shared: bool
    users: int = 0
    owners: list[Backend] = field(default_factory=list)
    backend: Backend | None = None

    def imported(self) -> ModuleType:
        """The package itself.

        Raises:
            RequestError: Its code fails.
        """
        if self.ours and _finder not in sys.meta_path:
            sys.meta_path.append(_finder)
        with _vendors_code(self.folder, "__init__.py"):
            if self.name not in sys.modules:
                importlib.invalidate_caches()
            return importlib.import_module(self.name)

    def agreed(self, backend: Backend) -> Backend:
        """The backend that is made of it: the first one, of several threads that make one at once."""
        with _lock:
            self.backend = self.backend or backend
            return self.backend

    def disagreed(self, backend: Backend) -> None:
        """Give up a backend that could not be registered."""
        with _lock:
            if self.backend is backend:
                self.backend = None

    def belongs_to(self, backend: Backend) -> None:
        """Keep its modules until the backend leaves."""
        with _lock:
            if all(each is not backend for each in self.owners):
                self.owners.append(backend)


# Guards the packages, for a moment: it is never held while a vendor's code runs or the registry is asked.
_lock = threading.RLock()
_packages: list[Package] = []
_numbers = itertools.count(1)


def _renew() -> None:
    # A lock that another thread of the parent held is held for ever in the child.
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


@contextmanager
def package_of(folder: Path, module: ModuleType | str | None = None, *, shared: bool = True) -> Iterator[Package]:
    """A folder's package, whose modules stay after the block only where a backend has it.

    Args:
        folder: The folder.
        module: The package, or its name, where it is imported otherwise.
        shared: Whether it is the one that others use too.
    """
    with _lock:
        package = _known(folder) if shared else None
        if package is None:
            name = module.__name__ if isinstance(module, ModuleType) else module
            package = Package(name or _new_name(folder), folder, name is None, shared)
            _packages.append(package)
        package.users += 1
    try:
        yield package
    finally:
        with _lock:
            package.users -= 1
        _forget()


def vendor_module(backend: Backend, part: str) -> ModuleType | None:
    """A module of a backend's folder, imported when it is first asked for.

    Args:
        backend: The backend. Where its folder is a package that is imported already, the module is that package's.
        part: The module's name in the folder: `ops`, `heuristics_config_utils`.

    Returns:
        The module, or None where the backend has no folder, or the folder no such module.

    Raises:
        RequestError: Its code fails; the message names the folder. No module that it had begun to import stays.
    """
    folder = backend.folder
    if folder is None:
        return None
    with package_of(folder, None if _known(folder) else _ordinary_package(folder)) as package:
        package.imported()
        package.belongs_to(backend)
        name = f"{package.name}.{part}"
        with _vendors_code(folder, part, package.name):
            if name not in sys.modules:
                importlib.invalidate_caches()
                if importlib.util.find_spec(name) is None:
                    return None
            return importlib.import_module(name)  # waits where another thread is not done with it


class _Finder(MetaPathFinder):
    """Finds the folders here by the names of their packages, for Python's import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        folder = next((each.folder for each in list(_packages) if each.ours and each.name == fullname), None)
        if folder is None:
            return None
        init = folder / "__init__.py"
        if init.is_file():
            return importlib.util.spec_from_file_location(fullname, init, submodule_search_locations=[str(folder)])
        # A backend that was registered otherwise may have a plain folder.
        spec = ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = [str(folder)]
        return spec


# At the end, and for good: another thread may go through the finders while one is removed, and pass over the next.
_finder = _Finder()


def _known(folder: Path) -> Package | None:
    path = os.path.realpath(folder)
    return next((each for each in list(_packages) if each.shared and os.path.realpath(each.folder) == path), None)


def _new_name(folder: Path) -> str:
    words = re.sub(r"[^a-z0-9]+", "_", folder.name.lower()).strip("_")
    return f"kernels_vendor_{words or 'folder'}_{next(_numbers)}"


def _ordinary_package(folder: Path) -> str | None:
    """The name under which a folder is imported otherwise."""
    path = os.path.realpath(folder)
    ours = {each.name for each in list(_packages) if each.ours}
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        places = getattr(spec, "submodule_search_locations", None)
        if name not in ours and isinstance(places, list) and any(os.path.realpath(each) == path for each in places):
            return name
    return None


def _leave(backend: Backend) -> None:
    """Remove the modules of a backend's folder when the backend leaves."""
    with _lock:
        for package in _packages:
            package.owners = [each for each in package.owners if each is not backend]
            if package.backend is backend:
                package.backend = None
    _forget()


registry.on_leaving(_leave)


def _forget() -> None:
    with _lock:
        leaving = [each for each in _packages if not each.users and not each.owners]
        _packages[:] = [each for each in _packages if each not in leaving]
    for package in leaving:
        if package.ours:
            for name in _modules_of(package.name):
                sys.modules.pop(name, None)


def _modules_of(package: str) -> set[str]:
    return {each for each in list(sys.modules) if each == package or each.startswith(f"{package}.")}


@contextmanager
def _vendors_code(folder: Path, part: str, package: str | None = None) -> Iterator[None]:
    """Run a vendor's code: when it fails, the modules of a package that it had begun to import are forgotten."""
    before = _modules_of(package) if package else set()
    try:
        yield
    except BaseException as error:  # whatever a stranger's code raises, `sys.exit` too
        for name in (_modules_of(package) if package else set()) - before:
            # Those that are being imported are another thread's: it tries again.
            if not getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False):
                sys.modules.pop(name, None)
        if isinstance(error, (KeyboardInterrupt, GeneratorExit)):
            raise
        raise RequestError(
            f"The vendor folder {folder}: its `{part}` cannot be imported: {format_error(error)}"
        ) from error
