"""The deprecated repositories of functions: `LayerRepository` and its siblings serve functions too."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from kernels.errors import MappingError
from kernels.layer.layer import function_layer, use_kernel_func_from_hub
from kernels.layer.repos import FolderKernel, KernelRepository, kernel_at, locked_kernel
from kernels.support.formatting import did_you_mean
from kernels.tracebacks import public

if TYPE_CHECKING:
    from torch import nn

__all__ = ["FuncRepository", "LocalFuncRepository", "LockedFuncRepository", "use_kernel_func_from_hub"]


class _NamedFunction(KernelRepository):
    """Names a function at the kernel's top level."""

    kind, named = "function", "func_name"
    func_name: str

    def _layer_in(self, kernel: ModuleType) -> type[nn.Module]:
        from kernels.loader.load import kernel_attribute

        function = kernel_attribute(kernel, self.func_name)
        if not callable(function):
            members = vars(kernel).copy().items()
            names = [name for name, value in members if callable(value) and not name.startswith("_")]
            raise MappingError(f"{self}: the kernel has no such function.{did_you_mean(self.func_name, names)}")
        return function_layer(function)


class FuncRepository(_NamedFunction):
    """Deprecated: a function of a kernel on a Hub, for a mapping. `LayerRepository` serves functions too.

    Args:
        repo_id: The repository, `org/name`.
        func_name: The function's name at the kernel's top level.
        revision: A branch, a tag or a commit. Either it or `version` must be given before the layer is loaded.
        version: A major version.
        trust_remote_code: As in `LayerRepository`.

    Raises:
        TypeError: An argument is of the wrong type.
        RequestError: A malformed name, or both `revision` and `version`.
    """

    @public
    def __init__(
        self,
        repo_id: str,
        *,
        func_name: str,
        revision: str | None = None,
        version: int | None = None,
        trust_remote_code: bool | Sequence[str] = False,
    ) -> None:
        _deprecated("FuncRepository", "LayerRepository")
        super().__init__(kernel_at(repo_id, version, revision, trust_remote_code), func_name)


class LocalFuncRepository(_NamedFunction):
    """Deprecated: a function of a kernel in a folder, for a mapping. `LocalLayerRepository` serves functions too.

    Args:
        repo_path: A kernel repository, its `build` folder, or one variant.
        func_name: The function's name at the kernel's top level.

    Raises:
        TypeError: An argument is of the wrong type.
    """

    @public
    def __init__(self, repo_path: Path | str, *, func_name: str) -> None:
        _deprecated("LocalFuncRepository", "LocalLayerRepository")
        super().__init__(FolderKernel(repo_path), func_name)


class LockedFuncRepository(_NamedFunction):
    """Deprecated: a function of a kernel at the commit that a lock pins. `LockedLayerRepository` serves functions too.

    Args:
        repo_id: The repository, `org/name`.
        lockfile: As in `LockedLayerRepository`.
        func_name: The function's name at the kernel's top level.
        trust_remote_code: As in `LockedLayerRepository`.

    Raises:
        TypeError: An argument is of the wrong type.
        NotLocked: No lock was found, or it does not list the repository (a `ValueError`).
    """

    @public
    def __init__(
        self,
        repo_id: str,
        *,
        lockfile: str | Path | None = None,
        func_name: str,
        trust_remote_code: bool | Sequence[str] = False,
    ) -> None:
        _deprecated("LockedFuncRepository", "LockedLayerRepository")
        super().__init__(locked_kernel(repo_id, lockfile, trust_remote_code), func_name)


def _deprecated(old: str, new: str) -> None:
    """Warn of a deprecated class, at the line that makes one."""
    warnings.warn(
        f"{old} is deprecated: put the function's layer into the kernel's `layers` and use {new}.",
        DeprecationWarning,
        stacklevel=4,  # past the frame that `public` adds
    )
