"""get_kernel and its siblings: what can be asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from kernels.backends import BackendName
from kernels.errors import BackendUnavailable, KernelsError
from kernels.models.requirement import Requirement
from kernels.operations.load import AT_ONCE, KernelRequest, fetch, get_requested, load, planner_for, prepare, target_of
from kernels.operations.open_sources import open_sources
from kernels.resolver.lock_scope import caller, lock_in_force
from kernels.resolver.planner import Choice, Planned, Planner
from kernels.resolver.target import Target
from kernels.settings import Verify
from kernels.sources import PathSource
from kernels.support.concurrency import side_by_side
from kernels.trust.publishers import TrustPolicy

if TYPE_CHECKING:
    from kernels.resolver.selection import VariantAccepted, VariantRejected

__all__ = [
    "KernelRequest",
    "explain",
    "get_kernel",
    "get_kernel_variants",
    "get_kernels",
    "get_local_kernel",
    "has_kernel",
    "install_kernel",
]


def get_kernel(
    repo_id: str,
    *,
    revision: str | None = None,
    version: int | None = None,
    backend: BackendName | None = None,
    user_agent: str | Mapping[str, str] | None = None,
    trust_remote_code: bool | Sequence[str] = False,
    check_arch: bool = True,
    device: int | str | None = None,
    verify: Verify | None = None,
) -> ModuleType:
    """Get a kernel: find the build that fits this machine, download it if it is not here yet, and load it.

    Where a lock of the caller lists the repository, it chooses the commit.

    Args:
        repo_id: The repository, `org/name`.
        revision: A branch, a tag or a commit; not together with `version`.
        version: A major version. Without either, the one that is locked is used, else the newest, with a warning that
            names it.
        backend: The backend to load a build for; the default follows Torch's build.
        user_agent: What to add to the `User-Agent` header of requests.
        trust_remote_code: False loads what trusted publishers offer, a list of repositories (`org/name`) those as
            well, True anything.
        check_arch: Whether the build must cover the device's architecture.
        device: The device to choose the build for: an index, or Torch's name such as `cuda:1`. The default is the
            current device.
        verify: When the content of the builds is checked: `install` when they were downloaded or have changed since,
            `load` now, `off` never. The default is as `KERNELS_VERIFY` says, which is `install` where it is not set.

    Returns:
        The kernel's module. Asking again gives the same module.

    Raises:
        RequestError: An argument is not what is allowed, or there is no such version or revision (a `ValueError`).
        RepositoryNotFound: There is no such repository (a `FileNotFoundError`).
        NoSuitableBuild: No build fits this machine; the message says why for each (a `FileNotFoundError`).
        UnsupportedArch: Builds fit, but none covers the device (also a `RuntimeError`).
        UntrustedPublisher: The publisher is not trusted (a `ValueError`).
        UntrustedSignature: A policy requires a signature, and no build has one that it accepts (a `ValueError`).
        DigestMismatch: A build is not what its metadata or a lock says, or was changed in a cache that cannot be
            repaired now (a `ValueError`).
        LockError: A lock lists the repository, but not what is asked for; or it is no lock (a `ValueError`).
        NotLocked: `KERNELS_LOCKED` is set, and no lock lists the kernel (a `LockError`).
        MissingPythonDependency: A Python package is missing (an `ImportError`).
        IncompatibleClient: The kernel needs a newer version of this package (a `RuntimeError`).
        HubUnavailable: The Hub gave no answer, and the cache has none (a `ConnectionError`).

    Example:
        ```python
        import torch
        from kernels import get_kernel

        activation = get_kernel("kernels-community/activation", version=1)
        x = torch.randn(10, 20, device="cuda")
        out = torch.empty(10, 10, device="cuda")
        activation.silu_and_mul(out, x)
        ```
    """
    return get_requested(
        KernelRequest(repo_id, version, revision, backend, user_agent, trust_remote_code, check_arch, device, verify)
    )


def get_kernels(requests: Sequence[KernelRequest]) -> list[ModuleType | Exception]:
    """Get several kernels: all are planned and fetched side by side before the first is loaded.

    Args:
        requests: What to get.

    Returns:
        For each request its module, or the error that `get_kernel` would have raised.
    """

    by = caller()  # who calls cannot be seen from the threads

    def get(request: KernelRequest) -> tuple[Planned, dict[int, Path]] | Exception:
        try:
            request = replace(request, lock=request.lock or lock_in_force(by))
            planned = planner_for(request).plan(request.requirement)
            return planned, fetch(planned)
        except (KernelsError, OSError, ValueError, TypeError) as error:
            return error

    results: list[ModuleType | Exception] = []
    for got in side_by_side(get, requests, at_once=AT_ONCE, name="get"):
        try:
            results.append(got if isinstance(got, Exception) else load(*got))
        except KernelsError as error:
            results.append(error)
    return results


def get_local_kernel(
    repo_path: str | os.PathLike[str],
    *,
    backend: BackendName | None = None,
    trust_remote_code: bool | Sequence[str] = False,
    user_agent: str | Mapping[str, str] | None = None,
    check_arch: bool = True,
    device: int | str | None = None,
    verify: Verify | None = None,
) -> ModuleType:
    """Load a kernel from a folder: a repository, its `build` folder, or one variant.

    Kernels that it depends on come from where `get_kernel` finds them.

    Args:
        repo_path: The folder.
        backend: The backend to load a build for; the default follows Torch's build.
        trust_remote_code: As for `get_kernel`, for the kernels that this one depends on.
        user_agent: What to add to the `User-Agent` header of requests.
        check_arch: Whether the build must cover the device's architecture.
        device: The device to choose the build for.
        verify: When the content is checked: `load` now. `install` and `off` check only the kernels that this one
            depends on, as for `get_kernel`: what is worked on changes after it was built.

    Returns:
        The kernel's module.

    Raises:
        RepositoryNotFound: There is no kernel at the path (a `FileNotFoundError`).
        NoSuitableBuild: No build there fits this machine (a `FileNotFoundError`).
    """
    if not isinstance(repo_path, (str, os.PathLike)):
        raise TypeError(f"`repo_path` is {repo_path!r}, a {type(repo_path).__name__}; allowed is a path.")
    source = PathSource(Path(os.path.expanduser(repo_path)).absolute(), verify=verify)
    requirement = source.requirement
    request = KernelRequest(
        requirement.repo_id, None, None, backend, user_agent, trust_remote_code, check_arch, device, verify
    )
    planned = planner_for(request).plan_at(source, requirement)
    return load(planned, fetch(planned))


def install_kernel(
    repo_id: str,
    *,
    revision: str | None = None,
    version: int | None = None,
    backend: BackendName | None = None,
    local_files_only: bool = False,
    user_agent: str | Mapping[str, str] | None = None,
    trust_remote_code: bool | Sequence[str] = False,
    check_arch: bool = True,
    device: int | str | None = None,
    target: Target | str | None = None,
    verify: Verify | None = None,
) -> Path:
    """Download a kernel, and those it depends on, without loading them.

    Args:
        repo_id: The repository, `org/name`.
        revision: A branch, a tag or a commit; not together with `version`.
        version: A major version.
        backend: The backend to choose a build for.
        local_files_only: Take what is in the cache and download nothing.
        user_agent: What to add to the `User-Agent` header of requests.
        trust_remote_code: As for `get_kernel`.
        check_arch: Whether the build must cover the device's architecture.
        device: The device to choose the build for.
        target: The machine to choose the build for: a `Target`, or a string such as
            `torch2.9-cu128-x86_64-linux+sm_90`. The default is this one.
        verify: When the content of the builds is checked, as for `get_kernel`; `load` means now.

    Returns:
        The folder of the chosen build. `LOCAL_KERNELS` does not count here.

    Raises:
        KernelsError: As for `get_kernel`.
    """
    request = KernelRequest(
        repo_id,
        version,
        revision,
        backend,
        user_agent,
        trust_remote_code,
        check_arch,
        device,
        verify,
        local_files_only=local_files_only,
        local_kernels=False,
    )
    planner = planner_for(
        request,
        target=target_of(target),
        # Python packages are looked for where the kernel will run, which may be elsewhere.
        prerequisites=target is None,
    )
    planned = planner.plan(request.requirement)
    folders = fetch(planned)
    if target is None:
        prepare(planned, folders)
    return folders[id(planned)]


def has_kernel(
    repo_id: str,
    *,
    revision: str | None = None,
    version: int | None = None,
    backend: BackendName | None = None,
    trust_remote_code: bool | Sequence[str] = False,
    check_arch: bool = True,
    device: int | str | None = None,
) -> bool:
    """Whether there is a build that fits this machine, for the kernel and for all it depends on.

    Python packages that the kernel needs are not looked for; `get_kernel` says which one is missing.

    Args:
        repo_id: The repository, `org/name`.
        revision: A branch, a tag or a commit; not together with `version`.
        version: A major version.
        backend: The backend to choose a build for.
        trust_remote_code: As for `get_kernel`.
        check_arch: Whether the build must cover the device's architecture.
        device: The device to choose the build for.

    Raises:
        RequestError: An argument is not what is allowed, or there is no such version or revision (a `ValueError`).
        UntrustedPublisher: The publisher is not trusted (a `ValueError`).
        HubUnavailable: The Hub gave no answer, and the cache has none (a `ConnectionError`).
    """
    request = KernelRequest(repo_id, version, revision, backend, None, trust_remote_code, check_arch, device)
    try:
        planner_for(request, prerequisites=False).plan(request.requirement)
    except BackendUnavailable:
        raise
    except FileNotFoundError:
        return False
    return True


def get_kernel_variants(
    repo_id: str,
    *,
    revision: str | None = None,
    version: int | None = None,
    backend: BackendName | None = None,
    target: Target | str | None = None,
    check_arch: bool = True,
    device: int | str | None = None,
) -> list[VariantAccepted | VariantRejected]:
    """Every build of a kernel as accepted, the best first, or rejected with its reason.

    Args:
        repo_id: The repository, `org/name`.
        revision: A branch, a tag or a commit; not together with `version`.
        version: A major version.
        backend: The backend to judge builds for.
        target: The machine to judge for: a `Target`, or a string such as `torch2.9-cu128-x86_64-linux+sm_90`. The
            default is this one.
        check_arch: Whether a build must cover the device's architecture.
        device: The device to judge builds for.

    Returns:
        One decision for each build folder.
    """
    choice = explain(
        repo_id,
        revision=revision,
        version=version,
        backend=backend,
        target=target,
        check_arch=check_arch,
        device=device,
    )
    return list(choice.resolution.decisions)


def explain(
    repo_id: str,
    *,
    revision: str | None = None,
    version: int | None = None,
    backend: BackendName | None = None,
    target: Target | str | None = None,
    check_arch: bool = True,
    device: int | str | None = None,
) -> Choice:
    """Judge every build of a kernel for a machine, without downloading one.

    Args:
        repo_id: The repository, `org/name`.
        revision: A branch, a tag or a commit; not together with `version`.
        version: A major version.
        backend: The backend to judge builds for.
        target: The machine to judge for: a `Target`, or a string such as `torch2.9-cu128-x86_64-linux+sm_90`. The
            default is this one.
        check_arch: Whether a build must cover the device's architecture.
        device: The device to judge builds for.

    Returns:
        The snapshot, with a decision for each build and the metadata of those that fit by name.
    """
    planner = Planner(
        open_sources(), target_of(target), TrustPolicy(), backend, check_arch, device, lock=lock_in_force()
    )
    return planner.choose(Requirement(repo_id, version=version, revision=revision), every=True)
