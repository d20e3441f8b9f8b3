"""A forward that follows `train()` and `eval()`: the module's own `training` decides at each call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from kernels.layer.decision import LayerDecision
from kernels.layer.function import is_function

if TYPE_CHECKING:
    from torch import nn

__all__ = ["following"]


def following(inference: LayerDecision, training: LayerDecision, module: nn.Module) -> LayerDecision:
    """One decision of two: where both have one kernel its forward alone, else a forward that asks `training`.

    A function has no `training` of its own: it runs the kernel for training in both, which serves inference too.

    Args:
        inference: The decision for inference.
        training: The decision for training.
        module: The layer.
    """
    if is_function(module) and inference.function is not training.function:
        inference = replace(training, mode=inference.mode)
        if training.function is None:
            reason = f"a function cannot follow train() and eval(), and for training: {training.reason}"
            inference = replace(inference, reason=reason)
    forwards = inference.function, training.function
    function: Callable[..., Any] | None
    if forwards[0] is forwards[1]:
        function = forwards[0]
    else:
        own: Any = type(module).forward
        function = _by_training(forwards[0] or own, forwards[1] or own, own)
    kernels = dict.fromkeys(each.kernel for each in (inference, training) if each.function is not None)
    return LayerDecision(
        layer=inference.layer,
        function=function,
        reason=None if function is not None else inference.reason,
        kernel=", ".join(kernel for kernel in kernels if kernel is not None) or inference.kernel,
        each=(inference, training),
    )


@lru_cache(maxsize=4096)
def _by_training(inference: Callable[..., Any], training: Callable[..., Any], own: Callable[..., Any]) -> Any:
    """A forward with the parameters of a layer's own, written out: a call with `*args` costs more."""
    signature = inspect.signature(own)
    module, *parameters = signature.parameters.values()
    given = [each.name if each.kind is not each.KEYWORD_ONLY else f"{each.name}={each.name}" for each in parameters]
    variable = any(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in parameters)
    names: dict[str, Any] = {"_inference": inference, "_training": training}
    if variable or names.keys() & signature.parameters.keys():

        def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return (training if self.training else inference)(self, *args, **kwargs)

        forward.__signature__ = signature  # type: ignore[attr-defined]
        return forward
    bare = [each.replace(default=each.empty, annotation=each.empty) for each in (module, *parameters)]
    head = f"def forward{inspect.Signature(bare)}:"
    call = f"(_training if {module.name}.training else _inference)({', '.join([module.name, *given])})"
    exec(f"{head}\n    return {call}\n", names)
    made: Any = names["forward"]
    defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
    keyword = {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}
    made.__defaults__ = tuple(value for name, value in defaults.items() if name not in keyword)
    made.__kwdefaults__ = {name: value for name, value in defaults.items() if name in keyword}
    made.__signature__ = signature
    return made
