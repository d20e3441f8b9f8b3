"""Google TPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from kernels.backends.base import Backend, BackendProbe, Device, Found

__all__ = ["TPU", "Name"]

#: What a caller may call it.
Name = Literal["tpu"]

_GOOGLE = "0x1ae0"
#: PCI device id -> generation, from jax/_src/hardware_utils.py.
_GENERATIONS = {
    "0x0027": "v3",
    "0x005e": "v4",
    "0x0062": "v5p",
    "0x0063": "v5e",
    "0x006f": "v6e",
    "0x0076": "tpu7x",
}


class TPU(Backend):
    """Google TPUs. Importing its Torch extension adds `torch.backends.tpu`, with or without the hardware."""

    name = noarch_name = token = device_type = mapping_device = "tpu"
    dispatch_key = "PrivateUse1"
    order = 10

    #: Every PCI device, with its vendor and device id (Linux, Documentation/ABI/testing/sysfs-bus-pci).
    sysfs = Path("/sys/bus/pci/devices")

    def torch_build(self, torch: Any) -> Found | None:
        return Found() if hasattr(torch.backends, "tpu") else None

    def probe(self) -> BackendProbe:
        generations = []
        try:
            for folder in sorted(self.sysfs.iterdir()):
                if (folder / "vendor").read_text().strip() == _GOOGLE:
                    generation = _GENERATIONS.get((folder / "device").read_text().strip())
                    if generation is not None:
                        generations.append(generation)
        except OSError:
            return BackendProbe()
        devices = [Device(self.name, index, f"TPU {arch}", arch) for index, arch in enumerate(generations)]
        return BackendProbe(found=bool(devices), devices=tuple(devices))
