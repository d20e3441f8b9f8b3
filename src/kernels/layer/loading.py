"""Load the layers that a mapping names: each kernel once, those on a Hub side by side."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, TypeGuard

from msgspec import Struct

from kernels.layer.device import ModuleDevice
from kernels.layer.mapping import RepositoryProtocol
from kernels.layer.repos import FolderKernel, HubKernel, KernelRepository, load_kernels

if TYPE_CHECKING:
    from kernels.operations.load import Loaded
else:  # `inspect.signature` and `help` evaluate the types of a struct's fields
    Loaded = Any

__all__ = ["LayerLoad", "described", "load_key", "load_layers", "name_in_kernel", "origin_of"]


class LayerLoad(Struct, eq=False):
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


def load_layers(loads: Collection[LayerLoad]) -> None:
    """Load layers, each kernel once; a kernel that is not found leaves its error.

    Raises:
        KernelsError: A kernel cannot be loaded for another reason.
    """
    by_kernel: dict[tuple[HubKernel | FolderKernel, ModuleDevice | None], list[tuple[LayerLoad, KernelRepository]]] = {}
    others: list[LayerLoad] = []
    for load in loads:
        repository = load.repository
        if _is_ours(repository):
            by_kernel.setdefault((repository._kernel, load.device), []).append((load, repository))
        else:
            others.append(load)
    for kernel, wanted in zip(load_kernels(list(by_kernel)), by_kernel.values(), strict=True):
        for load, repository in wanted:
            if isinstance(kernel, FileNotFoundError):
                load.error = kernel
            else:
                load.kernel, load.layer = kernel, repository._layer_in(kernel.module)
    for load in others:
        try:
            load.layer = load.repository.load()
        except FileNotFoundError as error:
            load.error = error


def load_key(repository: RepositoryProtocol, device: ModuleDevice) -> Any:
    """What two loads share that give the same layer."""
    if _is_ours(repository):
        return repository, device.type, device.arch() or device.index
    return id(repository)  # it may not be hashable, and its equals may load other layers


def origin_of(repository: RepositoryProtocol) -> str:
    """A repository's Hub name or folder, or the class whose `load()` gives the layer."""
    return repository._kernel.origin if _is_ours(repository) else type(repository).__name__


def name_in_kernel(repository: object) -> str | None:
    """The layer's or the function's name in the kernel; None for a repository with a `load()` of its own."""
    return getattr(repository, repository.named) if _is_ours(repository) else None


def described(repository: RepositoryProtocol) -> str:
    """A repository in a message."""
    if isinstance(repository, KernelRepository) and not _is_ours(repository):
        return f"{type(repository).__name__}.load()"  # the inherited text says what it does not load
    return str(repository)


def _is_ours(repository: object) -> TypeGuard[KernelRepository]:
    """Whether a repository loads its layer in the way of this package; any other's `load()` is called."""
    own = KernelRepository.load
    return isinstance(repository, KernelRepository) and getattr(repository.load, "__func__", None) is own
