"""Whether a layer's forward is the one that its kernel was written for, as far as can be told before the first call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import FunctionType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from kernels.support.formatting import format_names

if TYPE_CHECKING:
    from torch import nn

__all__ = ["class_fault", "lacking_attributes", "module_fault", "remember_forward", "replaceable_methods"]

#: The forward and the class's own methods that each class had when it was marked.
_marked: WeakKeyDictionary[type, dict[str, Any]] = WeakKeyDictionary()

_METHODS = (FunctionType, property, classmethod, staticmethod, functools.cached_property)


def remember_forward(cls: type) -> None:
    """Note the forward of a class that is being marked, and its methods: a kernel is written for these."""
    own = {name: member for name, member in vars(cls).copy().items() if isinstance(member, _METHODS)}
    _marked[cls] = own | {"forward": _found(cls, "forward")}


def class_fault(cls: type) -> str | None:
    """Why no instance of a class may get a kernel that is mapped to its mark, or None.

    Args:
        cls: A class that is marked, or inherits a mark.
    """
    owner = _owner(cls)
    forward, marked = _found(cls, "forward"), _found(owner, "forward")
    written = f"the kernel is written for that of {owner.__qualname__}, which carries the mark"
    if forward is not marked:
        return f"{_definer(cls, 'forward').__qualname__} overrides forward, and {written}"
    noted = _marked.get(owner, {})
    if noted.get("forward", marked) is not marked:
        return f"the forward of {owner.__qualname__} was replaced after the class was marked"
    for name in _methods(cls):
        if _found(cls, name) is not _found(owner, name):
            return f"{_definer(cls, name).__qualname__} overrides {name}, which forward calls, and {written}"
        if name in noted and _found(owner, name) is not noted[name]:
            return f"{name} of {owner.__qualname__}, which forward calls, was replaced after the class was marked"
    return None


def module_fault(module: nn.Module, own_forward: Any) -> str | None:
    """Why one module may not get the kernel of its class, or None.

    Args:
        module: A layer.
        own_forward: The forward that is set on it, below hooks, other than by `kernelize`; None without one.
    """
    cls: Any = type(module)
    if own_forward is not None and getattr(own_forward, "__func__", None) is not _found(cls, "forward"):
        return "a forward of its own is set on this module"
    for name in replaceable_methods(cls):
        if name in module.__dict__:
            return f"{name}, which forward calls, is set on this module"
    return None


def replaceable_methods(cls: type) -> list[str]:
    """The methods that the forward of a class uses, in whose place a module may have attributes of its own.

    Args:
        cls: A class that is marked, or inherits a mark.
    """
    return [name for name in _methods(cls) if not isinstance(_found(cls, name), functools.cached_property)]


def lacking_attributes(forward: Callable[..., Any], modules: Sequence[nn.Module]) -> dict[int, str]:
    """What a kernel's forward reads of modules that do not have it: a reason for each such module, by its place.

    Args:
        forward: The kernel's forward.
        modules: Modules of one class.
    """
    cls: Any = type(modules[0])
    wanted = _beyond_class(forward, cls)
    if not wanted:
        return {}
    found: dict[int, str] = {}
    for place, module in enumerate(modules):
        attributes = module.__dict__
        for name in wanted:
            if name not in attributes and not _holds(attributes, name):
                missing = [name for name in wanted if not _holds(attributes, name)]
                if not (_has_getattr(cls) and all(_has(module, name) for name in missing)):
                    read = format_names(f"self.{name}" for name in missing)
                    found[place] = f"the kernel's forward reads {read}, which {cls.__qualname__} does not have"
                break
    return found


def _holds(attributes: dict[str, Any], name: str) -> bool:
    for table in ("_parameters", "_buffers", "_modules"):
        if name in attributes.get(table, ()):
            return True
    return name in attributes


def _beyond_class(forward: Callable[..., Any], cls: Any) -> tuple[str, ...]:
    """What a forward reads that the class itself does not have."""
    from kernels.layer.reads import reads_of

    return tuple(sorted(name for name in reads_of(forward).required if name not in vars(_definer(cls, name))))


def _methods(cls: type) -> tuple[str, ...]:
    """The methods and properties that the forward of a class with its mark uses, and those that these use."""
    return _methods_of(cls, cls.forward)  # type: ignore[attr-defined]


# By the forward, too: a library may replace that of a class and mark the class again.
@lru_cache(maxsize=4096)
def _methods_of(cls: Any, forward: Any) -> tuple[str, ...]:
    from kernels.layer.reads import reads_of

    owner = _owner(cls)
    found: dict[str, None] = {}
    pending = [_found(owner, "forward")]
    while pending:
        for name in sorted(reads_of(_function(pending.pop())).named):
            member = _found(owner, name)
            if name not in found and isinstance(member, _METHODS) and _definer(owner, name) not in _torch_classes():
                found[name] = None
                pending.append(member)
    return tuple(found)


def _function(member: Any) -> Any:
    if isinstance(member, property):
        return member.fget
    if isinstance(member, functools.cached_property):
        return member.func
    return getattr(member, "__func__", member)


def _owner(cls: type) -> type:
    """The class whose mark a class has."""
    return next((base for base in cls.__mro__ if "kernel_layer_name" in vars(base)), cls)


def _found(cls: type, name: str) -> Any:
    """A class's attribute as it is defined, or None."""
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)


def _definer(cls: type, name: str) -> type:
    return next((base for base in cls.__mro__ if name in vars(base)), cls)


@functools.cache
def _torch_classes() -> tuple[type, ...]:
    from torch import nn

    return nn.Module.__mro__


def _has_getattr(cls: type) -> bool:
    from torch import nn

    return _found(cls, "__getattr__") is not vars(nn.Module)["__getattr__"]


def _has(module: nn.Module, name: str) -> bool:
    try:
        return hasattr(module, name)
    except Exception:  # noqa: BLE001 - a third-party `__getattr__`
        return False
