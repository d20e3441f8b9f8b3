"""Functions' marks and repositories, at the path where programs for the existing client import them."""

from __future__ import annotations

from kernels.layer.decorate import use_kernel_func_from_hub
from kernels.layer.locked_repository import LockedFuncRepository
from kernels.layer.repository import FuncRepository, LocalFuncRepository

__all__ = ["FuncRepository", "LocalFuncRepository", "LockedFuncRepository", "use_kernel_func_from_hub"]
