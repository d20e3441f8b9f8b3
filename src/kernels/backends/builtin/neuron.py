"""AWS Trainium and Inferentia, through Neuron."""

from __future__ import annotations

import re
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from kernels.backends.base import Backend, BackendProbe, Device, Found, PythonDependency

__all__ = ["LABEL", "Name", "Neuron"]

#: What is known of it before this file is imported: literals, read from this text (see `kernels.backends.label`).
LABEL = {
    "name": "neuron",
    "device_type": "neuron",
    "order": 20,
    "vendor": "AWS",
    "traces": {"paths": ["/sys/devices/virtual/neuron_device"], "torch": ["neuron"]},
}

#: What a caller may call it.
Name = Literal["neuron"]

#: GiB of a device's memory (AWS Neuron documentation: "Trainium Architecture", "Trainium/Inferentia2 Architecture
#: Guide for NKI", "Best practices for training on AWS Neuron").
_MEMORY = {"Trainium1": 32, "Inferentia2": 32, "Trainium2": 96}

# awsdocs-neuron: "The Trainium Memory Hierarchy", "Trainium/Inferentia2 Architecture Guide", "NeuronCore-v3".
_GUIDANCE = """\
A Neuron device has several NeuronCores: two of version 2 on Trainium1 and Inferentia2, eight of version 3 on Trainium2.
A NeuronCore has four engines (Tensor, Vector, Scalar, GpSimd) and two on-chip memories, SBUF and PSUM.
All memories are managed by software: there is no cache, and every move between HBM and SBUF is explicit."""
# awsdocs-neuron: "NKI Programming Model", "nki.language.tile_size".
_KERNEL_GUIDANCE = """\
Write kernels in NKI: load tiles from HBM to SBUF, compute, store them back.
A tile's first dimension is the partition dimension, at most `nki.language.tile_size.pmax`.
There are no threads, warps or shared memory to address: CUDA's and Triton's index arithmetic has no counterpart."""


class Neuron(Backend, label=LABEL):
    """AWS Neuron devices. Its Torch extension loads into other Torch builds, so it comes before them."""

    dispatch_key = "PrivateUse1"
    guidance_block = _GUIDANCE
    kernel_guidance = _KERNEL_GUIDANCE
    cuda_hacks_to_strip = ("torch.cuda.", ".cuda()", "import triton", "__shfl_sync(")
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
        devices = []
        for index, folder in enumerate(folders):
            name = _read(folder / "info/architecture/device_name")
            memory = _MEMORY.get(name)
            devices.append(Device(self.name, index, name, _arch(folder), memory=memory and memory << 30))
        return BackendProbe(found=bool(devices), devices=tuple(devices))


def _arch(folder: Path) -> str:
    """The version of a device's NeuronCores ("NCv2"), which code is compiled for.

    The device's own arch_type tells less: "NDv3" is Inferentia2 as well as Trainium2 (aws-neuron-driver,
    neuron_sysfs_metrics.c, and arch_nd_type_suffix in v2/neuron_dhal_v2.c and v3/neuron_dhal_v3.c).
    """
    return _read(folder / "neuron_core0/info/architecture/arch_type") or _read(folder / "info/architecture/arch_type")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
