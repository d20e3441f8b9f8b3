"""Where a mapping's layer comes from: a kernel, and the name of the layer in it.

A Hub or a disk is read only when `kernelize` needs the layer; the kernels on a Hub are then fetched in parallel.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from kernels.errors import MappingError, RequestError, UnsupportedSpecifier
from kernels.layer.device import ModuleDevice, requested_device
from kernels.layer.mapping import RepositoryProtocol
from kernels.models.requested_names import allowed_repositories
from kernels.models.requirement import Requirement
from kernels.resolver.find_lock import caller
from kernels.support.formatting import did_you_mean, format_names, wrong_type
from kernels.tracebacks import public

if TYPE_CHECKING:
    import torch
    from torch import nn

    from kernels.operations.call import KernelRequest
    from kernels.operations.load import Loaded
    from kernels.resolver.locks import ActiveLock
else:  # `inspect.signature` and `help` evaluate the types of a struct's fields
    Loaded = Any

__all__ = [
    "FolderKernel",
    "HubKernel",
    "KernelRepository",
    "LayerRepository",
    "LocalLayerRepository",
    "LockedLayerRepository",
    "RepositoryProtocol",
    "kernel_at",
    "load_kernels",
    "locked_kernel",
]


class HubKernel:
    """A kernel on a Hub: at a version or a revision, or where a lock pins it.

    Args:
        requirement: The repository, with its version or revision; it is needed when the kernel is loaded.
        trust_remote_code: As in `LayerRepository`.
        user_agent: Added to the user agent of requests.
        specifier: A version specifier that was given instead of a version.
        lock: The lock that must pin it; default is the caller's, looked for when the kernel is needed.
    """

    def __init__(
        self,
        requirement: Requirement,
        trust_remote_code: bool | Sequence[str],
        user_agent: str | Mapping[str, Any] | None = None,
        *,
        specifier: str | None = None,
        lock: ActiveLock | None = None,
    ) -> None:
        if user_agent is not None and not isinstance(user_agent, str):
            from kernels.operations.call import check_user_agent

            check_user_agent(user_agent)
            user_agent = dict(user_agent)
        self.origin = requirement.repo_id
        self._requirement = requirement
        self._trusted = allowed_repositories(trust_remote_code)
        self._user_agent = user_agent
        self._specifier = specifier
        self._lock = lock
        self._caller = caller(own=2)

    def request(self, device: ModuleDevice | None) -> KernelRequest:
        """What to get for a device.

        Raises:
            RequestError: Neither a version nor a revision was given.
            UnsupportedSpecifier: A version specifier was given.
        """
        from kernels.operations.call import KernelRequest
        from kernels.resolver.locks import active_lock

        if self._specifier is not None:
            raise UnsupportedSpecifier(
                f"{self.origin}: the version specifier {self._specifier!r} is of an older client; expected an integer "
                "such as 1, or a revision."
            )
        if self._requirement.branch is None and self._lock is None:
            raise RequestError(
                f"A kernel version or revision must be specified for {self.origin}: `version=1` (a major version) or "
                "`revision='v1'` (a branch, a tag or a commit). To use what a lock pins, use LockedLayerRepository."
            )
        return KernelRequest(
            self.origin,
            version=self._requirement.version,
            revision=self._requirement.revision,
            trust_remote_code=self._trusted if isinstance(self._trusted, bool) else sorted(self._trusted),
            user_agent=self._user_agent,
            local_kernels=self._lock is None,
            lock=active_lock(self._caller) if self._lock is None else self._lock,
            **_place(device),
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HubKernel) or self._key() != other._key():
            return False
        from kernels.resolver.locks import same_lock

        return self._lock is not None or same_lock(self._caller, other._caller)

    def __hash__(self) -> int:
        return hash((self._requirement, self._trusted))

    def _key(self) -> tuple[Any, ...]:
        # Locks that pin the same are the same, in whichever file.
        lock = None if self._lock is None else self._lock.lock
        return self._requirement, self._specifier, self._trusted, lock and lock.pins

    def __str__(self) -> str:
        if self._lock is None or (pin := self._lock.find(self._requirement)) is None:
            return str(self._requirement)
        return f"{self._requirement} (commit {pin.commit[:12]}, pinned by {self._lock.where})"


def kernel_at(
    repo_id: str,
    version: Any,
    revision: str | None,
    trust_remote_code: bool | Sequence[str],
    user_agent: str | Mapping[str, Any] | None = None,
) -> HubKernel:
    """A kernel at a version or a revision. transformers 5.0 has some with a version specifier in its mapping.

    Raises:
        TypeError: An argument is of the wrong type.
        RequestError: A malformed name, or both `revision` and `version`.
    """
    if isinstance(version, str) and revision is None and version.strip().startswith(("<", ">", "=", "!", "~")):
        return HubKernel(Requirement(repo_id), trust_remote_code, user_agent, specifier=version)
    try:
        requirement = _same_requirement(repo_id, version, revision)
    except TypeError:  # one that cannot be hashed has the wrong type, which is said here
        requirement = Requirement(repo_id, version, revision)
    return HubKernel(requirement, trust_remote_code, user_agent)


# A mapping names one kernel for many layers.
_same_requirement = lru_cache(maxsize=1024, typed=True)(Requirement)


def locked_kernel(
    repo_id: str,
    lockfile: str | Path | None,
    trust_remote_code: bool | Sequence[str],
    user_agent: str | Mapping[str, Any] | None = None,
) -> HubKernel:
    """A kernel at the commit that a lock pins. The lock is read now, and `LOCAL_KERNELS` does not replace the kernel.

    Raises:
        TypeError: An argument is of the wrong type.
        NotLocked: No lock was found, or it does not list the repository.
        LockError: The lock cannot be read, or pins the repository twice.
    """
    from kernels.resolver.locks import required_lock

    requirement = Requirement(repo_id)
    lock = required_lock(lockfile)
    pin = lock.find(requirement)
    assert pin is not None  # `find` raises for a kernel that is not listed
    return HubKernel(pin.requirement, trust_remote_code, user_agent, lock=lock)


class FolderKernel:
    """A kernel in a folder.

    Args:
        path: A kernel repository, its `build` folder, or one variant.

    Raises:
        TypeError: It is no path.
    """

    def __init__(self, path: Path | str) -> None:
        if not isinstance(path, (str, Path)):
            raise wrong_type("repo_path", "a path", path)
        self.origin = str(Path(path))

    def load(self, device: ModuleDevice | None) -> Loaded:
        """Load the kernel for a device."""
        from kernels.operations.call import KernelRequest
        from kernels.operations.load import load_requested
        from kernels.sources.folder import PathSource

        source = PathSource(Path(os.path.expanduser(self.origin)).absolute())
        return load_requested(KernelRequest(source.requirement.repo_id, **_place(device)), source)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FolderKernel) and self.origin == other.origin

    def __hash__(self) -> int:
        return hash(self.origin)

    def __str__(self) -> str:
        return self.origin


def _place(device: ModuleDevice | None) -> dict[str, Any]:
    """Where a kernel will run, as arguments of a request."""
    if device is None:
        return {}
    # Without an index it is the current device, which is also the default.
    return {"backend": device.backend.name, "device": None if device.index is None else device.torch_device}


class KernelRepository(ABC):
    """A kernel, and a name in it. Equal repositories load the same layer.

    Args:
        kernel: The kernel.
        name: The name, which is also the attribute `named`.

    Raises:
        TypeError: The name is none.
    """

    #: What the name stands for, and the argument and attribute that has it.
    kind: ClassVar[str]
    named: ClassVar[str]

    def __init__(self, kernel: HubKernel | FolderKernel, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise wrong_type(self.named, "a name", name)
        self._kernel = kernel
        setattr(self, self.named, name)

    @public
    def load(self, device: str | torch.device | None = None) -> type[nn.Module]:
        """Load the layer class; download the kernel if it is not in the cache.

        Args:
            device: The device it will run on; default as for `get_kernel`.

        Raises:
            FileNotFoundError: The kernel cannot be found, or no build of it suits this machine.
            ValueError: The publisher is not trusted, or the kernel has no such layer.
            ImportError: A dependency is missing, or the kernel cannot be imported.
        """
        [kernel] = load_kernels([(self._kernel, requested_device(device))])
        if isinstance(kernel, FileNotFoundError):
            raise kernel
        return self._layer_in(kernel.module)

    @abstractmethod
    def _layer_in(self, kernel: ModuleType) -> type[nn.Module]:
        """The layer in a loaded kernel, not checked."""

    def _key(self) -> tuple[Any, ...]:
        return type(self), getattr(self, self.named), self._kernel

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KernelRepository) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __str__(self) -> str:
        return f"{self._kernel}, {self.kind} {getattr(self, self.named)}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"


class _NamedLayer(KernelRepository):
    """Names a class in the kernel's `layers`."""

    kind, named = "layer", "layer_name"
    layer_name: str

    def _layer_in(self, kernel: ModuleType) -> type[nn.Module]:
        from kernels.loader.load import kernel_attribute, kernel_layers

        layers = kernel_layers(kernel)
        if layers is None:
            raise MappingError(f"{self}: the kernel defines no layers.")
        layer: type[nn.Module] | None = kernel_attribute(kernel, self.layer_name, of=layers)
        if layer is None:
            from torch import nn

            members = vars(layers).copy().items()
            names = sorted(name for name, each in members if isinstance(each, type) and issubclass(each, nn.Module))
            raise MappingError(
                f"{self._kernel} has no layer {self.layer_name!r}; its layers are {format_names(names or ['none'])}."
                f"{did_you_mean(self.layer_name, names)}"
            )
        return layer


