"""Replace a module's forward, and restore it.

The kernel's forward is a bound method in the module's own dictionary, where Python finds it before the class's: a call
costs the same, and `type(module)` does not change. A copy of the module would share it, and run with the weights of the
module it was copied from; so the two methods that copy modules are replaced too, and bind it to the copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from types import MethodType
from typing import TYPE_CHECKING, Any

from kernels.layer.mode import Mode

if TYPE_CHECKING:
    from torch import nn

__all__ = ["LayerDecision", "decision_of", "install", "is_decided", "kernel_slot", "own_forward", "restore"]

#: Where a module keeps the decision of `kernelize`, and a forward that was set on the instance before.
_DECISION = "_kernelized"
_OWN_FORWARD = "_kernels_own_forward"

#: Where a module's forward can be. accelerate's hooks put a wrapper in the first and what it wraps in the second.
_FORWARD, _HOOKED_FORWARD = "forward", "_old_forward"


@dataclass(frozen=True, eq=False)
class LayerDecision:
    """What `kernelize` decided for a layer; shared by modules with the same decision, and by their copies.

    Attributes:
        layer: The layer's name in mappings.
        mode: The mode that the model was kernelized for.
        function: The kernel's forward, not bound to a module; None if the layer keeps its own.
        reason: Why it keeps its own.
        kernel: The kernel's repository or folder.
        commit: The commit it was loaded at.
        variant: The build.
        registered: The mode that the kernel is registered for.
    """

    layer: str
    mode: Mode | None = None
    function: Callable[..., Any] | None = None
    reason: str | None = None
    kernel: str | None = None
    commit: str | None = None
    variant: str | None = None
    registered: Mode | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> LayerDecision:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickle cannot contain a kernel's code, and Python pickles a bound forward by its name: an unpickled module
        # has the class's forward.
        reason = self.reason or "pickled since: kernelize it again"
        return LayerDecision, astuple(replace(self, function=None, reason=reason))


def install(module: nn.Module, decision: LayerDecision) -> None:
    """Give a module the forward of a decision, starting from its original one."""
    restore(module)
    attributes = module.__dict__
    attributes[_DECISION] = decision
    if decision.function is None:
        return
    slot = _slot(attributes)
    own = attributes.get(slot)
    if own is not None:
        attributes[_OWN_FORWARD] = own
    attributes[slot] = MethodType(decision.function, module)
    for name, copier in _COPIERS.items():
        attributes.setdefault(name, MethodType(copier, module))


def own_forward(module: nn.Module) -> Any:
    """The forward that is set on a module, below hooks, other than by `install`; None without one."""
    attributes = module.__dict__
    forward = attributes.get(_slot(attributes))
    decision: LayerDecision | None = attributes.get(_DECISION)
    if forward is None or decision is None or decision.function is None:
        return forward
    return None if getattr(forward, "__func__", None) is decision.function else forward


def _slot(attributes: dict[str, Any]) -> str:
    """Where a module's forward is, below accelerate's hooks."""
    return _HOOKED_FORWARD if "_hf_hook" in attributes and _HOOKED_FORWARD in attributes else _FORWARD


def restore(module: nn.Module) -> None:
    """Give a module its original forward back: its class's, or one that was set on the instance."""
    attributes = module.__dict__
    decision: LayerDecision | None = attributes.pop(_DECISION, None)
    if decision is None:
        return
    for name, copier in _COPIERS.items():
        if getattr(attributes.get(name), "__func__", None) is copier:
            del attributes[name]
    own = attributes.pop(_OWN_FORWARD, None)
    slot = _slot_of(attributes, decision)
    if slot is None:
        return  # other code has replaced the forward since: that one stays
    if own is not None:
        attributes[slot] = own
    elif slot == _FORWARD:
        del attributes[slot]
    else:
        attributes[slot] = MethodType(type(module).forward, module)


