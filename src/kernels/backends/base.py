"""The interface of a backend.

`Backend` has a default for everything but a name, a Torch device type and a probe; a vendor overrides what differs. An
object that is not a subclass works as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kernels.backends.label import Found, Label, Names, formatted_accelerator, named_devices, parsed_accelerator
from kernels.backends.torch_extension import extends
from kernels.support.text import one_line
from kernels.support.version import MajorMinor

if TYPE_CHECKING:
    from kernels.models.metadata import Metadata

__all__ = [
    "GENERAL_PYTHON_DEPENDS",
    "Backend",
    "BackendLike",
    "BackendProbe",
    "Device",
    "Found",
    "PythonDependency",
    "Stage",
    "Unanswered",
    "allowed_python_depends",
    "arch_of_build",
    "listed",
]

#: Architectures that a reason names before it only counts them.
_LISTED = 10


class PythonDependency(NamedTuple):
    """A Python dependency that kernels may have.

    Attributes:
        package: The package to install.
        module: The module that must be importable, or None where nothing is looked for.
    """

    package: str
    module: str | None


@dataclass(frozen=True)
class Device:
    """One visible accelerator.

    Attributes:
        backend: The backend's name.
        index: The number Torch gives it.
        name: The vendor's name of it, or "" where it is not known.
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
class Unanswered:
    """What a probe asked of the machine, and got no answer to.

    Attributes:
        query: What was asked: `architectures`, `version` or `detect`.
        reason: Why there is no answer, for a person.
        timed_out: Whether it did not answer in time.
        of_torch: Whether Torch was asked, and not a command.
    """

    query: str
    reason: str
    timed_out: bool = False
    of_torch: bool = False

    def __str__(self) -> str:
        return f"{self.query}: {self.reason}"


@dataclass(frozen=True)
class BackendProbe:
    """What a probe found on a machine.

    Attributes:
        found: Whether the backend's driver, runtime or hardware is there.
        version: The version of its runtime, or None.
        devices: Visible devices, numbered as Torch numbers them.
        notes: What was not found or did not answer, and why; for a person.
        needs_torch: Whether the probe can tell more once Torch is imported.
        hidden: The setting that hides every device ("CUDA_VISIBLE_DEVICES=''"), or "".
        driver: The newest version of the runtime that the driver runs, or None.
        hardware: Whether a device is there that no driver answers for.
        failed: Whether the probe itself failed, or did not return.
        unanswered: Those queries of a working driver that failed; `kernels doctor` reports each as a problem.
    """

    found: bool = False
    version: MajorMinor | None = None
    devices: tuple[Device, ...] = ()
    notes: tuple[str, ...] = ()
    needs_torch: bool = False
    hidden: str = ""
    driver: MajorMinor | None = None
    hardware: bool = False
    failed: bool = False
    unanswered: tuple[Unanswered, ...] = ()


class BackendLike(Protocol):
    """The least that a backend has, for type checkers: everything else has a default in `Backend`."""

    @property
    def name(self) -> str:
        """Own name, also `backend.type` in metadata."""
        ...

    @property
    def device_type(self) -> str:
        """Torch's device type."""
        ...

    def probe(self) -> BackendProbe:
        """Look for driver, runtime and devices; see `Backend.probe`."""
        ...


class _Same:
    """A member whose default is the value of another one."""

    def __init__(self, other: str) -> None:
        self.other = other

    def __get__(self, backend: Any, owner: type) -> Any:
        return getattr(owner if backend is None else backend, self.other)


Stage = Callable[..., None]
"""A stage's function; see `Backend.before_import` and `Backend.after_import`."""


