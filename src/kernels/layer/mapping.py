"""Which kernel is mapped to which layer: a mapping for the whole process, and overlays for a context.

The process-wide mapping is replaced as a whole, never changed, so readers take no lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, reduce
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from kernels.errors import RequestError
from kernels.layer.device import ANY_CAPABILITY, Device, ModuleDevice, mapped_backend
from kernels.layer.mode import REGISTERED_MODES, KernelizeFallback, Mode, mode_meant, serving_modes
from kernels.support.forks import ForkLock
from kernels.support.formatting import wrong_type
from kernels.tracebacks import public

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "KernelMapping",
    "LayerMapping",
    "MappingView",
    "NoKernel",
    "RepositoryProtocol",
    "SelectedKernel",
    "check_bool",
    "current_mapping",
    "register_kernel_mapping",
    "select",
    "use_kernel_mapping",
]


@runtime_checkable
class RepositoryProtocol(Protocol):
    """A value of a mapping: anything that loads a layer class, such as a `LayerRepository`."""

    def load(self) -> type[nn.Module]:
        """Load the layer class."""
        ...


# One layer's kernels: device type -> range of capabilities -> mode -> repositories that compete, the usual one first.
_Candidates = tuple[RepositoryProtocol, ...]
_LayerKernels = dict[str, dict[tuple[int, int], dict[Mode, _Candidates]]]
_Kernels = dict[str, _LayerKernels]

_Key = TypeVar("_Key", covariant=True)
_Value = TypeVar("_Value", covariant=True)


class SupportsItems(Protocol[_Key, _Value]):
    """A dictionary, for type checkers: `Mapping[str | Device, ...]` would reject a `dict[str, ...]`."""

    def items(self) -> Set[tuple[_Key, _Value]]:
        """The keys with their values."""
        ...


_Repositories = RepositoryProtocol | Sequence[RepositoryProtocol]
LayerMapping = SupportsItems[str | Device, _Repositories | Mapping[Mode, _Repositories]]
"""One layer's entry in a mapping: device (a type, or a `Device`) → repository, or a dictionary mode → repository.

