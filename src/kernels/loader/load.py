"""Load a variant directory as a module, all or nothing.

A failed import leaves nothing behind but what it registered with Torch (operators), which Torch cannot remove.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from kernels.errors import DependencyOutsideLoad, NoModule
from kernels.loader.import_system import all_or_nothing, install_finder
from kernels.loader.registry import (
    KernelPackage,
    LoadedKernel,
    LoadedKernelList,
    current,
    enter,
    leave,
    loaded_kernels,
    packages,
)
from kernels.models.metadata import Metadata
from kernels.models.requirement import RepoInfo, check_repo_id
from kernels.support.formatting import did_you_mean

__all__ = [
    "LoadedKernel",
    "get_kernel_dep",
    "get_loaded_kernels",
    "is_loaded",
    "kernel_attribute",
    "kernel_layers",
    "load_variant",
]


def load_variant(
    path: os.PathLike[str] | str,
    metadata: Metadata,
    *,
    deps: Mapping[str, ModuleType] = MappingProxyType({}),
    repo_info: RepoInfo | None = None,
    commit: str | None = None,
    stages: Mapping[str, Callable[..., object]] = MappingProxyType({}),
    files: Collection[str] | None = None,
) -> ModuleType:
    """Import a variant as a module, once.

    Args:
        path: The variant's directory.
        metadata: Its `metadata.json`; the module is named after its `id`. If another path is loaded under that `id`,
            the name gets a suffix: `<id>_2`, `<id>_3`, and so on.
        deps: The modules that `get_kernel_dep` gives the kernel, by repository.
        repo_info: The repository and revision; None for a local path.
        commit: The commit, for messages, where `repo_info` names a branch; None for a local path.
        stages: A backend's functions around the import: `before_import(path, metadata)` and
            `after_import(module, path, metadata)`, both optional.
        files: The variant's listed files, POSIX paths relative to it: no other file is imported by name. None for a
            local path, where all files are.

    Returns:
        The module. The same path gives the same module in every thread; a kernel that is being imported further up in
        the same thread gives its unfinished module.

    Raises:
        KernelImportError: The `id` is not a module name or is that of another module, its Torch namespace is taken, or
            its code calls `sys.exit`. Nothing of it stays loaded.
        NoModule: The variant has no module (a `FileNotFoundError`).
        Exception: Whatever the kernel's own code raises, with a note that names the kernel. Nothing of it stays loaded.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "__init__.py").write_text("def double(x): return 2 * x")
        >>> text = b'{"name": "double", "id": "_double_cpu_1a2b3c4", "backend": {"type": "cpu"}}'
        >>> load_variant(folder, Metadata.from_bytes(text)).double(21)
        42
    """
    folder = Path(os.path.abspath(path))
    key = os.path.realpath(folder)
    if (loaded := loaded_kernels.get(key)) is not None:
        return loaded.module
    listed = None if files is None else frozenset(files)
    init = _init_file(folder, metadata, listed)
    install_finder()
    package = enter(
        KernelPackage(metadata.id, folder, init, metadata, deps, repo_info, stages, listed, commit, key=key)
    )
    try:
        return _import(package)
    finally:
        leave(package)


def _import(package: KernelPackage) -> ModuleType:
    while True:
        # Not `import_module`: the built-in returns the unfinished module where two threads wait for each other.
        module: ModuleType = __import__(package.name)
        # It also returns a module whose import failed in another thread meanwhile: then import it here.
        if sys.modules.get(package.name) is module:
            return module


def get_loaded_kernels() -> list[LoadedKernel]:
    """The kernels that are loaded in this process, in the order of loading, one for each variant's path.

    Returns:
        A list that a notebook shows as a table.

    Example:
        >>> all(isinstance(kernel, LoadedKernel) for kernel in get_loaded_kernels())
        True
    """
    return LoadedKernelList(loaded_kernels.values())


def is_loaded(path: os.PathLike[str] | str) -> bool:
    """Whether the variant at a path is loaded in this process.

    Args:
        path: The variant's directory.

    Example:
        >>> is_loaded("/nowhere")
        False
    """
    return bool(loaded_kernels) and os.path.realpath(path) in loaded_kernels


def get_kernel_dep(repo_id: str) -> ModuleType:
    """The module of a kernel that the calling kernel depends on.

    A kernel calls it while it is imported, for the repositories in the `kernel-depends` of its metadata.

    Args:
        repo_id: The dependency, `org/name` as in the metadata.

    Returns:
        The dependency's module, loaded before the calling kernel.

    Raises:
        DependencyOutsideLoad: The caller is not a kernel that is being imported, or does not declare the dependency.
        RequestError: The name is not `org/name`.

    Example:
        >>> get_kernel_dep("org/relu")
        Traceback (most recent call last):
            ...
        kernels.errors.DependencyOutsideLoad: `get_kernel_dep('org/relu')` was called outside of the import of a \
