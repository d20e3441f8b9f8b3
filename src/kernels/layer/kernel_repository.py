"""Which kernel a mapping's layer is in. A Hub or a disk is read only when `kernelize` needs the layer."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kernels.errors import RequestError, UnsupportedSpecifier
from kernels.layer.device import ModuleDevice, requested_device
from kernels.models.requested_names import allowed_repositories
from kernels.models.requirement import Requirement
from kernels.resolver.caller import caller
from kernels.support.formatting import wrong_type
from kernels.tracebacks import public

if TYPE_CHECKING:
    import torch
    from torch import nn

    from kernels.operations.kernel_request import KernelRequest
    from kernels.operations.load import Loaded
    from kernels.resolver.lock_pins import ActiveLock

__all__ = ["HubRepository", "KernelRepository", "LocalRepository"]


class KernelRepository(ABC):
    """A kernel, and the layer in it. Equal repositories load the same layer."""

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
        return self.layer_in(self.load_kernel(requested_device(device)).module)

    @abstractmethod
    def load_kernel(self, device: ModuleDevice | None) -> Loaded:
        """Load the kernel for a device."""

    @abstractmethod
    def layer_in(self, kernel: ModuleType) -> type[nn.Module]:
        """The kernel's attribute with the layer's name, not checked."""

    @abstractmethod
    def kernel_key(self) -> Hashable:
        """What repositories share that load one kernel, whichever layer of it they name."""

    @property
    @abstractmethod
    def origin(self) -> str:
        """The repository or folder, for messages."""

    @abstractmethod
    def _key(self) -> tuple[Any, ...]:
        """The values that equal repositories share."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((type(self), self._key()))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"


class HubRepository(KernelRepository):
    """A repository on a Hub, at the required version or revision, or where the caller's lock pins it."""

    def __init__(
        self,
        requirement: Requirement,
        trust_remote_code: bool | Sequence[str],
        user_agent: str | Mapping[str, Any] | None,
        specifier: str | None = None,
    ) -> None:
        self._requirement = requirement
        self._specifier = specifier
        self._trust_remote_code: bool | tuple[str, ...] = _trusted(trust_remote_code)
        self._user_agent = _agent(user_agent)
        # The lock itself is looked for when the kernel is needed.
        self._caller = caller(own=1)

    @property
    def origin(self) -> str:
        return self._requirement.repo_id

    def request(self, device: ModuleDevice | None) -> KernelRequest:
        """The kernel to fetch for a device.

        Raises:
            RequestError: The repository was made without a version or revision.
            UnsupportedSpecifier: It was made with a version specifier.
        """
        from kernels.operations.kernel_request import KernelRequest

        self._check_named()
        trusted = self._trust_remote_code
        return KernelRequest(
            self._requirement.repo_id,
            version=self._requirement.version,
            revision=self._requirement.revision,
            backend=None if device is None else device.backend.name,
            trust_remote_code=trusted if isinstance(trusted, bool) else list(trusted),
            user_agent=self._user_agent,
            device=_chosen(device),
            lock=self._lock(),
        )

    def load_kernel(self, device: ModuleDevice | None) -> Loaded:
        from kernels.operations.first_request import first_requests

        request = self.request(device)
        with first_requests(request):
            from kernels.operations.load import load_requested

            return load_requested(request)

    def kernel_key(self) -> Hashable:
        # The lock is the caller's: it is found once for the repositories of a module.
        return type(self), self._requirement, self._specifier, self._trust_remote_code, self._sent(), self._caller

    def _sent(self) -> Hashable:
        agent = self._user_agent
        return agent if agent is None or isinstance(agent, str) else repr(agent)

    def _check_named(self) -> None:
        if self._specifier is not None:
            raise UnsupportedSpecifier(
                f"{self._requirement.repo_id}: the version specifier {self._specifier!r} is of an older client; "
                "expected an integer such as 1, or a revision."
            )
        if self._requirement.branch is None:
            raise RequestError(
                f"A kernel version or revision must be specified for {self._requirement.repo_id}: `version=1` (a major "
                "version) or `revision='v1'` (a branch, a tag or a commit). To use what a lock pins, use "
                "LockedLayerRepository."
            )

    def _lock(self) -> ActiveLock:
        from kernels.resolver.active_lock import active_lock

        return active_lock(self._caller)

    def _key(self) -> tuple[Any, ...]:
        return self._requirement, self._specifier, self._trust_remote_code

    def __eq__(self, other: object) -> bool:
        if not super().__eq__(other) or not isinstance(other, HubRepository):
            return False
        from kernels.resolver.active_lock import same_lock

        return same_lock(self._caller, other._caller)

    __hash__ = KernelRepository.__hash__

    def __str__(self) -> str:
        return str(self._requirement)


class LocalRepository(KernelRepository):
    """A kernel in a folder."""

    def __init__(self, repo_path: Path | str) -> None:
        if not isinstance(repo_path, (str, Path)):
            raise wrong_type("repo_path", "a path", repo_path)
        self._repo_path = Path(repo_path)

    @property
    def origin(self) -> str:
        return str(self._repo_path)

    def load_kernel(self, device: ModuleDevice | None) -> Loaded:
        from kernels.operations.kernel_request import KernelRequest
        from kernels.operations.load import load_requested
        from kernels.sources.folder import PathSource

        source = PathSource(Path(os.path.expanduser(self._repo_path)).absolute())
        backend = None if device is None else device.backend.name
        return load_requested(
            KernelRequest(source.requirement.repo_id, backend=backend, device=_chosen(device)), source
        )

    def kernel_key(self) -> Hashable:
        return type(self), self._repo_path

    def _key(self) -> tuple[Any, ...]:
        return (self._repo_path,)

    def __str__(self) -> str:
        return str(self._repo_path)


def _chosen(device: ModuleDevice | None) -> str | None:
    # Without an index it is the current device, which is also the default.
    return None if device is None or device.index is None else device.torch_device


def _trusted(value: Any) -> bool | tuple[str, ...]:
    allowed = allowed_repositories(value)
    return allowed if isinstance(allowed, bool) else tuple(value)


def _agent(value: Any) -> str | dict[str, Any] | None:
    if value is None or isinstance(value, str):
        return value
    from kernels.operations.kernel_request import check_user_agent

    check_user_agent(value)
    return dict(value)
