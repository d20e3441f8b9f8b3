"""A module's forward, replaced and put back.

The kernel's forward is a bound method in the module's own dictionary, where Python finds it before the class's: a call
costs the same, and `type(module)` stays what it was. A copy of the module would share it, and run with the weights of
the module it was copied from; so the two methods by which modules are copied stand beside it, and bind it to the copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import MethodType
from typing import TYPE_CHECKING, Any

from kernels.layer.mode import Mode

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Outcome", "install", "outcome_of", "restore"]

#: Where a module keeps what `kernelize` decided for it, and a forward that someone had set on the instance before.
_OUTCOME = "_kernelized"
_OWN_FORWARD = "_kernels_own_forward"

#: Where a module's forward can be. accelerate's hooks put a wrapper in the first and what it wraps in the second.
_FORWARD, _HOOKED_FORWARD = "forward", "_old_forward"


@dataclass(frozen=True, eq=False)
class Outcome:
    """What `kernelize` decided for a layer. Shared by the modules it holds for, and by their copies.

    Attributes:
        layer: The layer's name in mappings.
        mode: What the model was kernelized for.
        function: The kernel's forward, not bound to a module; None where the layer kept its own.
        reason: Why it kept its own.
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

    def __deepcopy__(self, memo: dict[int, Any]) -> Outcome:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickle cannot carry a kernel's code, and Python pickles a bound forward by its name: what comes back has
        # the class's forward.
        reason = self.reason or "pickled since: kernelize it again"
        return Outcome, (self.layer, self.mode, None, reason, self.kernel, self.commit, self.variant, self.registered)


def install(module: nn.Module, outcome: Outcome) -> None:
    """Give a module the forward that was decided for it, starting from its original one."""
    restore(module)
    attributes = module.__dict__
    attributes[_OUTCOME] = outcome
    if outcome.function is None:
        return
    slot = _HOOKED_FORWARD if "_hf_hook" in attributes and _HOOKED_FORWARD in attributes else _FORWARD
    own = attributes.get(slot)
    if own is not None:
        attributes[_OWN_FORWARD] = own
    attributes[slot] = MethodType(outcome.function, module)
    for name, copier in _COPIERS.items():
        attributes.setdefault(name, MethodType(copier, module))


def restore(module: nn.Module) -> None:
    """Give a module its original forward back: its class's, or one that was set on the instance."""
    attributes = module.__dict__
    outcome: Outcome | None = attributes.pop(_OUTCOME, None)
    if outcome is None:
        return
    for name, copier in _COPIERS.items():
        if getattr(attributes.get(name), "__func__", None) is copier:
            del attributes[name]
    own = attributes.pop(_OWN_FORWARD, None)
    slot = _slot_of(attributes, outcome)
    if slot is None:
        return  # other code has put another forward there since: that one stays
    if own is not None:
        attributes[slot] = own
    elif slot == _FORWARD:
        del attributes[slot]
    else:
        attributes[slot] = MethodType(type(module).forward, module)


def outcome_of(module: nn.Module) -> Outcome | None:
    """What holds for a module now, or None when it was never kernelized."""
    outcome: Outcome | None = module.__dict__.get(_OUTCOME)
    if outcome is None or outcome.function is None:
        return outcome
    slot = _slot_of(module.__dict__, outcome)
    if slot is None:
        return replace(outcome, function=None, reason="other code has replaced its forward since")
    if module.__dict__[slot].__self__ is not module:
        reason = "copied since, and runs with the weights of what it was copied from: kernelize it again"
        return replace(outcome, function=None, reason=reason)
    return outcome


def _slot_of(attributes: dict[str, Any], outcome: Outcome) -> str | None:
    """Where the kernel's forward is."""
    if outcome.function is not None:
        for slot in (_FORWARD, _HOOKED_FORWARD):
            if getattr(attributes.get(slot), "__func__", None) is outcome.function:
                return slot
    return None


def _replicate_for_data_parallel(module: nn.Module) -> nn.Module:
    """What `nn.DataParallel` copies a module with; a replica's parameters are those of its GPU."""
    cls: Any = type(module)
    replica: nn.Module = cls._replicate_for_data_parallel(module)
    replica.__dict__.update(_bound(_ours(module), replica))
    return replica


def __reduce_ex__(module: nn.Module, protocol: Any) -> Any:
    """What `copy.copy`, `copy.deepcopy` and pickle take a module apart with."""
    reduced = type(module).__reduce_ex__(module, protocol)
    if isinstance(reduced, str) or len(reduced) < 3 or not isinstance(reduced[2], dict):
        return reduced
    make, arguments, state, *rest = reduced
    ours = _ours(module)
    # Into a pickle goes the outcome, which leaves the kernel's code behind; so the forward is named by its slot alone.
    slots = tuple(name for name in ours if name not in _COPIERS)
    state = {name: value for name, value in state.items() if name not in ours}
    return (_remade, (module.__dict__.get(_OUTCOME), slots, make, *arguments), state, *rest)


def _remade(outcome: Outcome | None, slots: tuple[str, ...], make: Callable[..., Any], *arguments: Any) -> Any:
    copied = make(*arguments)
    if outcome is not None and outcome.function is not None:
        copied.__dict__.update(_bound({**dict.fromkeys(slots, outcome.function), **_COPIERS}, copied))
    elif _HOOKED_FORWARD in slots:  # out of a pickle: what the hook calls is the class's forward again
        copied.__dict__[_HOOKED_FORWARD] = MethodType(type(copied).forward, copied)
    return copied


#: What stands beside the kernel's forward, so that a copy gets one of its own. The functions have the names of the
#: methods, since pickle writes a bound method by its name.
_COPIERS: dict[str, Callable[..., Any]] = {
    function.__name__: function for function in (_replicate_for_data_parallel, __reduce_ex__)
}


def _ours(module: nn.Module) -> dict[str, Callable[..., Any]]:
    """The functions that `install` has bound to a module, by the attributes they are in."""
    attributes = module.__dict__
    outcome: Outcome | None = attributes.get(_OUTCOME)
    kernel = None if outcome is None else outcome.function
    functions = {_FORWARD: kernel, _HOOKED_FORWARD: kernel, **_COPIERS}
    return {
        name: bound.__func__
        for name, function in functions.items()
        if isinstance(bound := attributes.get(name), MethodType) and bound.__func__ is function
    }


def _bound(functions: dict[str, Callable[..., Any]], module: nn.Module) -> dict[str, MethodType]:
    return {name: MethodType(function, module) for name, function in functions.items()}
