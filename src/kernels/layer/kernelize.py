"""Kernels into a model: plan for every layer, load all kernels, and only then replace the first forward."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from kernels import settings
from kernels.errors import MappingError, RequestError
from kernels.layer.decorate import always
from kernels.layer.device import ModuleDevice, of_tensor, requested_device
from kernels.layer.mapping import MappingView, Missing, RepositoryProtocol, Selected, current_mapping, select
from kernels.layer.mode import KernelizeFallback, Mode, serving_modes
from kernels.layer.places import Place, find_places, layer_name_of, swappable_modules
from kernels.layer.report import KernelizeReport, check_model, kernelize_report
from kernels.layer.repository import HubRepository, LocalRepository
from kernels.layer.swap import Outcome, install, restore
from kernels.layer.validate import check_layer, check_registered_mode, unsupported
from kernels.support.logs import logger
from kernels.support.warn import warn_once

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["kernelize", "unkernelize"]

_logger = logger(__name__)

_Model = TypeVar("_Model", bound="nn.Module")

#: What decides the kernel of a layer: its class, and the device it runs on.
_Kind = tuple[type, ModuleDevice]


@overload
def kernelize(
    model: _Model,
    *,
    mode: Mode | None = None,
    device: str | torch.device | None = None,
    use_fallback: bool | KernelizeFallback = True,
    report: Literal[False] = False,
) -> _Model: ...


@overload
def kernelize(
    model: nn.Module,
    *,
    mode: Mode | None = None,
    device: str | torch.device | None = None,
    use_fallback: bool | KernelizeFallback = True,
    report: Literal[True],
) -> KernelizeReport: ...


@overload
def kernelize(
    model: _Model,
    *,
    mode: Mode | None = None,
    device: str | torch.device | None = None,
    use_fallback: bool | KernelizeFallback = True,
    report: bool,
) -> _Model | KernelizeReport: ...


def kernelize(
    model: nn.Module,
    *,
    mode: Mode | None = None,
    device: str | torch.device | None = None,
    use_fallback: bool | KernelizeFallback = True,
    report: bool = False,
) -> nn.Module | KernelizeReport:
    """Let the layers of a model run through the kernels that are mapped to them.

    Every kernel that the model needs is found, fetched and checked, side by side, before the first layer changes: an
    error leaves the model as it was. A model that was kernelized before starts from its original forwards.

    Args:
        model: The model; its layers are changed in place.
        mode: What it will be used for. Default: training or inference, as `model.training` says.
        device: The device type that it will run on, with or without an index. Default: each layer's own device, that
            of its parameters, else of its nearest ancestor's.
        use_fallback: In which cases a layer may keep its own forward instead of an error. True is
            `KernelizeFallback.DEFAULT`, False `KernelizeFallback.NONE`.
        report: Return a report instead of the model.

    Returns:
        The model itself, or with `report` what each layer runs through.

    Raises:
        TypeError: An argument is of the wrong type, or a kernel's layer breaks the rules for layers.
        ValueError: An argument's value is not allowed, the mapping has no kernel for a layer and that is no case for
            falling back, or a kernel's publisher is not trusted.
        FileNotFoundError: A kernel cannot be found, or no build of it suits this machine.
        ImportError: A kernel lacks a dependency, or cannot be imported.

    Example:
        >>> import torch
        >>> from kernels import use_kernel_forward_from_hub, use_kernel_mapping
        >>> @use_kernel_forward_from_hub("Twice")
        ... class Twice(torch.nn.Module):
        ...     def forward(self, x):
        ...         return 2 * x
        >>> class Shifted(torch.nn.Module):  # stands for a kernel's layer
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
    wants_report: Any = report
    if not isinstance(wants_report, bool):
        raise TypeError(f"`report` is {wants_report!r}, a {type(wants_report).__name__}; allowed is True or False.")
    request = _Request(
        mode=_mode(mode, model),
        device=requested_device(device),
        fallback=_fallback(use_fallback),
        mapping=current_mapping(),
    )
    modules, outcomes = _plan(find_places(model), request)
    for number, module in modules.items():
        install(module, outcomes[number])
    return kernelize_report(model) if report else model


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
    for module in swappable_modules(model):
        restore(module)
    return model


@dataclass(frozen=True)
class _Request:
    mode: Mode
    device: ModuleDevice | None
    fallback: KernelizeFallback
    mapping: MappingView

    def allows(self, flag: KernelizeFallback) -> bool:
        return flag in self.fallback


@dataclass(frozen=True)
class _Loaded:
    """A repository's layer, as it came."""

    layer: Any
    kernel: ModuleType | None


