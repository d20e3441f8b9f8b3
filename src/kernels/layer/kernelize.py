"""Kernelize a model: decide for every layer, load all kernels, and only then replace the first forward."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from kernels import settings
from kernels.errors import RequestError
from kernels.layer.by_class import names_by_class
from kernels.layer.device import requested_device
from kernels.layer.mapping import (
    KernelMapping,
    SupportsItems,
    check_bool,
    current_mapping,
    register_kernel_mapping,
    use_kernel_mapping,
)
from kernels.layer.marked import with_functions
from kernels.layer.mode import KernelizeFallback, Mode, serving_modes
from kernels.layer.notices import remember_notes, unused_names
from kernels.layer.plan import LayerRequest, plan_layers
from kernels.layer.report import KernelizeReport, check_model, kernelize_report
from kernels.layer.swap import guard, install, restore
from kernels.support.formatting import wrong_type
from kernels.support.logs import logger
from kernels.tracebacks import public

if TYPE_CHECKING:
    import torch
    from torch import nn

# The existing client has the two functions for mappings at this path too.
__all__ = ["kernelize", "register_kernel_mapping", "unkernelize", "use_kernel_mapping"]

_log = logger(__name__)

_Model = TypeVar("_Model", bound="nn.Module")


@overload
def kernelize(
    model: _Model,
    mapping: KernelMapping | None = None,
    *,
    mode: Mode | None = None,
    device: str | torch.device | None = None,
    use_fallback: bool | KernelizeFallback = True,
    by_class: SupportsItems[str | type[nn.Module], str] | None = None,
    auto: bool = False,
    report: Literal[False] = False,
) -> _Model: ...


@overload
def kernelize(
    model: nn.Module,
    mapping: KernelMapping | None = None,
    *,
    mode: Mode | None = None,
    device: str | torch.device | None = None,
    use_fallback: bool | KernelizeFallback = True,
    by_class: SupportsItems[str | type[nn.Module], str] | None = None,
    auto: bool = False,
    report: Literal[True],
) -> KernelizeReport: ...


@overload
def kernelize(
    model: _Model,
    mapping: KernelMapping | None = None,
    *,
    mode: Mode | None = None,
    device: str | torch.device | None = None,
    use_fallback: bool | KernelizeFallback = True,
    by_class: SupportsItems[str | type[nn.Module], str] | None = None,
    auto: bool = False,
    report: bool,
) -> _Model | KernelizeReport: ...


@public
def kernelize(
    model: nn.Module,
    mapping: KernelMapping | None = None,
    *,
    mode: Mode | None = None,
    device: str | torch.device | None = None,
    use_fallback: bool | KernelizeFallback = True,
    by_class: SupportsItems[str | type[nn.Module], str] | None = None,
    auto: bool = False,
    report: bool = False,
) -> nn.Module | KernelizeReport:
    """Replace the forward of a model's layers by the kernels that are mapped to them.

    Every kernel that the model needs is found, fetched and checked, in parallel, before the first layer changes: an
    error leaves the model unchanged. A model that was kernelized before starts from its original forwards.

    Args:
        model: The model; its layers are changed in place.
        mapping: A mapping for this call alone, as in `register_kernel_mapping`; it comes before all others.
        mode: What the model will be used for. Default: training or inference, by `model.training`.
        device: The device type that the model will run on, with or without an index. Default: each layer's own device:
            that of its parameters, else of its nearest ancestor's.
        use_fallback: In which cases a layer may keep its own forward instead of an error. True is
            `KernelizeFallback.DEFAULT`, False `KernelizeFallback.NONE`.
        by_class: Layers without a mark: class → name in the mapping. A class is given as itself, by its name or by its
            dotted name, and stands for itself only, not for its subclasses. The next call does not remember it.
        auto: Prepare each layer for inference and for training, and let its own `training` decide at each call. `mode`
            may then only be `Mode.TORCH_COMPILE`.
        report: Return a report instead of the model.

    Returns:
        The model itself, or with `report` the kernel of each layer.

    Raises:
        TypeError: An argument is of the wrong type, or a kernel's layer breaks the rules for layers.
        ValueError: An argument's value is wrong, `by_class` names a class that the model does not have, the mapping has
            no kernel for a layer that may not fall back, or a kernel's publisher is not trusted.
        FileNotFoundError: A kernel cannot be found, or no build of it suits this machine.
        ImportError: A kernel lacks a dependency, or cannot be imported.
        Exception: What a kernel's own code raises while it is imported, with a note that names the kernel.

    Example:
        >>> import torch
        >>> from kernels import use_kernel_forward_from_hub, use_kernel_mapping
        >>> @use_kernel_forward_from_hub("Twice")
        ... class Twice(torch.nn.Module):
        ...     def forward(self, x):
        ...         return 2 * x
        >>> class Shifted(torch.nn.Module):  # in place of a kernel's layer
        ...     def forward(self, x):
        ...         return x << 1
        >>> class Kernel:
        ...     def load(self):
        ...         return Shifted
        >>> with use_kernel_mapping({"Twice": {"cpu": Kernel()}}):
        ...     model = kernelize(torch.nn.Sequential(Twice()), device="cpu", mode=Mode.INFERENCE)
        >>> model(21)
        42
    """
    check_model(model)
    check_bool("report", report)
    request = LayerRequest(
        modes=_modes(mode, model, check_bool("auto", auto)),
        device=requested_device(device),
        fallback=_fallback(use_fallback),
        mapping=current_mapping(mapping),
        by_class={} if by_class is None else names_by_class(by_class, model),
    )
    plan = plan_layers(model, request)
    restore(model)
    for module, decision in plan:
        if decision is None:
            restore(module)
        else:
            install(module, decision)
    named = request.by_class
    marked = {each.layer for module, each in plan if each is not None and type(module) not in named}
    served = {each.layer for _, each in plan if each is not None and each.function is not None}
    remember_notes(
        model, () if settings.mapping_disabled() else unused_names(request.mapping, marked, served, named, model)
    )
    if served:
        guard(model)
    _log_result(model, request.modes)
    return kernelize_report(model) if report else model


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


@public
def unkernelize(model: _Model) -> _Model:
    """Give every layer of a model its original forward back: its class's, or one that was set on the instance before.

    Args:
        model: A model, kernelized or not.

    Returns:
        The model itself.

    Raises:
        TypeError: `model` is not an `nn.Module`.

    Example:
        >>> from torch import nn
        >>> unkernelize(nn.Linear(2, 2))
        Linear(in_features=2, out_features=2, bias=True)
    """
    check_model(model)
    for module in with_functions(model):
        restore(module)
    remember_notes(model, ())
    return model


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
