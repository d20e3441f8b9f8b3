"""Find, fetch, check and load the compute kernel that fits this machine, and swap it into a model.

    from kernels import get_kernel
    activation = get_kernel("kernels-community/activation", version=1)

Importing this package loads neither torch nor huggingface_hub: each public name is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.18.2"

# Public name -> the module that defines it.
_NAMES = {
    "KernelsWarning": "kernels.support.warn",
    "Metadata": "kernels.models.metadata",
    "RepoInfo": "kernels.models.requirement",
    "Target": "kernels.resolver.target",
    "VariantAccepted": "kernels.resolver.selection",
    "VariantRejected": "kernels.resolver.selection",
    "Benchmark": "kernels.benchmark",
    "LoadedKernel": "kernels.loader.load",
    "get_loaded_kernels": "kernels.loader.load",
    "get_kernel_dep": "kernels.loader.load",
    "get_kernel": "kernels.api",
    "get_kernel_variants": "kernels.api",
    "get_local_kernel": "kernels.api",
    "get_locked_kernel": "kernels.locked",
    "has_kernel": "kernels.api",
    "install_kernel": "kernels.api",
    "download_kernels": "kernels.operations.download",
    "load_kernel": "kernels.locked",
    "BackendName": "kernels.backends",
    "get_backend": "kernels.backends",
    "list_backends": "kernels.backends",
    "load_backends": "kernels.backends.plugins.json_backend",
    "register_backend": "kernels.backends",
    "register_vendor": "kernels.backends.plugins.vendor_folder",
    "unregister_backend": "kernels.backends",
    "VendorInfo": "kernels.backends.plugins.vendor_folder",
    "ActiveOp": "kernels.operators",
    "EnabledOps": "kernels.operators",
    "FuncSpec": "kernels.operators",
    "active_ops": "kernels.operators",
    "enable_kernel_ops": "kernels.operators",
    "enable_vendor_ops": "kernels.operators",
    "use_kernel_ops": "kernels.operators",
    "use_vendor_ops": "kernels.operators",
    "CUDAProperties": "kernels.layer",
    "Device": "kernels.layer",
    "FuncRepository": "kernels.layer",
    "CapabilityRange": "kernels.layer",
    "KernelizeFallback": "kernels.layer",
    "KernelizeReport": "kernels.layer",
    "KernelizeRow": "kernels.layer",
    "LayerRepository": "kernels.layer",
    "LocalFuncRepository": "kernels.layer",
    "LocalLayerRepository": "kernels.layer",
    "LockedFuncRepository": "kernels.layer",
    "LockedLayerRepository": "kernels.layer",
    "Mode": "kernels.layer",
    "ROCMProperties": "kernels.layer",
    "kernelize": "kernels.layer",
    "kernelize_report": "kernels.layer",
    "register_kernel_mapping": "kernels.layer",
    "replace_kernel_forward_from_hub": "kernels.layer",
    "unkernelize": "kernels.layer",
    "use_kernel_forward_from_hub": "kernels.layer",
    "use_kernel_func_from_hub": "kernels.layer",
    "use_kernel_mapping": "kernels.layer",
    "use_kernelized_func": "kernels.layer",
}

__all__ = ["__version__", *sorted(_NAMES)]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    module = _NAMES.get(name)
    if module is None:
        raise AttributeError(f"module 'kernels' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})
