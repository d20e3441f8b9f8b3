"""What stands in for operators now, and how Torch's dispatcher gets there.

Torch holds one registration of ours for each operator and dispatch key; which function it calls is our own list, the
last one first. So they may leave in any order, and each can call the one that it stands in for: an operator that is
called from within its own function, on the same thread, is the previous one.

Torch frees a kernel that leaves (`Library._destroy`) while another thread may be on its way into it, which can end the
process. Where Torch hands out kernels (`torch.library.get_kernel`), those that left are held on to here. What remains
is Torch's own: threads read its table of kernels while it changes, so that a call at that very moment can fail.
"""

from __future__ import annotations

import functools
import os
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kernels.backends import Backend, registry
from kernels.errors import RequestError
from kernels.operators.aten import Operator
from kernels.operators.schema import is_decomposed, is_with_backward, positional_arguments

__all__ = ["Override", "decomposed", "in_force", "insert", "remove"]


@dataclass(frozen=True, eq=False)
class Override:
    """A function that stands in for an operator under a dispatch key.

    Attributes:
        operator: The operator.
        dispatch_key: The key.
        function: The function, or a subclass of `torch.autograd.Function`.
        function_name: What the function is called where it comes from.
        origin: Where it comes from, for a person.
        backend: The backend that it leaves with; None where it does not.
    """

    operator: Operator
    dispatch_key: str
    function: Any
    function_name: str
    origin: str
    backend: Backend | None = None


# Guards the two below; held while Torch's dispatcher is changed, never while a stranger's code runs.
_lock = threading.RLock()
_slots: dict[tuple[Operator, str], _Slot] = {}
_in_force: tuple[Override, ...] = ()
#: Kernels that left: a thread that found one in Torch's table may still wait for the interpreter to call it.
_retired: deque[Any] = deque(maxlen=4096)
#: How Torch says that a kernel which it handed out is registered no more (SafeKernelFunction in Dispatcher.h).
_GONE = "has been invalidated"


def _renew() -> None:
    # A lock that another thread of the parent held is held for ever in the child.
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def in_force() -> tuple[Override, ...]:
    """Every override, in the order in which they came; the last one of an operator and key is the one that runs."""
    return _in_force


def decomposed(operator: Operator, dispatch_key: str) -> bool:
    """Whether Torch computes an operator by others where no override stands in for it."""
    slot = _slots.get((operator, dispatch_key))
    return is_decomposed(operator, dispatch_key) if slot is None else slot.decomposed


def insert(overrides: Sequence[Override]) -> None:
    """Let overrides stand in for their operators: all of them, or none.

    Raises:
        RequestError: Torch refuses one.
    """
    global _in_force
    with _lock:
        for count, override in enumerate(overrides):
            slot = _slot(override.operator, override.dispatch_key)
            try:
                slot.change((*slot.overrides, override))
            except Exception as error:
                _take(overrides[:count])
                raise RequestError(
                    f"Torch does not let {override.function_name} of {override.origin} stand in for "
                    f"{override.operator} under {override.dispatch_key}: {error}"
                ) from error
            finally:
                _drop(slot)
        _in_force = (*_in_force, *overrides)


def remove(overrides: Iterable[Override]) -> None:
    """Take overrides back; those that are gone already are no error."""
    global _in_force
    leaving = list(overrides)
    with _lock:
        _take(leaving)
        _in_force = tuple(each for each in _in_force if each not in leaving)


def _leave_with(backend: Backend) -> None:
    remove([each for each in _in_force if each.backend is backend])


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


