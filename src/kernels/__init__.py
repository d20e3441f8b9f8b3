"""Find, fetch, check and load the compute kernel that fits this machine, and swap it into a model.

    from kernels import get_kernel
    activation = get_kernel("kernels-community/activation", version=1)

Importing this package loads neither torch nor huggingface_hub: each public name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels._version import __version__ as __version__

if TYPE_CHECKING:
    # What type checkers and editors see. `_MODULES` lists the same names; a test compares the two.
    from kernels.api import get_kernel as get_kernel
    from kernels.api import get_kernel_variants as get_kernel_variants
    from kernels.api import get_local_kernel as get_local_kernel
    from kernels.api import get_locked_kernel as get_locked_kernel
    from kernels.api import has_kernel as has_kernel
    from kernels.api import install_kernel as install_kernel
    from kernels.api import load_kernel as load_kernel
    from kernels.backends import BackendName as BackendName
    from kernels.backends import get_backend as get_backend
    from kernels.backends import list_backends as list_backends
    from kernels.backends import register_backend as register_backend
    from kernels.backends import unregister_backend as unregister_backend
    from kernels.backends.plugins.json_backend import load_backends as load_backends
    from kernels.backends.plugins.vendor_folder import VendorInfo as VendorInfo
    from kernels.backends.plugins.vendor_folder import register_vendor as register_vendor
    from kernels.benchmark import Benchmark as Benchmark
    from kernels.layer import AutotuneReport as AutotuneReport
    from kernels.layer import CapabilityRange as CapabilityRange
    from kernels.layer import ComparedLayer as ComparedLayer
    from kernels.layer import CUDAProperties as CUDAProperties
    from kernels.layer import Device as Device
    from kernels.layer import FuncRepository as FuncRepository
    from kernels.layer import KernelizeFallback as KernelizeFallback
    from kernels.layer import KernelizeReport as KernelizeReport
    from kernels.layer import KernelizeRow as KernelizeRow
    from kernels.layer import KernelMapping as KernelMapping
    from kernels.layer import LayerComparison as LayerComparison
    from kernels.layer import LayerMapping as LayerMapping
    from kernels.layer import LayerRepository as LayerRepository
    from kernels.layer import LocalFuncRepository as LocalFuncRepository
    from kernels.layer import LocalLayerRepository as LocalLayerRepository
    from kernels.layer import LockedFuncRepository as LockedFuncRepository
    from kernels.layer import LockedLayerRepository as LockedLayerRepository
    from kernels.layer import Mode as Mode
    from kernels.layer import RepositoryProtocol as RepositoryProtocol
    from kernels.layer import ROCMProperties as ROCMProperties
    from kernels.layer import TunedCall as TunedCall
    from kernels.layer import TunedRow as TunedRow
    from kernels.layer import autotune as autotune
    from kernels.layer import compare_layers as compare_layers
    from kernels.layer import kernelize_report as kernelize_report
    from kernels.layer import register_kernel_mapping as register_kernel_mapping
    from kernels.layer import replace_kernel_forward_from_hub as replace_kernel_forward_from_hub
    from kernels.layer import use_kernel_forward_from_hub as use_kernel_forward_from_hub
    from kernels.layer import use_kernel_func_from_hub as use_kernel_func_from_hub
    from kernels.layer import use_kernel_mapping as use_kernel_mapping
    from kernels.layer import use_kernelized_func as use_kernelized_func
    from kernels.layer.kernelize import kernelize as kernelize
    from kernels.layer.kernelize import unkernelize as unkernelize
    from kernels.loader.load import LoadedKernel as LoadedKernel
    from kernels.loader.load import get_kernel_dep as get_kernel_dep
    from kernels.loader.load import get_loaded_kernels as get_loaded_kernels
    from kernels.models.metadata import Metadata as Metadata
    from kernels.models.requirement import RepoInfo as RepoInfo
    from kernels.operations.download import download_kernels as download_kernels
    from kernels.operators import ActiveOp as ActiveOp
    from kernels.operators import EnabledOps as EnabledOps
    from kernels.operators import FuncSpec as FuncSpec
    from kernels.operators import active_ops as active_ops
    from kernels.operators import enable_kernel_ops as enable_kernel_ops
    from kernels.operators import enable_vendor_ops as enable_vendor_ops
    from kernels.operators import use_kernel_ops as use_kernel_ops
    from kernels.operators import use_vendor_ops as use_vendor_ops
    from kernels.resolver.decision import VariantAccepted as VariantAccepted
    from kernels.resolver.decision import VariantRejected as VariantRejected
    from kernels.resolver.target import Target as Target
else:
    _MODULES = {
        "kernels.api": (
            "get_kernel get_kernel_variants get_local_kernel get_locked_kernel has_kernel install_kernel load_kernel"
        ),
        "kernels.backends": "BackendName get_backend list_backends register_backend unregister_backend",
        "kernels.backends.plugins.json_backend": "load_backends",
        "kernels.backends.plugins.vendor_folder": "VendorInfo register_vendor",
        "kernels.benchmark": "Benchmark",
        "kernels.layer": (
            "CUDAProperties CapabilityRange ComparedLayer Device FuncRepository KernelMapping KernelizeFallback "
            "KernelizeReport KernelizeRow LayerComparison LayerMapping LayerRepository LocalFuncRepository "
            "LocalLayerRepository LockedFuncRepository LockedLayerRepository Mode ROCMProperties "
            "AutotuneReport RepositoryProtocol TunedCall TunedRow autotune compare_layers kernelize_report "
            "register_kernel_mapping "
            "replace_kernel_forward_from_hub use_kernel_forward_from_hub use_kernel_func_from_hub "
            "use_kernel_mapping use_kernelized_func"
        ),
        "kernels.layer.kernelize": "kernelize unkernelize",
        "kernels.loader.load": "LoadedKernel get_kernel_dep get_loaded_kernels",
        "kernels.models.metadata": "Metadata",
        "kernels.models.requirement": "RepoInfo",
        "kernels.operations.download": "download_kernels",
        "kernels.operators": (
            "ActiveOp EnabledOps FuncSpec active_ops enable_kernel_ops enable_vendor_ops use_kernel_ops use_vendor_ops"
        ),
        "kernels.resolver.decision": "VariantAccepted VariantRejected",
        "kernels.resolver.target": "Target",
    }
    # Type checkers do not read this half: with a `__getattr__` in sight, they would accept every name.
    _MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}
    __all__ = ["__version__", *sorted(_MODULE_OF)]

    def __getattr__(name):
        """Import a public name when it is first used."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'kernels' has no attribute {name!r}")
        from importlib import import_module

        module = _MODULE_OF[name]
        # Its package first: threads that import a package and a module of it at once would wait for each other.
        import_module(module.rpartition(".")[0])
        value = globals()[name] = getattr(import_module(module), name)
        return value

    def __dir__():
        """The public names, those not imported yet too."""
        return sorted({*globals(), *_MODULE_OF})
