"""The layers of a model that a kernel may serve, and the device each runs on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["Place", "find_places", "layer_name_of", "swappable_modules"]


@dataclass(frozen=True)
class Place:
    """A marked layer, or a function attached to a module, where it stands in a model.

    Attributes:
        path: Its name in the model; a function's is that of the module it is attached to, and the name it has there.
        module: The layer. One function may stand in many places.
        device: The device of its parameters, else of its buffers, else of its nearest ancestor's; None without any.
    """

    path: str
    module: nn.Module
    device: torch.device | None


def find_places(model: nn.Module) -> list[Place]:
    """Every marked layer of a model in the order of `named_modules`, each module's functions before it.

    One pass over the modules, whatever their number or depth: a module's device is asked of its own tensors only, and
    handed up to those that contain it, then down to those that have none.
    """
    modules: list[tuple[str, nn.Module, int]] = []
    parameters: list[torch.device | None] = []
    buffers: list[torch.device | None] = []
    seen: set[int] = set()
    stack: list[tuple[str, nn.Module, int]] = [("", model, -1)]
    while stack:
        path, module, parent = stack.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        number = len(modules)
        modules.append((path, module, parent))
        parameters.append(_first_device(module._parameters.values()))
        buffers.append(_first_device(module._buffers.values()))
        children = [
            (f"{path}.{name}" if path else name, child, number)
            for name, child in module._modules.items()
            if child is not None
        ]
        stack.extend(reversed(children))

    # Up: in reverse, so that of several children the first has the last word. A module's own tensors come before its
    # children's, and are not overwritten.
    own_parameters, own_buffers = [each is not None for each in parameters], [each is not None for each in buffers]
    for number in range(len(modules) - 1, 0, -1):
        parent = modules[number][2]
        if parameters[number] is not None and not own_parameters[parent]:
            parameters[parent] = parameters[number]
        if buffers[number] is not None and not own_buffers[parent]:
            buffers[parent] = buffers[number]

    # Down, and out.
    places: list[Place] = []
    devices: list[torch.device | None] = []
    marked: dict[type, bool] = {}
    for (path, module, parent), of_parameters, of_buffers in zip(modules, parameters, buffers, strict=True):
        device = of_parameters or of_buffers or (devices[parent] if parent >= 0 else None)
        devices.append(device)
        functions = module.__dict__.get("_kernel_funcs")
        if functions:
            prefix = f"{path}." if path else ""
            places.extend(Place(prefix + name, function, device) for name, function in functions.items())
        kind = type(module)
        if kind not in marked:
            marked[kind] = hasattr(kind, "kernel_layer_name")
        if marked[kind]:
            places.append(Place(path, module, device))
    return places


def layer_name_of(cls: type) -> str:
    """The name by which mappings know a marked class."""
    name: str = cls.kernel_layer_name  # type: ignore[attr-defined]
    return name


def swappable_modules(model: nn.Module) -> Iterable[nn.Module]:
    """Every module of a model, and every function attached to one."""
    for module in model.modules():
        yield from module.__dict__.get("_kernel_funcs", {}).values()
        yield module


def _first_device(tensors: Iterable[torch.Tensor | None]) -> torch.device | None:
    for tensor in tensors:
        if tensor is not None:
            return tensor.device
    return None
