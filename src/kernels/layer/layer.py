"""Mark layers and functions with the name that mappings use for them, and make a layer of a function.

A wrapped function is one object in the process. A copy of it is itself, and it pickles by reference like a function. So
a model that contains one can be copied and pickled, and its code still calls the same object.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from kernels.errors import RequestError
from kernels.layer.fits import remember_forward
from kernels.support.formatting import wrong_type
from kernels.tracebacks import public

if TYPE_CHECKING:
    from torch import nn

    from kernels.layer.mode import KernelizeFallback
    from kernels.layer.repos import LayerRepository, LocalLayerRepository, LockedLayerRepository

__all__ = [
    "KernelizeFallback",
    "LayerRepository",
    "LocalLayerRepository",
    "LockedLayerRepository",
    "always",
    "function_layer",
    "is_function",
    "is_function_class",
    "layer_name_of",
    "replace_kernel_forward_from_hub",
    "use_kernel_forward_from_hub",
    "use_kernel_func_from_hub",
    "use_kernelized_func",
]

_Class = TypeVar("_Class", bound=type)
_Layer = TypeVar("_Layer")
_Target = TypeVar("_Target", bound=Callable[..., Any])


@public
def replace_kernel_forward_from_hub(
    cls: type[_Layer], layer_name: str, condition: Callable[[_Layer], bool] | None = None
) -> None:
    """Mark a third-party class, so that `kernelize` may replace its forward.

    Its members and the parameters of its forward may change with the library that defines it. For your own class, use
    the decorator `use_kernel_forward_from_hub`.

    Args:
        cls: A layer class.
        layer_name: Its name in mappings.
        condition: Called with each instance when a model is kernelized; if it is false, the instance is not changed.

    Raises:
        TypeError: An argument is of the wrong type.

    Example:
        >>> from torch import nn
        >>> class Norm(nn.LayerNorm): pass
        >>> replace_kernel_forward_from_hub(Norm, "LayerNorm")
        >>> Norm.kernel_layer_name
        'LayerNorm'
    """
    if not inspect.isclass(cls):
        raise wrong_type("cls", "a class", cls)
    _check_mark(layer_name, condition)
    remember_forward(cls)
    cls.kernel_layer_name = layer_name  # type: ignore[attr-defined]
    # Static, so that reading it from an instance does not bind it: its one argument is the module.
    cls.kernel_condition = staticmethod(condition or always)  # type: ignore[attr-defined]


@public
def use_kernel_forward_from_hub(
    layer_name: str, condition: Callable[[Any], bool] | None = None
) -> Callable[[_Target], _Target]:
    """A decorator that marks a layer class, or makes a function a layer, so that `kernelize` may replace its forward.

    A function becomes an `nn.Module` that is called like it. `kernelize` finds it where it is attached to a module: by
    `use_kernelized_func`, or as an attribute. It is one object: the last `kernelize` decides which forward it runs.

    Args:
        layer_name: Its name in mappings.
        condition: Called with each instance when a model is kernelized; if it is false, the instance is not changed.

    Returns:
        The decorator. It returns the class itself, or the `nn.Module` that the function became.

    Raises:
        TypeError: An argument or the decorated object is of the wrong type.

    Example:
        >>> from torch import nn
        >>> @use_kernel_forward_from_hub("Twice")
        ... class Twice(nn.Module):
        ...     def forward(self, x):
        ...         return 2 * x
        >>> @use_kernel_forward_from_hub("triple")
        ... def triple(x):
        ...     return 3 * x
        >>> Twice()(4), triple(4)
        (8, 12)
    """
    _check_mark(layer_name, condition)

    def mark(target: Any) -> Any:
        if inspect.isfunction(target):
            wrapped = _wrapped(target)
            replace_kernel_forward_from_hub(type(wrapped), layer_name, condition)
            return wrapped
        if inspect.isclass(target):
            replace_kernel_forward_from_hub(target, layer_name, condition)
            return target
        raise wrong_type("@use_kernel_forward_from_hub", "a class or a function", target)

    return mark


@public
def use_kernelized_func(*functions: Callable[..., Any]) -> Callable[[_Class], _Class]:
    """A class decorator that attaches the functions which the class's forward calls, so that `kernelize` finds them.

    Each instance gets a dictionary `_kernel_funcs`, layer name → function; the functions are no submodules.

    Args:
        functions: Functions decorated with `use_kernel_forward_from_hub`.

    Returns:
        The decorator, which returns the class itself.

    Raises:
        TypeError: The decorated object is not a class.
        RequestError: A function is not decorated.

    Example:
        >>> from torch import nn
        >>> @use_kernel_forward_from_hub("double")
        ... def double(x):
        ...     return 2 * x
        >>> @use_kernelized_func(double)
        ... class Layer(nn.Module):
        ...     def forward(self, x):
        ...         return double(x)
        >>> Layer()._kernel_funcs["double"] is double
        True
    """
    named: dict[str, Callable[..., Any]] = {}
    for function in functions:
        if not hasattr(type(function), "kernel_layer_name"):
            name = getattr(function, "__name__", repr(function))
            raise RequestError(f"@use_kernelized_func: {name!r} is not decorated with @use_kernel_forward_from_hub.")
        named[layer_name_of(type(function))] = function

    def attach(cls: _Class) -> _Class:
        if not inspect.isclass(cls):
            raise wrong_type("@use_kernelized_func", "a class", cls)
        init = cls.__init__

        @functools.wraps(init)
        def init_with_functions(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            self.__dict__.setdefault("_kernel_funcs", {}).update(named)

        cls.__init__ = init_with_functions  # type: ignore[method-assign]
        return cls

    return attach


@public
def use_kernel_func_from_hub(func_name: str) -> Callable[[_Target], _Target]:
    """Deprecated: `use_kernel_forward_from_hub` marks functions too.

    Args:
        func_name: Its name in mappings.

    Returns:
        The decorator, as that of `use_kernel_forward_from_hub`.
    """
    warnings.warn(
        "use_kernel_func_from_hub is deprecated: use_kernel_forward_from_hub marks functions too.",
        DeprecationWarning,
        stacklevel=3,  # past the frame that `public` adds
    )
    return use_kernel_forward_from_hub(func_name)


def _check_mark(layer_name: Any, condition: Any) -> None:
    if not isinstance(layer_name, str):
        raise wrong_type("layer_name", "a string", layer_name)
    if condition is not None and not callable(condition):
        raise wrong_type("condition", "a function or None", condition)


def always(module: object) -> bool:
    """The condition of a layer that has none."""
    return True


def layer_name_of(cls: type) -> str:
    """The name by which mappings know a marked class."""
    name: str = cls.kernel_layer_name  # type: ignore[attr-defined]
    return name


@functools.cache
def function_layer(function: Callable[..., Any]) -> type[nn.Module]:
    """The layer class whose forward is a kernel's function; the same class every time.

    Args:
        function: The function. Its attributes `can_torch_compile` and `has_backward` become the class's.
    """
    return _layer_class(function)


def _wrapped(function: Callable[..., Any]) -> nn.Module:
    """A layer that is called like a Python function and carries its name, signature, docstring and attributes."""
    wrapped = _layer_class(function, _function_base())()
    attributes = wrapped.__dict__
    for name in functools.WRAPPER_ASSIGNMENTS:
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
    parameters = list(signature.parameters.values())
    name = "self"
    while name in signature.parameters:  # a function may have a parameter of that name
        name = f"_{name}"
    first_only = parameters and parameters[0].kind is inspect.Parameter.POSITIONAL_ONLY
    kind = inspect.Parameter.POSITIONAL_ONLY if first_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
    receiver = inspect.Parameter(name, kind)
    forward.__signature__ = signature.replace(parameters=[receiver, *parameters])  # type: ignore[attr-defined]
    members = {
        "__module__": getattr(function, "__module__", __name__),
        "__doc__": function.__doc__,
        "forward": forward,
        "can_torch_compile": getattr(function, "can_torch_compile", False),
        "has_backward": getattr(function, "has_backward", True),
    }
    return type(getattr(function, "__name__", "function"), (base or nn.Module,), members)


@functools.cache
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


if not TYPE_CHECKING:

    def __getattr__(name):
        # The existing client has the repositories at this path too.
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from kernels.layer import mode, repos

        return getattr(mode if name == "KernelizeFallback" else repos, name)
