"""The functions that override operators now, and their registration with Torch's dispatcher.

Torch has one registration of ours for each operator and dispatch key, which calls the last function of our own list.
So overrides may be removed in any order, and each can call the one that it overrides: an operator that is called from
within its own function, on the same thread, is the previous one.

Torch frees a removed kernel (`Library._destroy`) while another thread may be about to call it, which can end the
process. If Torch has `torch.library.get_kernel`, removed kernels are kept alive here. One problem remains in Torch:
threads read its table of kernels while it changes, so that a call at that moment can fail.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kernels.backends import Backend, registry
from kernels.errors import RequestError
from kernels.operators.aten import Operator
from kernels.operators.schema import is_decomposed, is_with_backward, positional_arguments, takes_call
from kernels.support.forks import ForkLock

__all__ = ["Override", "active_overrides", "decomposed", "insert", "remove"]


@dataclass(frozen=True, eq=False)
class Override:
    """A function that overrides an operator under a dispatch key.

    Attributes:
        operator: The operator.
        dispatch_key: The key.
        function: The function, or a subclass of `torch.autograd.Function`.
        function_name: The function's name in its source.
        origin: Its source, for messages.
        backend: The override is removed when this backend is unregistered; None for a kernel's function.
        partial: Whether calls whose arguments the function does not take go to what it overrides.
    """

    operator: Operator
    dispatch_key: str
    function: Any
    function_name: str
    origin: str
    backend: Backend | None = None
    partial: bool = False


# Guards the two below; held while Torch's dispatcher is changed, never while third-party code runs.
_lock = ForkLock()
_slots: dict[tuple[Operator, str], _Slot] = {}
_active: tuple[Override, ...] = ()
#: Removed kernels: a thread that found one in Torch's table may still wait for the interpreter to call it.
_retired: deque[Any] = deque(maxlen=4096)
#: Torch's message for a kernel that is no longer registered (SafeKernelFunction in Dispatcher.h).
_GONE = "has been invalidated"


def active_overrides() -> tuple[Override, ...]:
    """Every override, in the order in which they were added; the last one of an operator and key runs."""
    return _active


def decomposed(operator: Operator, dispatch_key: str) -> bool:
    """Whether Torch computes an operator by others if nothing overrides it."""
    slot = _slots.get((operator, dispatch_key))
    return is_decomposed(operator, dispatch_key) if slot is None else slot.decomposed


def insert(overrides: Sequence[Override]) -> None:
    """Activate overrides: all of them, or none.

    Raises:
        RequestError: Torch refuses one of them.
    """
    global _active
    with _lock:
        for count, override in enumerate(overrides):
            slot = _slot(override.operator, override.dispatch_key)
            try:
                slot.change((*slot.overrides, override))
            except Exception as error:
                _take(overrides[:count])
                raise RequestError(
                    f"Torch does not let {override.function_name} of {override.origin} override "
                    f"{override.operator} under {override.dispatch_key}: {error}"
                ) from error
            finally:
                _drop(slot)
        _active = (*_active, *overrides)


def remove(overrides: Iterable[Override]) -> None:
    """Remove overrides; those that are removed already are ignored."""
    global _active
    leaving = list(overrides)
    with _lock:
        _take(leaving)
        _active = tuple(each for each in _active if each not in leaving)


def _leave_with(backend: Backend) -> None:
    remove([each for each in _active if each.backend is backend])


registry.on_leaving(_leave_with)


def _take(overrides: Iterable[Override]) -> None:
    for override in overrides:
        slot = _slots.get((override.operator, override.dispatch_key))
        if slot is not None:
            slot.change(tuple(each for each in slot.overrides if each is not override))
            _drop(slot)


def _slot(operator: Operator, dispatch_key: str) -> _Slot:
    key = (operator, dispatch_key)
    if key not in _slots:
        _slots[key] = _Slot(operator, dispatch_key)
    return _slots[key]


def _drop(slot: _Slot) -> None:
    if not slot.overrides:
        _slots.pop((slot.operator, slot.dispatch_key), None)


@dataclass(frozen=True)
class _Call:
    """How an override is called.

    Attributes:
        function: The call.
        loses_gradient: Whether Torch would derive the operator by those that compute it, which the function hides.
        takes: Whether the function takes a call's arguments; None if it takes all.
    """

    function: Callable[..., Any]
    loses_gradient: bool = False
    takes: Callable[[Sequence[Any], dict[str, Any]], bool] | None = None

    def serves(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """Whether the function is called, and not what it overrides."""
        if self.loses_gradient and _needs_gradient(args, kwargs):
            return False
        return self.takes is None or self.takes(args, kwargs)


class _Slot:
    """One operator under one dispatch key: its overrides, and the kernel that they override."""

    def __init__(self, operator: Operator, dispatch_key: str) -> None:
        self.operator = operator
        self.dispatch_key = dispatch_key
        self.overrides: tuple[Override, ...] = ()
        self.decomposed = is_decomposed(operator, dispatch_key)
        self._calls: tuple[_Call, ...] = ()
        self._previous = _previous(operator, dispatch_key, self.decomposed)
        self._complete = positional_arguments(operator)
        # On each thread, the calls below the running one.
        self._running = threading.local()
        self._registered: list[Any] = []

    def change(self, overrides: tuple[Override, ...]) -> None:
        """Change the overrides and Torch's registrations; an error leaves both unchanged."""
        if overrides and not self._registered:
            self._register()
        self.overrides, self._calls = overrides, tuple(self._prepared(each) for each in overrides)
        if not overrides:
            self._unregister()
        # What `torch.compile` has cached for the operator while it traced.
        self.operator.op()._dispatch_cache.clear()

    def _register(self) -> None:
        try:
            self._register_under(self.dispatch_key, self._call)
            if self.decomposed:
                # Registered under its own key alone, it would lose the derivative of the operators that compute it.
                self._register_under(f"Autograd{self.dispatch_key}", self._call_with_backward)
        except BaseException:
            self._unregister()
            raise

    def _register_under(self, key: str, function: Callable[..., Any]) -> None:
        library = _library(self.operator, key, function)
        self._registered.append((library, _kernel(str(self.operator), key)))

    def _unregister(self) -> None:
        while self._registered:
            library, kernel = self._registered.pop()
            _retired.append(kernel)
            library._destroy()

    def _prepared(self, override: Override) -> _Call:
        function = override.function
        if not is_with_backward(function):
            return _Call(function, self.decomposed, takes_call(self.operator, function) if override.partial else None)
        apply = function.apply
        return _Call(lambda *args, **kwargs: apply(*self._complete(args, kwargs)))

    def _call_with_backward(self, keys: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_transformed(args):
            return self._call_previous(keys, *args, **kwargs)
        return self._call(keys, *args, **kwargs)

    def _call(self, keys: Any, *args: Any, **kwargs: Any) -> Any:
        running = self._running
        beneath: tuple[_Call, ...] | None = getattr(running, "beneath", None)
        calls = self._calls if beneath is None else beneath
        while calls and not calls[-1].serves(args, kwargs):
            calls = calls[:-1]
        if not calls:  # called from within the first one's function, or removed a moment ago
            return self._call_previous(keys, *args, **kwargs)
        running.beneath = calls[:-1]
        try:
            return calls[-1].function(*args, **kwargs)
        finally:
            running.beneath = beneath

    def _call_previous(self, keys: Any, *args: Any, **kwargs: Any) -> Any:
        previous = self._previous
        try:
            return previous(keys, *args, **kwargs)
        except RuntimeError as error:
            if _GONE not in str(error):
                raise
        # Another registration below ours was removed.
        with _lock:
            if self._previous is previous:
                self._look_again()
        return self._previous(keys, *args, **kwargs)

    def _look_again(self) -> None:
        """Find the kernel below now; Torch gives it only while ours is not registered."""
        registered = bool(self._registered)
        self._unregister()
        self._previous = _previous(self.operator, self.dispatch_key, self.decomposed)
        if registered:
            self._register()


def _library(operator: Operator, dispatch_key: str, function: Callable[..., Any]) -> Any:
    """A `torch.library.Library` with one kernel; `_destroy` restores the previous one."""
    import torch

    kind: Any = torch.library.Library
    library = kind("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            # Overriding a kernel is intended.
            warnings.filterwarnings("ignore", message="(?s).*verriding a previously registered kernel")
            library.impl(operator.qualified, function, dispatch_key, with_keyset=True)
    except BaseException:
        library._destroy()
        raise
    return library


def _previous(operator: Operator, dispatch_key: str, decomposed: bool) -> Callable[..., Any]:
    """What the dispatcher calls without overrides."""
    import torch

    if decomposed:
        op, composite = operator.op(), torch._C.DispatchKey.CompositeImplicitAutograd
        return lambda keys, *args, **kwargs: op._op_dk(composite, *args, **kwargs)
    name = str(operator)
    if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, dispatch_key):

        def missing(keys: Any, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError(f"{name} has no kernel under {dispatch_key} except the one that calls it.")

        return missing
    kernel = _kernel(name, dispatch_key)
    if kernel is None:

        def unknown(keys: Any, *args: Any, **kwargs: Any) -> Any:
            raise RecursionError(
                f"{name} is called by the function that overrides it under {dispatch_key}. Torch {torch.__version__} "
                "cannot call the previous kernel: use a Torch with `torch.library.get_kernel`, or other operators in "
                "the function."
            )

        return unknown
    call: Callable[..., Any] = kernel.call_boxed
    of_tensors = [index for index, each in enumerate(operator.op()._schema.arguments) if str(each.type) == "Tensor"]

    def previous(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if any(index < len(args) and not isinstance(args[index], torch.Tensor) for index in of_tensors):
            tensors = [each for each in args if isinstance(each, torch.Tensor)]
            args = tuple(_tensor(each, tensors) if index in of_tensors else each for index, each in enumerate(args))
        return call(keys, *args, **kwargs)

    return previous


def _kernel(name: str, dispatch_key: str) -> Any:
    """The kernel in Torch's table now, kept alive while this is referenced; None if Torch cannot give it."""
    import torch

    get_kernel = getattr(torch.library, "get_kernel", None)
    return None if get_kernel is None else get_kernel(name, dispatch_key)


def _tensor(given: Any, tensors: Sequence[Any]) -> Any:
    """The tensor for a number: Torch gives Python numbers to functions, and kernels take tensors.

    A number does not change a result's type within its kind, and is as exact as Python has it where it can be. See
    "wrapped number" in c10/core/TensorImpl.h, which Python cannot make.
    """
    import torch

    if isinstance(given, torch.Tensor):
        return given
    kinds = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
    number = torch.tensor(given, dtype=kinds.get(type(given)))
    if not tensors:
        return torch.tensor(given)
    wanted = functools.reduce(torch.promote_types, (torch.result_type(each, given) for each in tensors))
    found = functools.reduce(torch.promote_types, (torch.result_type(each, number) for each in tensors))
    return number if found == wanted else number.to(wanted)


def _needs_gradient(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a call's result is to be derived."""
    import torch

    def derived(value: Any) -> bool:
        if isinstance(value, (list, tuple)):
            return any(map(derived, value))
        return isinstance(value, torch.Tensor) and value.requires_grad

    return torch.is_grad_enabled() and any(map(derived, (*args, *kwargs.values())))


def _is_transformed(args: Sequence[Any]) -> bool:
    """Whether a call is for tracing or for a transform of `torch.func`, which must see what an operator consists of.

    Arguments then are tensors with a dispatch of their own (fake ones under `torch.compile`, distributed ones).
    """
    import torch

    if torch._C._functorch.peek_interpreter_stack() is not None or torch.autograd.forward_ad._current_level >= 0:
        return True
    plain = torch._C._disabled_torch_dispatch_impl
    return any(isinstance(each, torch.Tensor) and type(each).__torch_dispatch__ is not plain for each in args)
