"""Where a mapping's layer comes from, if a lock must pin it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels.layer.device import ModuleDevice
from kernels.layer.kernel_repository import HubRepository
from kernels.layer.repository import NamedFunction, NamedLayer, checked_name, deprecated
from kernels.models.requirement import Requirement
from kernels.resolver.active_lock import required_lock
from kernels.resolver.lock_pins import ActiveLock
from kernels.tracebacks import public

if TYPE_CHECKING:
    from kernels.operations.kernel_request import KernelRequest

__all__ = ["LockedFuncRepository", "LockedLayerRepository", "LockedRepository"]


class LockedRepository(HubRepository):
    """A repository on a Hub, at the commit that a lock pins; the lock is read when this object is made."""

    def __init__(
        self,
        repo_id: str,
        lockfile: str | Path | None,
        trust_remote_code: bool | Sequence[str],
        user_agent: str | Mapping[str, Any] | None,
    ) -> None:
        requirement = Requirement(repo_id)
        self._active_lock = required_lock(lockfile)
        pin = self._active_lock.find(requirement)
        lock = self._active_lock.lock
        assert pin is not None  # `find` raises for a kernel that is not listed
        assert lock is not None
        super().__init__(pin.requirement, trust_remote_code, user_agent)
        self._pins = lock.pins
        self._commit = pin.commit

    def request(self, device: ModuleDevice | None) -> KernelRequest:
        """The kernel to fetch for a device; `LOCAL_KERNELS` does not replace it."""
        return super().request(device).with_changes(local_kernels=False)

    def kernel_key(self) -> Hashable:
        # The lock that was read when this object was made, and not that of the caller now.
        return super().kernel_key(), id(self._active_lock.lock)

    def _lock(self) -> ActiveLock:
        return self._active_lock

    def _check_named(self) -> None:
        """Nothing: the lock names the commit, and older locks no version."""

    def _key(self) -> tuple[Any, ...]:
        return *super()._key(), self._pins

    def __eq__(self, other: object) -> bool:
        # By what is pinned, in whichever file.
        return type(self) is type(other) and isinstance(other, LockedRepository) and self._key() == other._key()

    __hash__ = HubRepository.__hash__

    def __str__(self) -> str:
        return f"{super().__str__()} (commit {self._commit[:12]}, pinned by {self._active_lock.where})"


class LockedLayerRepository(NamedLayer, LockedRepository):
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
        super().__init__(repo_id, lockfile, trust_remote_code, user_agent)
        self.layer_name = checked_name("layer_name", layer_name)


class LockedFuncRepository(NamedFunction, LockedRepository):
    """Deprecated: a function of a kernel at the commit that a lock pins. `LockedLayerRepository` serves functions too.

    Args:
        repo_id: The repository, `org/name`.
        lockfile: As in `LockedLayerRepository`.
        func_name: The function's name at the kernel's top level.
        trust_remote_code: As in `LockedLayerRepository`.

    Raises:
        TypeError: An argument is of the wrong type.
        NotLocked: No lock was found, or it does not list the repository (a `ValueError`).
    """

    @public
    def __init__(
        self,
        repo_id: str,
        *,
        lockfile: str | Path | None = None,
        func_name: str,
        trust_remote_code: bool | Sequence[str] = False,
    ) -> None:
        deprecated("LockedFuncRepository", "LockedLayerRepository")
        super().__init__(repo_id, lockfile, trust_remote_code, None)
        self.func_name = checked_name("func_name", func_name)
