"""The layers of a model that a kernel may serve, and the device each runs on."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from kernels.layer.decision import DECISION, LayerState, dtype_of
from kernels.layer.decorate import layer_name_of
from kernels.layer.function import is_function

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["FUNCTIONS", "MarkedLayer", "ModelModules", "find_marked"]

#: The attribute in which a module keeps the marked functions that are attached to it: a dictionary.
FUNCTIONS = "_kernel_funcs"


class MarkedLayer(NamedTuple):
    """A layer of a model that a kernel may serve, or a marked function that is attached to one of its modules.

    Attributes:
        path: Its name in the model; for a function, the name of its module and its own.
        module: The layer. One function may be attached to many modules.
        state: How it is now.
        name: Its name in mappings; None for a layer without a mark that was kernelized before.
    """

    path: str
    module: nn.Module
    state: LayerState
    name: str | None


class ModelModules:
    """Every module of a model once, in the order of `named_modules`; a module is known by its number in it.

    One walk collects what kernelizing needs. Each module's own tensors give its device, which counts for the modules
    that contain it, too, and for those in them that have none: the time is linear in the number of modules, whatever
    their depth. Flat lists hold the data, since with an object for each module Python's garbage collector would walk
    the whole model again and again.

    Args:
        model: The model.

    Attributes:
        modules: The modules.
        attributes: The dictionary of each.
        by_class: The modules of each class.
        attached: Those that functions are attached to.
        decided: Those that `kernelize` has decided for before.
    """

    def __init__(self, model: nn.Module) -> None:
        self.modules: list[nn.Module] = []
        self.attributes: list[dict[str, Any]] = []
        self.by_class: dict[type, list[int]] = {}
        self.attached: list[int] = []
        self.decided: list[int] = []
        self._training = model.training
        self._names: list[str] = []
        self._parents: list[int] = []
        # Of a module with modules in it: the first tensor of it, else of one in it. Others are asked when needed.
        self._parameters: dict[int, Any] = {}
        self._buffers: dict[int, Any] = {}
        self._devices: dict[int, torch.device | None] = {}
        self._prefixes: dict[int, str] = {}
        self._walk(model)

    def _walk(self, model: nn.Module) -> None:
        modules, attributes, names, parents = self.modules, self.attributes, self._names, self._parents
        by_class, parameters, buffers = self.by_class, self._parameters, self._buffers
        seen: set[int] = set()
        above: list[tuple[Iterator[tuple[str, Any]], int]] = []
        siblings: Iterator[tuple[str, Any]] = iter([("", model)])
        parent = -1
        while True:
            for name, module in siblings:
                identity = id(module)
                if identity in seen or module is None:
                    continue
                seen.add(identity)
                number = len(modules)
                own = module.__dict__
                modules.append(module)
                attributes.append(own)
                names.append(name)
                parents.append(parent)
                kind = type(module)
                if kind in by_class:
                    by_class[kind].append(number)
                else:
                    by_class[kind] = [number]
                if FUNCTIONS in own:
                    self.attached.append(number)
                if DECISION in own:
                    self.decided.append(number)
                children = own.get("_modules")
                if children is None:  # the class has it elsewhere
                    children = module._modules
                if children:
                    self._note(parameters, number, module._parameters)
                    self._note(buffers, number, module._buffers)
                    above.append((siblings, parent))
                    siblings, parent = iter(children.items()), number
                    break
                if parent not in parameters:
                    self._note(parameters, parent, module._parameters)
                    if parent not in buffers:
                        self._note(buffers, parent, module._buffers)
            else:
                if not above:
                    return
                siblings, parent = above.pop()

    def _note(self, first: dict[int, Any], number: int, tensors: Mapping[str, Any]) -> None:
        """Note the first of a module's tensors, for it and those that it is in; earlier ones stay."""
        tensor = _first(tensors)
        if tensor is not None:
            while number >= 0 and number not in first:
                first[number] = tensor
                number = self._parents[number]

    def layers(self, names: Mapping[type, str] | None = None) -> Iterator[tuple[type, str | None, list[int]]]:
        """The modules that a kernel may serve, by class, and those that were kernelized before.

        Args:
            names: Names of classes in mappings; they come before marks.

        Yields:
            A class, its name in mappings (None without one), and its modules.
        """
        before: dict[type, list[int]] = {}
        for number in self.decided:
            before.setdefault(type(self.modules[number]), []).append(number)
        for cls, numbers in self.by_class.items():
            name = names.get(cls) if names else None
            if name is None and hasattr(cls, "kernel_layer_name"):
                name = layer_name_of(cls)
            if name is not None:
                yield cls, name, numbers
            elif cls in before:
                yield cls, None, before[cls]

    def path(self, number: int) -> str:
        """The name of a module in the model; that of the model is empty."""
        parent = self._parents[number]
        return self._prefix(parent) + self._names[number] if parent >= 0 else ""

    def are_within(self, numbers: Sequence[int], modules: Set[int], known: set[int]) -> bool:
        """Whether each of these modules, and there are some, is in one of others.

        Args:
            numbers: The modules.
            modules: The identities of the others.
            known: Modules that are in one of the others; those that are found are added.
        """
        parents, all_modules = self._parents, self.modules
        for number in numbers:
            passed = []
            while number not in known:
                passed.append(number)
                number = parents[number]
                if number < 0:
                    return False
                if id(all_modules[number]) in modules:
                    break
            known.update(passed)
        return bool(numbers)

    def functions(self) -> Iterator[tuple[int, str, nn.Module]]:
        """The functions that are attached to modules: the module, the function's path, and the function."""
        for number in self.attached:
            prefix = self._prefix(number)
            for name, function in self.attributes[number][FUNCTIONS].items():
                yield number, prefix + name, function

    def function_state(self, number: int) -> LayerState:
        """The state of a function that is attached to a module, or that is the module."""
        # A function is no submodule where it is attached: `model.train()` does not reach it.
        return LayerState(self._training, self._device(number), None)

    def by_state(self, numbers: Collection[int]) -> dict[LayerState, list[int]]:
        """Modules of one class by their states."""
        found: dict[Any, list[int]] = {}
        if any(is_function(self.modules[number]) for number in islice(numbers, 1)):
            for number in numbers:
                found.setdefault(self.function_state(number), []).append(number)
            return found
        parents, devices = self._parents, self._devices
        for number in numbers:
            own = self.attributes[number]
            module = self.modules[number]
            tensor = _first(module._parameters)
            if tensor is not None:
                device, dtype = tensor.device, dtype_of(tensor)
            elif module._modules:
                device, dtype = self._device(number), _dtype_within(module)
            else:
                tensor, dtype = _first(module._buffers), None
                parent = parents[number]
                if tensor is not None:
                    device = tensor.device
                else:
                    device = devices[parent] if parent in devices else self._device(parent)
            training = own.get("training")
            if training is None:
                training = module.training
            key = training, device, dtype
            if key in found:
                found[key].append(number)
            else:
                found[LayerState(*key)] = [number]
        return found

    def _device(self, number: int) -> torch.device | None:
        """The device of a module's first parameter, else of its first buffer, else of what it is in."""
        devices = self._devices
        unknown = []
        device = None
        while number >= 0:
            if number in devices:
                device = devices[number]
                break
            unknown.append(number)
            tensor = self._tensor(number)
            if tensor is not None:
                device = tensor.device
                break
            number = self._parents[number]
        devices.update(dict.fromkeys(unknown, device))
        return device

    def _tensor(self, number: int) -> Any:
        module = self.modules[number]
        for first, tensors in ((self._parameters, module._parameters), (self._buffers, module._buffers)):
            tensor = first[number] if number in first else _first(tensors)
            if tensor is not None:
                return tensor
        return None

    def _prefix(self, number: int) -> str:
        """What the paths of the modules in a module begin with."""
        prefixes = self._prefixes
        unknown = []
        while number > 0 and number not in prefixes:
            unknown.append(number)
            number = self._parents[number]
        prefix = prefixes.get(number, "")
        for each in reversed(unknown):
            prefix = prefixes[each] = f"{prefix}{self._names[each]}."
        return prefix


