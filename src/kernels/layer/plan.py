"""Decide for every layer of a model: select from the mapping, load all kernels, then check each layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from kernels import settings
from kernels.errors import MappingError, RequestError
from kernels.layer.contract import class_fault, lacking_attributes, module_fault
from kernels.layer.decision import Chosen, LayerDecision, LayerState
from kernels.layer.decorate import always
from kernels.layer.device import ModuleDevice, of_tensor, probed_once
from kernels.layer.following import following
from kernels.layer.loading import LayerLoad, described, load_key, load_layers, origin_of
from kernels.layer.mapping import MappingView, SelectedKernel, select
from kernels.layer.marked import MarkedLayer, find_marked
from kernels.layer.mode import KernelizeFallback, Mode
from kernels.layer.notices import mention_devices
from kernels.layer.swap import own_forward
from kernels.layer.validate import check_layer, check_registered_mode, other_parameters, unsupported
from kernels.support.formatting import did_you_mean
from kernels.support.logs import logger
from kernels.support.warn import warn_once

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["LayerRequest", "plan_layers"]

#: For layers whose condition is false; the existing client has this logger too.
_log = logger("kernels.layer.kernelize")
#: For layers that keep their own forward.
_log_kept = logger("kernels.layer.layer")


#: The most names of layers that are compared with those of a mapping.
_MOST_HINTS = 20


@dataclass(frozen=True)
class LayerRequest:
    """What `kernelize` was asked for.

    Attributes:
        modes: The mode of the model; with `auto`, that of inference and that of training.
        device: The device that the caller names.
        fallback: In which cases a layer may keep its own forward.
        mapping: The mapping.
        by_class: Names of classes without a mark.
    """

    modes: tuple[Mode, ...]
    device: ModuleDevice | None
    fallback: KernelizeFallback
    mapping: MappingView
    by_class: Mapping[type, str]

    def check_allowed(self, flag: KernelizeFallback, problem: str) -> None:
        """Check that a layer may keep its own forward.

        Raises:
            MappingError: It may not.
        """
        if flag not in self.fallback:
            raise MappingError(problem)


class _LayerKind(NamedTuple):
    """What decides the kernel of a layer: its class, its name in mappings, and the device it runs on."""

    cls: type
    name: str
    device: ModuleDevice


@dataclass
class _Found:
    """The layers of a model, with what does not depend on the mode.

    Flat dictionaries hold the data: with an object for each module, Python's garbage collector would walk the whole
    model again and again.
    """

    modules: dict[int, nn.Module] = field(default_factory=dict)
    paths: dict[int, str] = field(default_factory=dict)
    states: dict[int, LayerState] = field(default_factory=dict)
    kinds: dict[int, _LayerKind] = field(default_factory=dict)
    further: dict[int, list[_LayerKind]] = field(default_factory=dict)  # of a function on several devices
    names: dict[int, str | None] = field(default_factory=dict)
    kept: dict[int, str] = field(default_factory=dict)  # why no kernel is looked for
    faults: dict[int, str] = field(default_factory=dict)
    first_path: dict[_LayerKind, str] = field(default_factory=dict)


def plan_layers(model: nn.Module, request: LayerRequest) -> list[tuple[nn.Module, LayerDecision | None]]:
    """Decide for each layer of a model; a function that is attached to several modules is one layer.

    A layer that was kernelized before, and now has no name, has no decision.

    Raises:
        KernelsError: A kernel cannot be loaded, breaks the rules, or is missing where no fallback is allowed.
    """
    found = _find(find_marked(model, request.by_class), model.training, request)
    by_mode = _decide(found.first_path, request)
    # The keys are the identities of decisions that `by_mode` keeps.
    decided: dict[tuple[Any, ...], LayerDecision] = {}
    plan: list[tuple[nn.Module, LayerDecision | None]] = []
    for number, module in found.modules.items():
        name = found.names[number]
        if name is None:
            plan.append((module, None))
            continue
        each = [choices.decision(number, found) for choices in by_mode]
        state = found.states[number]
        key = type(module), state, *map(id, each)
        known = decided.get(key)
        if known is None:
            decision = each[0] if len(each) == 1 else following(each[0], each[1], module)
            known = decided[key] = replace(decision, state=state)
        plan.append((module, known))
    return plan


def _find(marked: Iterable[MarkedLayer], training: bool, request: LayerRequest) -> _Found:
    found = _Found()
    known: dict[tuple[type, torch.device | None], _LayerKind] = {}
    devices: dict[torch.device | None, ModuleDevice] = {}
    excluded: set[type] = set()
    disabled = settings.mapping_disabled()
    for path, module, device, name in marked:
        number, cls = id(module), type(module)
        found.modules[number] = module
        found.paths.setdefault(number, path)
        found.names[number] = name
        if name is None:
            continue
        # A function is no submodule: `model.train()` does not reach it.
        found.states.setdefault(number, LayerState.of(module, device, training))
        if disabled:
            found.kept[number] = "DISABLE_KERNEL_MAPPING is set"
            continue
        condition = getattr(cls, "kernel_condition", always)
        if condition is not always and not condition(module):
            found.kept[number] = "its condition is false"
            if cls not in excluded:
                excluded.add(cls)
                _log.info("Layer %r of %s keeps its own forward: its condition is false", name, cls.__qualname__)
            continue
        kind = known.get((cls, device))
        if kind is None:
            if device not in devices:
                devices[device] = _device(path, device, request)
            kind = known[cls, device] = _LayerKind(cls, name, devices[device])
            found.first_path.setdefault(kind, path)
        fault = module_fault(module, own_forward(module))
        if fault is not None:
            found.faults[number] = fault
        if found.kinds.setdefault(number, kind) != kind:
            found.further.setdefault(number, [found.kinds[number]]).append(kind)
            found.states[number] = found.states[number]._replace(device=None)
    return found


def _device(path: str, device: torch.device | None, request: LayerRequest) -> ModuleDevice:
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


def _decide(first_path: Mapping[_LayerKind, str], request: LayerRequest) -> list[_ModeChoices]:
    """Decide for each kind of layer, and each mode."""
    loads: dict[Any, LayerLoad] = {}
    by_mode = [_ModeChoices(mode, request) for mode in request.modes]
    with probed_once():
        for choices in by_mode:
            choices.select(first_path, loads)
    unmapped = {name: hint for choices in by_mode for name, hint in choices.unmapped.items()}
    for name, hint in sorted(unmapped.items()):
        warn_once(
            _log_kept,
            f"No kernel is mapped to layer {name!r}: it keeps its own forward."
            f"{hint or ' `register_kernel_mapping` maps one.'}",
        )
    served = {kind.device.type for choices in by_mode for kind in choices.selected}
    mention_devices(request.mapping, [each for choices in by_mode for each in choices.unserved], served)
    load_layers(loads.values())
    for choices in by_mode:
        choices.check(first_path)
    return by_mode


class _ModeChoices:
    """The decisions for one mode."""

    def __init__(self, mode: Mode, request: LayerRequest) -> None:
        self.mode = mode
        self.request = request
        self.selected: dict[_LayerKind, tuple[SelectedKernel, LayerLoad]] = {}
        self.unmapped: dict[str, str] = {}  # with a likely name
        self.unserved: list[tuple[str, str]] = []
        self.by_kind: dict[_LayerKind, LayerDecision] = {}
        self.kept: dict[tuple[Any, ...], LayerDecision] = {}

    def select(self, first_path: Mapping[_LayerKind, str], loads: dict[Any, LayerLoad]) -> None:
        """Select from the mapping; what has to be loaded is added to `loads`."""
        request = self.request
        names = request.mapping.names if request.by_class else frozenset[str]()
        hints = _MOST_HINTS
        for kind, path in first_path.items():
            choice = select(request.mapping, kind.name, kind.device, self.mode)
            chosen = Chosen(request.mapping, choice, kind.device)
            if isinstance(choice, SelectedKernel):
                fault = None if kind.cls in request.by_class else class_fault(kind.cls)
                if fault is not None:
                    origin = origin_of(choice.repository)
                    self.by_kind[kind] = self._unfit(kind.name, path, fault, origin, chosen)
                    continue
                key = load_key(choice.repository, kind.device)
                self.selected[kind] = choice, loads.setdefault(key, LayerLoad(choice.repository, kind.device))
                continue
            hint = ""
            if choice.flag is KernelizeFallback.NO_LAYER:
                # A name in `by_class` is one of the mapping's; a mark's may be one that nothing is mapped to yet.
                if kind.cls in request.by_class and hints:
                    hint, hints = did_you_mean(kind.name, names), hints - 1
                self.unmapped[kind.name] = hint
            problem = f"Layer {kind.name!r} ({path or 'the model'}): {choice.reason}.{hint}"
            request.check_allowed(choice.flag, problem)
            if choice.flag is KernelizeFallback.NO_DEVICE:
                self.unserved.append((kind.device.type, kind.name))
            elif choice.flag is not KernelizeFallback.NO_LAYER:
                _log_kept.info("Layer %r on %s keeps its own forward: %s", kind.name, kind.device, choice.reason)
            self.by_kind[kind] = self._kept(kind.name, choice.reason, None, chosen)

    def check(self, first_path: Mapping[_LayerKind, str]) -> None:
        """Decide by the layers that were loaded."""
        for kind, (choice, load) in self.selected.items():
            self.by_kind[kind] = self._checked(kind, first_path[kind], choice, load)

    def decision(self, number: int, found: _Found) -> LayerDecision:
        """The decision for one module."""
        name = found.names[number] or ""
        if number in found.kept:
            return self._kept(name, found.kept[number], None, None)
        kinds = found.further.get(number)
        decision = self.by_kind[found.kinds[number]] if kinds is None else self._agreed(kinds)
        if decision.function is None:
            return decision
        reason = found.faults.get(number) or lacking_attributes(decision.function, found.modules[number])
        if reason is None:
            return decision
        return self._unfit(decision.layer, found.paths[number], reason, decision.kernel, decision.chosen)

    def _checked(self, kind: _LayerKind, path: str, choice: SelectedKernel, load: LayerLoad) -> LayerDecision:
        """Decide by a loaded layer, which must follow the rules for layers."""
        origin, described_as = origin_of(choice.repository), described(choice.repository)
        chosen = Chosen(self.request.mapping, choice, kind.device)
        if load.error is not None:
            if KernelizeFallback.CANNOT_LOAD not in self.request.fallback:
                raise load.error
            _log_kept.info("Layer %r on %s keeps its own forward: %s", kind.name, kind.device, load.error)
            return self._kept(kind.name, f"cannot load: {_first_line(load.error)}", origin, chosen)
        check_layer(load.layer, kind.cls, described_as)
        check_registered_mode(load.layer, kind.name, choice.mode, described_as)
        other = other_parameters(load.layer, kind.cls)
        if other is not None:
            return self._unfit(kind.name, path, other, origin, chosen)
        # A kernel registered as FALLBACK promises nothing, so what it lacks is a reason to fall back.
        lacking = unsupported(load.layer, self.mode)
        if lacking is not None:
            problem = f"Layer {kind.name!r}: {described_as} {lacking}, needed for {self.mode}."
            self.request.check_allowed(KernelizeFallback.NO_COMPATIBLE_MODE, problem)
            _log_kept.info("Layer %r on %s keeps its own forward: %s %s", kind.name, kind.device, origin, lacking)
            return self._kept(kind.name, f"the kernel's layer {lacking}", origin, chosen)
        build = load.kernel.installed.planned if load.kernel is not None else None
        return LayerDecision(
            layer=kind.name,
            mode=self.mode,
            function=load.layer.forward,
            kernel=origin,
            commit=None if build is None or build.source.user_owned else build.snapshot.commit,
            variant=None if build is None else build.variant,
            registered=choice.mode,
            chosen=chosen,
        )

    def _agreed(self, kinds: list[_LayerKind]) -> LayerDecision:
        """The decision for a function on several devices: it is one object, so it must be the same for all."""
        by_kind = self.by_kind
        first = by_kind[kinds[0]]
        if all(by_kind[kind].function is first.function for kind in kinds):
            return first
        wanted = ", ".join(f"{kind.device}: {by_kind[kind].kernel or 'none'}" for kind in dict.fromkeys(kinds))
        reason = f"a function is one object, and its modules need different kernels ({wanted})"
        problem = f"Function {first.layer!r}: {reason}."
        self.request.check_allowed(KernelizeFallback.NO_COMPATIBLE_PROPERTIES, problem)
        return self._kept(kinds[0].name, reason, None, None)

    def _unfit(self, name: str, path: str, reason: str, kernel: str | None, chosen: Chosen | None) -> LayerDecision:
        """The decision for a layer that a mapped kernel is not for."""
        problem = f"Layer {name!r} ({path or 'the model'}): {reason}."
        self.request.check_allowed(KernelizeFallback.NO_LAYER, problem)
        if (name, reason, kernel, id(chosen)) not in self.kept:  # once for the layers of one kind
            _log_kept.info("Layer %r (%s) keeps its own forward: %s", name, path or "the model", reason)
        return self._kept(name, reason, kernel, chosen)

    def _kept(self, name: str, reason: str, kernel: str | None, chosen: Chosen | None) -> LayerDecision:
        """The decision for a layer that keeps its own forward; the same object for the same layers."""
        key = name, reason, kernel, id(chosen)
        if key not in self.kept:
            self.kept[key] = LayerDecision(name, self.mode, reason=reason, kernel=kernel, chosen=chosen)
        return self.kept[key]


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
