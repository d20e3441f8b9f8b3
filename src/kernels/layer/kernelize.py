"""Kernelize a model: decide for every layer, load all kernels, and only then replace the first forward."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, overload

from kernels import settings
from kernels.errors import MappingError, RequestError
from kernels.layer.by_class import names_by_class
from kernels.layer.contract import class_fault, lacking_attributes, module_fault
from kernels.layer.decision import LayerDecision
from kernels.layer.decorate import always
from kernels.layer.device import ModuleDevice, of_tensor, requested_device
from kernels.layer.loading import LayerLoad, described, load_key, load_layers, origin_of
from kernels.layer.mapping import (
    KernelMapping,
    MappingView,
    SelectedKernel,
    SupportsItems,
    check_bool,
    current_mapping,
    register_kernel_mapping,
    select,
    use_kernel_mapping,
)
from kernels.layer.marked import MarkedLayer, find_marked, with_functions
from kernels.layer.mode import KernelizeFallback, Mode, serving_modes
from kernels.layer.notices import mention_devices, remember_notes, unused_names
from kernels.layer.report import KernelizeReport, check_model, kernelize_report
from kernels.layer.swap import guard, install, own_forward, restore
from kernels.layer.validate import check_layer, check_registered_mode, other_parameters, unsupported
from kernels.support.formatting import did_you_mean, wrong_type
from kernels.support.logs import logger
from kernels.support.warn import warn_once
from kernels.tracebacks import public

if TYPE_CHECKING:
    import torch
    from torch import nn

# The existing client has the two functions for mappings at this path too.
__all__ = ["kernelize", "register_kernel_mapping", "unkernelize", "use_kernel_mapping"]

_log = logger(__name__)
#: For layers that keep their own forward.
_log_kept = logger("kernels.layer.layer")

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
        report: Return a report instead of the model.

    Returns:
        The model itself, or with `report` the kernel of each layer.

    Raises:
        TypeError: An argument is of the wrong type, or a kernel's layer breaks the rules for layers.
        ValueError: An argument's value is wrong, `by_class` names a class that the model does not have, the mapping has
            no kernel for a layer that may not fall back, or a kernel's publisher is not trusted.
        FileNotFoundError: A kernel cannot be found, or no build of it suits this machine.
        ImportError: A kernel lacks a dependency, or cannot be imported.

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
    request = _Request(
        mode=_mode(mode, model),
        device=requested_device(device),
        fallback=_fallback(use_fallback),
        mapping=current_mapping(mapping),
        by_class={} if by_class is None else names_by_class(by_class, model),
    )
    names: set[str] = set()
    plan = _plan(find_marked(model, request.by_class), request)
    restore(model)
    for module, decision in plan:
        if decision is None:
            restore(module)
        else:
            install(module, decision)
            names.add(decision.layer)
    remember_notes(model, () if settings.mapping_disabled() else unused_names(request.mapping, names, model))
    if any(decision is not None and decision.function is not None for _, decision in plan):
        guard(model)
    _log_result(model, request.mode)
    return kernelize_report(model) if report else model


def _log_result(model: nn.Module, mode: Mode) -> None:
    if not _log.isEnabledFor(logging.INFO):
        return
    found = kernelize_report(model)
    counts = Counter(f"{row.layer}: {row.kernel}" for row in found.kernelized)
    _log.info(
        "%s is kernelized for %s: %d of %d layers run through a kernel%s",
        type(model).__name__,
        mode,
        len(found.kernelized),
        len(found),
        f" ({', '.join(f'{count} {names}' for names, count in counts.items())})" if counts else "",
    )
    for row in found:
        served = f"build {row.variant} of {row.kernel}" if row.variant else row.kernel
        what = served if row.kernelized else f"its own forward: {row.reason}"
        _log.debug("%s (%s): %s", row.module or "the model", row.layer, what)


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


@dataclass(frozen=True)
class _Request:
    mode: Mode
    device: ModuleDevice | None
    fallback: KernelizeFallback
    mapping: MappingView
    by_class: Mapping[type, str]

    def allows(self, flag: KernelizeFallback) -> bool:
        return flag in self.fallback

    def kept(self, name: str, reason: str, kernel: str | None = None) -> LayerDecision:
        """The decision for a layer that keeps its own forward."""
        return LayerDecision(layer=name, mode=self.mode, reason=reason, kernel=kernel)

    def unfit(self, name: str, path: str, reason: str, kernel: str | None = None) -> LayerDecision:
        """The decision for a layer that a mapped kernel is not for.

        Raises:
            MappingError: The layer may not keep its own forward.
        """
        if not self.allows(KernelizeFallback.NO_LAYER):
            raise MappingError(f"Layer {name!r} ({path or 'the model'}): {reason}.")
        return self.kept(name, reason, kernel)


class _LayerKind(NamedTuple):
    """What decides the kernel of a layer: its class, its name in mappings, and the device it runs on."""

    cls: type
    name: str
    device: ModuleDevice


def _plan(marked: Iterable[MarkedLayer], request: _Request) -> list[tuple[nn.Module, LayerDecision | None]]:
    """Decide for each layer of a model; a function that is attached to several modules is one layer.

    A layer that was kernelized before, and now has no name, has no decision.

    Flat dictionaries hold the data: with an object for each module, Python's garbage collector would walk the whole
    model again and again.
    """
    modules: dict[int, nn.Module] = {}
    paths: dict[int, str] = {}
    faults: dict[int, str] = {}
    excluded: set[type] = set()
    kinds: dict[int, _LayerKind] = {}
    further: dict[int, list[_LayerKind]] = {}  # of a function on several devices
    kept: dict[int, LayerDecision | None] = {}
    known: dict[tuple[type, torch.device | None], _LayerKind] = {}
    first_path: dict[_LayerKind, str] = {}
    disabled = settings.mapping_disabled()
    for path, module, device, name in marked:
        number, cls = id(module), type(module)
        modules[number] = module
        paths.setdefault(number, path)
        if name is None:
            kept[number] = None
            continue
        if disabled:
            kept[number] = request.kept(name, "DISABLE_KERNEL_MAPPING is set")
            continue
        condition = getattr(cls, "kernel_condition", always)
        if condition is not always and not condition(module):
            kept[number] = request.kept(name, "its condition is false")
            if cls not in excluded:
                excluded.add(cls)
                _log.info("Layer %r of %s keeps its own forward: its condition is false", name, cls.__qualname__)
            continue
        kind = known.get((cls, device))
        if kind is None:
            kind = known[cls, device] = _LayerKind(cls, name, _device(path, device, request))
            first_path.setdefault(kind, path)
        fault = module_fault(module, own_forward(module))
        if fault is not None:
            faults[number] = fault
        if kinds.setdefault(number, kind) != kind:
            further.setdefault(number, [kinds[number]]).append(kind)

    by_kind = _decide(first_path, request)
    agreed = {number: _agreed(each, by_kind, request) for number, each in further.items()}
    decisions = []
    for number, module in modules.items():
        decision = kept[number] if number in kept else agreed.get(number) or by_kind[kinds[number]]
        if decision is not None and decision.function is not None:
            reason = faults.get(number) or lacking_attributes(decision.function, module)
            if reason is not None:
                decision = request.unfit(decision.layer, paths[number], reason, decision.kernel)
        decisions.append(decision)
    return list(zip(modules.values(), decisions, strict=True))


def _device(path: str, device: torch.device | None, request: _Request) -> ModuleDevice:
    """The device that a layer's kernel is chosen for."""
    own = None if device is None else of_tensor(device)
    requested = request.device
    if requested is None:
        if own is None:
            raise RequestError(
                f"The device of {path or 'the model'} is unknown: neither it nor a module around it has parameters or "
                "buffers. Give `device`, such as device='cuda'."
            )
        return own
    # The caller names the type; the parameters say which device of that type.
    if requested.index is None and own is not None and own.type == requested.type:
        return own
    return requested


