"""Devices as kernel mappings name them: a type, and a range of capabilities where that matters.

`kernels.backends` defines the types and their names in Torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from kernels.errors import RequestError
from kernels.support.formatting import did_you_mean, format_value, wrong_type
from kernels.tracebacks import public

if TYPE_CHECKING:
    import torch

    from kernels.backends import Backend, BackendEntry
    from kernels.backends import Device as ProbedDevice

__all__ = [
    "CUDAProperties",
    "CapabilityRange",
    "Device",
    "ModuleDevice",
    "ROCMProperties",
    "mapped_backend",
    "of_tensor",
    "requested_device",
]

#: The range of a mapping without properties: any device, also one of unknown capability.
ANY_CAPABILITY = (0, 2**63 - 1)


@dataclass(frozen=True)
class CapabilityRange:
    """The devices that a kernel supports, by capability; a vendor's backend subclasses it and sets `device_type`.

    Attributes:
        device_type: The device type in mappings that it is for.

    Args:
        min_capability: Lowest capability, as one number: 7.5 is 75.
        max_capability: Highest capability, inclusive.

    Raises:
        TypeError: A capability is not an integer.
        RequestError: One is negative, or the lowest is above the highest.
    """

    device_type: ClassVar[str | None] = None

    min_capability: int
    max_capability: int

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        """Check both capabilities and their order, as making the object does.

        Raises:
            TypeError: A capability is not an integer.
            RequestError: One is negative, or the lowest is above the highest.
        """
        for name in ("min_capability", "max_capability"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise wrong_type(name, "an int such as 75", value)
            if value < 0:
                raise RequestError(f"`{name}`: expected 0 or a positive integer such as 75, got {value}.")
        self.validate_capability_range()

    def validate_capability_range(self) -> None:
        """Check that the lowest capability is not above the highest.

        Raises:
            RequestError: It is.
        """
        if self.min_capability > self.max_capability:
            raise RequestError(f"`min_capability` ({self.min_capability}) > `max_capability` ({self.max_capability}).")


@dataclass(frozen=True)
class CUDAProperties(CapabilityRange):
    """NVIDIA GPUs by compute capability.

    Attributes:
        device_type: `"cuda"`.

    Args:
        min_capability: Lowest compute capability, as one number: 7.5 is 75.
        max_capability: Highest compute capability, inclusive.

    Example:
        >>> Device("cuda", CUDAProperties(min_capability=80, max_capability=90)).type
        'cuda'
    """

    device_type: ClassVar[str | None] = "cuda"


@dataclass(frozen=True)
class ROCMProperties(CapabilityRange):
    """AMD GPUs by the capability that Torch reports for them: gfx942 is 94, gfx1151 is 115.

    Attributes:
        device_type: `"rocm"`.

    Args:
        min_capability: Lowest capability.
        max_capability: Highest capability, inclusive.

    Example:
        >>> ROCMProperties(90, 94) == ROCMProperties(min_capability=90, max_capability=94)
        True
    """

    device_type: ClassVar[str | None] = "rocm"


@dataclass(frozen=True)
class Device:
    """A device in a kernel mapping.

    Args:
        type: The device's type, such as `"cuda"`, `"rocm"`, `"mps"`, `"xpu"`, `"npu"` or `"cpu"`.
        properties: Which devices of that type, default all.

    Raises:
        TypeError: An argument is of the wrong type.
        RequestError: The properties are those of another device type.

    Example:
        >>> Device("mps") == Device(type="mps")
        True
    """

    type: str
    properties: CapabilityRange | None = None

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        """Check the type, and that the properties are of that type, as making the object does.

        Raises:
            TypeError: An attribute is of the wrong type.
            RequestError: The properties are those of another device type.
        """
        kind: Any = self.type
        properties: Any = self.properties
        if not isinstance(kind, str):
            raise wrong_type("type", "a string", kind)
        if properties is None:
            return
        if not isinstance(properties, CapabilityRange):
            raise wrong_type("properties", "a CapabilityRange or None", properties)
        expected = properties.device_type
        if expected is not None and expected != kind:
            raise RequestError(f"`type`: expected {expected!r} for {type(properties).__name__}, got {kind!r}.")

    @property
    def range(self) -> tuple[int, int]:
        """The lowest and the highest capability."""
        if self.properties is None:
            return ANY_CAPABILITY
        return self.properties.min_capability, self.properties.max_capability


# `dataclass` writes these methods.
for _each in (CapabilityRange, CUDAProperties, ROCMProperties, Device):
    _each.__init__ = public(_each.__init__)  # type: ignore


@dataclass(frozen=True)
class ModuleDevice:
    """Where a module runs: the mapping's device type, and which device of that type (None: the current one)."""

    type: str
    index: int | None = None

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    @property
    def backend(self) -> Backend:
        """The backend that serves it."""
        return mapped_backend(self.type).backend

    @property
    def torch_device(self) -> str:
        """The device as Torch names it."""
        name = self.backend.device_type
        return name if self.index is None else f"{name}:{self.index}"

    def capability(self) -> int | None:
        """The device's capability as one number (7.5 is 75), or None if it has none."""
        return None if self._probed is None else self.backend.device_capability(self._probed)

    def arch(self) -> str | None:
        """The device's architecture, by which builds are chosen, or None if it is unknown."""
        return None if self._probed is None else self._probed.arch or None

    @cached_property
    def _probed(self) -> ProbedDevice | None:
        from kernels.resolver.target import Target

        backend = self.backend
        index = backend.current_device() if self.index is None else self.index
        devices = (each for each in Target.current().devices if each.backend == backend.name and each.index == index)
        return next(devices, None)


