"""Kernels as a lock pins them, and nothing else: fetched where they are missing, or from what is on disk alone."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import ModuleType

from kernels.backends import BackendName
from kernels.operations.load import KernelRequest, get_requested
from kernels.resolver.lock_scope import asked_lock
from kernels.settings import Verify

__all__ = ["get_locked_kernel", "load_kernel"]


def get_locked_kernel(
    repo_id: str,
    *,
    lockfile: str | os.PathLike[str] | None = None,
    trust_remote_code: bool | Sequence[str] = False,
    user_agent: str | Mapping[str, str] | None = None,
    verify: Verify | None = None,
) -> ModuleType:
    """Get a kernel at the commit that a lock pins, with what it depends on at theirs.

    Args:
        repo_id: The repository, `org/name`. `LOCAL_KERNELS` does not count here.
        lockfile: The lock's file; the default is the lock in force for the caller.
        trust_remote_code: As for `get_kernel`.
        user_agent: What to add to the `User-Agent` header of requests.
        verify: When the content of the builds is checked, as for `get_kernel`: also against the lock's hashes.

    Returns:
        The kernel's module.

    Raises:
        NotLocked: There is no lock, or it does not list the kernel, or one that it depends on (a `ValueError`).
        LockError: The lock cannot be read, or pins the kernel in two versions (a `ValueError`).
        KernelsError: As for `get_kernel`.

    Example:
        ```python
        activation = get_locked_kernel("kernels-community/activation", lockfile="kernels.lock")
        ```
    """
    lock = asked_lock(lockfile)
    return get_requested(
        KernelRequest(
            repo_id,
            user_agent=user_agent,
            trust_remote_code=trust_remote_code,
            verify=verify,
            local_kernels=False,
            lock=lock,
        )
    )


def load_kernel(
    repo_id: str,
    *,
    lockfile: str | os.PathLike[str] | None = None,
    backend: BackendName | None = None,
    verify: Verify | None = None,
) -> ModuleType:
    """Load a kernel that was downloaded before, at the commit that a lock pins. No network is used.

    Args:
        repo_id: The repository, `org/name`. `LOCAL_KERNELS` does not count here.
        lockfile: The lock's file; the default is the lock in force for the caller.
        backend: The backend to load a build for; the default follows Torch's build.
        verify: When the content of the builds is checked, as for `get_kernel`: also against the lock's hashes.

    Returns:
        The kernel's module.

    Raises:
        NotInCache: It is not on disk (a `FileNotFoundError`).
        NotLocked: There is no lock, or it does not list the kernel, or one that it depends on (a `ValueError`).
        LockError: The lock cannot be read, or pins the kernel in two versions (a `ValueError`).
        KernelsError: As for `get_kernel`.

    Example:
        ```python
        activation = load_kernel("kernels-community/activation", lockfile="kernels.lock")
        ```
    """
    lock = asked_lock(lockfile)
    return get_requested(
        KernelRequest(repo_id, backend=backend, verify=verify, local_files_only=True, local_kernels=False, lock=lock)
    )