def _plan(places: Iterable[Place], request: _Request) -> tuple[dict[int, nn.Module], dict[int, Outcome]]:
    """The modules by their identity, and what will hold for each; a function in several places is one of them."""
    modules: dict[int, nn.Module] = {}
    outcomes: dict[int, Outcome] = {}
    kinds: dict[int, _Kind] = {}
    further: dict[int, list[_Kind]] = {}  # of a function that stands on several devices
    known: dict[tuple[type, torch.device | None], _Kind] = {}
    first_path: dict[_Kind, str] = {}
    disabled = settings.mapping_disabled()
    for path, module, device in places:
        number, cls = id(module), type(module)
        modules[number] = module
        if disabled:
            outcomes[number] = _kept(cls, request, "DISABLE_KERNEL_MAPPING is set")
            continue
        condition = getattr(cls, "kernel_condition", always)
        if condition is not always and not condition(module):
            outcomes[number] = _kept(cls, request, "its condition does not hold")
            continue
        kind = known.get((cls, device))
        if kind is None:
            kind = known[cls, device] = cls, _device(path, device, request)
            first_path.setdefault(kind, path)
        if kinds.setdefault(number, kind) != kind:
            further.setdefault(number, []).append(kind)

    by_kind = _decide(first_path, request)
    for number, kind in kinds.items():
        outcomes[number] = by_kind[kind]
    for number, others in further.items():
        outcomes[number] = _agreed([kinds[number], *dict.fromkeys(others)], by_kind, request)
    return modules, outcomes


def _device(path: str, device: torch.device | None, request: _Request) -> ModuleDevice:
    """Which device a layer counts as that runs on a Torch device."""
    own = None if device is None else of_tensor(device)
    asked = request.device
    if asked is None:
        if own is None:
            raise RequestError(
                f"The device of {path or 'the model'} cannot be told, since neither it nor a module around it has "
                "parameters or buffers; give `device`, such as device='cuda'."
            )
        return own
    # The caller names the type; which one of that type, the parameters say.
    if asked.index is None and own is not None and own.type == asked.type:
        return own
    return asked


def _decide(first_path: dict[_Kind, str], request: _Request) -> dict[_Kind, Outcome]:
    """What holds for each kind of layer: the mapping is asked, then every kernel loaded, then each layer checked."""
    found: dict[_Kind, Selected | Missing] = {}
    for kind, path in first_path.items():
        found[kind] = select(request.mapping, _layer_name(kind), kind[1], request.mode)
        missing = found[kind]
        if isinstance(missing, Missing) and not request.allows(missing.flag):
            raise MappingError(f"Layer {_layer_name(kind)!r} ({path or 'the model'}): {missing.reason}.")
    _warn_of_unmapped(found)

    selected = {kind: choice for kind, choice in found.items() if isinstance(choice, Selected)}
    loaded = _load_all([(choice.repository, kind[1]) for kind, choice in selected.items()])
    outcomes: dict[_Kind, Outcome] = {}
    for kind, choice in found.items():
        if isinstance(choice, Missing):
            outcomes[kind] = _kept(kind[0], request, choice.reason)
        else:
            outcomes[kind] = _served(kind, choice, loaded[_load_key(choice.repository, kind[1])], request)
    return outcomes


def _served(kind: _Kind, choice: Selected, loaded: _Loaded | FileNotFoundError, request: _Request) -> Outcome:
    cls, repository = kind[0], choice.repository
    origin = _origin(repository)
    if isinstance(loaded, FileNotFoundError):
        if not request.allows(KernelizeFallback.CANNOT_LOAD):
            raise loaded
        _logger.info("Layer %r keeps its own forward: %s", _layer_name(kind), loaded)
        return _kept(cls, request, f"cannot load: {_first_line(loaded)}", origin)
    layer = loaded.layer
    check_layer(layer, cls, str(repository))
    check_registered_mode(layer, _layer_name(kind), choice.mode, str(repository))
    # A kernel registered as FALLBACK promised nothing, so what it lacks is a reason to fall back.
    lacking = unsupported(layer, request.mode)
    if lacking is not None:
        if not request.allows(KernelizeFallback.NO_COMPATIBLE_MODE):
            raise MappingError(f"Layer {_layer_name(kind)!r}: {repository} {lacking}, needed for {request.mode}.")
        return _kept(cls, request, f"the kernel's layer {lacking}", origin)
    commit, variant = _provenance(loaded.kernel)
    return Outcome(
        layer=_layer_name(kind),
        mode=request.mode,
        function=layer.forward,
        kernel=origin,
        commit=commit,
        variant=variant,
        registered=choice.mode,
    )


