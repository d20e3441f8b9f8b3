"""One kernel to get, and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kernels.backends import BackendName
    from kernels.models.requirement import Requirement
    from kernels.resolver.lock_pins import ActiveLock
    from kernels.settings import Verify

__all__ = ["KernelRequest"]


class KernelRequest(NamedTuple):
    """One kernel to get, with the arguments of `get_kernel`.

    Attributes:
        local_files_only: Use only what is in the cache.
        local_kernels: Whether `LOCAL_KERNELS` is used.
        lock: The lock to use; the default is the caller's.
    """

    repo_id: str
    version: int | None = None
    revision: str | None = None
    backend: BackendName | None = None
    user_agent: str | Mapping[str, str] | None = None
    trust_remote_code: bool | Sequence[str] = False
    check_arch: bool = True
    device: int | str | None = None
    verify: Verify | None = None
    local_files_only: bool = False
    local_kernels: bool = True
    lock: ActiveLock | None = None

    @property
    def requirement(self) -> Requirement:
        """The repository, with the version or the revision."""
        from kernels.models.requirement import Requirement

        return Requirement(self.repo_id, version=self.version, revision=self.revision)
