"""The layers of a model in groups for which the same is decided, before anything is asked of the mapping."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from kernels import settings
from kernels.errors import MappingError, RequestError
from kernels.layer.contract import module_fault, replaceable_methods
from kernels.layer.decision import LayerState
from kernels.layer.decorate import always, layer_name_of
from kernels.layer.device import ModuleDevice, of_tensor
from kernels.layer.function import is_function
from kernels.layer.mapping import MappingView
from kernels.layer.marked import ModelModules
from kernels.layer.mode import KernelizeFallback, Mode
from kernels.layer.swap import FORWARDS, own_forward
from kernels.support.logs import logger

if TYPE_CHECKING:
    import torch
    from torch import nn

    Layers = list[nn.Module]
else:  # `inspect.signature` and `help` evaluate the types of a struct's fields
    Layers = list

__all__ = ["LayerGroup", "LayerGroups", "LayerKind", "LayerRequest"]

# Users know the function, not this module; the existing client has this logger too.
_log = logger("kernels.layer.kernelize")

_DISABLED = "DISABLE_KERNEL_MAPPING is set"
_EXCLUDED = "its condition is false"


class LayerRequest(Struct, frozen=True, eq=False):
    """What `kernelize` was asked for.

    Attributes:
        modes: The mode of the model; with `auto`, that of inference and that of training.
        device: The device that the caller names.
        fallback: In which cases a layer may keep its own forward.
        mapping: The mapping.
        by_class: Names of classes without a mark.
        candidate: Which of the repositories that compete for a layer; a layer with fewer keeps its own forward.
    """

    modes: tuple[Mode, ...]
    device: ModuleDevice | None
    fallback: KernelizeFallback
    mapping: MappingView
    by_class: Mapping[type, str]
    candidate: int = 0

    def check_allowed(self, flag: KernelizeFallback, problem: str) -> None:
        """Check that a layer may keep its own forward.

        Raises:
            MappingError: It may not.
        """
        if flag not in self.fallback:
            raise MappingError(problem)


class LayerKind(NamedTuple):
    """What decides the kernel of a layer: its class, its name in mappings, and the device it runs on."""

    cls: type
    name: str
    device: ModuleDevice


class LayerGroup(Struct, frozen=True, eq=False):
    """Layers of one class and in one state, or one function.

    Attributes:
        modules: The layers.
        path: The path of each, by its place in `modules`.
        name: Their name in mappings.
        state: How they are now.
        kinds: What decides their kernel: one kind, or one for each device that a function is on.
        kept: Why no kernel is looked for; the group has no kinds then.
        faults: Why some may have no kernel, by their place.
    """

    modules: Layers
    path: Callable[[int], str]
    name: str
    state: LayerState
    kinds: Sequence[LayerKind] = ()
    kept: str | None = None
    faults: Mapping[int, str] = {}


class LayerGroups:
    """The layers of a model that have a name, in groups for which the same is decided.

    Attributes:
        found: The groups.
    """

    def __init__(self, modules: ModelModules, request: LayerRequest) -> None:
        self.found: list[LayerGroup] = []
        #: Of the first layer of each kind: its number, or that of the module a function is attached to; whether it is a
        #: module itself; and its path.
        self._first: dict[LayerKind, tuple[int, bool, str]] = {}
        self._modules = modules
        self._request = request
        self._disabled = settings.mapping_disabled()
        self._kinds: dict[tuple[type, torch.device | None], LayerKind] = {}
        self._devices: dict[torch.device | None, ModuleDevice] = {}
        #: Each function that is a module or attached to one, by its identity: where, in the order of the modules.
        self._functions: dict[int, list[tuple[int, bool, str, str, nn.Module]]] = {}

    def add(self, cls: type, name: str, numbers: list[int]) -> None:
        """Add the modules of one class."""
        found = self._modules
        if is_function(found.modules[numbers[0]]):
            for number in numbers:
                self._add_function(number, True, found.path(number), name, found.modules[number])
            return
        wanted, excluded = numbers, list[int]()
        condition = getattr(cls, "kernel_condition", always)
        if condition is not always and not self._disabled:
            wanted = [number for number in numbers if condition(found.modules[number])]
            if len(wanted) < len(numbers):
                excluded = sorted(set(numbers).difference(wanted))
                _log_excluded(cls, name)
        replaceable = FORWARDS + tuple(replaceable_methods(cls))
        for state, each in found.by_state(wanted).items():
            modules, path = [found.modules[number] for number in each], _path_of(found, each)
            if self._disabled:
                self.found.append(LayerGroup(modules, path, name, state, kept=_DISABLED))
                continue
            kinds = (self._kind(cls, name, state.device, (each[0], True, path(0))),)
            faults = {}
            for place, number in enumerate(each):
                attributes = found.attributes[number]
                for attribute in replaceable:
                    if attribute in attributes:
                        fault = module_fault(modules[place], own_forward(modules[place]))
                        if fault is not None:
                            faults[place] = fault
                        break
            self.found.append(LayerGroup(modules, path, name, state, kinds, faults=faults))
        for state, each in found.by_state(excluded).items() if excluded else ():
            modules = [found.modules[number] for number in each]
            self.found.append(LayerGroup(modules, _path_of(found, each), name, state, kept=_EXCLUDED))

    def first_path(self) -> dict[LayerKind, str]:
        """Each kind with the path of its first layer, in the order of the model."""
        first = sorted(self._first.items(), key=itemgetter(1))
        return {kind: path for kind, (_, _, path) in first}

    def add_functions(self) -> None:
        """Add the functions."""
        for number, path, function in self._modules.functions():
            self._add_function(number, False, path, layer_name_of(type(function)), function)
        for places in self._functions.values():
            places.sort(key=itemgetter(0, 1))
            self.found.append(self._function([each[:4] for each in places], places[0][4]))

    def _add_function(self, number: int, is_module: bool, path: str, name: str, function: nn.Module) -> None:
        self._functions.setdefault(id(function), []).append((number, is_module, path, name, function))

    def _function(self, places: Sequence[tuple[int, bool, str, str]], function: nn.Module) -> LayerGroup:
        number, _, path, name = places[0]
        cls, state = type(function), self._modules.function_state(number)
        group = LayerGroup([function], lambda place: path, name, state)
        if self._disabled:
            return replace(group, kept=_DISABLED)
        condition = getattr(cls, "kernel_condition", always)
        if condition is not always and not condition(function):
            _log_excluded(cls, name)
            return replace(group, kept=_EXCLUDED)
        devices = [self._modules.function_state(number).device for number, *_ in places]
        kinds = tuple(
            dict.fromkeys(
                self._kind(cls, name, device, place[:3]) for device, place in zip(devices, places, strict=True)
            )
        )
        fault = module_fault(function, own_forward(function))
        faults = {} if fault is None else {0: fault}
        if len(kinds) > 1:
            state = state._replace(device=None)
        return replace(group, state=state, kinds=kinds, faults=faults)

    def _kind(self, cls: type, name: str, device: torch.device | None, place: tuple[int, bool, str]) -> LayerKind:
        kind = self._kinds.get((cls, device))
        if kind is None:
            if device not in self._devices:
                self._devices[device] = _device(place[2], device, self._request)
            kind = self._kinds[cls, device] = LayerKind(cls, name, self._devices[device])
            self._first.setdefault(kind, place)
        return kind


def _path_of(found: ModelModules, numbers: Sequence[int]) -> Callable[[int], str]:
    return lambda place: found.path(numbers[place])


def _log_excluded(cls: type, name: str) -> None:
    _log.info("Layer %r of %s keeps its own forward: its condition is false", name, cls.__qualname__)


def _device(path: str, device: torch.device | None, request: LayerRequest) -> ModuleDevice:
    """The device that a layer's kernel is chosen for."""
    own = None if device is None else of_tensor(device)
    requested = request.device
    if requested is None:
        if own is None:
            raise RequestError(
                f"The device of {path or 'the model'} is unknown: neither it nor a module around it has parameters or "
                "buffers. Give `device`, such as device='cuda'."
            )
        return own
    # The caller names the type; the parameters say which device of that type.
    if requested.index is None and own is not None and own.type == requested.type:
        return own
    return requested
