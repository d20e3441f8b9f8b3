"""Forwards that choose at each call: by the module's `training`, by whether a gradient is needed, by the input's size.

`kernelize` binds a kernel's own forward wherever nothing has to be asked. Only the layers that need one of these pay
for the question. `torch.compile` evaluates each as a guard, without a graph break.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kernels.errors import MappingError

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Forward", "by_size", "by_training", "unless_gradient", "wrapped_kernel"]

Forward = Callable[..., Any]


@lru_cache(maxsize=4096)
def by_training(inference: Forward, training: Forward, own: Forward) -> Forward:
    """One of two forwards, by the module's own `training`.

    Args:
        inference: The forward in evaluation.
        training: The forward in training.
        own: The forward of the layer's class, whose signature the new one has.
    """

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return (training if self.training else inference)(self, *args, **kwargs)

    return _like(forward, own, inference)


@lru_cache(maxsize=4096)
def unless_gradient(kernel: Forward, own: Forward, refused: str | None, is_function: bool) -> Forward:
    """A kernel's forward that has no backward, and another one wherever a gradient is needed.

    A gradient is needed in training, and where gradients are enabled and an argument or a parameter requires one. A
    module in training counts whatever is enabled: activation checkpointing calls it without gradients first, and the
    results of both calls must be the same.

    Args:
        kernel: The kernel's forward.
        own: The forward that runs instead.
        refused: The error's message where the layer may not keep its own forward; None where it may.
        is_function: Whether the layer is a function: it has neither parameters nor a `training` of its own.
    """

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if _needs_gradient(self, args, kwargs, is_function):
            if refused is not None:
                raise MappingError(refused)
            return own(self, *args, **kwargs)
        return kernel(self, *args, **kwargs)

    return _like(forward, own, kernel)


@lru_cache(maxsize=4096)
def by_size(elements: int, below: Forward, above: Forward, own: Forward, argument: tuple[int, str]) -> Forward:
    """One of two forwards, by the number of elements of an argument; the layer's own where it is no tensor.

    Args:
        elements: The number from which `above` runs.
        below: The forward for fewer elements.
        above: The forward for as many and more.
        own: The forward of the layer's class, whose signature the new one has.
        argument: The argument, a tensor: its place after `self`, and its name.
    """
    import torch

    place, name = argument

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        tensor = args[place] if len(args) > place else kwargs.get(name)
        if not isinstance(tensor, torch.Tensor):
            return own(self, *args, **kwargs)
        return (above if tensor.numel() >= elements else below)(self, *args, **kwargs)

    return _like(forward, own, above if below is own else below)


def wrapped_kernel(forward: Forward) -> Forward:
    """The kernel's own forward below the choices: of two kernels, that for inference.

    Args:
        forward: What a module runs.
    """
    while (inner := getattr(forward, _KERNEL, None)) is not None:
        forward = inner
    return forward


#: The attribute with the kernel's forward; `__wrapped__` could be a kernel's own.
_KERNEL = "_kernels_forward"


def _like(forward: Any, own: Forward, kernel: Forward) -> Forward:
    """Give a forward the signature of the layer's own, and remember the kernel's."""
    forward.__signature__ = inspect.signature(own)
    forward.__wrapped__ = kernel  # for those who read the kernel's source
    setattr(forward, _KERNEL, kernel)
    return forward  # type: ignore[no-any-return]


def _needs_gradient(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], is_function: bool) -> bool:
    import torch

    if not is_function and module.training:
        return True
    if not torch.is_grad_enabled():
        return False
    if not is_function and any(parameter.requires_grad for parameter in module.parameters()):
        return True
    return _require_gradient(args) or _require_gradient(kwargs.values())


def _require_gradient(values: Iterable[Any]) -> bool:
    """Whether one of the tensors among values, or in their tuples, lists and dictionaries, requires a gradient."""
    for value in values:
        if isinstance(value, (tuple, list)):
            if _require_gradient(value):
                return True
        elif isinstance(value, dict):
            if _require_gradient(value.values()):
                return True
        elif getattr(value, "requires_grad", False) is True:
            return True
    return False