def mapped_backend(device_type: str, argument: str = "device") -> BackendEntry:
    """The entry of the backend that has a mapping's device type; the backend is not imported for it.

    Args:
        device_type: The device type.
        argument: Where it was given, for the message.

    Raises:
        RequestError: No backend has this type; the message lists the known types.
    """
    from kernels.backends import entries

    known = {entry.names.mapping_device: entry for entry in entries()}
    if device_type not in known:
        types, got, hint = ", ".join(sorted(known)), format_value(device_type), did_you_mean(device_type, known)
        raise RequestError(f"`{argument}`: expected one of the device types {types}, got {got}.{hint}")
    return known[device_type]


def of_tensor(device: torch.device) -> ModuleDevice:
    """The device that a parameter lies on, as mappings name it; a type without a backend is kept."""
    return ModuleDevice(_mapping_type(device.type), device.index)


def requested_device(device: Any) -> ModuleDevice | None:
    """The `device` argument of `kernelize`; None means each module's own device.

    Args:
        device: A mapping's device type, a Torch device or its name, with or without an index; or a `Device`, of which
            the type counts, as transformers 5.0 to 5.12 gives one.

    Raises:
        TypeError: It is none of these.
        RequestError: No backend has that type; the message lists the known types.
    """
    if device is None:
        return None
    name: Any
    if isinstance(device, str):
        name, separator, number = device.partition(":")
        if separator and not (number.isascii() and number.isdecimal()):
            raise RequestError(f"`device`: expected a device type, or a type and an index ('cuda:0'), got {device!r}.")
        index = int(number) if separator else None
    else:
        name, index = getattr(device, "type", None), getattr(device, "index", None)
        if not isinstance(name, str):
            raise wrong_type("device", "a device type, a torch.device or None", device)
    found = ModuleDevice(_mapping_type(name), index)
    mapped_backend(found.type)
    return found


def _mapping_type(name: str) -> str:
    # A name that Torch uses means the backend behind it: under a ROCm Torch "cuda" is an AMD GPU.
    from kernels.backends import for_device_type

    try:
        return for_device_type(name).mapping_device
    except RequestError:
        return name
