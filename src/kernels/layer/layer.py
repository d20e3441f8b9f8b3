"""Layers' marks and repositories, at the path where programs for the existing client import them."""

from __future__ import annotations

from kernels.layer.decorate import (
    replace_kernel_forward_from_hub,
    use_kernel_forward_from_hub,
    use_kernelized_func,
)
from kernels.layer.locked_repository import LockedLayerRepository
from kernels.layer.mode import KernelizeFallback
from kernels.layer.repository import LayerRepository, LocalLayerRepository

__all__ = [
    "KernelizeFallback",
    "LayerRepository",
    "LocalLayerRepository",
    "LockedLayerRepository",
    "replace_kernel_forward_from_hub",
    "use_kernel_forward_from_hub",
    "use_kernelized_func",
]
