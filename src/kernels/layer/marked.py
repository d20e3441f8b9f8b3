"""The layers of a model that a kernel may serve, and the device each runs on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kernels.layer.decorate import layer_name_of
from kernels.layer.swap import is_decided

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["MarkedLayer", "find_marked", "with_functions"]


class MarkedLayer(NamedTuple):
    """A layer of a model that a kernel may serve, or a marked function that is attached to one of its modules.

    Attributes:
        path: Its name in the model; for a function, the name of its module and its own.
        module: The layer. One function may be attached to many modules.
        device: The device of its parameters, else of its buffers, else of its nearest ancestor's; None without any.
        name: Its name in mappings; None for a layer without a mark that was kernelized before.
    """

    path: str
    module: nn.Module
    device: torch.device | None
    name: str | None


def find_marked(model: nn.Module, by_class: Mapping[type, str] | None = None) -> Iterator[MarkedLayer]:
    """Every marked layer of a model in the order of `named_modules`, each module's functions before it.

    Layers that were kernelized before are found too, marked or not.

    Args:
        model: The model.
        by_class: Names of classes for this call; they come before marks.

    Each module's own tensors give its device, which is passed up to the modules that contain it, then down to those
    that have none: the time is linear in the number of modules, whatever their depth. Flat lists hold the data, since
    with a tuple for each module Python's garbage collector would walk the whole model again and again.
    """
    modules: list[nn.Module] = []
    paths: list[str] = []
    parents: list[int] = []
    parameters: list[torch.device | None] = []
    buffers: list[torch.device | None] = []
    seen: set[int] = set()
    next_modules, next_paths, next_parents = [model], [""], [-1]
    while next_modules:
        module, path, parent = next_modules.pop(), next_paths.pop(), next_parents.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        children = module._modules
        if children:
            prefix = f"{path}." if path else ""
            for name, child in reversed(children.items()):
                if child is not None:
                    next_modules.append(child)
                    next_paths.append(prefix + name)
                    next_parents.append(len(modules))
        modules.append(module)
        paths.append(path)
        parents.append(parent)
        parameters.append(_first_device(module._parameters))
        buffers.append(_first_device(module._buffers))

    _pass_up(parameters, parents)
    _pass_up(buffers, parents)
    devices: list[torch.device | None] = []
    names: dict[type, str | None] = dict(by_class or {})
    for number, module in enumerate(modules):
        parent = parents[number]
        device = parameters[number] or buffers[number] or (devices[parent] if parent >= 0 else None)
        devices.append(device)
        functions = module.__dict__.get("_kernel_funcs")
        if functions:
            prefix = f"{paths[number]}." if paths[number] else ""
            for name, function in functions.items():
                yield MarkedLayer(prefix + name, function, device, layer_name_of(type(function)))
        kind = type(module)
        if kind not in names:
            names[kind] = layer_name_of(kind) if hasattr(kind, "kernel_layer_name") else None
        if names[kind] is not None or is_decided(module):
            yield MarkedLayer(paths[number], module, device, names[kind])


def with_functions(model: nn.Module) -> Iterable[nn.Module]:
    """Every module of a model, and every function that is attached to one."""
    for module in model.modules():
        yield from module.__dict__.get("_kernel_funcs", {}).values()
        yield module


def _pass_up(devices: list[torch.device | None], parents: list[int]) -> None:
    """Give each module without a device that of the first module in it that has one."""
    own = [device is not None for device in devices]
    for number in range(len(devices) - 1, 0, -1):  # in reverse, so that the first of several wins
        device = devices[number]
        if device is not None and not own[parents[number]]:
            devices[parents[number]] = device


def _first_device(tensors: dict[str, Any]) -> torch.device | None:
    if tensors:
        for tensor in tensors.values():
            if tensor is not None:
                device: torch.device = tensor.device
                return device
    return None
