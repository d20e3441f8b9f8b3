"""Make a kernel's build importable by the name of its sources: `import rms_norm` in the kernel's tests.

Every Python process of a test run installs the finder when it starts, from a `sitecustomize` on `PYTHONPATH`: pytest's
own process, its workers, and what the tests start. Only Python's standard library is imported until the kernel is.
"""

from __future__ import annotations

import importlib
import importlib.util
import keyword
import os
import sys
import threading
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType, ModuleType
from typing import Any

__all__ = [
    "BuildFinder",
    "FolderFinder",
    "add_folder",
    "hides_the_standard_library",
    "install",
    "is_importable",
    "next_sitecustomize",
    "notes",
    "source_folders",
]

#: The source folders of the kernel that is tested.
source_folders: list[str] = []

#: What is said after the tests.
notes: list[str] = []

#: Packages that loading and testing a kernel needs: a kernel of that name is not importable by it.
_NEEDED = frozenset(
    {"filelock", "huggingface_hub", "kernels", "msgspec", "numpy", "packaging", "pytest", "torch", "triton", "yaml"}
)


class BuildFinder:
    """Finds a kernel's build, and its submodules, by the name of its sources.

    It is first on `sys.meta_path`: neither the sources on `sys.path` nor an installed package of that name is used. The
    loaded module is that of `get_local_kernel`, since a second copy would register its operators again.

    Attributes:
        name: The name of the Python package in the sources.
        build: The build's folder.
        id: The build's `id`, the module's own name: pickled functions and classes are found by it in a new process.
        why_not: Why there is no build to import, or "".
    """

    def __init__(self, name: str, build: str, id: str, why_not: str = "") -> None:
        self.name, self.build, self.id, self.why_not = name, build, id, why_not
        self._loading = threading.local()

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of the build, or of its submodule; None for other modules."""
        top, _, rest = fullname.partition(".")
        if top not in (self.name, self.id):
            return None
        importer = _importer()
        if top == self.id and (rest or self.id in sys.modules or importer == "kernels"):
            return None  # the loader of kernels finds its own modules
        if _is_kernel(importer):
            if top == self.id:
                return None
            raise ModuleNotFoundError(
                f"No module named {self.name!r} where the kernel is used: its own code imports it by the name of its "
                f"sources, and its module has another name there ({self.id}). Use relative imports in the kernel: "
                "`from . import …`.",
                name=fullname,
            )
        if getattr(self._loading, "now", False):
            return None  # the kernel's dependency of the same name, if there is one
        module = self._load()
        if rest:
            try:
                module = importlib.import_module(f"{module.__name__}.{rest}")
            except ModuleNotFoundError as error:
                if error.name is not None and f"{module.__name__}.{rest}.".startswith(f"{error.name}."):
                    return None
                raise
        spec = ModuleSpec(fullname, _Given(module), origin=getattr(module, "__file__", None))
        spec.submodule_search_locations = getattr(module, "__path__", None)
        return spec

    def _load(self) -> ModuleType:
        if self.why_not:
            raise ModuleNotFoundError(f"No module named {self.name!r}: {self.why_not}", name=self.name)
        # Before the name gets a module: code of the kernel that imports it must not see an empty one.
        from kernels.api import get_local_kernel

        self._loading.now = True
        try:
            return get_local_kernel(self.build)
        finally:
            self._loading.now = False


class _Given(Loader):
    """Gives a module that is loaded already a second name."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        # The import system takes what stands here, so the module keeps its own `__spec__`.
        assert module.__spec__ is not None
        sys.modules[module.__spec__.name] = self.module


class FolderFinder:
    """Finds a package in its own place, and further modules of it in a folder.

    pytest imports `tests/kernels/test_a.py` as `kernels.test_a`, a module of the package that loads kernels, and puts
    `tests` on `sys.path`, where a spawned process would take `tests/kernels` for that package.
    """

    def __init__(self, package: str, place: str, folder: str) -> None:
        self.package, self.place, self.folder = package, place, folder

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of the package, or of a module in the folder; None for other modules."""
        if fullname == self.package:
            return PathFinder.find_spec(fullname, [self.place])
        if fullname.rpartition(".")[0] != self.package:
            return None
        return PathFinder.find_spec(fullname, path) or PathFinder.find_spec(fullname, [self.folder])


def _importer() -> str:
    """The top-level name of the module whose code imports."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__")
        top = name.partition(".")[0] if isinstance(name, str) else ""
        if top not in ("importlib", "_frozen_importlib"):
            return top
        frame = frame.f_back
    return ""


def _is_kernel(name: str) -> bool:
    registry = sys.modules.get("kernels.loader.registry")
    return registry is not None and name in registry.packages


def is_importable(name: str) -> bool:
    """Whether tests can import a kernel by a name: a keyword they cannot, and what tests need is not replaced.

    Example:
        >>> [is_importable(name) for name in ("rms_norm", "class", "torch")]
        [True, False, False]
    """
    return not keyword.iskeyword(name) and name not in _NEEDED


def hides_the_standard_library(name: str) -> str | None:
    """Why a kernel cannot have the name of a module of Python's standard library, as a clause; None for other names.

    Example:
        >>> hides_the_standard_library("rms_norm") is None
        True
    """
    if name not in sys.stdlib_module_names and name not in sys.builtin_module_names:
        return None
    return (
        f"`import {name}` gives a module of Python's standard library, which the tests and other packages need; choose "
        "another name for the kernel"
    )


def install(name: str, build: str, id: str, why_not: str = "") -> BuildFinder:
    """Put the finder of a build first on `sys.meta_path`.

    Args:
        name: The name of the Python package in the sources.
        build: The build's folder.
        id: The build's `id`.
        why_not: Why there is no build to import, or "".

    Example:
        >>> finder = install("rms_norm", "/nowhere", "_rms_norm_cpu_1a2b3c4", "nothing is built")
        >>> import rms_norm
        Traceback (most recent call last):
            ...
        ModuleNotFoundError: No module named 'rms_norm': nothing is built
        >>> sys.meta_path.remove(finder)
    """
    finder = BuildFinder(name, build, id, why_not)
    sys.meta_path.insert(0, finder)
    return finder


def add_folder(folder: str) -> FolderFinder:
    """Let a folder's modules be modules of this package too.

    Example:
        >>> finder = add_folder("/nowhere")
        >>> finder.find_spec("kernels.nothing") is None and finder.find_spec("json") is None
        True
        >>> sys.meta_path.remove(finder)
    """
    package = __name__.partition(".")[0]
    up = [os.pardir] * (__name__.count(".") + 1)
    finder = FolderFinder(package, os.path.abspath(os.path.join(__file__, *up)), folder)
    sys.meta_path.insert(0, finder)
    return finder


def next_sitecustomize(folder: str, path: Sequence[str] | None = None) -> None:
    """Run the `sitecustomize` that another one hides.

    Args:
        folder: The folder of the one that hides it.
        path: The folders to look in. Default: `sys.path`.

    Example:
        >>> next_sitecustomize("/nowhere", path=[])
    """
    own = os.path.realpath(folder)
    others = [each for each in (sys.path if path is None else path) if os.path.realpath(each) != own]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
