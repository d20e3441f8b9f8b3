"""Kernels into a model: marks on layers, mappings from layers to kernels, and the replacement of forwards."""

from __future__ import annotations

from kernels.layer.compare import ComparedLayer, LayerComparison, compare_layers
from kernels.layer.decorate import (
    replace_kernel_forward_from_hub,
    use_kernel_forward_from_hub,
    use_kernel_func_from_hub,
    use_kernelized_func,
)
from kernels.layer.device import CapabilityRange, CUDAProperties, Device, ROCMProperties
from kernels.layer.kernelize import kernelize, unkernelize
from kernels.layer.locked_repository import LockedFuncRepository, LockedLayerRepository
from kernels.layer.mapping import (
    KernelMapping,
    LayerMapping,
    RepositoryProtocol,
    register_kernel_mapping,
    use_kernel_mapping,
)
from kernels.layer.mode import KernelizeFallback, Mode
from kernels.layer.report import KernelizeReport, KernelizeRow, kernelize_report
from kernels.layer.repository import FuncRepository, LayerRepository, LocalFuncRepository, LocalLayerRepository

__all__ = [
    "CUDAProperties",
    "CapabilityRange",
    "ComparedLayer",
    "Device",
    "FuncRepository",
    "KernelMapping",
    "KernelizeFallback",
    "KernelizeReport",
    "KernelizeRow",
    "LayerComparison",
    "LayerMapping",
    "LayerRepository",
    "LocalFuncRepository",
    "LocalLayerRepository",
    "LockedFuncRepository",
    "LockedLayerRepository",
    "Mode",
    "ROCMProperties",
    "RepositoryProtocol",
    "compare_layers",
    "kernelize",
    "kernelize_report",
    "register_kernel_mapping",
    "replace_kernel_forward_from_hub",
    "unkernelize",
    "use_kernel_forward_from_hub",
    "use_kernel_func_from_hub",
    "use_kernel_mapping",
    "use_kernelized_func",
]