def _decide(first_path: dict[_LayerKind, str], request: _Request) -> dict[_LayerKind, LayerDecision]:
    """Decide for each kind of layer: select from the mapping, load every kernel, then check each layer."""
    decisions: dict[_LayerKind, LayerDecision] = {}
    selected: dict[_LayerKind, tuple[SelectedKernel, LayerLoad]] = {}
    loads: dict[Any, LayerLoad] = {}
    unmapped: dict[str, str] = {}  # with a likely name
    unserved: list[tuple[str, str]] = []
    for kind, path in first_path.items():
        choice = select(request.mapping, kind.name, kind.device, request.mode)
        if isinstance(choice, SelectedKernel):
            fault = None if kind.cls in request.by_class else class_fault(kind.cls)
            if fault is not None:
                decisions[kind] = request.unfit(kind.name, path, fault, origin_of(choice.repository))
                continue
            key = load_key(choice.repository, kind.device)
            selected[kind] = choice, loads.setdefault(key, LayerLoad(choice.repository, kind.device))
            continue
        hint = ""
        if choice.flag is KernelizeFallback.NO_LAYER:
            # A name in `by_class` is one of the mapping's; a mark's may be one that nothing is mapped to yet.
            hint = did_you_mean(kind.name, request.mapping.names) if kind.cls in request.by_class else ""
            unmapped[kind.name] = hint
        if not request.allows(choice.flag):
            raise MappingError(f"Layer {kind.name!r} ({path or 'the model'}): {choice.reason}.{hint}")
        if choice.flag is KernelizeFallback.NO_DEVICE:
            unserved.append((kind.device.type, kind.name))
        elif choice.flag is not KernelizeFallback.NO_LAYER:
            _log_kept.info("Layer %r on %s keeps its own forward: %s", kind.name, kind.device, choice.reason)
        decisions[kind] = request.kept(kind.name, choice.reason)
    for name, hint in sorted(unmapped.items()):
        warn_once(
            _log_kept,
            f"No kernel is mapped to layer {name!r}: it keeps its own forward."
            f"{hint or ' `register_kernel_mapping` maps one.'}",
        )
    mention_devices(request.mapping, unserved, {kind.device.type for kind in selected})
    load_layers(loads.values())
    for kind, (choice, load) in selected.items():
        decisions[kind] = _checked(kind, first_path[kind], choice, load, request)
    return decisions


