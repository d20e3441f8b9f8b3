"""Load the layers of a mapping's repositories: the kernels on a Hub in parallel, the others one after another."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from kernels.errors import KernelsError, MappingError
from kernels.layer.device import ModuleDevice, requested_device
from kernels.layer.kernel_repository import HubRepository, LocalRepository
from kernels.layer.mapping import RepositoryProtocol

if TYPE_CHECKING:
    from kernels.operations.kernel_request import KernelRequest
    from kernels.operations.load import Loaded

__all__ = ["LayerLoad", "described", "load_key", "load_layers", "origin_of", "same_layer"]

#: The methods of this package; a repository that has others loads its layer by these.
_OWN_LOADS = frozenset((HubRepository.load, LocalRepository.load))
_OWN_KERNEL_LOADS = frozenset((HubRepository.load_kernel, LocalRepository.load_kernel))


@dataclass
class LayerLoad:
    """A repository's layer for a device: what to load, and what came of it.

    Attributes:
        repository: Where the layer comes from.
        device: The device it will run on.
        layer: The layer, not checked.
        kernel: The kernel it is part of; None for a repository with a `load()` of its own.
        error: Why the kernel was not found.
    """

    repository: RepositoryProtocol
    device: ModuleDevice
    layer: Any = None
    kernel: Loaded | None = None
    error: FileNotFoundError | None = None


def load_key(repository: RepositoryProtocol, device: ModuleDevice) -> Any:
    """What two loads share that give the same layer."""
    if _is_plain(repository):
        return repository, device.type, device.arch() or device.index
    # Equal objects may load different layers, and a third-party object may not be hashable, and knows no devices.
    if isinstance(repository, (HubRepository, LocalRepository)):
        return id(repository), device.type, device.arch() or device.index
    return id(repository)


def load_layers(loads: Collection[LayerLoad]) -> None:
    """Load layers, each kernel once; a kernel that is not found leaves its error.

    Raises:
        KernelsError: A kernel cannot be loaded for another reason.
    """
    on_hub: dict[Any, list[LayerLoad]] = {}
    requests: dict[Any, KernelRequest] = {}
    others: list[LayerLoad] = []
    for load in loads:
        repository = load.repository
        if not (_is_plain(repository) and isinstance(repository, HubRepository)):
            others.append(load)
            continue
        key = _kernel_key(repository), load.device
        if key not in on_hub:
            try:
                requests[key] = repository.request(load.device)
            except FileNotFoundError as error:
                load.error = error
                continue
        on_hub.setdefault(key, []).append(load)
    if on_hub:
        from kernels.operations.first_request import first_requests

        with first_requests(*requests.values()):
            from kernels.operations.load import load_all

            kernels = load_all(list(requests.values()))
        for key, kernel in zip(on_hub, kernels, strict=True):
            if isinstance(kernel, Exception) and not isinstance(kernel, FileNotFoundError):
                raise kernel
            for load in on_hub[key]:
                _take(load, kernel)
    local: dict[Any, Loaded | FileNotFoundError] = {}
    for load in others:
        try:
            _load(load, local)
        except FileNotFoundError as error:
            load.error = error


def origin_of(repository: RepositoryProtocol) -> str:
    """A repository's Hub name or folder, or the class whose `load()` gives the layer."""
    if _is_plain(repository):
        return repository.origin
    return type(repository).__name__


def same_layer(one: RepositoryProtocol, other: RepositoryProtocol) -> bool:
    """Whether two repositories load the same layer."""
    return one is other or (_is_plain(one) and _is_plain(other) and one == other)


def described(repository: RepositoryProtocol) -> str:
    """A repository in a message."""
    if not _is_plain(repository) and isinstance(repository, (HubRepository, LocalRepository)):
        return f"{type(repository).__name__}.load()"  # it may lack what the inherited text contains
    return str(repository)


def _is_plain(repository: object) -> TypeGuard[HubRepository | LocalRepository]:
    """Whether a repository is one of this package, and no subclass or instance of it overrides `load`."""
    if not isinstance(repository, (HubRepository, LocalRepository)) or _overrides_load(repository):
        return False
    if not {"_requirement", "_repo_path"} & vars(repository).keys():
        name = type(repository).__qualname__
        raise MappingError(f"{name}.__init__ does not call super().__init__(): call it, or override `load()`.")
    return True


def _overrides_load(repository: HubRepository | LocalRepository) -> bool:
    kind = type(repository)
    return kind.load not in _OWN_LOADS or kind.load_kernel not in _OWN_KERNEL_LOADS or "load" in vars(repository)


def _load(load: LayerLoad, local: dict[Any, Loaded | FileNotFoundError]) -> None:
    """Load the layer of a folder, or of a repository with a `load()` of its own.

    Args:
        load: What to load.
        local: The kernels of folders that were loaded before, or their errors.
    """
    repository: Any = load.repository
    if _is_plain(repository):
        key = _kernel_key(repository), load.device
        if key not in local:
            try:
                local[key] = repository.load_kernel(load.device)
            except FileNotFoundError as error:
                local[key] = error
        _take(load, local[key])
    elif isinstance(repository, (HubRepository, LocalRepository)):
        load.layer = repository.load(**_device_argument(repository, load.device))
    else:
        load.layer = repository.load()


def _kernel_key(repository: HubRepository | LocalRepository) -> Any:
    # A subclass may load by what this package knows nothing of.
    own = type(repository).__module__.partition(".")[0] == __name__.partition(".")[0]
    return repository.kernel_key() if own else id(repository)


def _take(load: LayerLoad, kernel: Loaded | FileNotFoundError) -> None:
    """Take the layer out of its kernel, or the kernel's error."""
    repository: Any = load.repository
    if isinstance(kernel, FileNotFoundError):
        load.error = kernel
    else:
        load.kernel, load.layer = kernel, repository.layer_in(kernel.module)


def _device_argument(repository: HubRepository | LocalRepository, device: ModuleDevice) -> dict[str, str]:
    """The device for an overridden `load` that takes one, as the inherited one does."""
    try:
        parameters = inspect.signature(repository.load).parameters.values()
    except (TypeError, ValueError):
        return {}
    for parameter in parameters:
        named = parameter.name == "device" and parameter.kind in (
            parameter.POSITIONAL_OR_KEYWORD,
            parameter.KEYWORD_ONLY,
        )
        if named or parameter.kind is parameter.VAR_KEYWORD:
            return {"device": _device_name(device)}
    return {}


def _device_name(device: ModuleDevice) -> str:
    # Torch's name where it means the same device: the code of a user may hand it to Torch.
    try:
        name = device.torch_device
        return name if requested_device(name) == device else str(device)
    except KernelsError:
        return str(device)
