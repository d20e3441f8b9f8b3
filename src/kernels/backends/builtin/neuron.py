"""AWS Trainium and Inferentia, through Neuron."""

from __future__ import annotations

import re
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from kernels.backends.base import Backend, BackendProbe, Device, Found, PythonDependency

__all__ = ["Name", "Neuron"]

#: What a caller may call it.
Name = Literal["neuron"]


class Neuron(Backend):
    """AWS Neuron devices. Its Torch extension loads into other Torch builds, so it comes before them."""

    name = noarch_name = token = device_type = mapping_device = "neuron"
    dispatch_key = "PrivateUse1"
    order = 20
    python_depends = MappingProxyType({"nki": PythonDependency("nki", "nki")})

    #: Neuron's driver describes each device here (AWS Neuron documentation, "Neuron Sysfs User Guide").
    sysfs = Path("/sys/devices/virtual/neuron_device")

    def torch_build(self, torch: Any) -> Found | None:
        return Found() if hasattr(torch, "neuron") else None

    def probe(self) -> BackendProbe:
        try:
            folders = sorted(
                (folder for folder in self.sysfs.iterdir() if re.fullmatch(r"neuron[0-9]+", folder.name)),
                key=lambda folder: int(folder.name[6:]),
            )
        except OSError:
            return BackendProbe()
        devices = [
            Device(
                self.name,
                index,
                name=_read(folder / "info/architecture/device_name"),
                arch=_read(folder / "info/architecture/arch_type"),
            )
            for index, folder in enumerate(folders)
        ]
        return BackendProbe(found=bool(devices), devices=tuple(devices))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