def decision_of(module: nn.Module) -> LayerDecision | None:
    """The decision for a module now, or None if it was never kernelized."""
    decision: LayerDecision | None = module.__dict__.get(_DECISION)
    if decision is None or decision.function is None:
        return decision
    slot = _slot_of(module.__dict__, decision)
    if slot is None:
        return replace(decision, function=None, reason="other code has replaced its forward since")
    if module.__dict__[slot].__self__ is not module:
        reason = "copied since, and runs with the weights of the original: kernelize it again"
        return replace(decision, function=None, reason=reason)
    return decision


def kernel_slot(module: nn.Module) -> str | None:
    """The attribute in which a module has the kernel's forward; None if it has none, or another module's."""
    decision = decision_of(module)
    return None if decision is None else _slot_of(module.__dict__, decision)


def is_decided(module: nn.Module) -> bool:
    """Whether `kernelize` has decided for a module, whatever became of it since."""
    return _DECISION in module.__dict__


def _slot_of(attributes: dict[str, Any], decision: LayerDecision) -> str | None:
    """Where the kernel's forward is."""
    if decision.function is not None:
        for slot in (_FORWARD, _HOOKED_FORWARD):
            if getattr(attributes.get(slot), "__func__", None) is decision.function:
                return slot
    return None


def _replicate_for_data_parallel(module: nn.Module) -> nn.Module:
    """Copy a module for `nn.DataParallel`; the replica's parameters are those of its GPU."""
    cls: Any = type(module)
    replica: nn.Module = cls._replicate_for_data_parallel(module)
    replica.__dict__.update(_bound(_ours(module), replica))
    return replica


def __reduce_ex__(module: nn.Module, protocol: Any) -> Any:
    """Take a module apart for `copy.copy`, `copy.deepcopy` and pickle."""
    reduced = type(module).__reduce_ex__(module, protocol)
    if isinstance(reduced, str) or len(reduced) < 3 or not isinstance(reduced[2], dict):
        return reduced
    make, arguments, state, *rest = reduced
    ours = _ours(module)
    # A pickle contains the decision without the kernel's code; so only the slot of the forward is named.
    slots = tuple(name for name in ours if name not in _COPIERS)
    state = {name: value for name, value in state.items() if name not in ours}
    return (_remade, (module.__dict__.get(_DECISION), slots, make, *arguments), state, *rest)


def _remade(decision: LayerDecision | None, slots: tuple[str, ...], make: Callable[..., Any], *arguments: Any) -> Any:
    copied = make(*arguments)
    if decision is not None and decision.function is not None:
        copied.__dict__.update(_bound({**dict.fromkeys(slots, decision.function), **_COPIERS}, copied))
    elif _HOOKED_FORWARD in slots:  # unpickled: the hook calls the class's forward again
        copied.__dict__[_HOOKED_FORWARD] = MethodType(type(copied).forward, copied)
    return copied


#: Methods that are replaced beside the forward, so that a copy gets its own. The functions have the methods' names,
#: since pickle writes a bound method by its name.
_COPIERS: dict[str, Callable[..., Any]] = {
    function.__name__: function for function in (_replicate_for_data_parallel, __reduce_ex__)
}


def _ours(module: nn.Module) -> dict[str, Callable[..., Any]]:
    """The functions that `install` has bound to a module, by the attributes they are in."""
    attributes = module.__dict__
    decision: LayerDecision | None = attributes.get(_DECISION)
    kernel = None if decision is None else decision.function
    functions = {_FORWARD: kernel, _HOOKED_FORWARD: kernel, **_COPIERS}
    return {
        name: bound.__func__
        for name, function in functions.items()
        if isinstance(bound := attributes.get(name), MethodType) and bound.__func__ is function
    }


def _bound(functions: dict[str, Callable[..., Any]], module: nn.Module) -> dict[str, MethodType]:
    return {name: MethodType(function, module) for name, function in functions.items()}
