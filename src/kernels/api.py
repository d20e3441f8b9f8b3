"""get_kernel and its siblings: the steps, in a row.

requirement -> plan (release, build, dependencies) -> fetch -> load
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from kernels import backends
from kernels.backends import BackendName
from kernels.checked import Expected, check_build
from kernels.errors import BackendUnavailable, KernelsError
from kernels.loader import load_variant
from kernels.locks import LockInForce, caller, lock_in_force
from kernels.plan import Choice, Planned, Planner
from kernels.requirement import RepoInfo, Requirement
from kernels.settings import Verify
from kernels.side_by_side import side_by_side
from kernels.sources import PathSource, open_sources
from kernels.stages import prepare_build, stages_of
from kernels.target import Target
from kernels.trust import TrustPolicy

if TYPE_CHECKING:
    from kernels.resolve import VariantAccepted, VariantRejected

__all__ = [
    "KernelRequest",
    "explain",
    "get_kernel",
    "get_kernel_variants",
    "get_kernels",
    "get_local_kernel",
    "get_requested",
    "has_kernel",
    "install_kernel",
]

#: Kernels that are planned and fetched at once; each fetches its own files side by side as well.
_AT_ONCE = 8


@dataclass(frozen=True)
class KernelRequest:
    """One kernel to get, with the arguments of `get_kernel`.

    Attributes:
        local_files_only: Take what is in the cache and download nothing.
        local_kernels: Whether `LOCAL_KERNELS` counts.
        lock: The lock that counts, default that of the caller.
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
    lock: LockInForce | None = field(default=None, repr=False, hash=False)


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


def get_requested(request: KernelRequest) -> ModuleType:
    """Get a kernel, as `get_kernel` does.

    Args:
        request: What to get.

    Raises:
        KernelsError: As for `get_kernel`.
    """
    planned = _planner(request).plan(_requirement(request))
    return _load(planned, _fetch(planned))


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
            planned = _planner(request).plan(_requirement(request))
            return planned, _fetch(planned)
        except (KernelsError, OSError, ValueError, TypeError) as error:
            return error

    results: list[ModuleType | Exception] = []
    for got in side_by_side(get, requests, at_once=_AT_ONCE, name="get"):
        try:
            results.append(got if isinstance(got, Exception) else _load(*got))
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
    planned = _planner(request).plan_at(source, requirement)
    return _load(planned, _fetch(planned))


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
    planner = _planner(
        request,
        target=target_of(target),
        # Python packages are looked for where the kernel will run, which may be elsewhere.
        prerequisites=target is None,
    )
    planned = planner.plan(_requirement(request))
    folders = _fetch(planned)
    if target is None:
        _prepare(planned, folders)
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
        _planner(request, prerequisites=False).plan(_requirement(request))
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
        The release, with a decision for each build and the metadata of those that fit by name.
    """
    planner = Planner(
        open_sources(), target_of(target), TrustPolicy(), backend, check_arch, device, lock=lock_in_force()
    )
    return planner.choose(Requirement(repo_id, version=version, revision=revision), every=True)


def _requirement(request: KernelRequest) -> Requirement:
    return Requirement(request.repo_id, version=request.version, revision=request.revision)


def target_of(target: Target | str | None) -> Target:
    """The machine that a `target` argument names; None is this one."""
    if target is None:
        return Target.current()
    if isinstance(target, str):
        return Target.parse(target)
    if not isinstance(target, Target):
        raise TypeError(
            f"`target` is {target!r}, a {type(target).__name__}; allowed is a Target, or a string such as "
            "'torch2.9-cu128-x86_64-linux+sm_90'."
        )
    return target


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"`{name}` is {value!r}, a {type(value).__name__}; allowed is True or False.")


def check_user_agent(user_agent: object) -> None:
    """Raise a `TypeError` unless it is None, a string, or a mapping from names to versions."""
    if user_agent is not None and not isinstance(user_agent, (str, Mapping)):
        raise TypeError(
            f"`user_agent` is {user_agent!r}, a {type(user_agent).__name__}; allowed is a string, or a mapping such as "
            "{'framework': 'transformers'}."
        )


def _planner(
    request: KernelRequest,
    *,
    target: Target | None = None,
    prerequisites: bool = True,
) -> Planner:
    _check_flag("check_arch", request.check_arch)
    _check_flag("local_files_only", request.local_files_only)
    check_user_agent(request.user_agent)
    return Planner(
        open_sources(
            user_agent=request.user_agent,
            local_files_only=request.local_files_only,
            overrides=request.local_kernels,
            verify=request.verify,
        ),
        target or Target.current(),
        TrustPolicy.of(request.trust_remote_code),
        request.backend,
        request.check_arch,
        request.device,
        prerequisites,
        lock=lock_in_force() if request.lock is None else request.lock,
    )


def _fetch(planned: Planned) -> dict[int, Path]:
    """Everything of a plan on disk: the folder of each kernel, by the identity of its plan."""
    [*depends, last] = list(planned.walk())
    folders = side_by_side(fetch_build, depends, at_once=_AT_ONCE, name="fetch")
    return {id(each): folder for each, folder in zip([*depends, last], [*folders, fetch_build(last)], strict=True)}


def fetch_build(planned: Planned) -> Path:
    """One build of a plan on disk, with the content that its source lists and its metadata's digest names."""
    source, release, variant = planned.source, planned.release, planned.variant
    path = source.fetch(release, variant)
    expected = Expected(planned.metadata.digest, planned.pinned, planned.lock or "", signed=planned.signed)
    check_build(source, release, variant, path, expected)
    return path


def _prepare(planned: Planned, folders: Mapping[int, Path]) -> None:
    """What the backends that builds were chosen for do with them once, before the first is loaded."""
    for each in planned.walk():
        prepare_build(backends.known(each.backend), folders[id(each)], each.device)


def _load(planned: Planned, folders: Mapping[int, Path]) -> ModuleType:
    _prepare(planned, folders)
    modules: dict[int, ModuleType] = {}
    for each in planned.walk():
        info = None if each.source.verified else RepoInfo(each.release.repo_id, each.release.commit)
        modules[id(each)] = load_variant(
            folders[id(each)],
            each.metadata,
            deps={repo_id: modules[id(depend)] for repo_id, depend in each.depends.items()},
            repo_info=info,
            stages=stages_of(backends.known(each.backend), each.device),
            root=each.source.boundary(each.release),
        )
    return modules[id(planned)]
