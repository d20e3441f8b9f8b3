"""The layers of a model that a kernel may serve, and the state of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kernels.layer.decision import DECISION, LayerState, dtype_of
from kernels.layer.layer import layer_name_of

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

    The time is linear in the number of modules. Flat lists hold the data, since with an object for each module Python's
    garbage collector would walk the whole model again and again.

    Args:
        model: The model.

    Attributes:
        modules: The modules.
        paths: The name of each in the model; that of the model is empty.
        by_class: The modules of each class.
    """

    def __init__(self, model: nn.Module) -> None:
        self.modules: list[nn.Module] = []
        self.paths: list[str] = []
        self.by_class: dict[type, list[int]] = {}
        self._attached: list[int] = []
        self._decided: list[int] = []
        self._training = model.training
        parents: list[int] = []
        numbers: dict[str, int] = {}
        for number, (path, module) in enumerate(model.named_modules()):
            self.modules.append(module)
            self.paths.append(path)
            parents.append(numbers[path.rpartition(".")[0]] if number else -1)
            numbers[path] = number
            self.by_class.setdefault(type(module), []).append(number)
            if FUNCTIONS in module.__dict__:
                self._attached.append(number)
            if DECISION in module.__dict__:
                self._decided.append(number)
        self._devices, self._dtypes = self._tensors(parents)

    def _tensors(self, parents: list[int]) -> tuple[list[torch.device | None], list[torch.dtype | None]]:
        """The device and the type of each module.

        The device is that of its first parameter, also of one in a module in it, else of its first buffer, else that of
        the module that it is in. The type is that of the first parameter of floating-point numbers.
        """
        parameters = [_first(module._parameters) for module in self.modules]
        buffers = [_first(module._buffers) for module in self.modules]
        dtypes = [dtype_of(each) for each in parameters]
        own = [each is not None for each in parameters], [each is not None for each in buffers]
        has_type = [each is not None for each in parameters]
        for number in range(len(parents) - 1, 0, -1):  # of several modules in one, the first comes last, and counts
            parent = parents[number]
            for tensors, owns in ((parameters, own[0]), (buffers, own[1])):
                if tensors[number] is not None and not owns[parent]:
                    tensors[parent] = tensors[number]
            if dtypes[number] is not None and not has_type[parent]:
                dtypes[parent] = dtypes[number]
        devices: list[torch.device | None] = []
        for parameter, buffer, parent in zip(parameters, buffers, parents, strict=True):
            tensor = buffer if parameter is None else parameter
            devices.append(devices[parent] if tensor is None and parent >= 0 else getattr(tensor, "device", None))
        return devices, dtypes

    def layers(self, names: Mapping[type, str] | None = None) -> Iterator[tuple[type, str | None, list[int]]]:
        """The modules that a kernel may serve, by class, and those that were kernelized before.

        Args:
            names: Names of classes in mappings; they come before marks.

        Yields:
            A class, its name in mappings (None without one), and its modules.
        """
        before: dict[type, list[int]] = {}
        for number in self._decided:
            before.setdefault(type(self.modules[number]), []).append(number)
        for cls, numbers in self.by_class.items():
            name = names.get(cls) if names else None
            if name is None and hasattr(cls, "kernel_layer_name"):
                name = layer_name_of(cls)
            if name is not None:
                yield cls, name, numbers
            elif cls in before:
                yield cls, None, before[cls]

    def functions(self) -> Iterator[tuple[int, str, nn.Module]]:
        """The functions that are attached to modules: the module, the function's path, and the function."""
        for number in self._attached:
            module, path = self.modules[number], self.paths[number]
            for name, function in module.__dict__[FUNCTIONS].items():
                yield number, f"{path}.{name}" if path else name, function

    def state(self, number: int) -> LayerState:
        """The state of a module."""
        return LayerState(self.modules[number].training, self._devices[number], self._dtypes[number])

    def function_state(self, number: int) -> LayerState:
        """The state of a function that is attached to a module, or that is the module."""
        # A function is no submodule where it is attached: `model.train()` does not reach it.
        return LayerState(self._training, self._devices[number], None)


def find_marked(model: nn.Module) -> Iterator[MarkedLayer]:
    """Every marked layer of a model in the order of `named_modules`, each module's functions before it.

    Layers that were kernelized before are found too, marked or not.

    Args:
        model: The model.
    """
    found = ModelModules(model)
    names = {number: name for _, name, numbers in found.layers() for number in numbers}
    functions: dict[int, list[MarkedLayer]] = {}
    for number, path, function in found.functions():
        layer = MarkedLayer(path, function, found.function_state(number), layer_name_of(type(function)))
        functions.setdefault(number, []).append(layer)
    for number in sorted(names.keys() | functions.keys()):
        yield from functions.get(number, ())
        if number in names:
            yield MarkedLayer(found.paths[number], found.modules[number], found.state(number), names[number])


def _first(tensors: Mapping[str, Any]) -> Any:
    if tensors:
        for tensor in tensors.values():
            if tensor is not None:
                return tensor
    return None