class LayerRepository(_NamedLayer):
    """A layer of a kernel on a Hub, for a mapping.

    If the caller's lock lists the repository, the lock chooses the commit.

    Args:
        repo_id: The repository, `org/name`.
        layer_name: The layer's name in the kernel's `layers`.
        revision: A branch, a tag or a commit. Either it or `version` must be given before the layer is loaded.
        version: A major version.
        trust_remote_code: True trusts every publisher, a list those repositories beside the trusted publishers.
        user_agent: Added to the user agent of requests.

    Raises:
        TypeError: An argument is of the wrong type.
        RequestError: A malformed name, or both `revision` and `version`.

    Example:
        >>> print(LayerRepository("kernels-community/activation", layer_name="SiluAndMul", version=1))
        kernels-community/activation version 1, layer SiluAndMul
    """

    @public
    def __init__(
        self,
        repo_id: str,
        *,
        layer_name: str,
        revision: str | None = None,
        version: int | None = None,
        trust_remote_code: bool | Sequence[str] = False,
        user_agent: str | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(kernel_at(repo_id, version, revision, trust_remote_code, user_agent), layer_name)


class LocalLayerRepository(_NamedLayer):
    """A layer of a kernel in a folder, for a mapping.

    Args:
        repo_path: A kernel repository, its `build` folder, or one variant.
        layer_name: The layer's name in the kernel's `layers`.

    Raises:
        TypeError: An argument is of the wrong type.

    Example:
        >>> from pathlib import Path
        >>> LocalLayerRepository(Path("activation"), layer_name="SiluAndMul").layer_name
        'SiluAndMul'
    """

    @public
    def __init__(self, repo_path: Path | str, *, layer_name: str) -> None:
        super().__init__(FolderKernel(repo_path), layer_name)


class LockedLayerRepository(_NamedLayer):
    """A layer of a kernel on a Hub, at the commit that a lock pins, for a mapping.

    Args:
        repo_id: The repository, `org/name`. `LOCAL_KERNELS` is ignored.
        lockfile: The lockfile; the default is the caller's active lock.
        layer_name: The layer's name in the kernel's `layers`.
        trust_remote_code: True trusts every publisher, a list those repositories beside the trusted publishers.
        user_agent: Added to the user agent of requests.

    Raises:
        TypeError: An argument is of the wrong type.
        NotLocked: No lock was found, or it does not list the repository (a `ValueError`).
        LockError: The lock cannot be read, or pins the repository twice (a `ValueError`).

    Example:
        ```python
        from kernels import LockedLayerRepository

        LockedLayerRepository("kernels-community/activation", lockfile="kernels.lock", layer_name="SiluAndMul")
        ```
    """

    @public
    def __init__(
        self,
        repo_id: str,
        *,
        lockfile: str | Path | None = None,
        layer_name: str,
        trust_remote_code: bool | Sequence[str] = False,
        user_agent: str | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(locked_kernel(repo_id, lockfile, trust_remote_code, user_agent), layer_name)


def load_kernels(
    wanted: Sequence[tuple[HubKernel | FolderKernel, ModuleDevice | None]],
) -> list[Loaded | FileNotFoundError]:
    """Load kernels for devices, those on a Hub side by side; for one that is not found its error."""
    found: dict[int, Any] = {}
    requests: dict[int, KernelRequest] = {}
    for place, (kernel, device) in enumerate(wanted):
        try:
            if isinstance(kernel, FolderKernel):
                found[place] = kernel.load(device)
            else:
                requests[place] = kernel.request(device)
        except FileNotFoundError as error:
            found[place] = error
    if requests:
        from kernels.operations.first_request import first_requests

        with first_requests(*requests.values()):
            from kernels.operations.load import load_all

            found.update(zip(requests, load_all(list(requests.values())), strict=True))
    for each in found.values():
        if isinstance(each, Exception) and not isinstance(each, FileNotFoundError):
            raise each
    return [found[place] for place in range(len(wanted))]
