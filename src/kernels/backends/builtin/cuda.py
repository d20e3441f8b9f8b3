"""NVIDIA GPUs, through CUDA."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from kernels.backends.base import Backend, BackendProbe, Device, Found, PythonDependency, listed
from kernels.backends.torch_extension import initialized_device
from kernels.support.formatting import plural
from kernels.support.version import MajorMinor

__all__ = ["CUDA", "LABEL", "Name"]

#: What is known of it before this file is imported: literals, read from this text (see `kernels.backends.label`).
LABEL = {
    "name": "cuda",
    "token": "cu",
    "device_type": "cuda",
    "versioned": True,
    "order": 30,
    "vendor": "NVIDIA",
    "traces": {
        "libraries": ["libnvidia-ml.so.1", "libcuda.so.1", "nvml.dll", "nvcuda.dll"],
        "pci": ["0x10de"],
        "torch": ["version.cuda"],
    },
    "without_traces": ["no NVIDIA driver: its management library (NVML) is not installed"],
}

#: What a caller may call it.
Name = Literal["cuda"]

_ARCH = re.compile(r"([1-9][0-9]{0,2})\.([0-9])([af]?)(\+PTX)?")
_SM = re.compile(r"(?:sm|compute)_?([1-9][0-9]{0,2})([0-9])([af]?)")


class CUDA(Backend, label=LABEL):
    """NVIDIA GPUs: minor-version compatible runtimes, architectures as compute capabilities."""

    dispatch_key = "CUDA"
    device_language = "cuda"
    checks_archs = True
    python_depends = MappingProxyType({"nvidia-cutlass-dsl": PythonDependency("nvidia-cutlass-dsl", "cutlass")})

    #: Every PCI device, with its vendor and class (Linux, Documentation/ABI/testing/sysfs-bus-pci).
    sysfs = Path("/sys/bus/pci/devices")

    def version_reason(self, build: MajorMinor | None, target: MajorMinor | None) -> str | None:
        # A runtime loads what was built with an older minor of its major (CUDA Compatibility, "Minor Version").
        if build is None or target is None:
            return f"built for CUDA {build}, this machine has {target or 'an unknown version'}"
        if build.major != target.major:
            return f"built for CUDA {build}, this machine has CUDA {target}, another major version"
        if build.minor > target.minor:
            return f"built for CUDA {build}, this machine has only CUDA {target}"
        return None

    def driver_reason(self, built: MajorMinor | None, driver: MajorMinor | None) -> str | None:
        # A driver runs every minor version of its major version (CUDA Compatibility, "Minor Version").
        if built is None or driver is None or built.major <= driver.major:
            return None
        return f"the NVIDIA driver runs CUDA {driver} at most, and this Torch is built for CUDA {built}"

    def arch_reason(self, archs: Sequence[str] | None, device: Device | None) -> str | None:
        known = [match for match in (_ARCH.fullmatch(arch) for arch in archs or ()) if match is not None]
        match = None if device is None else _ARCH.fullmatch(device.arch)
        if not known or device is None or match is None:
            return None
        capability = (int(match[1]), int(match[2]))
        if any(_covers(arch, capability) for arch in known):
            return None
        name = f" ({device.name})" if device.name else ""
        built = listed([arch[0] for arch in known])
        return f"CUDA capability {device.arch} of device {device.index}{name} is not covered by the build's {built}"

    def device_capability(self, device: Device) -> int | None:
        match = _ARCH.fullmatch(device.arch)
        return None if match is None else int(match[1]) * 10 + int(match[2])

    def parse_arch(self, text: str) -> str | None:
        match = _SM.fullmatch(text) or re.fullmatch(r"([1-9][0-9]?)\.([0-9])(a?)", text)
        return None if match is None else f"{int(match[1])}.{int(match[2])}"

    @property
    def arch_form(self) -> str:
        return "a compute capability, such as sm_90 (H100), sm_80 (A100) or sm_75 (T4)"

    def format_arch(self, arch: str) -> str:
        return "sm_" + arch.replace(".", "")

    def torch_build(self, torch: Any) -> Found | None:
        cuda = torch.version.cuda
        return None if cuda is None else Found(MajorMinor.parse(str(cuda)))

    def probe(self) -> BackendProbe:
        from kernels.backends.builtin import cuda_driver

        facts = cuda_driver.look()
        version, notes = facts.driver_version, list(facts.notes)
        if version is None:
            # A toolkit alone is no GPU: nothing can be run with it.
            cards = _cards(self.sysfs)
            if cards:
                notes.append(f"{plural(cards, 'NVIDIA GPU')} on the PCI bus, but no driver that answers")
            return BackendProbe(notes=tuple(notes), hardware=cards > 0)
        # Torch contains its own runtime; the system's matters only if Torch is not installed.
        if importlib.util.find_spec("torch") is None:
            runtime = cuda_driver.runtime_version()
            if runtime is None:
                notes.append("no CUDA runtime (libcudart) found; its version is taken to be the driver's")
            version = runtime or version
        devices = []
        for index, gpu in enumerate(facts.gpus):
            arch = f"{gpu.capability[0]}.{gpu.capability[1]}"
            capability = gpu.capability[0] * 10 + gpu.capability[1]
            devices.append(Device(self.name, index, gpu.name, arch, capability, gpu.memory))
        hidden = ""
        if not devices and facts.hidden:
            hidden = f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '')!r}"
        return BackendProbe(True, version, tuple(devices), tuple(notes), hidden=hidden, driver=facts.driver_version)

    def current_device(self) -> int:
        return initialized_device(self.device_type)

    def library_folders(self) -> Sequence[Path]:
        # From CUDA 13 on, the libraries for Windows are a folder deeper (CUDA release notes, 13.0).
        toolkit = os.environ.get("CUDA_PATH")
        return [] if toolkit is None else [Path(toolkit, "bin", "x64"), Path(toolkit, "bin")]


def _cards(sysfs: Path) -> int:
    """How many display controllers of NVIDIA (0x10de) are on the PCI bus, with or without a driver."""

    def read(path: Path) -> str:
        try:
            return path.read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""

    try:
        folders = list(sysfs.iterdir())
    except OSError:
        return 0
    # Class 0x03 is a display controller, also one without an output (PCI Code and ID Assignment).
    return sum(read(each / "vendor") == "0x10de" and read(each / "class").startswith("0x03") for each in folders)


def _covers(arch: re.Match[str], capability: tuple[int, int]) -> bool:
    """Whether code for an architecture runs on a capability (CUDA C++ Programming Guide, "Feature Availability")."""
    major, minor = built = (int(arch[1]), int(arch[2]))
    if arch[3] == "a":  # architecture-specific: that capability alone
        return built == capability
    if arch[4] and not arch[3]:  # PTX is compiled for any newer capability when it is loaded
        return built <= capability
    return capability[0] == major and capability[1] >= minor
