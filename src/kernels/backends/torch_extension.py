"""Devices of Torch: whether an extension has added one, and which one is current."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["extends", "initialized_device"]


def extends(torch: Any, device_type: str, *, stock: bool = False) -> bool:
    """Whether this Torch has a device of that name that an extension added.

    Either the extension has renamed PyTorch's device for others (`torch.utils.rename_privateuse1_backend`), or its
    module stands below `torch` and is available. Where Torch is not imported, no extension is either.

    Args:
        torch: The module, or a stand-in that has less.
        device_type: Torch's name for the device.
        stock: Whether a module of Torch itself is accepted too, such as `torch.mtia`.

    Example:
        >>> from types import SimpleNamespace
        >>> npu = SimpleNamespace(__name__="torch_npu.npu", is_available=lambda: True)
        >>> extends(SimpleNamespace(npu=npu), "npu"), extends(SimpleNamespace(), "npu")
        (True, False)
    """
    renamed = getattr(getattr(torch, "_C", None), "_get_privateuse1_backend_name", None)
    if renamed is not None and device_type == renamed() != "privateuseone":
        return True
    module = getattr(torch, device_type, None)
    if not stock and str(getattr(module, "__name__", "torch.")).startswith("torch."):
        return False
    available = getattr(module, "is_available", None)
    try:
        return callable(available) and bool(available())
    except Exception:  # noqa: BLE001 - a vendor's module without its driver
        return False


def initialized_device(device_type: str) -> int:
    """The index of Torch's current device of that type; 0 where its runtime is not initialised.

    Example:
        >>> initialized_device("cpu")
        0
    """
    module = getattr(sys.modules.get("torch"), device_type, None)
    is_initialized = getattr(module, "is_initialized", None)
    if module is None or is_initialized is None or not is_initialized():
        return 0
    index = module.current_device()
    return index if isinstance(index, int) else 0  # `torch.cpu` returns a name
