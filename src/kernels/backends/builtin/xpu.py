"""Intel GPUs, through SYCL and Level Zero; Torch calls the device `xpu`."""

from __future__ import annotations

import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from kernels.backends.base import Backend, BackendProbe, Device, Found, MajorMinor, PythonDependency

__all__ = ["XPU", "Name"]

#: What a caller may call it.
Name = Literal["xpu"]

_INTEL = "0x8086"
_DRIVERS = frozenset({"i915", "xe"})


class XPU(Backend):
    """Intel GPUs. The version is oneAPI's: year and minor (2025.3), equal in build and machine."""

    name = noarch_name = token = device_type = mapping_device = "xpu"
    dispatch_key = "XPU"
    versioned = True
    order = 60
    python_depends = MappingProxyType({"onednn": PythonDependency("onednn-devel", None)})

    #: Graphics devices and the kernel driver of each (Linux, Documentation/ABI/testing/sysfs-bus-pci).
    sysfs = Path("/sys/class/drm")

    def torch_build(self, torch: Any) -> Found | None:
        # Torch gives the compiler's date-like version: 20250301 is 2025.3.
        text = str(getattr(torch.version, "xpu", None) or "")
        if len(text) < 6 or not text[:6].isdecimal():
            return None
        return Found(MajorMinor(int(text[:4]), int(text[4:6])))

    def probe(self) -> BackendProbe:
        torch = sys.modules.get("torch")
        xpu = getattr(torch, "xpu", None)
        if xpu is not None and getattr(torch.version, "xpu", None):  # type: ignore[union-attr]
            return self._ask_torch(xpu)
        try:
            cards = sorted(card for card in self.sysfs.iterdir() if card.name.startswith("renderD"))
            count = sum(_is_intel(card) for card in cards)
        except OSError:
            return BackendProbe()
        devices = tuple(Device(self.name, index) for index in range(count))
        return BackendProbe(found=count > 0, devices=devices)

    def _ask_torch(self, xpu: Any) -> BackendProbe:
        try:
            count = xpu.device_count()
            devices = []
            for index in range(count):
                # Properties initialise the runtime: only where somebody already did.
                properties = xpu.get_device_properties(index) if xpu.is_initialized() else None
                devices.append(
                    Device(
                        self.name,
                        index,
                        name=str(getattr(properties, "name", "")),
                        memory=getattr(properties, "total_memory", None),
                    )
                )
        except Exception as error:  # noqa: BLE001 - a broken driver is a fact, not a failure
            return BackendProbe(found=True, notes=(f"Torch cannot list Intel GPUs: {error}",))
        return BackendProbe(found=count > 0, devices=tuple(devices))

    def current_device(self) -> int:
        xpu = getattr(sys.modules.get("torch"), "xpu", None)
        return int(xpu.current_device()) if xpu is not None and xpu.is_initialized() else 0


def _is_intel(card: Path) -> bool:
    try:
        driver = (card / "device" / "driver").resolve().name
        return driver in _DRIVERS and (card / "device" / "vendor").read_text().strip() == _INTEL
    except OSError:
        return False