class _Slot:
    """The place of one operator under one dispatch key: who stands in for it, and what was there before."""

    def __init__(self, operator: Operator, dispatch_key: str) -> None:
        self.operator = operator
        self.dispatch_key = dispatch_key
        self.overrides: tuple[Override, ...] = ()
        self.decomposed = is_decomposed(operator, dispatch_key)
        self._calls: tuple[Callable[..., Any], ...] = ()
        self._previous = _previous(operator, dispatch_key, self.decomposed)
        self._complete = positional_arguments(operator)
        # On each thread, the calls beneath the one that runs there.
        self._running = threading.local()
        self._registered: list[Any] = []

    def change(self, overrides: tuple[Override, ...]) -> None:
        """Put others in place, and Torch's registrations in step with them; on an error everything is as it was."""
        if overrides and not self._registered:
            self._register()
        self.overrides, self._calls = overrides, tuple(self._caller(each) for each in overrides)
        if not overrides:
            self._unregister()
        # What `torch.compile` found out of the operator while it traced.
        self.operator.op()._dispatch_cache.clear()

    def _register(self) -> None:
        try:
            self._register_under(self.dispatch_key, self._call)
            if self.decomposed:
                # Under its own key a derivative is no longer that of the operators that compute it.
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

    def _caller(self, override: Override) -> Callable[..., Any]:
        if not is_with_backward(override.function):
            function: Callable[..., Any] = override.function
            return function
        apply = override.function.apply
        return lambda *args, **kwargs: apply(*self._complete(args, kwargs))

    def _call_with_backward(self, keys: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_transformed(args):
            return self._call_previous(keys, *args, **kwargs)
        return self._call(keys, *args, **kwargs)

    def _call(self, keys: Any, *args: Any, **kwargs: Any) -> Any:
        running = self._running
        beneath: tuple[Callable[..., Any], ...] | None = getattr(running, "beneath", None)
        calls = self._calls if beneath is None else beneath
        if not calls:  # called from within the first one's function, or taken back a moment ago
            return self._call_previous(keys, *args, **kwargs)
        running.beneath = calls[:-1]
        try:
            return calls[-1](*args, **kwargs)
        finally:
            running.beneath = beneath

    def _call_previous(self, keys: Any, *args: Any, **kwargs: Any) -> Any:
        previous = self._previous
        try:
            return previous(keys, *args, **kwargs)
        except RuntimeError as error:
            if _GONE not in str(error):
                raise
        # Someone else's registration beneath ours was taken back.
        with _lock:
            if self._previous is previous:
                self._look_again()
        return self._previous(keys, *args, **kwargs)

    def _look_again(self) -> None:
        """Find what is beneath now; Torch tells only while nothing of ours is there."""
        standing = bool(self._registered)
        self._unregister()
        self._previous = _previous(self.operator, self.dispatch_key, self.decomposed)
        if standing:
            self._register()


def _library(operator: Operator, dispatch_key: str, function: Callable[..., Any]) -> Any:
    """A `torch.library.Library` that holds one kernel; `_destroy` brings the previous one back."""
    import torch

    kind: Any = torch.library.Library
    library = kind("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            # That a kernel is overridden is what was asked for.
            warnings.filterwarnings("ignore", message="(?s).*verriding a previously registered kernel")
            library.impl(operator.qualified, function, dispatch_key, with_keyset=True)
    except BaseException:
        library._destroy()
        raise
    return library


def _previous(operator: Operator, dispatch_key: str, decomposed: bool) -> Callable[..., Any]:
    """What the dispatcher calls before anything stands in for an operator."""
    import torch

    if decomposed:
        op, composite = operator.op(), torch._C.DispatchKey.CompositeImplicitAutograd
        return lambda keys, *args, **kwargs: op._op_dk(composite, *args, **kwargs)
    name = str(operator)
    if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, dispatch_key):

        def missing(keys: Any, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError(f"{name} has no kernel under {dispatch_key} beside the one that calls it.")

        return missing
    kernel = _kernel(name, dispatch_key)
    if kernel is None:

        def unknown(keys: Any, *args: Any, **kwargs: Any) -> Any:
            raise RecursionError(
                f"{name} is called by the function that stands in for it under {dispatch_key}. Torch "
                f"{torch.__version__} cannot call the kernel that was there before; a Torch with "
                "`torch.library.get_kernel` can, or let the function use other operators."
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
    """The kernel in Torch's table now, which stays in memory while this is held; None where Torch does not tell."""
    import torch

    get_kernel = getattr(torch.library, "get_kernel", None)
    return None if get_kernel is None else get_kernel(name, dispatch_key)


def _tensor(given: Any, tensors: Sequence[Any]) -> Any:
    """The tensor that a number stands for: Torch gives Python numbers to functions, and kernels take tensors.

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


def _is_transformed(args: Sequence[Any]) -> bool:
    """Whether a call is for tracing or for a transform of `torch.func`, which must see what an operator consists of.

    Arguments then are tensors with a dispatch of their own (fake ones under `torch.compile`, distributed ones).
    """
    import torch

    if torch._C._functorch.peek_interpreter_stack() is not None or torch.autograd.forward_ad._current_level >= 0:
        return True
    plain = torch._C._disabled_torch_dispatch_impl
    return any(isinstance(each, torch.Tensor) and type(each).__torch_dispatch__ is not plain for each in args)
