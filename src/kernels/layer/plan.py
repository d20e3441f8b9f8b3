"""Decide for every layer of a model: group the layers, select from the mapping, load all kernels, check each layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from kernels import settings
from kernels.errors import MappingError, RequestError
from kernels.layer.decision import Chosen, LayerDecision, LayerState
from kernels.layer.device import ModuleDevice, of_tensor
from kernels.layer.fits import (
    check_layer,
    check_registered_mode,
    class_fault,
    lacking_attributes,
    module_fault,
    other_parameters,
    replaceable_methods,
    unsupported,
)
from kernels.layer.forwards import by_training, unless_gradient
from kernels.layer.layer import always, is_function, is_function_class, layer_name_of
from kernels.layer.loading import LayerLoad, described, load_key, load_layers, origin_of
from kernels.layer.mapping import MappingView, SelectedKernel, select
from kernels.layer.marked import ModelModules
from kernels.layer.mode import KernelizeFallback, Mode
from kernels.layer.notices import mention_devices
from kernels.layer.swap import FORWARDS, own_forward
from kernels.support.formatting import did_you_mean, format_names
from kernels.support.logs import logger, warn_once

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["NO_CANDIDATE", "LayerRequest", "Plan", "plan_layers"]

NO_CANDIDATE = "no further repository is mapped to it"

#: Each decision with its layers. Those that were kernelized before, and now have no name, have none.
Plan = list[tuple["list[nn.Module]", "LayerDecision | None"]]

# Users know the functions, not this module; the existing client has these loggers too.
_log = logger("kernels.layer.kernelize")
_log_kept = logger("kernels.layer.layer")

_DISABLED = "DISABLE_KERNEL_MAPPING is set"
_EXCLUDED = "its condition is false"

#: The most layers without a kernel that a warning names.
_SHOWN = 3


class LayerRequest(Struct, frozen=True, eq=False):
    """What `kernelize` was asked for.

    Attributes:
        modes: The mode of the model; with `auto`, that of inference and that of training.
        device: The device that the caller names.
        fallback: In which cases a layer may keep its own forward.
        mapping: The mapping.
        by_class: Names of classes without a mark.
        candidate: Which of the repositories that compete for a layer; a layer with fewer keeps its own forward.
    """

    modes: tuple[Mode, ...]
    device: ModuleDevice | None
    fallback: KernelizeFallback
    mapping: MappingView
    by_class: Mapping[type, str]
    candidate: int = 0

    def check_allowed(self, flag: KernelizeFallback, problem: str) -> None:
        """Check that a layer may keep its own forward.

        Raises:
            MappingError: It may not.
        """
        if flag not in self.fallback:
            raise MappingError(problem)


class _Kind(NamedTuple):
    """What decides the kernel of a layer: its class, its name in mappings, and the device it runs on."""

    cls: type
    name: str
    device: ModuleDevice


class _Group:
    """Layers of one class in one state, or one function, for which the same is decided.

    Attributes:
        name: Their name in mappings.
        state: How they are now; of a function on several devices, without one.
        kept: Why no kernel is looked for; the group has no kinds then.
        kinds: What decides their kernel: one kind, or one for each device that a function is on.
        modules: The layers.
        paths: The path of each.
        faults: Why some may have no kernel, by their place.
    """

    def __init__(self, name: str, state: LayerState, kept: str | None) -> None:
        self.name = name
        self.state = state
        self.kept = kept
        self.kinds: list[_Kind] = []
        self.modules: list[nn.Module] = []
        self.paths: list[str] = []
        self.faults: dict[int, str] = {}


def plan_layers(found: ModelModules, request: LayerRequest) -> Plan:
    """Decide for each layer of a model; a function that is attached to several modules is one layer.

    Args:
        found: The modules of the model.
        request: What to decide by.

    Raises:
        KernelsError: A kernel cannot be loaded, breaks the rules, or is missing where no fallback is allowed.
    """
    plan: Plan = []
    names: dict[type, str] = {}
    for cls, name, numbers in found.layers(request.by_class):
        if name is None:
            plan.append(([found.modules[number] for number in numbers], None))
        else:
            names[cls] = name
    groups = _Groups(found, request, names)
    by_mode = _decide(groups.first_path, request)
    for group in groups.found.values():
        parts: dict[tuple[int, ...], tuple[list[nn.Module], list[LayerDecision]]] = {}
        for modules, each in _parts(group, by_mode):
            parts.setdefault(tuple(map(id, each)), ([], each))[0].extend(modules)
        for modules, each in parts.values():
            decision = each[0] if len(each) == 1 else _following(each[0], each[1], modules[0])
            plan.append((modules, replace(decision, state=group.state)))
    return plan


class _Groups:
    """The layers of a model that have a name, in groups.

    Attributes:
        found: The groups.
        first_path: Each kind of layer with the path of its first one, in the order of the model.
    """

    def __init__(self, modules: ModelModules, request: LayerRequest, names: Mapping[type, str]) -> None:
        self.found: dict[Any, _Group] = {}
        self.first_path: dict[_Kind, str] = {}
        self._request = request
        self._disabled = settings.mapping_disabled()
        self._kinds: dict[tuple[type, torch.device | None], _Kind] = {}
        self._excluded: set[type] = set()
        functions: dict[int, list[tuple[str, nn.Module]]] = {}
        for number, path, function in modules.functions():
            functions.setdefault(number, []).append((path, function))
        rules = {cls: self._rules(cls) for cls in names}
        for number, module in enumerate(modules.modules):
            for path, function in functions.get(number, ()):
                self._add_function(function, layer_name_of(type(function)), path, modules.function_state(number))
            cls = type(module)
            if cls not in names:
                continue
            if is_function_class(cls):
                self._add_function(module, names[cls], modules.paths[number], modules.function_state(number))
                continue
            condition, methods, replaceable = rules[cls]
            state = modules.state(number)
            kept = self._kept(cls, names[cls], condition, module)
            group = self.found.get((cls, state, kept))
            if group is None:
                group = self.found[cls, state, kept] = _Group(names[cls], state, kept)
                if kept is None:
                    group.kinds.append(self._kind(cls, names[cls], state.device, modules.paths[number]))
            if kept is None and not replaceable.isdisjoint(module.__dict__):
                fault = module_fault(module, own_forward(module), methods)
                if fault is not None:
                    group.faults[len(group.modules)] = fault
            group.modules.append(module)
            group.paths.append(modules.paths[number])

    def _rules(self, cls: type) -> tuple[Callable[[Any], bool], Sequence[str], frozenset[str]]:
        """The condition of a class, the methods that its forward uses, and what may be replaced on one module of it."""
        condition = always if self._disabled else getattr(cls, "kernel_condition", always)
        methods = replaceable_methods(cls)
        return condition, methods, frozenset([*FORWARDS, *methods])

    def _kept(self, cls: type, name: str, condition: Callable[[Any], bool], module: nn.Module) -> str | None:
        """Why no kernel is looked for."""
        if self._disabled:
            return _DISABLED
        if condition is always or condition(module):
            return None
        if cls not in self._excluded:
            self._excluded.add(cls)
            _log.info("Layer %r of %s keeps its own forward: its condition is false", name, cls.__qualname__)
        return _EXCLUDED

    def _add_function(self, function: nn.Module, name: str, path: str, state: LayerState) -> None:
        """Add a function where it is attached to a module, or is one."""
        group = self.found.get(id(function))
        cls = type(function)
        if group is None:
            kept = self._kept(cls, name, getattr(cls, "kernel_condition", always), function)
            group = self.found[id(function)] = _Group(name, state, kept)
            group.modules.append(function)
            group.paths.append(path)
            fault = module_fault(function, own_forward(function), replaceable_methods(cls))
            if fault is not None:
                group.faults[0] = fault
        if group.kept is None:
            kind = self._kind(cls, name, state.device, path)
            if kind not in group.kinds:
                group.kinds.append(kind)
            if len(group.kinds) > 1:
                group.state = state._replace(device=None)

    def _kind(self, cls: type, name: str, device: torch.device | None, path: str) -> _Kind:
        kind = self._kinds.get((cls, device))
        if kind is None:
            kind = self._kinds[cls, device] = _Kind(cls, name, _device(path, device, self._request))
            self.first_path.setdefault(kind, path)
        return kind


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


def _parts(group: _Group, by_mode: Sequence[_ModeChoices]) -> Iterator[tuple[Sequence[nn.Module], list[LayerDecision]]]:
    """The layers of a group with their decisions, one a mode: most have the same."""
    usual = [choices.of_group(group) for choices in by_mode]
    others = [choices.of_some(group, each) for choices, each in zip(by_mode, usual, strict=True)]
    places = set().union(*others)
    if not places:
        yield group.modules, usual
        return
    for place, module in enumerate(group.modules):
        yield [module], [other.get(place, each) for other, each in zip(others, usual, strict=True)]


def _decide(first_path: Mapping[_Kind, str], request: LayerRequest) -> list[_ModeChoices]:
    """Decide for each kind of layer, and each mode."""
    loads: dict[Any, LayerLoad] = {}
    by_mode = [_ModeChoices(mode, request) for mode in request.modes]
    for choices in by_mode:
        choices.select(first_path, loads)
    served = {kind.device.type for choices in by_mode for kind in choices.selected}
    mention_devices(request.mapping, [each for choices in by_mode for each in choices.unserved], served)
    load_layers(loads.values())
    for choices in by_mode:
        choices.check(first_path)
    unmapped = {name: hint for choices in by_mode for name, hint in choices.unmapped.items()}
    if (
        any(unmapped.values()) or not served
    ):  # else the report has them: a kernel may compute them with the layer around
        _warn_of_unmapped({} if request.candidate else unmapped)  # it has been said of the first candidates
    return by_mode


def _warn_of_unmapped(hints: Mapping[str, str]) -> None:
    """Warn of the layers to which no kernel is mapped: by their names, with what may be meant instead."""
    if not hints:
        return
    names = sorted(hints, key=lambda name: (not hints[name], name))  # first those with a likely mistake
    if len(names) == 1:
        hint = hints[names[0]] or " `register_kernel_mapping` maps one."
        warn_once(_log_kept, f"No kernel is mapped to layer {names[0]!r}: it keeps its own forward.{hint}")
        return
    shown = format_names(map(repr, names), limit=_SHOWN)
    meant = "".join(f" {name!r}:{hints[name]}" for name in names[:_SHOWN] if hints[name])
    warn_once(
        _log_kept,
        f"No kernel is mapped to {len(names)} kinds of layers: {shown}. They keep their own forwards."
        f"{meant or ' `register_kernel_mapping` maps kernels.'}",
    )


class _ModeChoices:
    """The decisions for one mode."""

    def __init__(self, mode: Mode, request: LayerRequest) -> None:
        self.mode = mode
        self.request = request
        self.selected: dict[_Kind, tuple[SelectedKernel, LayerLoad]] = {}
        self.unmapped: dict[str, str] = {}  # with a likely name
        self.unserved: list[tuple[str, str]] = []
        self.by_kind: dict[_Kind, LayerDecision] = {}
        self.kept: dict[tuple[Any, ...], LayerDecision] = {}

    def select(self, first_path: Mapping[_Kind, str], loads: dict[Any, LayerLoad]) -> None:
        """Select from the mapping; what has to be loaded is added to `loads`."""
        request = self.request
        for kind, path in first_path.items():
            choice = select(request.mapping, kind.name, kind.device, self.mode)
            chosen = Chosen(choice, kind.device)
            if isinstance(choice, SelectedKernel):
                if request.candidate >= len(choice.candidates):
                    self.by_kind[kind] = self._kept(kind.name, NO_CANDIDATE, None, chosen)
                    continue
                choice = SelectedKernel(choice.candidates[request.candidate], choice.mode, choice.candidates)
                fault = None if kind.cls in request.by_class else class_fault(kind.cls)
                if fault is not None:
                    origin = origin_of(choice.repository)
                    self.by_kind[kind] = self._unfit(kind.name, path, fault, origin, chosen)
                    continue
                key = load_key(choice.repository, kind.device)
                self.selected[kind] = choice, loads.setdefault(key, LayerLoad(choice.repository, kind.device))
                continue
            hint = ""
            if choice.flag is KernelizeFallback.NO_LAYER and kind.cls in request.by_class:
                # A name in `by_class` is one of the mapping's; a mark's may be one that nothing is mapped to yet.
                hint = did_you_mean(kind.name, request.mapping.names)
            request.check_allowed(choice.flag, f"Layer {kind.name!r} ({path or 'the model'}): {choice.reason}.{hint}")
            if choice.flag is KernelizeFallback.NO_DEVICE:
                self.unserved.append((kind.device.type, kind.name))
            elif choice.flag is KernelizeFallback.NO_LAYER:
                self.unmapped[kind.name] = hint
            else:
                _log_kept.info("Layer %r on %s keeps its own forward: %s", kind.name, kind.device, choice.reason)
            self.by_kind[kind] = self._kept(kind.name, choice.reason, None, chosen)

    def check(self, first_path: Mapping[_Kind, str]) -> None:
        """Decide by the layers that were loaded."""
        for kind, (choice, load) in self.selected.items():
            self.by_kind[kind] = self._checked(kind, first_path[kind], choice, load)

    def of_group(self, group: _Group) -> LayerDecision:
        """The decision for the layers of a group, but for those of `of_some`."""
        if group.kept is not None:
            return self._kept(group.name, group.kept, None, None)
        return self.by_kind[group.kinds[0]] if len(group.kinds) == 1 else self._agreed(group.kinds)

    def of_some(self, group: _Group, usual: LayerDecision) -> dict[int, LayerDecision]:
        """The decisions for the layers of a group that may not get its kernel, by their place."""
        if usual.function is None:
            return {}
        reasons = {**lacking_attributes(usual.function, group.modules), **group.faults}
        return {
            place: self._unfit(usual.layer, group.paths[place], reason, usual.kernel, usual.chosen)
            for place, reason in sorted(reasons.items())
        }

    def _checked(self, kind: _Kind, path: str, choice: SelectedKernel, load: LayerLoad) -> LayerDecision:
        """Decide by a loaded layer, which must follow the rules for layers."""
        origin, described_as = origin_of(choice.repository), described(choice.repository)
        chosen = Chosen(choice, kind.device)
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
            function=self._forward(kind, load.layer, described_as),
            kernel=origin,
            commit=None if build is None or build.source.user_owned else build.snapshot.commit,
            variant=None if build is None else build.variant,
            registered=choice.mode,
            chosen=chosen,
        )

    def _forward(self, kind: _Kind, layer: Any, described_as: str) -> Callable[..., Any]:
        """The forward that runs a kernel, but for gradients that it cannot compute."""
        kernel: Callable[..., Any] = layer.forward
        if getattr(layer, "has_backward", True):
            return kernel
        refused = None
        if KernelizeFallback.NO_COMPATIBLE_MODE not in self.request.fallback:
            refused = (
                f"Layer {kind.name!r}: {described_as} does not support backward, and a gradient is needed. Kernelize "
                "the model with Mode.TRAINING, or let the layer keep its own forward then: use_fallback=True."
            )
        cls: Any = kind.cls
        return unless_gradient(kernel, cls.forward, refused, is_function_class(cls))

    def _agreed(self, kinds: Sequence[_Kind]) -> LayerDecision:
        """The decision for a function on several devices: it is one object, so it must be the same for all."""
        by_kind = self.by_kind
        first = by_kind[kinds[0]]
        if all(by_kind[kind].function is first.function for kind in kinds):
            return first
        wanted = ", ".join(f"{kind.device}: {by_kind[kind].kernel or 'none'}" for kind in kinds)
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


def _following(inference: LayerDecision, training: LayerDecision, module: nn.Module) -> LayerDecision:
    """One decision of two: where both have one kernel its forward alone, else a forward that asks `training`.

    A function has no `training` of its own: it runs the kernel for training in both, which serves inference too.
    """
    if is_function(module) and inference.function is not training.function:
        inference = replace(training, mode=inference.mode)
        if training.function is None:
            reason = f"a function cannot follow train() and eval(), and for training: {training.reason}"
            inference = replace(inference, reason=reason)
    forwards = inference.function, training.function
    function = forwards[0]
    if forwards[0] is not forwards[1]:
        own: Any = type(module).forward
        function = by_training(forwards[0] or own, forwards[1] or own, own)
    kernels = dict.fromkeys(each.kernel for each in (inference, training) if each.function is not None)
    return LayerDecision(
        layer=inference.layer,
        function=function,
        reason=None if function is not None else inference.reason,
        kernel=", ".join(kernel for kernel in kernels if kernel is not None) or inference.kernel,
        each=(inference, training),
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
