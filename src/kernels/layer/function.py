"""A function as a layer: an `nn.Module` that replaces the function and has its name and signature.

A wrapped function is one object in the process. A copy of it is itself, and it pickles by reference like a function. So
a model that contains one can be copied and pickled, and its code still calls the same object.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import WRAPPER_ASSIGNMENTS, cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

__all__ = ["function_layer", "is_function", "is_function_class", "wrap_function"]


@cache
def function_layer(function: Callable[..., Any]) -> type[nn.Module]:
    """The layer class whose forward is a kernel's function; the same class every time.

    Args:
        function: The function. Its attributes `can_torch_compile` and `has_backward` become the class's.
    """
    return _layer_class(function)


def wrap_function(function: Callable[..., Any]) -> nn.Module:
    """A layer that is called like the function and carries its name, signature, docstring and attributes.

    Args:
        function: A Python function.
    """
    wrapped = _layer_class(function, _function_base())()
    attributes = wrapped.__dict__
    for name in WRAPPER_ASSIGNMENTS:
        if hasattr(function, name):
            attributes[name] = getattr(function, name)
    # Attributes of the function are copied, unless a layer uses the name itself.
    attributes.update({name: value for name, value in vars(function).items() if not hasattr(wrapped, name)})
    attributes["__wrapped__"] = function
    return wrapped


def is_function(module: object) -> bool:
    """Whether a module is a wrapped function."""
    return isinstance(module, _function_base())


def is_function_class(cls: type) -> bool:
    """Whether a class is that of a wrapped function."""
    return issubclass(cls, _function_base())


def _layer_class(function: Callable[..., Any], base: type[nn.Module] | None = None) -> type[nn.Module]:
    from torch import nn

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    # The function's parameters after `self`: a kernel's layer is compared with these.
    signature = inspect.signature(function)
    receiver = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].kind is not inspect.Parameter.POSITIONAL_ONLY:
        receiver = receiver.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
    forward.__signature__ = signature.replace(parameters=[_unused(receiver, parameters), *parameters])  # type: ignore[attr-defined]
    members = {
        "__module__": getattr(function, "__module__", __name__),
        "__doc__": function.__doc__,
        "forward": forward,
        "can_torch_compile": getattr(function, "can_torch_compile", False),
        "has_backward": getattr(function, "has_backward", True),
    }
    return type(getattr(function, "__name__", "function"), (base or nn.Module,), members)


def _unused(receiver: inspect.Parameter, parameters: list[inspect.Parameter]) -> inspect.Parameter:
    # A function may have a parameter named `self`.
    name = receiver.name
    while any(parameter.name == name for parameter in parameters):
        name = f"_{name}"
    return receiver.replace(name=name)


@cache
def _function_base() -> type[nn.Module]:
    from torch import nn

    class KernelFunction(nn.Module):
        def __copy__(self) -> KernelFunction:
            return self

        def __deepcopy__(self, memo: dict[int, Any]) -> KernelFunction:
            return self

        def __reduce_ex__(self, protocol: Any) -> str:
            # Pickle looks a string up in `__module__`, as it does for a function.
            return str(self.__dict__["__qualname__"])

    return KernelFunction
