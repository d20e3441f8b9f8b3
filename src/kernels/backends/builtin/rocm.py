"""AMD GPUs, through ROCm; Torch calls the device `cuda`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from kernels.backends.base import Backend, BackendProbe, Device, Found, MajorMinor, listed

__all__ = ["Name", "ROCm"]

#: What a caller may call it.
Name = Literal["rocm"]

_ARCH = re.compile(r"gfx([1-9][0-9]?)([0-9a-f])([0-9a-f])")
#: Kinds of memory bank that are the GPU's own (HSA_HEAPTYPE_FRAME_BUFFER_PUBLIC and _PRIVATE in hsakmttypes.h).
_DEVICE_HEAPS = frozenset({"1", "2"})


class ROCm(Backend):
    """AMD GPUs. The version is equal in build and machine; architectures are gfx names."""

    name = noarch_name = token = mapping_device = "rocm"
    device_type = "cuda"
    dispatch_key = "CUDA"  # Torch's HIP builds keep CUDA's dispatch key
    versioned = True
    checks_archs = True
    order = 40

    #: The kernel driver's list of nodes (libhsakmt/src/topology.c in ROCR-Runtime reads the same files).
    sysfs = Path("/sys/class/kfd/kfd/topology/nodes")

    def arch_reason(self, archs: Sequence[str] | None, device: Device | None) -> str | None:
        known = [arch for arch in archs or () if _ARCH.fullmatch(arch)]
        if not known or device is None or not device.arch or device.arch.split(":")[0] in known:
            return None
        return f"{device.arch.split(':')[0]} of {_called(device)} is not among the build's {listed(known)}"

    def device_capability(self, device: Device) -> int | None:
        match = _ARCH.fullmatch(device.arch.split(":")[0])
        return None if match is None else int(match[1]) * 10 + int(match[2], 16)

    def parse_arch(self, text: str) -> str | None:
        return text if _ARCH.fullmatch(text) else None

    def torch_build(self, torch: Any) -> Found | None:
        hip = torch.version.hip
        return None if hip is None else Found(MajorMinor.parse(str(hip)))

    def probe(self) -> BackendProbe:
        version = _installed_version()
        try:
            nodes = sorted(self.sysfs.iterdir(), key=lambda node: (len(node.name), node.name))
        except OSError:
            return BackendProbe(found=version is not None, version=version)
        gpus = [gpu for gpu in (_node(node) for node in nodes) if gpu is not None]
        devices = []
        for index, gpu in enumerate(_visible(gpus)):
            device = Device(self.name, index, f"AMD {gpu.arch}", gpu.arch, memory=gpu.memory)
            devices.append(replace(device, capability=self.device_capability(device)))
        notes = ("an AMD GPU is there, but no ROCm",) if gpus and version is None else ()
        return BackendProbe(bool(gpus) or version is not None, version, tuple(devices), notes)

    def current_device(self) -> int:
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        return int(cuda.current_device()) if cuda is not None and cuda.is_initialized() else 0


def _called(device: Device) -> str:
    return f"device {device.index}" + (f" ({device.name})" if device.name else "")


def _installed_version() -> MajorMinor | None:
    root = Path(os.environ.get("ROCM_PATH") or "/opt/rocm")
    try:
        return MajorMinor.parse((root / ".info" / "version").read_text().strip())
    except OSError:
        return None


class _GPU(NamedTuple):
    arch: str
    memory: int
    uuid: str


def _node(node: Path) -> _GPU | None:
    """A node of the topology, if it is a GPU."""
    properties = _properties(node / "properties")
    number = int(properties.get("gfx_target_version", "0"))
    if number == 0:
        return None
    # major * 10000 + minor * 100 + stepping; a gfx name spells the last two in hexadecimal (kfd_topology.c).
    arch = f"gfx{number // 10000}{number // 100 % 100:x}{number % 100:x}"
    banks = [_properties(bank / "properties") for bank in sorted((node / "mem_banks").glob("*"))]
    memory = sum(int(bank.get("size_in_bytes", "0")) for bank in banks if bank.get("heap_type") in _DEVICE_HEAPS)
    # ROCm spells a GPU's UUID as its unique id in hexadecimal (rsmi_dev_unique_id_get in rocm_smi.h).
    return _GPU(arch, memory, f"GPU-{int(properties.get('unique_id', '0')):016x}")


def _properties(path: Path) -> dict[str, str]:
    try:
        pairs = (line.split() for line in path.read_text().splitlines())
        return {pair[0]: pair[1] for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}
    except OSError:
        return {}


def _visible(gpus: list[_GPU]) -> list[_GPU]:
    """The visible GPUs: ROCR's list picks first, HIP's (or CUDA's) from what it left (ROCm, "GPU isolation")."""
    hip = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in os.environ else "CUDA_VISIBLE_DEVICES"
    for variable in ("ROCR_VISIBLE_DEVICES", hip):
        value = os.environ.get(variable)
        if value is None:
            continue
        chosen = []
        for part in value.split(","):
            part = part.strip()
            matches = [gpu for number, gpu in enumerate(gpus) if part in (str(number), gpu.uuid)]
            if not matches:
                break  # an entry that is no device ends the list
            chosen.append(matches[0])
        gpus = chosen
    return gpus
