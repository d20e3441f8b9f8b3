"""Intel GPUs, through SYCL and Level Zero; Torch calls the device `xpu`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from kernels.backends.base import Backend, BackendProbe, Device, Found, PythonDependency
from kernels.backends.torch_extension import initialized_device
from kernels.support.version import MajorMinor

__all__ = ["LABEL", "XPU", "Name"]

#: What is known of it before this file is imported: literals, read from this text (see `kernels.backends.label`).
LABEL = {
    "name": "xpu",
    "device_type": "xpu",
    "versioned": True,
    "order": 60,
    "vendor": "Intel",
    "traces": {
        "paths": ["/sys/bus/pci/drivers/i915", "/sys/bus/pci/drivers/xe"],
        "torch": ["version.xpu"],
    },
}

#: What a caller may call it.
Name = Literal["xpu"]

_INTEL = "0x8086"
_DRIVERS = frozenset({"i915", "xe"})
#: Where the processor's own GPU is on the PCI bus (QEMU, docs/igd-assign.txt); a card is behind a bridge.
_INTEGRATED = "0000:00:02.0"

# intel.com, oneAPI GPU Optimization Guide 2025.0: "Multi-Stack GPU Architecture", "Exposing the Device Hierarchy";
# oneAPI-samples, GPU-Occupancy-Calculator (xe_hpc_pvc, xe_hpg_dg2_arc); torch.xpu.get_device_properties.
_GUIDANCE = """\
Intel GPUs run work-items in sub-groups: of 16 or 32 on Data Center GPU Max, of 8, 16 or 32 on Arc A-series. What a
device has stands in `torch.xpu.get_device_properties(0).sub_group_sizes`, its local memory in `local_mem_size`.
A card of the Max series has one or two stacks; by default each stack is a device of its own."""
# pytorch.org, "torch.xpu"; intel.com, oneAPI GPU Optimization Guide, "Sub-Groups and SIMD Vectorization".
_KERNEL_GUIDANCE = """\
Write compiled kernels in SYCL, or kernels in Triton; the device is `xpu`: `torch.xpu.synchronize()`, `.to("xpu")`.
Name the sub-group size that a SYCL kernel relies on; do not assume that it is 32.
PTX in `tl.inline_asm_elementwise` does not compile here: write it in Triton's own operations, or `libdevice`.
Not every device has float64 (`has_fp64`)."""


class XPU(Backend, label=LABEL):
    """Intel GPUs. The version is oneAPI's: year and minor (2025.3), equal in build and machine."""

    dispatch_key = "XPU"
    device_language = "sycl"
    guidance_block = _GUIDANCE
    kernel_guidance = _KERNEL_GUIDANCE
    cuda_hacks_to_strip = (
        "torch.cuda.",
        ".cuda()",
        "tl.inline_asm_elementwise",
        "triton.language.extra.cuda",
        "__shfl_sync(",
    )
    python_depends = MappingProxyType({"onednn": PythonDependency("onednn-devel", None)})

    #: Graphics devices and the kernel driver of each (Linux, Documentation/ABI/testing/sysfs-bus-pci).
    sysfs = Path("/sys/class/drm")

    def torch_build(self, torch: Any) -> Found | None:
        # Torch gives the compiler's version as one number, year * 10000 + minor * 100 + patch: 20250301 is 2025.3.1
        # (FindSYCLToolkit.cmake, "Calculate the version number in the format XXXXYYZZ").
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
        except OSError:
            return BackendProbe()
        intel = [card for card in cards if _is_intel(card)]
        count = _count(intel)
        devices = tuple(Device(self.name, index) for index in range(count))
        hidden = f"ZE_AFFINITY_MASK={os.environ.get('ZE_AFFINITY_MASK', '')!r}" if intel and not count else ""
        return BackendProbe(found=count > 0, devices=devices, hidden=hidden)

    def _ask_torch(self, xpu: Any) -> BackendProbe:
        try:
            count = xpu.device_count()
            devices = []
            for index in range(count):
                # Properties initialise the runtime: read them only if it is initialised already.
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
        return initialized_device(self.device_type)

    def library_folders(self) -> Sequence[Path]:
        # oneAPI's environment script sets the first; packages of its runtime are installed into the second.
        compiler = os.environ.get("CMPLR_ROOT")
        return [*([Path(compiler, "bin")] if compiler else []), Path(sys.prefix, "Library", "bin")]


def _count(cards: list[Path]) -> int:
    """How many devices Torch makes of these cards (torch/xpu/__init__.py, `_enum_zes_device_infos`).

    Each tile of a card is one, unless `ZE_FLAT_DEVICE_HIERARCHY` is `COMPOSITE`; `ZE_AFFINITY_MASK` chooses among
    them; and the processor's own GPU counts only where no card is left.
    """
    integrated: list[bool] = []
    for card in cards:
        own = (card / "device").resolve().name == _INTEGRATED
        tiles = 1 if own or os.environ.get("ZE_FLAT_DEVICE_HIERARCHY") == "COMPOSITE" else _tiles(card)
        integrated += [own] * tiles
    mask = os.environ.get("ZE_AFFINITY_MASK")
    if mask is not None:
        wanted = [part.strip() for part in mask.split(",")]
        chosen = {int(part) for part in wanted} if all(re.fullmatch("[0-9]{1,4}", part) for part in wanted) else set()
        integrated = [own for index, own in enumerate(integrated) if index in chosen]
    return integrated.count(False) or integrated.count(True)


def _tiles(card: Path) -> int:
    """The tiles of a card: folders `tile<N>` of its device (drivers/gpu/drm/xe/xe_tile_sysfs.c)."""
    try:
        names = [entry.name for entry in (card / "device").iterdir()]
    except OSError:
        return 1
    return max(1, sum(re.fullmatch("tile[0-9]+", name) is not None for name in names))


def _is_intel(card: Path) -> bool:
    try:
        driver = (card / "device" / "driver").resolve().name
        return driver in _DRIVERS and (card / "device" / "vendor").read_text().strip() == _INTEL
    except OSError:
        return False
