"""AMD GPUs, through ROCm; Torch calls the device `cuda`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from kernels.backends.base import Backend, BackendProbe, Device, Found, listed
from kernels.backends.torch_extension import initialized_device
from kernels.support.version import MajorMinor

__all__ = ["LABEL", "Name", "ROCm"]

#: What is known of it before this file is imported: literals, read from this text (see `kernels.backends.label`).
LABEL = {
    "name": "rocm",
    "device_type": "cuda",
    "versioned": True,
    "order": 40,
    "vendor": "AMD",
    "traces": {
        "paths": ["/sys/class/kfd/kfd/topology/nodes", "/opt/rocm/.info/version"],
        "environment": ["ROCM_PATH"],
        "torch": ["version.hip"],
    },
}

#: What a caller may call it.
Name = Literal["rocm"]

_ARCH = re.compile(r"gfx([1-9][0-9]?)([0-9a-f])([0-9a-f])")
#: What a processor can be built with or without (LLVM, "User Guide for AMDGPU Backend", Target ID).
_FEATURES = re.compile(r"(:(sramecc|xnack)[+-])*")
#: What ROCm takes a GPU for instead of what it is, for all GPUs or, with its node's number behind, for one.
_OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"

# rocm.docs.amd.com, "AMD GPU specifications"; Triton's AMD compiler takes wavefronts of 32 from gfx10 on.
_GUIDANCE = """\
Instinct GPUs (CDNA: gfx908, gfx90a, gfx942, gfx950) run wavefronts of 64 threads; Radeon GPUs (RDNA: gfx10, gfx11,
gfx12) of 32 or 64, and Triton and HIP use 32 there.
LDS, AMD's shared memory, is 64 KiB a compute unit up to CDNA3 (MI300X) and 160 KiB on CDNA4 (MI350X, MI355X).
An MI250X is two devices, one a die."""
# hip/amd_detail/amd_warp_sync_functions.h, "The mask must be a 64-bit integer"; PyTorch, "HIP (ROCm) semantics".
_KERNEL_GUIDANCE = """\
Write kernels in HIP or Triton; Torch's device is `cuda` and its `torch.cuda` functions work as they are.
Take the wavefront's size from the device (`warpSize`), never write 32: reductions and lane arithmetic depend on it.
The masks of `__shfl_sync`, `__ballot_sync` and their kind are 64-bit integers here; a 32-bit one does not compile.
PTX, in `asm` or in `tl.inline_asm_elementwise`, does not compile; neither does `nvcuda::wmma`."""
#: Kinds of memory bank that are the GPU's own (HSA_HEAPTYPE_FRAME_BUFFER_PUBLIC and _PRIVATE in hsakmttypes.h).
_DEVICE_HEAPS = frozenset({"1", "2"})


class ROCm(Backend, label=LABEL):
    """AMD GPUs. The version is equal in build and machine; architectures are gfx names."""

    dispatch_key = "CUDA"  # Torch's HIP builds keep CUDA's dispatch key
    device_language = "hip"
    checks_archs = True
    guidance_block = _GUIDANCE
    kernel_guidance = _KERNEL_GUIDANCE
    cuda_hacks_to_strip = (
        "__shfl_sync(0xffffffff,",
        "__shfl_down_sync(0xffffffff,",
        "__shfl_xor_sync(0xffffffff,",
        "__ballot_sync(0xffffffff,",
        "nvcuda::wmma",
        "triton.language.extra.cuda",
        "tanh.approx.f32",
        "ex2.approx",
    )

    #: The kernel driver's list of nodes (libhsakmt/src/topology.c in ROCR-Runtime reads the same files).
    sysfs = Path("/sys/class/kfd/kfd/topology/nodes")
    #: The GPU of a Windows host, which shows no topology (rocm.docs.amd.com, "Use ROCm on Radeon GPUs", WSL).
    wsl = Path("/dev/dxg")

    def arch_reason(self, archs: Sequence[str] | None, device: Device | None) -> str | None:
        known = [arch for arch in archs or () if _ARCH.fullmatch(arch)]
        if not known or device is None or not device.arch or device.arch.split(":")[0] in known:
            return None
        return f"ROCm arch {device.arch.split(':')[0]} of {_called(device)} is not among the build's {listed(known)}"

    def device_capability(self, device: Device) -> int | None:
        match = _ARCH.fullmatch(device.arch.split(":")[0])
        return None if match is None else int(match[1]) * 10 + int(match[2], 16)

    def parse_arch(self, text: str) -> str | None:
        processor = text.split(":")[0]
        return processor if _ARCH.fullmatch(processor) and _FEATURES.fullmatch(text[len(processor) :]) else None

    @property
    def arch_form(self) -> str:
        return "a gfx name, such as gfx942 (MI300X) or gfx90a (MI250X)"

    def torch_build(self, torch: Any) -> Found | None:
        hip = torch.version.hip
        return None if hip is None else Found(MajorMinor.parse(str(hip)))

    def probe(self) -> BackendProbe:
        version = _installed_version()
        try:
            nodes = sorted(self.sysfs.iterdir(), key=lambda node: (len(node.name), node.name))
        except OSError:
            nodes = []
        gpus = [gpu for gpu in (_node(node) for node in nodes) if gpu is not None]
        devices = []
        for index, gpu in enumerate(_visible(gpus)):
            device = Device(self.name, index, f"AMD {gpu.arch}", gpu.arch, memory=gpu.memory or None)
            devices.append(replace(device, capability=self.device_capability(device)))
        notes: tuple[str, ...] = ()
        if gpus and version is None:
            notes = ("an AMD GPU is there, but no ROCm",)
        # A toolkit alone is no GPU: nothing can be run with it.
        found = bool(gpus) or (version is not None and self.wsl.exists())
        if not found and version is not None:
            notes = (f"ROCm {version} is installed, but no AMD GPU, or no driver (amdgpu) for it",)
        return BackendProbe(
            found, version if found else None, tuple(devices), notes, hidden="" if devices or not gpus else _hidden_by()
        )

    def current_device(self) -> int:
        return initialized_device(self.device_type)

    def library_folders(self) -> Sequence[Path]:
        return [Path(folder, "bin") for name in ("HIP_PATH", "ROCM_PATH") if (folder := os.environ.get(name))]


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
    major, minor, stepping = _overridden(node.name) or (number // 10000, number // 100 % 100, number % 100)
    arch = f"gfx{major}{minor:x}{stepping:x}"
    banks = [_properties(bank / "properties") for bank in sorted((node / "mem_banks").glob("*"))]
    memory = sum(int(bank.get("size_in_bytes", "0")) for bank in banks if bank.get("heap_type") in _DEVICE_HEAPS)
    # ROCm spells a GPU's UUID as its unique id in hexadecimal, and none where it has no such id (ROCR-Runtime,
    # amd_filter_device.cpp, BuildDeviceUuidList).
    unique = int(properties.get("unique_id", "0"))
    return _GPU(arch, memory, f"GPU-{unique:016x}" if unique else "")


def _overridden(node: str) -> tuple[int, int, int] | None:
    """The architecture that the user bids ROCm take a GPU for (libhsakmt, topology.c); malformed ones are passed by."""
    value = os.environ.get(f"{_OVERRIDE}_{node}") or os.environ.get(_OVERRIDE) or ""
    match = re.fullmatch(r"([0-9]{1,2})\.([0-9]{1,3})\.([0-9]{1,3})", value)
    return None if match is None else (int(match[1]), int(match[2]), int(match[3]))


def _properties(path: Path) -> dict[str, str]:
    try:
        pairs = (line.split() for line in path.read_text().splitlines())
        return {pair[0]: pair[1] for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}
    except OSError:
        return {}


def _visible(gpus: list[_GPU]) -> list[_GPU]:
    """The visible GPUs: ROCR's list picks first, HIP's (or CUDA's) from what it left (ROCm, "GPU isolation")."""
    rocr = os.environ.get("ROCR_VISIBLE_DEVICES")
    if rocr is not None:
        gpus = _picked(gpus, rocr, _rocr_entry)
    hip = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in os.environ else "CUDA_VISIBLE_DEVICES"
    value = os.environ.get(hip)
    if value is None:
        return gpus
    # Torch counts no device for a list that names one twice, HIP leaves the repeated one out (torch/cuda/__init__.py,
    # `_parse_visible_devices`; clr, rocdevice.cpp, `Device::init`): where they differ, what both leave is usable.
    chosen = _picked(gpus, value, _hip_entry)
    entries = value.split(",")
    return [] if len(set(entries)) < len(entries) else chosen


def _hidden_by() -> str:
    """The variables that choose among the GPUs, as they are set."""
    names = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    return ", ".join(f"{name}={os.environ[name]!r}" for name in names if name in os.environ)


def _picked(gpus: list[_GPU], value: str, find: Callable[[str, list[_GPU]], int | None]) -> list[_GPU]:
    """The GPUs of a list, in its order; the list ends at an entry that is not a device, or is repeated."""
    chosen: list[int] = []
    for entry in value.split(","):
        index = find(entry, gpus)
        if index is None or index in chosen:
            break
        chosen.append(index)
    return [gpus[index] for index in chosen]


def _rocr_entry(entry: str, gpus: list[_GPU]) -> int | None:
    """A number as C reads one, or the beginning of one GPU's UUID, in any case (ROCR, amd_filter_device.cpp)."""
    entry = entry.strip().lower()
    if entry.startswith("g"):
        matches = [index for index, gpu in enumerate(gpus) if len(entry) >= 5 and gpu.uuid.lower().startswith(entry)]
        return matches[0] if len(matches) == 1 else None
    for pattern, base in ((r"0x[0-9a-f]{1,8}", 16), (r"0[0-7]{0,8}", 8), (r"[0-9]{1,8}", 10)):
        if re.fullmatch(pattern, entry):
            return int(entry, base) if int(entry, base) < len(gpus) else None
    return None


def _hip_entry(entry: str, gpus: list[_GPU]) -> int | None:
    """A number written as it is counted, without a space, or a part of a GPU's UUID (clr, rocdevice.cpp)."""
    if entry.startswith("GPU-"):
        return next((index for index, gpu in enumerate(gpus) if entry in gpu.uuid), None)
    return next((index for index in range(len(gpus)) if entry == str(index)), None)