class Backend:
    """An accelerator family: its names, versions, architectures, how to find it on a machine, how to load its builds.

    A vendor defines `name`, `device_type` and `probe`, and the rest where it differs.

    Attributes:
        name: Own name, also `backend.type` in metadata.
        noarch_name: Name in noarch variants: `torch-<noarch_name>`. Default: the own name.
        token: Name in compiled variants, without the version; no dash, no digit at its end. Default: the own name.
        device_type: Torch's device type.
        mapping_device: Name in kernel mappings. Default: the own name.
        dispatch_key: Torch's dispatch key. Default: that of a renamed device of another vendor.
        versioned: Whether its token carries a version; the last digit is the minor.
        checks_archs: Whether `backend.archs` in metadata says which devices a build covers.
        order: Where several fit one Torch, the lowest is used when none is named.
        python_depends: Python dependencies that only its kernels may have.
        experimental: Whether using it warns, once.
        vendor: Who makes the hardware.
        guidance_block: Notes for kernel authors about the hardware.
        kernel_guidance: Notes for kernel authors about writing kernels.
        cuda_hacks_to_strip: Source lines that a kernel for it must not have.
        folder: Folder with operators (`ops/`), `tune_configs.yaml` and `heuristics_config_utils.py`, or None.
        device_language: The language of its compiled device sources (`cuda`, `hip`, `sycl`, `metal`), or "" for none.
        min_macos: For a backend of macOS alone, the first major version that loads its compiled builds; otherwise 0.

    Example:
        >>> class Acme(Backend):
        ...     name = device_type = "acme"
        ...
        ...     def probe(self) -> BackendProbe:
        ...         return BackendProbe(found=True, devices=(Device("acme", 0, "Acme One"),))
        >>> Acme().noarch_name, Acme().dispatch_key
        ('acme', 'PrivateUse1')
    """

    name: str
    noarch_name: str = _Same("name")  # type: ignore[assignment]
    token: str = _Same("name")  # type: ignore[assignment]
    device_type: str
    mapping_device: str = _Same("name")  # type: ignore[assignment]
    dispatch_key: str = "PrivateUse1"
    versioned: bool = False
    checks_archs: bool = False
    order: int = 1000
    python_depends: Mapping[str, PythonDependency] = MappingProxyType({})
    experimental: bool = False
    vendor: str = ""
    guidance_block: str = ""
    kernel_guidance: str = ""
    cuda_hacks_to_strip: Sequence[str] = ()
    folder: Path | None = None
    device_language: str = ""
    min_macos: int = 0

    def __init_subclass__(cls, *, label: Mapping[str, Any] | None = None, **rest: Any) -> None:
        """A class whose file has a label has its names."""
        super().__init_subclass__(**rest)
        if label is not None:
            for name, value in zip(Names._fields, Label.from_literals(label).names, strict=True):
                setattr(cls, name, value)

    def device_names(self) -> tuple[str, ...]:
        """The names a caller may use, the own name first."""
        return named_devices(self)

    def parse_accelerator(self, text: str) -> Found | None:
        """The version in a compiled variant's accelerator part, or None when it is another backend's.

        Args:
            text: The accelerator part of a variant's name, such as `cu128`.
        """
        return parsed_accelerator(self, text)

    def format_accelerator(self, version: MajorMinor | None) -> str:
        """The accelerator part for a version, such as `cu128`.

        Args:
            version: The version, or None where the backend has no versions.

        Raises:
            ValueError: The backend has versions and none is given, has none and one is given, or the minor has more
                than one digit.
        """
        return formatted_accelerator(self, version)

    def version_reason(self, build: MajorMinor | None, target: MajorMinor | None) -> str | None:
        """Why a build for one version does not run on a machine with another, or None where it does.

        Args:
            build: The version in the build's name.
            target: The machine's version, or None where it is not known.
        """
        if build == target:
            return None
        return f"built for {self.name} {build}, this machine has {target or 'an unknown version'}"

    def platform_reason(self, target: Any) -> str | None:
        """Why no compiled build of this backend fits a `Target`'s platform, or None.

        Args:
            target: The machine, a `Target`.
        """
        version = str(target.os_version or "") if target.os == "darwin" else ""
        major = version.split(".")[0]
        if not self.min_macos or (major.isdecimal() and int(major) >= self.min_macos):
            return None
        unknown = "an unknown version" if target.os == "darwin" else target.os
        builds, there = f"{self.name.capitalize()} builds", version or unknown
        return f"{builds} require macOS {self.min_macos}.0 or later, this machine has {there}"

    def driver_reason(self, built: MajorMinor | None, driver: MajorMinor | None) -> str | None:
        """Why a driver does not run what Torch was built for, or None where it does or nothing can be told.

        Args:
            built: The version that Torch was built for.
            driver: The newest version that the driver runs, as the probe found it.
        """
        return None

    def arch_reason(self, archs: Sequence[str] | None, device: Device | None) -> str | None:
        """Why a build for `archs` does not run on a device, or None when it does or nothing can be checked.

        Args:
            archs: The architectures in the build's metadata, or None where it lists none.
            device: The device, or None where none is visible.
        """
        return None

    def device_capability(self, device: Device) -> int | None:
        """A device's capability as mapping properties count it (7.5 is 75), or None where there is no such number.

        Args:
            device: The device, as the probe found it.
        """
        return None

    def parse_arch(self, text: str) -> str | None:
        """An architecture as builds declare it, from a person's or a compiler's spelling; None where it is not one.

        Args:
            text: Such as `sm_90`, `90a` or `9.0` for CUDA.
        """
        return text if re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*", text) else None

    @property
    def arch_form(self) -> str:
        """How architectures are spelled, for a message; "" where the name of the backend says enough."""
        return ""

    def format_arch(self, arch: str) -> str:
        """The short form of an architecture: what `parse_arch` reads.

        Args:
            arch: The architecture as builds declare it.
        """
        return arch

    def torch_build(self, torch: Any) -> Found | None:
        """The version this Torch was built for, or extended with; None when it was not.

        Called often, so it must be quick. By default, whether an extension has added the device to Torch; the version
        is then the probe's.

        Args:
            torch: The imported module `torch`.
        """
        return Found() if extends(torch, self.device_type) else None

    def probe(self) -> BackendProbe:
        """Look for driver, runtime and devices, without importing Torch and without initialising the runtime."""
        return BackendProbe()

    def current_device(self) -> int:
        """The index of the current device, without initialising the runtime."""
        return 0

    def library_folders(self) -> Sequence[Path]:
        """The folders of its toolkit's libraries, for systems that search none by themselves (Windows)."""
        return ()

    def stages(self, device: Device | None) -> Mapping[str, Stage]:
        """What happens around the import of a build: `before_import` and `after_import`, by name.

        A vendor leaves one out, or puts another function in its place, where a device needs that.

        Args:
            device: The device that the build was chosen for, or None where none is visible.
        """
        return {"before_import": self.before_import, "after_import": self.after_import}

    def before_import(self, variant_dir: Path, metadata: Metadata) -> None:
        """Called before a build's module is imported; an error stops the import.

        Args:
            variant_dir: The build's folder, to be read only.
            metadata: The build's metadata.
        """

    def after_import(self, module: ModuleType, variant_dir: Path, metadata: Metadata) -> None:
        """Called when a build's module was imported; an error takes the import back.

        Args:
            module: The build's module.
            variant_dir: The build's folder, to be read only.
            metadata: The build's metadata.
        """


