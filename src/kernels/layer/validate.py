"""The rules for a kernel's layer: its forward runs with another layer's members, so it may have none of its own."""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kernels.errors import LayerError, MappingError
from kernels.layer.mode import Mode

if TYPE_CHECKING:
    from torch import nn

__all__ = ["ALLOWED_MEMBERS", "check_layer", "check_registered_mode", "other_parameters", "unsupported"]

#: The members that a layer may have beyond those of every `nn.Module`.
ALLOWED_MEMBERS = frozenset({"can_torch_compile", "has_backward"})

# The members that a class statement itself creates, on any Python from 3.10.
_STATEMENT = frozenset(
    {
        "__abstractmethods__",
        "__annotate__",
        "__annotate_func__",
        "__annotations__",
        "__annotations_cache__",
        "__classdictcell__",
        "__conditional_annotations__",
        "__dict__",
        "__doc__",
        "__firstlineno__",
        "__module__",
        "__orig_bases__",
        "__parameters__",
        "__qualname__",
        "__static_attributes__",
        "__weakref__",
        "_abc_impl",
    }
)


def check_layer(layer: Any, replaced: Any, origin: str) -> None:
    """Check that a kernel's layer may replace another layer's forward.

    Args:
        layer: The kernel's attribute with the layer's name.
        replaced: The class of the layer whose forward is replaced.
        origin: Where `layer` comes from, for the message.

    Raises:
        LayerError: It is not a subclass of `nn.Module`, has a constructor or new members, or its forward takes other
            parameters.
    """
    from torch import nn

    if not inspect.isclass(layer) or not issubclass(layer, nn.Module):
        raise LayerError(f"{origin}: expected a subclass of torch.nn.Module, got {layer!r}.")
    cls: Any = layer
    fault = _fault(cls, replaced)
    if fault is not None:
        raise LayerError(f"{origin} {fault}")


def check_registered_mode(layer: type[nn.Module], layer_name: str, mode: Mode, origin: str) -> None:
    """Check that a layer supports the mode that it is registered for.

    Raises:
        MappingError: It does not, so the mapping is wrong.
    """
    lacking = unsupported(layer, mode)
    if lacking is not None:
        raise MappingError(f"{origin} {lacking}, but is registered for {layer_name!r} with the mode {mode}.")


def unsupported(layer: type[nn.Module], mode: Mode) -> str | None:
    """What a mode needs and a layer does not support, or None."""
    if Mode.TRAINING in mode and not getattr(layer, "has_backward", True):
        return "does not support backward"
    if Mode.TORCH_COMPILE in mode and not getattr(layer, "can_torch_compile", False):
        return "does not support torch.compile"
    return None


def other_parameters(layer: Any, replaced: Any) -> str | None:
    """How the same call would mean something else to a kernel's forward, or None.

    Args:
        layer: A kernel's layer that `check_layer` accepts: its forward has parameters of the same number and kinds.
        replaced: The class of the layer whose forward is replaced.
    """
    return _other_parameters(layer.forward, replaced.forward)


# By the forwards: a library may replace that of a class and mark the class again.
@lru_cache(maxsize=4096)
def _other_parameters(kernel_forward: Any, own_forward: Any) -> str | None:
    own = list(inspect.signature(own_forward).parameters.values())[1:]
    kernel = list(inspect.signature(kernel_forward).parameters.values())[1:]
    positions = {parameter.name: number for number, parameter in enumerate(own)}
    by_name = {parameter.name: parameter for parameter in own if parameter.kind is parameter.KEYWORD_ONLY}
    for number, parameter in enumerate(kernel):
        name = parameter.name
        if parameter.kind is parameter.KEYWORD_ONLY:
            if name not in by_name:
                return f"the kernel's forward has a keyword-only parameter {name!r}, which the layer's has not"
            other = by_name[name]
        else:
            other = own[number]
            if positions.get(name, number) != number:
                places = number + 1, positions[name] + 1
                return "the kernel's forward takes {!r} as argument {}, the layer's as {}".format(name, *places)
        if _is_other_default(parameter.default, other.default):
            defaults = parameter.default, other.default
            return "the default of {!r} is {!r} in the kernel's forward, {!r} in the layer's".format(name, *defaults)
    return None


def _is_other_default(kernel: Any, own: Any) -> bool:
    """Whether a call that leaves an argument out means something else to the kernel."""
    empty = inspect.Parameter.empty
    if kernel is own or kernel is empty or own is empty:  # a call without the argument fails, or the layer has none
        return False
    try:
        return not bool(kernel == own or (kernel != kernel and own != own))  # or both are NaN
    except Exception:  # noqa: BLE001 - values of any type, such as a tensor
        return True


def _fault(layer: Any, replaced: Any) -> str | None:
    from torch import nn

    if layer.__init__ is not nn.Module.__init__ or layer.__new__ is not nn.Module.__new__:
        return "must not override the constructor of nn.Module: it runs with the members of the layer that it replaces."
    own = {name for cls in layer.__mro__ if cls not in nn.Module.__mro__ for name in vars(cls)}
    new = sorted(own - set(dir(nn.Module)) - _STATEMENT - ALLOWED_MEMBERS)
    if new:
        return f"must not contain additional members, but has {', '.join(new)}; put them outside the class."
    return _signature_fault(layer.forward, replaced.forward, replaced.__qualname__)


@lru_cache(maxsize=4096)
def _signature_fault(kernel_forward: Any, own_forward: Any, replaced: str) -> str | None:
    try:
        signature, wanted = inspect.signature(kernel_forward), inspect.signature(own_forward)
    except (TypeError, ValueError) as error:
        return f"has a forward whose parameters cannot be compared with those of {replaced}: {error}"
    parameters, others = signature.parameters.values(), wanted.parameters.values()
    compared = f"forward{signature} cannot replace {replaced}.forward{wanted}"
    if len(parameters) != len(others):
        return f"has a different number of arguments: {compared}."
    for parameter, other in zip(parameters, others, strict=True):
        if parameter.kind != other.kind:
            return (
                f"has different kinds of arguments ({parameter.name}: {parameter.kind.description}, "
                f"{other.name}: {other.kind.description}): {compared}."
            )
    return None
