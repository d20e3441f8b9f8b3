"""The modules of vendor folders: imported under names of their own, and removed when their backends leave.

No lock is held while a vendor's code is imported: it may ask for backends, or wait for another thread's import.
Python's own import locks are enough: two threads that import one folder get one module, which is complete.
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
from contextlib import contextmanager, suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from kernels.backends import registry
from kernels.backends.base import Backend
from kernels.errors import RequestError
from kernels.support.formatting import format_error

__all__ = ["forget_unused", "import_package", "vendor_module", "vendor_package"]

_PREFIX = "kernels_vendor_"

#: The module from which FlagGems' vendor folders take the class of `vendor_info`; FlagGems has it beside these folders.
_INFO_MODULE = "backend_utils"

#: The name of each folder's package, by the folder's real path.
_names: dict[str, str] = {}
_numbers = itertools.count(1)


class _Finder(MetaPathFinder):
    """Finds vendor folders by the names of their packages."""

    def __init__(self) -> None:
        self.folders: dict[str, Path] = {}
        #: On each thread, the folder that is being imported.
        self.importing = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        folder = self.folders.get(fullname)
        if folder is None:
            return self._info_module(fullname)
        init = folder / "__init__.py"
        if init.is_file():
            return importlib.util.spec_from_file_location(fullname, init, submodule_search_locations=[str(folder)])
        # A backend that was registered by a call may have a plain folder.
        spec = ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = [str(folder)]
        return spec

    def _info_module(self, fullname: str) -> ModuleSpec | None:
        folder: Path | None = getattr(self.importing, "folder", None)
        if folder is None or fullname != _INFO_MODULE:
            return None
        beside = folder.parent / f"{_INFO_MODULE}.py"
        if beside.is_file():
            return importlib.util.spec_from_file_location(fullname, beside)
        return ModuleSpec(fullname, _InfoLoader(), origin="kernels")


class _InfoLoader(Loader):
    """Makes the module of `vendor_info`'s class, for a folder without FlagGems."""

    def exec_module(self, module: ModuleType) -> None:
        from kernels.backends.plugins.vendor_info import VendorInfo

        setattr(module, "VendorInfoBase", VendorInfo)  # noqa: B010


_finder = _Finder()


def import_package(folder: Path) -> ModuleType:
    """A folder as a package, under a name that no other module has; `forget_unused` removes it again.

    Raises:
        RequestError: Its code fails.
    """
    return _import(_own_name(folder), folder)


def forget_unused(folder: Path) -> None:
    """Remove the modules of a folder that no registered backend has."""
    path = os.path.realpath(folder)
    layers = [each.backend.folder for entry in registry.registered() for each in entry.layers()]
    if path in _names and path not in [os.path.realpath(each) for each in layers if each is not None]:
        _remove(_names[path])


def vendor_package(backend: Backend) -> ModuleType | None:
    """A backend's folder as a package, or None where it has no folder.

    Raises:
        RequestError: Its code fails.
    """
    folder = backend.folder
    if folder is None:
        return None
    try:
        return _import(_imported_name(folder) or _own_name(folder), folder)
    finally:
        forget_unused(folder)


def vendor_module(backend: Backend, part: str) -> ModuleType | None:
    """A module of a backend's folder, imported when it is first needed.

    Args:
        backend: The backend. Where its folder is a package that is imported already, the module is that package's.
        part: The module's name in the folder: `ops`, `heuristics_config_utils`.

    Returns:
        The module, or None where the backend has no folder, or the folder no such module.

    Raises:
        RequestError: Its code fails; the message names the folder. No module that it began to import stays.
    """
    folder = backend.folder
    if folder is None:
        return None
    try:
        package = _import(_imported_name(folder) or _own_name(folder), folder).__name__
        name = f"{package}.{part}"
        with _vendors_code(folder, part, package), _with_info_module(folder):
            if name not in sys.modules:
                _see_new_files()
                if importlib.util.find_spec(name) is None:
                    return None
            return importlib.import_module(name)
    finally:
        forget_unused(folder)


def _import(name: str, folder: Path) -> ModuleType:
    if name.startswith(_PREFIX):
        _finder.folders[name] = folder
    if _finder not in sys.meta_path:
        sys.meta_path.append(_finder)  # at the end, and for good: another thread may be going through this list
    with _vendors_code(folder, "__init__.py"), _with_info_module(folder):
        if name not in sys.modules:
            _see_new_files()
        return importlib.import_module(name)


@contextmanager
def _with_info_module(folder: Path) -> Iterator[None]:
    """Let a folder's modules import FlagGems' `backend_utils`; afterwards the name is free again."""
    before, outer = sys.modules.get(_INFO_MODULE), getattr(_finder.importing, "folder", None)
    _finder.importing.folder = folder
    try:
        yield
    finally:
        _finder.importing.folder = outer
        if before is None:
            sys.modules.pop(_INFO_MODULE, None)


def _see_new_files() -> None:
    """Let imports find files that were written since the folder was last listed."""
    with suppress(KeyError):  # of two threads in it at once, one may remove an entry that the other is about to
        importlib.invalidate_caches()


def _own_name(folder: Path) -> str:
    words = re.sub(r"[^a-z0-9]+", "_", folder.name.lower()).strip("_")
    return _names.setdefault(os.path.realpath(folder), f"{_PREFIX}{words or 'folder'}_{next(_numbers)}")


def _imported_name(folder: Path) -> str | None:
    """The name under which a folder is imported, here or as an ordinary package."""
    path = os.path.realpath(folder)
    if _names.get(path) in sys.modules:
        return _names[path]
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        places = getattr(spec, "submodule_search_locations", None)
        if not name.startswith(_PREFIX) and isinstance(places, list) and path in map(os.path.realpath, places):
            return name
    return None


def _leave(backend: Backend) -> None:
    if backend.folder is not None:
        forget_unused(backend.folder)


registry.on_leaving(_leave)


def _modules_of(package: str) -> set[str]:
    return {each for each in list(sys.modules) if each == package or each.startswith(f"{package}.")}


def _remove(package: str) -> None:
    for name in _modules_of(package):
        sys.modules.pop(name, None)


@contextmanager
def _vendors_code(folder: Path, part: str, package: str | None = None) -> Iterator[None]:
    """Run a vendor's code: when it fails, the modules of a package that it began to import are removed."""
    before = _modules_of(package) if package else set()
    try:
        yield
    except (Exception, SystemExit) as error:
        for name in (_modules_of(package) if package else set()) - before:
            # Modules that are being imported are another thread's.
            if not getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False):
                sys.modules.pop(name, None)
        why = format_error(error)
        raise RequestError(f"The vendor folder {folder}: its `{part}` cannot be imported: {why}") from error
