"""What a backend must be able to answer.

`Backend` gives every answer a sensible default; a vendor overrides the ones that differ. Nothing here or elsewhere asks
whether an object *is* a `Backend`: any object with these members serves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

__all__ = [
    "GENERAL_PYTHON_DEPENDS",
    "Backend",
    "BackendProbe",
    "Device",
    "Found",
    "MajorMinor",
    "PythonDependency",
    "allowed_python_depends",
    "listed",
]

#: Architectures that a reason names before it only counts them.
_LISTED = 10


class MajorMinor(NamedTuple):
    """A version of two numbers, as variant names carry it.

    Example:
        >>> str(MajorMinor(12, 8)), MajorMinor.parse("12.8.93"), MajorMinor.parse("8.2.RC1")
        ('12.8', MajorMinor(major=12, minor=8), MajorMinor(major=8, minor=2))
    """

    major: int
    minor: int

    @staticmethod
    def parse(text: str) -> MajorMinor | None:
        """The version that a text starts with, or None when it starts with none."""
        match = re.match(r"([0-9]{1,4})\.([0-9]{1,4})", text)
        return None if match is None else MajorMinor(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


class Found(NamedTuple):
    """A match, with the version that came with it: None where the backend has no versions."""

    version: MajorMinor | None = None


@dataclass(frozen=True)
class PythonDependency:
    """A Python dependency that kernels may ask for: the package to install, and the module to look for, if any."""

    package: str
    module: str | None


@dataclass(frozen=True)
class Device:
    """One visible accelerator.

    Attributes:
        backend: The backend's name.
        index: The number Torch gives it.
        name: What the vendor calls it, or "" where nothing tells.
        arch: Its architecture as builds declare it ("9.0", "gfx942"), or "".
        capability: The architecture as one number for mapping properties (7.5 is 75), or None.
        memory: Bytes of device memory, or None.
    """

    backend: str
    index: int
    name: str = ""
    arch: str = ""
    capability: int | None = None
    memory: int | None = None


@dataclass(frozen=True)
class BackendProbe:
    """What a look at the machine gave.

    Attributes:
        found: Whether the backend's driver, runtime or hardware is there.
        version: The version of its runtime, or None.
        devices: Visible devices, numbered as Torch numbers them.
        notes: What was not found or did not answer, and why; for a person.
    """

    found: bool = False
    version: MajorMinor | None = None
    devices: tuple[Device, ...] = ()
    notes: tuple[str, ...] = field(default=())


class Backend:
    """An accelerator family: its names, versions, architectures, and how to find it on a machine.

    Attributes:
        name: Own name, also `backend.type` in metadata.
        noarch_name: Name in noarch variants: `torch-<noarch_name>`.
        token: Name in compiled variants, without the version.
        device_type: Torch's device type.
        mapping_device: Name in kernel mappings.
        dispatch_key: Torch's dispatch key.
        versioned: Whether its token carries a version; the last digit is the minor.
        checks_archs: Whether `backend.archs` in metadata says which devices a build covers.
        order: Where several fit one Torch, the lowest is used when none is named.
        python_depends: Python dependencies that only its kernels may ask for.
    """

    name: str
    noarch_name: str
    token: str
    device_type: str
    mapping_device: str
    dispatch_key: str
    versioned: bool = False
    checks_archs: bool = False
    order: int = 1000
    python_depends: Mapping[str, PythonDependency] = MappingProxyType({})

    def device_names(self) -> tuple[str, ...]:
        """The names a caller may use, the own name first."""
        return tuple(dict.fromkeys((self.name, self.noarch_name, self.token, self.device_type)))

    def parse_accelerator(self, text: str) -> Found | None:
        """The version in a compiled variant's accelerator part, or None when it is another backend's."""
        if not self.versioned:
            return Found() if text == self.token else None
        match = re.fullmatch(re.escape(self.token) + r"(0|[1-9][0-9]{0,4})([0-9])", text)
        return None if match is None else Found(MajorMinor(int(match[1]), int(match[2])))

    def format_accelerator(self, version: MajorMinor | None) -> str:
        """The accelerator part for a version, such as `cu128`.

        Raises:
            ValueError: The backend has versions and none is given, has none and one is given, or the minor has more
                than one digit.
        """
        if self.versioned != (version is not None) or (version is not None and not 0 <= version.minor <= 9):
            raise ValueError(f"`version` is {version}; no {self.name} build can be named for it.")
        return self.token if version is None else f"{self.token}{version.major}{version.minor}"

    def version_reason(self, build: MajorMinor | None, target: MajorMinor | None) -> str | None:
        """Why a build for one version does not fit a machine with another, or None when it does."""
        if build == target:
            return None
        return f"built for {self.name} {build}, this machine has {target or 'no known one'}"

    def platform_reason(self, target: Any) -> str | None:
        """Why no compiled build of this backend fits a `Target`'s platform, or None."""
        return None

    def arch_reason(self, archs: Sequence[str] | None, device: Device | None) -> str | None:
        """Why a build for `archs` does not run on a device, or None when it does or nothing can be checked."""
        return None

    def device_capability(self, device: Device) -> int | None:
        """A device's capability as mapping properties count it (7.5 is 75), or None where there is no such number."""
        return None

    def parse_arch(self, text: str) -> str | None:
        """An architecture as builds declare it, from how a person or a compiler writes it; None when it is none."""
        return text if re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*", text) else None

    def format_arch(self, arch: str) -> str:
        """The short form of an architecture: what `parse_arch` reads."""
        return arch

    def torch_build(self, torch: Any) -> Found | None:
        """The version this Torch was built for, or extended with; None when it was not."""
        return None

    def probe(self) -> BackendProbe:
        """Look for driver, runtime and devices, without importing Torch and without initialising the runtime."""
        return BackendProbe()

    def current_device(self) -> int:
        """The index of the current device, without initialising the runtime."""
        return 0


def listed(archs: Sequence[str]) -> str:
    """Architectures as a reason names them: a repository may declare any number of them.

    Example:
        >>> listed(["8.0", "9.0"]), listed([f"{major}.0" for major in range(1, 13)])[-15:]
        ('8.0, 9.0', '10.0 and 2 more')
    """
    rest = len(archs) - _LISTED
    return ", ".join(archs[:_LISTED]) + (f" and {rest} more" if rest > 0 else "")


#: Python dependencies that kernels of every backend may ask for.
GENERAL_PYTHON_DEPENDS: Mapping[str, PythonDependency] = MappingProxyType(
    {
        "einops": PythonDependency("einops", "einops"),
        "helion": PythonDependency("helion", "helion"),
        "tvm-ffi": PythonDependency("apache-tvm-ffi", "tvm_ffi"),
    }
)


def allowed_python_depends(backend: Backend) -> dict[str, PythonDependency]:
    """The Python dependencies that a backend's kernels may ask for, by the name metadata uses.

    Example:
        >>> from kernels.backends import get
        >>> allowed_python_depends(get("cuda"))["nvidia-cutlass-dsl"].module
        'cutlass'
    """
    return {**GENERAL_PYTHON_DEPENDS, **backend.python_depends}
