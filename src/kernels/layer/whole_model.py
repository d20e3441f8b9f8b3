"""Kernelize a model: decide for every layer, load all kernels, and only then replace the first forward."""

from __future__ import annotations

import logging
import os
from collections import Counter
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from kernels import settings
from kernels.errors import RequestError
from kernels.layer.by_class import names_by_class
from kernels.layer.decision import LayerDecision
from kernels.layer.device import requested_device
from kernels.layer.layer import is_function
from kernels.layer.mapping import KernelMapping, SupportsItems, check_bool, current_mapping
from kernels.layer.marked import ModelModules
from kernels.layer.mode import KernelizeFallback, Mode, serving_modes
from kernels.layer.notices import remember_notes, unused_names
from kernels.layer.plan import LayerRequest, plan_layers
from kernels.layer.report import KernelizeReport, check_model, kernelize_report
from kernels.layer.swap import decision_of, install, restore
from kernels.layer.tuned import check_tuned, tuned_plan
from kernels.support.formatting import format_names, wrong_type
from kernels.support.logs import logger, warn_once

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["kernelize_model", "note_user", "request_of", "unkernelize_model"]

# Users know the function, not this module.
_log = logger("kernels.layer.kernelize")


def kernelize_model(
    model: nn.Module,
    mapping: KernelMapping | None,
    *,
    mode: Mode | None,
    device: str | torch.device | None,
    use_fallback: bool | KernelizeFallback,
    by_class: SupportsItems[str | type[nn.Module], str] | None,
    auto: bool,
    autotuned: bool | str | os.PathLike[str],
    report: bool,
) -> nn.Module | KernelizeReport:
    """The work of `kernelize`, which describes the arguments, the result and the errors."""
    check_model(model)
    check_bool("report", report)
    found = ModelModules(model)
    request = request_of(model, found, mapping, mode, device, use_fallback, by_class, auto=check_bool("auto", auto))
    plan = plan_layers(found, request)
    plan = tuned_plan(model, found, request, plan, check_tuned(autotuned))
    for modules, decision in plan:
        if is_function(modules[0]):
            note_user(model, modules[0], decision, decision_of(modules[0]))
        if decision is not None:
            install(modules, decision)
            continue
        for module in modules:
            restore(module)
    named = request.by_class
    marked = {each.layer for modules, each in plan if each is not None and type(modules[0]) not in named}
    disabled = settings.mapping_disabled()
    notes = () if disabled else unused_names(request.mapping, marked, named, found.by_class)
    remember_notes(model, notes)
    _log_result(model, request.modes)
    return kernelize_report(model) if report else model


def request_of(
    model: nn.Module,
    found: ModelModules,
    mapping: KernelMapping | None,
    mode: Mode | None,
    device: str | torch.device | None,
    use_fallback: bool | KernelizeFallback,
    by_class: SupportsItems[str | type[nn.Module], str] | None,
    *,
    auto: bool,
) -> LayerRequest:
    """What `kernelize` and `autotune` were asked for.

    Raises:
        TypeError: An argument is of the wrong type.
        RequestError: An argument's value is wrong.
    """
    return LayerRequest(
        modes=_modes(mode, model, auto),
        device=requested_device(device),
        fallback=_fallback(use_fallback),
        mapping=current_mapping(mapping),
        by_class={} if by_class is None else names_by_class(by_class, found.by_class),
    )


#: The models that were kernelized with each marked function, which is one object in the process.
_users: WeakKeyDictionary[nn.Module, WeakSet[nn.Module]] = WeakKeyDictionary()


def note_user(
    model: nn.Module, function: nn.Module, decision: LayerDecision | None, before: LayerDecision | None
) -> None:
    """Say so when a function changes in other models, too.

    Args:
        model: The model that is kernelized.
        function: The marked function.
        decision: What is decided for it now.
        before: What was decided for it before.
    """
    wanted = None if decision is None else decision.function
    others = [each for each in _users.setdefault(function, WeakSet()) if each is not model]
    if others and before is not None and before.function is not wanted:
        name, now = before.layer, "its own forward" if decision is None else decision.kernel or "its own forward"
        kinds = format_names(sorted({type(each).__name__ for each in others}))
        warn_once(
            _log,
            f"Function {name!r} now runs {now}, also in {kinds}, kernelized before with "
            f"{before.kernel or 'its own forward'}: a function is one object in the process.",
        )
    if wanted is None:
        _users[function].discard(model)
    else:
        _users[function].add(model)


def _log_result(model: nn.Module, modes: tuple[Mode, ...]) -> None:
    if not _log.isEnabledFor(logging.INFO):
        return
    found = kernelize_report(model)
    counts = Counter(f"{row.layer}: {row.kernel}" for row in found.kernelized)
    _log.info(
        "%s is kernelized for %s: %d of %d layers run through a kernel%s",
        type(model).__name__,
        " and ".join(map(str, modes)),
        len({row.module for row in found.kernelized}),
        len({row.module for row in found}),
        f" ({', '.join(f'{count} {names}' for names, count in counts.items())})" if counts else "",
    )
    for row in found:
        served = f"build {row.variant} of {row.kernel}" if row.variant else row.kernel
        what = served if row.kernelized else f"its own forward: {row.reason}"
        _log.debug("%s (%s): %s", row.module or "the model", row.layer, what)


def unkernelize_model(model: nn.Module) -> None:
    """The work of `unkernelize`."""
    check_model(model)
    found = ModelModules(model)
    functions = [function for _, _, function in found.functions()]
    for function in functions:
        note_user(model, function, None, decision_of(function))
    for module in (*found.modules, *functions):
        restore(module)
    remember_notes(model, ())


def _modes(mode: Mode | None, model: nn.Module, auto: bool) -> tuple[Mode, ...]:
    if auto:
        if mode is None:
            return Mode.INFERENCE, Mode.TRAINING
        if mode != Mode.TORCH_COMPILE:
            if not isinstance(mode, Mode):
                raise wrong_type("mode", "Mode.TORCH_COMPILE or None", mode)
            raise RequestError(
                f"`mode` is {mode}; with auto=True, which prepares INFERENCE and TRAINING, expected Mode.TORCH_COMPILE "
                "or None."
            )
        return Mode.INFERENCE | mode, Mode.TRAINING | mode
    if mode is None:
        return (Mode.TRAINING if model.training else Mode.INFERENCE,)
    serving_modes(mode)  # raises for a mode that no model can have
    return (mode,)


def _fallback(use_fallback: Any) -> KernelizeFallback:
    if isinstance(use_fallback, KernelizeFallback):
        return use_fallback
    if isinstance(use_fallback, bool):
        return KernelizeFallback.DEFAULT if use_fallback else KernelizeFallback.NONE
    raise wrong_type("use_fallback", "a bool or a KernelizeFallback", use_fallback)
