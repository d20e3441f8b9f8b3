"""Google TPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple

from kernels.backends.base import Backend, BackendProbe, Device, Found

__all__ = ["LABEL", "TPU", "Name"]

#: What is known of it before this file is imported: literals, read from this text (see `kernels.backends.label`).
LABEL = {
    "name": "tpu",
    "device_type": "tpu",
    "order": 10,
    "vendor": "Google",
    "traces": {"pci": ["0x1ae0"], "torch": ["backends.tpu"]},
}

#: What a caller may call it.
Name = Literal["tpu"]

_GOOGLE = "0x1ae0"


class _Chip(NamedTuple):
    generation: str
    name: str
    memory: int  # GiB


#: PCI device id -> chip: jax/_src/hardware_utils.py for the generation's name, and Google's tpu-info
#: (cloud-accelerator-diagnostics, tpu_info/device.py) for what it is called and its memory.
_CHIPS = {
    "0x0027": _Chip("v3", "TPU v3", 16),
    "0x005e": _Chip("v4", "TPU v4", 32),
    "0x0062": _Chip("v5p", "TPU v5p", 95),
    "0x0063": _Chip("v5e", "TPU v5e", 16),
    "0x006f": _Chip("v6e", "TPU v6e", 32),
    "0x0076": _Chip("tpu7x", "TPU7x", 192),
}
#: v2 and v3 share a device id; the subsystem id differs (the same file of tpu-info).
_V2, _V2_SUBSYSTEM = _Chip("v2", "TPU v2", 8), "0x004e"

# docs.jax.dev, "TPU Pipelining"; docs.cloud.google.com, "TPU v6e", "TPU v5e".
_GUIDANCE = """\
A TPU's TensorCore has a scalar unit, a vector unit and matrix units (MXU), with vector memory (VMEM) and scalar memory
(SMEM) beside the large HBM.
v6e has two MXUs of 256x256 and a vector unit of 128 lanes by 8 sublanes; v5e has four MXUs."""
# docs.jax.dev, "Quickstart: TPU", "Grids and BlockSpecs".
_KERNEL_GUIDANCE = """\
Write kernels in Pallas. HBM cannot be computed on directly: copy to VMEM first, and results back.
The grid is a loop: a kernel runs once for each of its points, and `BlockSpec` says which block each point gets.
There are no threads or warps to address: CUDA's and Triton's index arithmetic has no counterpart."""


class TPU(Backend, label=LABEL):
    """Google TPUs. Importing its Torch extension adds `torch.backends.tpu`, with or without the hardware."""

    dispatch_key = "PrivateUse1"
    guidance_block = _GUIDANCE
    kernel_guidance = _KERNEL_GUIDANCE
    cuda_hacks_to_strip = ("torch.cuda.", ".cuda()", "import triton", "__shfl_sync(")

    #: Every PCI device, with its vendor and device id (Linux, Documentation/ABI/testing/sysfs-bus-pci).
    sysfs = Path("/sys/bus/pci/devices")

    def torch_build(self, torch: Any) -> Found | None:
        return Found() if hasattr(torch.backends, "tpu") else None

    def probe(self) -> BackendProbe:
        try:
            found = [chip for chip in map(_chip, sorted(self.sysfs.iterdir())) if chip is not None]
        except OSError:
            return BackendProbe()
        devices = [
            Device(self.name, index, chip.name, chip.generation, memory=chip.memory << 30)
            for index, chip in enumerate(found)
        ]
        return BackendProbe(found=bool(devices), devices=tuple(devices))


def _chip(folder: Path) -> _Chip | None:
    """The chip of a PCI device; None if it is no known TPU."""
    if _read(folder / "vendor") != _GOOGLE:
        return None
    device = _read(folder / "device")
    if device == "0x0027" and _read(folder / "subsystem_device") == _V2_SUBSYSTEM:
        return _V2
    return _CHIPS.get(device)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
