"""Replace a module's forward, and restore it.

The kernel's forward is a bound method in the module's own dictionary, where Python finds it before the class's: a call
costs the same, and `type(module)` does not change.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from kernels.layer.decision import DECISION, LayerDecision, noted_decision

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "FORWARDS",
    "decision_of",
    "install",
    "kept_forwards",
    "own_forward",
    "replaced_forward",
    "restore",
]

#: Where a module's forward can be. accelerate's hooks put a wrapper in the first and what it wraps in the second.
FORWARDS = _FORWARD, _HOOKED_FORWARD = "forward", "_old_forward"

#: Who asks a module to take itself apart for a copy; all others do for a pickle.
_COPYING = (copy.copy.__code__, copy.deepcopy.__code__)


class _Copies:
    """Methods that are replaced beside the forward, since a copy of a module would share the bound method.

    It would run with the weights of the module it was copied from, so each copy gets a forward of its own. A pickle
    gets none of this: it loads without this package, with the module's own forward. `self` is the module; the methods
    have the names that they replace, since pickle writes a bound method by its name.
    """

    def _replicate_for_data_parallel(self: Any) -> Any:
        """Copy a module for `nn.DataParallel`; the replica's parameters are those of its GPU."""
        replica = type(self)._replicate_for_data_parallel(self)
        _bind(replica, _bound_functions(self))
        return replica

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        """Take a module apart for `copy.copy`, `copy.deepcopy` and pickle."""
        cls: Any = type(self)
        reduced = cls.__reduce_ex__(self, protocol)
        if isinstance(reduced, str):
            return reduced
        functions = _bound_functions(self)
        if sys._getframe(1).f_code in _COPYING:
            make, arguments, *rest = (_without(part, functions, {}) for part in reduced)
            return (_remade, (_Functions(functions), make, *arguments), *rest)
        own = {_HOOKED_FORWARD: MethodType(cls.forward, self)} if _HOOKED_FORWARD in functions else {}
        return tuple(_without(part, functions, own) for part in reduced)


_COPIERS: dict[str, Callable[..., Any]] = {
    name: member for name, member in vars(_Copies).items() if isinstance(member, FunctionType)
}

#: The methods that `install` may replace on a module, and all that it may set.
_REPLACED = (*FORWARDS, *_COPIERS)
_ADDED = (*_REPLACED, DECISION)


def install(modules: Iterable[nn.Module], decision: LayerDecision) -> None:
    """Give modules the forward of a decision, starting from their original ones."""
    function = decision.function
    for module in modules:
        attributes = module.__dict__
        if DECISION in attributes:
            restore(module)
        attributes[DECISION] = decision
        if function is None:
            continue
        attributes[_slot(attributes) if _HOOKED_FORWARD in attributes else _FORWARD] = MethodType(function, module)
        for name, copier in _COPIERS.items():
            if name not in attributes:
                attributes[name] = MethodType(copier, module)


def own_forward(module: nn.Module) -> Any:
    """The forward that is set on a module, below hooks, other than by `install`; None without one."""
    attributes = module.__dict__
    forward = attributes.get(_slot(attributes))
    decision = None if forward is None else noted_decision(module)
    if decision is None or decision.function is None:
        return forward
    return None if getattr(forward, "__func__", None) is decision.function else forward


def restore(module: nn.Module) -> None:
    """Give a module its own forward back."""
    attributes = module.__dict__
    if DECISION not in attributes:
        return
    for name in _bound_functions(module):
        if name == _HOOKED_FORWARD:
            attributes[name] = MethodType(type(module).forward, module)
        else:
            attributes.pop(name, None)  # another thread may have been first
    attributes.pop(DECISION, None)


@contextmanager
def kept_forwards(modules: Iterable[nn.Module]) -> Iterator[Callable[[], object]]:
    """Give modules the forwards and decisions back that they have, after a block; what it gives keeps the new ones."""
    with ExitStack() as undone:
        for module in modules:
            attributes = module.__dict__
            before = {name: attributes[name] for name in _ADDED if name in attributes}
            undone.callback(_put_back, attributes, before)
        yield undone.pop_all


def _put_back(attributes: dict[str, Any], before: dict[str, Any]) -> None:
    for name in _ADDED:
        attributes.pop(name, None)
    attributes.update(before)


@contextmanager
def replaced_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Put a function into the place of a module's forward, below hooks, in a block."""
    with kept_forwards([module]):
        module.__dict__[_slot(module.__dict__)] = forward
        yield


def decision_of(module: nn.Module) -> LayerDecision | None:
    """The decision for a module now, or None if it was never kernelized."""
    noted = module.__dict__.get(DECISION)
    if isinstance(noted, str):
        return LayerDecision(noted, reason="pickled since: kernelize it again")
    decision = noted_decision(module)
    if decision is None or decision.function is None:
        return decision
    slot = _slot_of(module.__dict__, decision)
    if slot is None:
        return replace(decision, function=None, reason="other code has replaced its forward since", each=())
    if module.__dict__[slot].__self__ is not module:
        reason = "copied since, and runs with the weights of the original: kernelize it again"
        return replace(decision, function=None, reason=reason, each=())
    return decision


def _slot(attributes: dict[str, Any]) -> str:
    """Where a module's forward is, below accelerate's hooks."""
    return _HOOKED_FORWARD if "_hf_hook" in attributes and _HOOKED_FORWARD in attributes else _FORWARD


def _slot_of(attributes: dict[str, Any], decision: LayerDecision) -> str | None:
    """Where the kernel's forward is."""
    if decision.function is not None:
        for slot in FORWARDS:
            if getattr(attributes.get(slot), "__func__", None) is decision.function:
                return slot
    return None


def _without(part: Any, dropped: Collection[str], own: dict[str, Any]) -> Any:
    """A part of a module's state without what `install` has bound: a dictionary of attributes, or a tuple of these."""
    if type(part) is dict and not part.keys().isdisjoint(dropped):
        return {name: own.get(name, value) for name, value in part.items() if name not in dropped or name in own}
    if type(part) is tuple:
        return tuple(_without(each, dropped, own) for each in part)
    return part


class _Functions(dict[str, Any]):
    """Functions that a copy shares with the original."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Functions:
        return self


def _remade(functions: dict[str, Callable[..., Any]], make: Callable[..., Any], *arguments: Any) -> Any:
    copied = make(*arguments)
    _bind(copied, functions)
    return copied


def _bound_functions(module: nn.Module) -> dict[str, Callable[..., Any]]:
    """The functions that `install` has bound to a module, by the attributes they are in."""
    attributes = module.__dict__
    decision = noted_decision(module)
    kernel = None if decision is None else decision.function
    found: dict[str, Callable[..., Any]] = {}
    for name in _REPLACED:
        bound = attributes.get(name)
        if type(bound) is MethodType and bound.__func__ is _COPIERS.get(name, kernel):
            found[name] = bound.__func__
    return found


def _bind(module: nn.Module, functions: dict[str, Callable[..., Any]]) -> None:
    module.__dict__.update({name: MethodType(function, module) for name, function in functions.items()})