def _checked(kind: _LayerKind, path: str, choice: SelectedKernel, load: LayerLoad, request: _Request) -> LayerDecision:
    """Decide by a loaded layer, which must follow the rules for layers."""
    origin = origin_of(choice.repository)
    if load.error is not None:
        if not request.allows(KernelizeFallback.CANNOT_LOAD):
            raise load.error
        _log_kept.info("Layer %r on %s keeps its own forward: %s", kind.name, kind.device, load.error)
        return request.kept(kind.name, f"cannot load: {_first_line(load.error)}", origin)
    check_layer(load.layer, kind.cls, described(choice.repository))
    check_registered_mode(load.layer, kind.name, choice.mode, described(choice.repository))
    other = other_parameters(load.layer, kind.cls)
    if other is not None:
        return request.unfit(kind.name, path, other, origin)
    # A kernel registered as FALLBACK promises nothing, so what it lacks is a reason to fall back.
    lacking = unsupported(load.layer, request.mode)
    if lacking is not None:
        if not request.allows(KernelizeFallback.NO_COMPATIBLE_MODE):
            raise MappingError(
                f"Layer {kind.name!r}: {described(choice.repository)} {lacking}, needed for {request.mode}."
            )
        _log_kept.info("Layer %r on %s keeps its own forward: %s %s", kind.name, kind.device, origin, lacking)
        return request.kept(kind.name, f"the kernel's layer {lacking}", origin)
    build = load.kernel.installed.planned if load.kernel is not None else None
    return LayerDecision(
        layer=kind.name,
        mode=request.mode,
        function=load.layer.forward,
        kernel=origin,
        commit=None if build is None or build.source.user_owned else build.snapshot.commit,
        variant=None if build is None else build.variant,
        registered=choice.mode,
    )


def _agreed(kinds: list[_LayerKind], by_kind: dict[_LayerKind, LayerDecision], request: _Request) -> LayerDecision:
    """The decision for a function on several devices: it is one object, so the decision must be the same for all."""
    first = by_kind[kinds[0]]
    if all(by_kind[kind].function is first.function for kind in kinds):
        return first
    wanted = ", ".join(f"{kind.device}: {by_kind[kind].kernel or 'none'}" for kind in dict.fromkeys(kinds))
    reason = f"a function is one object, and its modules need different kernels ({wanted})"
    if not request.allows(KernelizeFallback.NO_COMPATIBLE_PROPERTIES):
        raise MappingError(f"Function {first.layer!r}: {reason}.")
    return request.kept(kinds[0].name, reason)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _mode(mode: Mode | None, model: nn.Module) -> Mode:
    if mode is None:
        return Mode.TRAINING if model.training else Mode.INFERENCE
    serving_modes(mode)  # raises for a mode that no model can have
    return mode


def _fallback(use_fallback: Any) -> KernelizeFallback:
    if isinstance(use_fallback, KernelizeFallback):
        return use_fallback
    if isinstance(use_fallback, bool):
        return KernelizeFallback.DEFAULT if use_fallback else KernelizeFallback.NONE
    raise wrong_type("use_fallback", "a bool or a KernelizeFallback", use_fallback)
