"""Acme's accelerator as a device in Torch, of which the package under test knows nothing.

A vendor's Torch extension does this in C++. Here the device's memory is the host's; PyTorch's hooks for a PrivateUse1
device in Python (`torch.utils.backend_registration`) give it its name; an operator that the device has no kernel for
runs on the processor, over the same memory. DLPack is the door between the two: a tensor's capsule with another device
written into it is a tensor over the same bytes there, with the same strides, and keeps them alive.

PyTorch has one PrivateUse1 name per process, so `install` is for processes that a test starts.
"""

from __future__ import annotations

import ctypes
import types
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

__all__ = ["install"]

_KEY = "PrivateUse1"

# DLDeviceType of DLPack (include/dlpack/dlpack.h); PyTorch's kDLExtDev is PrivateUse1 (aten/src/ATen/DLConvertor.cpp).
_HOST, _ACME = 1, 12

#: What Torch does by sharing storage, for which the processor's own code serves as it is.
_VIEWS = ("as_strided", "view", "_reshape_alias", "unfold")

#: Registrations live as long as these objects.
_libraries: list[torch.library.Library] = []


def install(name: str = "acme") -> None:
    """Give this process's Torch the device: `torch.ones(2, device="acme")`, `model.to("acme")`, `torch.acme`."""
    _setup_privateuseone_for_python_backend(name, backend_module=_device_module(name))
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(_run, _KEY)
    own = torch.library.Library("aten", "IMPL")
    own.impl("empty.memory_format", _empty, _KEY)
    own.impl("empty_strided", _empty_strided, _KEY)
    own.impl("_copy_from", _copy_from, _KEY)
    for view in _VIEWS:
        own.impl(view, _shared(getattr(torch.ops.aten, view).default), _KEY)
    _libraries.extend((everything, own))


def _device_module(name: str) -> types.ModuleType:
    module: Any = types.ModuleType(f"torch.{name}")
    module.is_available = module.is_initialized = lambda: True
    module.is_in_bad_fork = module._is_in_bad_fork = lambda: False
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.set_device = module.synchronize = module.manual_seed_all = lambda device=None: None
    module.get_device_name = lambda device=None: "Acme A100X"
    module.get_device_properties = lambda device=None: types.SimpleNamespace(name="Acme A100X", arch="a100x")
    module.launches = []  # what vendors' operators and kernels say that they ran
    module.launch = module.launches.append
    return module


def _over(tensor: torch.Tensor, device: int) -> torch.Tensor:
    """A tensor over the same bytes on the other side."""
    capsule = torch.utils.dlpack.to_dlpack(tensor)
    address = ctypes.pythonapi.PyCapsule_GetPointer(ctypes.py_object(capsule), b"dltensor")
    _Tensor.from_address(address).device_type = device
    return torch.utils.dlpack.from_dlpack(capsule)


ctypes.pythonapi.PyCapsule_GetPointer.restype = ctypes.c_void_p
ctypes.pythonapi.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


class _Tensor(ctypes.Structure):
    """The beginning of DLPack's DLTensor."""

    _fields_ = (("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


def _on_host(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.device.type != "cpu":
        # Torch asks for an empty tensor where an operator is to make room itself; bytes of another's cannot grow.
        return _over(value, _HOST) if value.numel() else torch.empty_like(value, device="cpu")
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value


def _run(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """What the device has no kernel for: the same operator on the processor, over the same memory."""
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []  # what was given, and what stands for it on the processor

    def lower(value: Any) -> Any:
        lowered = _on_host(value)
        if isinstance(value, torch.Tensor):
            pairs.append((value, lowered))
        return lowered

    def lift(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        for given, lowered in pairs:
            if value is lowered:  # an operator in place gives back what it was given
                return given
        return _over(value, _ACME)

    lowered_args, lowered_kwargs = pytree.tree_map(lower, (args, kwargs))
    result = operator(*lowered_args, **lowered_kwargs)
    for given, lowered in pairs:
        if given.shape != lowered.shape:
            given.data = _over(lowered, _ACME)
    return pytree.tree_map(lift, result)


def _shared(operator: Any) -> Any:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    return lambda *args, **kwargs: operator.redispatch(keys, *args, **kwargs)


def _empty(size: Any, *, dtype: Any = None, memory_format: Any = None, **options: Any) -> torch.Tensor:
    return _over(torch.empty(size, dtype=dtype, memory_format=memory_format or torch.contiguous_format), _ACME)


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **options: Any) -> torch.Tensor:
    return _over(torch.empty_strided(size, stride, dtype=dtype), _ACME)


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    _on_host(target).copy_(_on_host(source))
    return target