def _agreed(kinds: list[_Kind], by_kind: dict[_Kind, Outcome], request: _Request) -> Outcome:
    """What holds for a function that stands on several devices: it is one object, so all must want the same."""
    outcomes = [by_kind[kind] for kind in kinds]
    if all(outcome.function is outcomes[0].function for outcome in outcomes):
        return outcomes[0]
    wanted = ", ".join(f"{kind[1]}: {by_kind[kind].kernel or 'none'}" for kind in kinds)
    reason = f"a function is one object, and its modules need different kernels ({wanted})"
    if not request.allows(KernelizeFallback.NO_COMPATIBLE_PROPERTIES):
        raise MappingError(f"Function {outcomes[0].layer!r}: {reason}.")
    return _kept(kinds[0][0], request, reason)


def _load_all(needed: Sequence[tuple[RepositoryProtocol, ModuleDevice]]) -> dict[Any, _Loaded | FileNotFoundError]:
    """Every kernel once for each device it is for; those on a Hub side by side."""
    results: dict[Any, _Loaded | FileNotFoundError] = {}
    unique = {_load_key(repository, device): (repository, device) for repository, device in needed}
    on_hub = {
        key: (repository, device)
        for key, (repository, device) in unique.items()
        if isinstance(repository, HubRepository)
    }
    if on_hub:
        from kernels.api import get_kernels

        kernels = get_kernels([repository.request(device) for repository, device in on_hub.values()])
        for (key, (repository, _)), kernel in zip(on_hub.items(), kernels, strict=True):
            if isinstance(kernel, FileNotFoundError):
                results[key] = kernel
            elif isinstance(kernel, Exception):
                raise kernel
            else:
                results[key] = _Loaded(repository.layer_in(kernel), kernel)
    for key, each in unique.items():
        if key not in results:
            try:
                results[key] = _load(*each)
            except FileNotFoundError as error:
                results[key] = error
    return results


def _load(repository: RepositoryProtocol, device: ModuleDevice) -> _Loaded:
    if isinstance(repository, LocalRepository):
        kernel = repository.load_kernel(device)
        return _Loaded(repository.layer_in(kernel), kernel)
    return _Loaded(repository.load(), None)


def _load_key(repository: RepositoryProtocol, device: ModuleDevice) -> Any:
    # A stranger's repository need not be hashable, and knows nothing of devices.
    if isinstance(repository, (HubRepository, LocalRepository)):
        return repository, device.type, device.arch() or device.index
    return id(repository)


def _provenance(kernel: ModuleType | None) -> tuple[str | None, str | None]:
    """The commit and the variant that a kernel was loaded from."""
    if kernel is None:
        return None, None
    from kernels.loader.load import get_loaded_kernels

    for loaded in get_loaded_kernels():
        if loaded.module is kernel:
            commit = loaded.repo_info.revision if loaded.repo_info else None
            return commit, loaded.path.name if loaded.path else None
    return None, None


def _warn_of_unmapped(found: dict[_Kind, Selected | Missing]) -> None:
    unmapped = {
        _layer_name(kind)
        for kind, choice in found.items()
        if isinstance(choice, Missing) and choice.flag is KernelizeFallback.NO_LAYER
    }
    for name in sorted(unmapped):
        warn_once(
            f"No kernel is mapped to layer {name!r}: it keeps its own forward. `register_kernel_mapping` maps one."
        )


def _kept(cls: type, request: _Request, reason: str, kernel: str | None = None) -> Outcome:
    return Outcome(layer=layer_name_of(cls), mode=request.mode, reason=reason, kernel=kernel)


def _layer_name(kind: _Kind) -> str:
    return layer_name_of(kind[0])


def _origin(repository: RepositoryProtocol) -> str:
    return repository.origin if isinstance(repository, (HubRepository, LocalRepository)) else type(repository).__name__


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _mode(mode: Mode | None, model: nn.Module) -> Mode:
    if mode is None:
        return Mode.TRAINING if model.training else Mode.INFERENCE
    serving_modes(mode)  # refuses what a model cannot be kernelized for
    return mode


def _fallback(use_fallback: Any) -> KernelizeFallback:
    if isinstance(use_fallback, KernelizeFallback):
        return use_fallback
    if isinstance(use_fallback, bool):
        return KernelizeFallback.DEFAULT if use_fallback else KernelizeFallback.NONE
    kind = type(use_fallback).__name__
    raise TypeError(f"`use_fallback` is {use_fallback!r}, a {kind}; allowed is a bool or a KernelizeFallback.")