A list of repositories in place of one names candidates: `autotune` lets them compete; without it the first one serves.
"""

KernelMapping = Mapping[str, LayerMapping]
"""What `register_kernel_mapping` and `use_kernel_mapping` take: layer name → its entry."""

_lock = ForkLock()
_registered: _Kernels = {}


@public
def register_kernel_mapping(mapping: KernelMapping, inherit_mapping: bool = True) -> None:
    """Map kernels to layers for `kernelize`, in the whole process.

    Args:
        mapping: Layer name → device (a type, or a `Device`) → repository, or a dictionary mode → repository. A
            repository without a mode serves every mode; a list of repositories competes in `autotune`, and the first
            one serves without it. An earlier entry for the same layer and device is replaced.
        inherit_mapping: False removes everything registered before.

    Raises:
        TypeError: An argument or an entry is of the wrong type.
        RequestError: An unknown device type, or a mode that no kernel can be registered for.

    Example:
        >>> from kernels import LayerRepository, Mode
        >>> silu = LayerRepository("kernels-community/activation", layer_name="SiluAndMul", version=1)
        >>> register_kernel_mapping({"ExampleSiluAndMul": {"cuda": {Mode.INFERENCE: silu}}})
    """
    added, inherits = _parse(mapping), check_bool("inherit_mapping", inherit_mapping)
    global _registered
    with _lock:
        _registered = _merged(_registered, added) if inherits else added


class use_kernel_mapping:
    """A context in which a mapping comes before what is registered, for the code that runs in that context only.

    It comes before entries for the same device and range of capabilities; a registered entry with a narrower range is
    still used. One object can be entered any number of times, by several threads and tasks at once.

    Args:
        mapping: As in `register_kernel_mapping`.
        inherit_mapping: False hides everything else in the context.

    Raises:
        TypeError: An argument or an entry is of the wrong type.
        RequestError: An unknown device type, or a mode that no kernel can be registered for.

    Example:
        >>> from kernels import LayerRepository
        >>> silu = LayerRepository("kernels-community/activation", layer_name="SiluAndMul", version=1)
        >>> with use_kernel_mapping({"SiluAndMul": {"cuda": silu}}):
        ...     pass  # kernelize(model)
    """

    @public
    def __init__(self, mapping: KernelMapping, *, inherit_mapping: bool = True) -> None:
        self._kernels = _parse(mapping)
        self._inherits = check_bool("inherit_mapping", inherit_mapping)

    def __enter__(self) -> None:
        _entered.set((*_entered.get(), self))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # The object is kept in the context alone, since threads and tasks may share it; those entered later stay.
        entered = list(reversed(_entered.get()))
        if self not in entered:
            raise RequestError(
                "A `use_kernel_mapping` exits in a thread or task that did not enter it, or exits twice."
            )
        entered.remove(self)
        _entered.set(tuple(reversed(entered)))


#: The mappings that a context is in, the innermost last.
_entered: ContextVar[tuple[use_kernel_mapping, ...]] = ContextVar("kernels_mapping", default=())


@dataclass(frozen=True)
class MappingView:
    """The mapping as one context sees it at one moment; later registrations do not change it."""

    levels: tuple[_Kernels, ...]
    given: int = 0  # how many of the levels were given for this call or context
    call: bool = False  # whether the first one was given for this call

    @property
    def names(self) -> set[str]:
        """The names of all layers in it."""
        return set(self._merged)

    def kernels_for(self, layer_name: str) -> _LayerKernels | None:
        """The kernels of a layer, inner contexts before outer ones; None if no kernel is mapped to it."""
        return self._merged.get(layer_name)

    @cached_property
    def _merged(self) -> _Kernels:
        return reduce(_merged, reversed(self.levels))


def current_mapping(mapping: Any = None) -> MappingView:
    """The mapping of this context now: its overlays, then what is registered.

    Args:
        mapping: A mapping that comes before all of them.

    Raises:
        TypeError: An entry is of the wrong type.
        RequestError: An unknown device type, or a mode that no kernel can be registered for.
    """
    levels = [] if mapping is None else [_parse(mapping)]
    call = bool(levels)
    for overlay in reversed(_entered.get()):
        levels.append(overlay._kernels)
        if not overlay._inherits:
            return MappingView(tuple(levels), len(levels), call)
    return MappingView((*levels, _registered), len(levels), call)


@dataclass(frozen=True)
class SelectedKernel:
    """The repository that serves a layer, the mode it was registered for, and all that compete for the layer."""

    repository: RepositoryProtocol
    mode: Mode
    candidates: tuple[RepositoryProtocol, ...] = ()


@dataclass(frozen=True)
class NoKernel:
    """Why no repository serves a layer, and the flag that lets the layer keep its own forward then."""

    flag: KernelizeFallback
    reason: str


def select(view: MappingView, layer_name: str, device: ModuleDevice, mode: Mode) -> SelectedKernel | NoKernel:
    """The repository that a mapping gives a layer on a device for a mode.

    Of the ranges of capabilities that hold the device's, the narrowest with a kernel for the mode wins; in it, the
    first registered mode of `serving_modes(mode)`.
    """
    kernels = view.kernels_for(layer_name)
    if kernels is None:
        return NoKernel(KernelizeFallback.NO_LAYER, f"no kernel is mapped to layer {layer_name!r}")
    ranges = kernels.get(device.type)
    if ranges is None:
        types = ", ".join(sorted(kernels))
        return NoKernel(KernelizeFallback.NO_DEVICE, f"no kernel for device type {device.type!r}, only for {types}")
    # Most mappings name no capability, and then nothing needs to be probed.
    capability = None if ranges.keys() == {ANY_CAPABILITY} else device.capability()
    # Newest first, so that of two ranges of one width the one registered last wins.
    holding = [
        bounds
        for bounds in reversed(ranges)
        if bounds == ANY_CAPABILITY or (capability is not None and bounds[0] <= capability <= bounds[1])
    ]
    if not holding:
        supported = "; ".join(f"{low} to {high}" for low, high in ranges)
        known = "unknown" if capability is None else capability
        reason = f"no kernel for the capability of {device} ({known}), only for {supported}"
        return NoKernel(KernelizeFallback.NO_COMPATIBLE_PROPERTIES, reason)
    holding.sort(key=lambda bounds: bounds[1] - bounds[0])
    for bounds in holding:
        for serving in serving_modes(mode):
            if serving in ranges[bounds]:
                found = ranges[bounds][serving]
                return SelectedKernel(found[0], serving, found)
    modes = dict.fromkeys(each for bounds in holding for each in ranges[bounds])
    others = f", only {', '.join(map(str, modes))}" if modes else ""
    return NoKernel(KernelizeFallback.NO_COMPATIBLE_MODE, f"no kernel serves mode {mode}{others}")


def _merged(below: _Kernels, above: _Kernels) -> _Kernels:
    """Two mappings as one: `above` replaces what `below` has for the same layer, device and range."""
    merged = below | above
    for layer_name in below.keys() & above.keys():
        kernels = {device_type: dict(ranges) for device_type, ranges in below[layer_name].items()}
        for device_type, ranges in above[layer_name].items():
            target = kernels.setdefault(device_type, {})
            for bounds, by_mode in ranges.items():
                target.pop(bounds, None)  # so that the newest comes last
                target[bounds] = by_mode
        merged[layer_name] = kernels
    return merged


def check_bool(argument: str, value: Any) -> bool:
    """An argument that is True or False.

    Raises:
        TypeError: It is neither.
    """
    if not isinstance(value, bool):
        raise wrong_type(argument, "True or False", value)
    return value


def _parse(mapping: Any) -> _Kernels:
    if not isinstance(mapping, Mapping):
        raise wrong_type("mapping", "a dictionary layer name -> device -> repository", mapping)
    kernels: _Kernels = {}
    for layer_name, by_device in mapping.items():
        if not isinstance(layer_name, str):
            raise wrong_type("mapping", "layer names as keys", layer_name)
        where = f"mapping[{layer_name!r}]"
        if not isinstance(by_device, Mapping):
            raise wrong_type(where, "a dictionary device -> repository", by_device)
        for key, value in by_device.items():
            device = Device(key) if isinstance(key, str) else key
            if not isinstance(device, Device):
                raise wrong_type(where, "device types or Devices as keys", key)
            mapped_backend(device.type, where)
            by_range = kernels.setdefault(layer_name, {}).setdefault(device.type, {})
            by_range[device.range] = _parse_modes(value, f"{where}[{key!r}]")
    return kernels


def _parse_modes(value: Any, where: str) -> dict[Mode, _Candidates]:
    given = dict(value) if isinstance(value, Mapping) else {Mode.FALLBACK: value}
    by_mode: dict[Mode, _Candidates] = {}
    for mode, repositories in given.items():
        if not isinstance(mode, Mode):
            meant = mode_meant(mode)
            raise wrong_type(where, f"Modes as keys{f' (did you mean {meant}?)' * bool(meant)}", mode)
        if mode not in REGISTERED_MODES:
            modes = ", ".join(str(each) for each in REGISTERED_MODES)
            raise RequestError(f"`{where}`: expected one of the modes {modes}, got {mode}.")
        candidates = tuple(repositories) if isinstance(repositories, (list, tuple)) else (repositories,)
        for repository in candidates or (None,):
            if isinstance(repository, type) or not callable(getattr(repository, "load", None)):
                raise wrong_type(where, "a LayerRepository, or an object with `load()`, or a list of them", repository)
        by_mode[mode] = candidates
    return by_mode