def listed(archs: Sequence[str]) -> str:
    """Some architectures as a reason names them: a repository may declare any number.

    Example:
        >>> listed(["8.0", "9.0"]), listed([f"{major}.0" for major in range(1, 13)])[-15:]
        ('8.0, 9.0', '10.0 and 2 more')
    """
    rest = len(archs) - _LISTED
    return ", ".join(one_line(arch) for arch in archs[:_LISTED]) + (f" and {rest} more" if rest > 0 else "")


def arch_of_build(backend: Backend, text: str) -> str:
    """An architecture of a build's list as the backend reads it; "" where the backend does not know it.

    Args:
        backend: The backend.
        text: As lists have it: it may also say how far it reaches, with `+PTX` or the suffix for a family.

    Example:
        >>> from kernels.backends import get
        >>> arch_of_build(get("cuda"), "9.0+PTX"), arch_of_build(get("cuda"), "10.0f"), arch_of_build(get("cuda"), "x")
        ('9.0', '10.0', '')
    """
    if ":" in text:  # a processor's features, which no reader of metadata compares
        return ""
    plain = text.removesuffix("+PTX")
    return backend.parse_arch(plain[:-1] if re.fullmatch(r"[0-9]+\.[0-9]f", plain) else plain) or ""


#: Python dependencies that kernels of every backend may have.
GENERAL_PYTHON_DEPENDS: Mapping[str, PythonDependency] = MappingProxyType(
    {
        "einops": PythonDependency("einops", "einops"),
        "helion": PythonDependency("helion", "helion"),
        "tvm-ffi": PythonDependency("apache-tvm-ffi", "tvm_ffi"),
    }
)


def allowed_python_depends(backend: Backend) -> dict[str, PythonDependency]:
    """The Python dependencies that a backend's kernels may have, by the name in metadata.

    Example:
        >>> from kernels.backends import get
        >>> allowed_python_depends(get("cuda"))["nvidia-cutlass-dsl"].module
        'cutlass'
    """
    return {**GENERAL_PYTHON_DEPENDS, **backend.python_depends}
