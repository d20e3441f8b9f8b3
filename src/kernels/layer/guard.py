"""Say in the error of a kernel's forward which module and which kernel it is.

The model that `kernelize` was called on is called through a function that adds a note to an exception; its layers are
not, so that their calls cost nothing more. The function replaces `_call_impl`, which `nn.Module.__call__` calls: the
model's `forward`, with its signature, is untouched, and `torch.compile` does not see it.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import CodeType, FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from kernels.layer.decision import LayerDecision, noted_decision
from kernels.support.text import clean

if TYPE_CHECKING:
    from torch import nn

__all__ = ["CALL", "call_with_notes", "may_guard"]

#: The method that is replaced. The function has its name, since pickle writes a bound method by its name.
CALL = "_call_impl"

_NOTE = "kernels: "
_SHORT_COMMIT = 7

#: Methods with which a class copies itself: its copies would be called through the original.
_COPYING = ("__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__")


def may_guard(module: nn.Module) -> bool:
    """Whether a module's class is called and copied as `nn.Module` is."""
    from torch import nn

    cls: Any = type(module)
    own = ("__call__", CALL, *_COPYING)
    return _skipped_by_the_compiler() and all(
        getattr(cls, name, None) is getattr(nn.Module, name, None) for name in own
    )


@functools.cache
def call_with_notes() -> Callable[..., Any]:
    """The function in the place of `_call_impl`: it does the same, at the same cost, and adds to exceptions alone."""
    from torch import _C
    from torch.nn.modules import module as modules

    tracing = _C._get_tracing_state
    # Torch adds to these dictionaries, and never replaces them.
    forward_hooks, forward_pre_hooks = modules._global_forward_hooks, modules._global_forward_pre_hooks
    backward_hooks, backward_pre_hooks = modules._global_backward_hooks, modules._global_backward_pre_hooks

    def _call_impl(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            # As `nn.Module._call_impl` begins.
            if (
                self._backward_hooks
                or self._backward_pre_hooks
                or self._forward_hooks
                or self._forward_pre_hooks
                or backward_pre_hooks
                or backward_hooks
                or forward_hooks
                or forward_pre_hooks
                or tracing()
            ):
                return type(self)._call_impl(self, *args, **kwargs)
            return self.forward(*args, **kwargs)
        except Exception as error:
            _add_note(self, error)
            raise

    return _call_impl


@functools.cache
def _skipped_by_the_compiler() -> bool:
    """Tell `torch.compile` to pass over the call's own frame: else all models would share its limit of recompilations.

    What it calls is compiled, as it is without. `torch._dynamo.skip_code` does the same, but takes long to import.
    """
    try:
        from torch._C._dynamo import eval_frame

        compiler: Any = eval_frame
        code = call_with_notes().__code__
        if hasattr(compiler, "skip_code"):  # Torch 2.6
            compiler.skip_code(code)
        else:
            action = compiler._FrameAction
            compiler.set_code_exec_strategy(code, compiler._FrameExecStrategy(action.SKIP, action.DEFAULT))
    except (ImportError, AttributeError):  # a Torch that is unlike those known
        return False
    return True


def _add_note(model: nn.Module, error: Exception) -> None:
    if sys.version_info < (3, 11):  # it has no notes
        return
    found = _kernelized_in(error.__traceback__)
    if found is None:
        return
    module, decision = found
    path = next((path for path, each in _with_paths(model) if each is module), None)
    if path is None:
        return
    where = f"module {path!r}" if path else "the model"
    at = ", ".join(
        f"{what} {value}"
        for what, value in (("commit", (decision.commit or "")[:_SHORT_COMMIT]), ("variant", decision.variant))
        if value
    )
    note = clean(
        f"{_NOTE}{where} ({type(module).__name__}) runs the forward of the kernel {decision.kernel}"
        f"{f' ({at})' if at else ''}. `kernels.unkernelize(model)` gives every layer its own forward back."
    )
    with suppress(Exception):  # the error's own class may refuse notes, or have put something else in their place
        notes = getattr(error, "__notes__", None)
        if isinstance(notes, list):
            # A model may be kernelized inside another one, which knows the whole path.
            notes[:] = [each for each in notes if not (isinstance(each, str) and each.startswith(_NOTE))]
        BaseException.add_note(error, note)


def _kernelized_in(trace: TracebackType | None) -> tuple[Any, LayerDecision] | None:
    """The module whose kernel raised an exception: the innermost whose kernel's forward ran, or could not be called."""
    from torch import nn

    inherited = nn.Module._call_impl.__code__
    calling = inherited, call_with_notes().__code__
    found: tuple[Any, LayerDecision] | None = None
    last_call: tuple[Any, LayerDecision] | None = None
    while trace is not None:
        frame = trace.tb_frame
        module = _first_argument(frame)
        decision = noted_decision(module) if isinstance(module, nn.Module) else None
        ran = None if decision is None else _ran(decision, frame.f_code)
        if ran is not None:
            found, last_call = (module, ran), None
        elif decision is not None and decision.function is not None and frame.f_code in calling:
            now = decision.by_mode[-1 if module.training else 0]
            last_call = None if now.function is None else (module, now)
        elif frame.f_code.co_filename != inherited.co_filename:
            last_call = None  # the call went on, into other code
        trace = trace.tb_next
    return last_call or found


def _ran(decision: LayerDecision, code: CodeType) -> LayerDecision | None:
    """The decision for a mode whose kernel's forward has this code."""
    for each in decision.by_mode:
        if each.function is not None:
            for function in (each.function, inspect.unwrap(each.function)):
                if getattr(function, "__code__", None) is code:
                    return each
    return None


def _first_argument(frame: FrameType) -> Any:
    code = frame.f_code
    if code.co_argcount:
        return frame.f_locals.get(code.co_varnames[0])
    if code.co_flags & inspect.CO_VARARGS:
        arguments = frame.f_locals.get(code.co_varnames[code.co_kwonlyargcount])
        return arguments[0] if isinstance(arguments, tuple) and arguments else None
    return None


def _with_paths(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for path, module in model.named_modules():
        yield path, module
        for name, function in module.__dict__.get("_kernel_funcs", {}).items():
            yield f"{path}.{name}" if path else name, function