def find_marked(model: nn.Module) -> Iterator[MarkedLayer]:
    """Every marked layer of a model in the order of `named_modules`, each module's functions before it.

    Layers that were kernelized before are found too, marked or not.

    Args:
        model: The model.
    """
    found = ModelModules(model)
    layers: dict[int, tuple[LayerState, str | None]] = {}
    for _, name, numbers in found.layers():
        for state, each in found.by_state(numbers).items():
            layers.update(dict.fromkeys(each, (state, name)))
    functions: dict[int, list[MarkedLayer]] = {}
    for number, path, function in found.functions():
        layer = MarkedLayer(path, function, found.function_state(number), layer_name_of(type(function)))
        functions.setdefault(number, []).append(layer)
    for number in sorted(layers.keys() | functions.keys()):
        yield from functions.get(number, ())
        if number in layers:
            yield MarkedLayer(found.path(number), found.modules[number], *layers[number])


def _first(tensors: Mapping[str, Any]) -> Any:
    if tensors:
        for tensor in tensors.values():
            if tensor is not None:
                return tensor
    return None


def _dtype_within(module: nn.Module) -> torch.dtype | None:
    """The type of the first parameter of the first module in a module that has one of floating-point numbers."""
    pending = [module]
    while pending:
        each = pending.pop()
        tensor = _first(each._parameters)
        if tensor is None:
            pending.extend(child for child in reversed(each._modules.values()) if child is not None)
            continue
        dtype = dtype_of(tensor)
        if dtype is not None:
            return dtype
    return None
