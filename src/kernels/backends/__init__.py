"""Which accelerators exist. One file a family; this list is the only one."""

from __future__ import annotations

from kernels.backends.base import (
    GENERAL_PYTHON_DEPENDS,
    Backend,
    BackendProbe,
    Device,
    Found,
    MajorMinor,
    PythonDependency,
    allowed_python_depends,
    listed,
)
from kernels.backends.cann import CANN
from kernels.backends.cpu import CPU
from kernels.backends.cuda import CUDA
from kernels.backends.metal import Metal
from kernels.backends.neuron import Neuron
from kernels.backends.registry import (
    all_backends,
    find,
    generation,
    get,
    known,
    parse_accelerator,
    register,
    unregister,
)
from kernels.backends.rocm import ROCm
from kernels.backends.torch_build import for_device_type, for_torch
from kernels.backends.tpu import TPU
from kernels.backends.xpu import XPU

__all__ = [
    "GENERAL_PYTHON_DEPENDS",
    "Backend",
    "BackendProbe",
    "Device",
    "Found",
    "MajorMinor",
    "PythonDependency",
    "all_backends",
    "allowed_python_depends",
    "find",
    "for_device_type",
    "for_torch",
    "generation",
    "get",
    "known",
    "listed",
    "parse_accelerator",
    "register",
    "unregister",
]

for _backend in (TPU(), Neuron(), CUDA(), ROCm(), Metal(), XPU(), CANN(), CPU()):
    register(_backend)
del _backend