kernel. A kernel calls it at the top of its modules; everyone else calls `get_kernel`.
    """
    check_repo_id(repo_id)
    # The calling module decides: a kernel that another one calls during its import gets its own dependencies, and a
    # thread that a kernel's import has started gets that kernel's.
    caller = sys._getframe(1).f_globals.get("__name__")
    package = packages.get(caller.partition(".")[0]) if isinstance(caller, str) else None
    if package is None:
        package = current.get()
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
            f"Add it to `kernel-depends` in the kernel's build.toml.{did_you_mean(repo_id, package.deps, 0.8)}"
        )
    return module


def kernel_layers(module: ModuleType) -> Any | None:
    """The `layers` of a kernel: the attribute, or the submodule of that name, which is imported if it exists.

    Args:
        module: The kernel's module.

    Returns:
        The layers, or None.

    Raises:
        Exception: Whatever the submodule's code raises. The kernel stays loaded.

    Example:
        >>> kernel_layers(ModuleType("empty")) is None
        True
    """
    layers = kernel_attribute(module, "layers")
    package = packages.get(module.__name__)
    if layers is not None or package is None:
        return layers
    name = f"{package.name}.layers"
    if name not in sys.modules:
        try:
            importlib.util.find_spec(name)
        except ModuleNotFoundError:
            return None
        with all_or_nothing(package):
            importlib.import_module(name)
    return sys.modules[name]


def kernel_attribute(kernel: ModuleType, name: str, *, of: Any = None) -> Any | None:
    """An attribute of a kernel, which the kernel's own code may create on access.

    Args:
        kernel: The kernel's module.
        name: The attribute's name.
        of: The object of the kernel that has the attribute, such as its `layers`. Default: the module.

    Returns:
        The attribute, or None.

    Raises:
        Exception: Whatever the kernel's code raises. The kernel stays loaded.

    Example:
        >>> kernel_attribute(ModuleType("empty"), "layers") is None
        True
    """
    owner = kernel if of is None else of
    if isinstance(owner, ModuleType) and (found := vars(owner).get(name)) is not None:
        return found
    package = packages.get(kernel.__name__)
    if package is None:
        return getattr(owner, name, None)
    with all_or_nothing(package):  # a `__getattr__` may import more of the kernel
        return getattr(owner, name, None)


def _init_file(folder: Path, metadata: Metadata, files: frozenset[str] | None) -> Path:
    # Older builds hold the package in a folder of its own.
    candidates = (folder / "__init__.py", folder / metadata.name.python_name / "__init__.py")
    for candidate in candidates:
        if candidate.is_file() if files is None else candidate.relative_to(folder).as_posix() in files:
            return candidate
    raise NoModule(
        f"Kernel {metadata.name!r} has no module: neither {candidates[0]} nor {candidates[1]} exists. "
        "Check the path, or download the kernel again."
    )
