"""Kernels into a model: marks on layers, mappings from layers to kernels, and the replacement of forwards.

A library marks its layers when it is imported: each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

# Not later: when a module of that name is imported, Python puts it into the place of the function.
from kernels.layer.kernelize import kernelize, unkernelize

if TYPE_CHECKING:
    from kernels.layer.autotune_report import AutotuneReport, TunedCall, TunedRow
    from kernels.layer.autotuning import autotune
    from kernels.layer.compare import ComparedLayer, LayerComparison, compare_layers
    from kernels.layer.device import CapabilityRange, CUDAProperties, Device, ROCMProperties
    from kernels.layer.func import FuncRepository, LocalFuncRepository, LockedFuncRepository
    from kernels.layer.layer import (
        replace_kernel_forward_from_hub,
        use_kernel_forward_from_hub,
        use_kernel_func_from_hub,
        use_kernelized_func,
    )
    from kernels.layer.mapping import (
        KernelMapping,
        LayerMapping,
        RepositoryProtocol,
        register_kernel_mapping,
        use_kernel_mapping,
    )
    from kernels.layer.mode import KernelizeFallback, Mode
    from kernels.layer.report import KernelizeReport, KernelizeRow, kernelize_report
    from kernels.layer.repos import LayerRepository, LocalLayerRepository, LockedLayerRepository
else:
    _MODULES = {
        "autotuning": "autotune",
        "autotune_report": "AutotuneReport TunedCall TunedRow",
        "compare": "ComparedLayer LayerComparison compare_layers",
        "device": "CUDAProperties CapabilityRange Device ROCMProperties",
        "func": "FuncRepository LocalFuncRepository LockedFuncRepository",
        "layer": (
            "replace_kernel_forward_from_hub use_kernel_forward_from_hub use_kernel_func_from_hub use_kernelized_func"
        ),
        "mapping": "KernelMapping LayerMapping RepositoryProtocol register_kernel_mapping use_kernel_mapping",
        "mode": "KernelizeFallback Mode",
        "report": "KernelizeReport KernelizeRow kernelize_report",
        "repos": "LayerRepository LocalLayerRepository LockedLayerRepository",
    }
    _MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}

    def __getattr__(name):
        """Import a public name when it is first used."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        return value

    def __dir__():
        """The public names, those not imported yet too."""
        return sorted({*globals(), *_MODULE_OF})


__all__ = [
    "AutotuneReport",
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
    "TunedCall",
    "TunedRow",
    "autotune",
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
