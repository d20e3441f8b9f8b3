"""The public functions that get kernels: `get_kernel` and its siblings."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kernels.operations.call import KernelRequest
from kernels.operations.first_request import first_requests
from kernels.settings import Verify
from kernels.tracebacks import public

if TYPE_CHECKING:
    from kernels.backends import BackendName
    from kernels.resolver.build_choice import BuildChoice
    from kernels.resolver.decision import VariantAccepted, VariantRejected
    from kernels.resolver.target import Target
else:  # `typing.get_type_hints`, which other packages call with these functions, evaluates their types
    BackendName = str
    BuildChoice = Target = VariantAccepted = VariantRejected = Any

__all__ = [
    "KernelRequest",
    "explain",
    "get_kernel",
    "get_kernel_variants",
    "get_kernels",
    "get_local_kernel",
    "get_locked_kernel",
    "has_kernel",
    "install_kernel",
    "load_kernel",
]


@public
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

    If the caller's lockfile lists the repository, it chooses the commit.

    Args:
        repo_id: The repository, `org/name`.
        revision: A branch, a tag or a commit; not together with `version`.
        version: A major version. Without either, the locked version is used, else the newest, with a warning that
            names it.
        backend: The backend to load a build for; the default follows Torch's build.
        user_agent: Text to add to the `User-Agent` header of requests.
        trust_remote_code: False loads kernels of trusted publishers only, a list of repositories (`org/name`) those
            too, True every kernel.
        check_arch: Whether the build must cover the device's architecture.
        device: The device to choose the build for: an index, or Torch's name such as `cuda:1`. The default is the
            current device.
        verify: When the content of the builds is checked: `install` after a download or a change on disk, `load` on
            every load, `off` only what a lockfile pins, once. The default is `KERNELS_VERIFY`, else `install`.

    Returns:
        The kernel's module; the same one for every call.

    Raises:
        RequestError: An argument is invalid, or there is no such version or revision (a `ValueError`).
        RepositoryNotFound: There is no such repository (a `FileNotFoundError`).
        NoSuitableBuild: No build suits this machine; the message says why for each (a `FileNotFoundError`).
        UnsupportedArch: Builds suit, but none covers the device's architecture (also a `RuntimeError`).
        UntrustedPublisher: The publisher is not trusted (a `ValueError`).
        UntrustedSignature: A policy requires a signature, and no build has an accepted one (a `ValueError`).
        DigestMismatch: The content of a build differs from its metadata or lockfile, and cannot be downloaded again
            now (a `ValueError`).
        LockError: The lockfile lists another version only, or cannot be read (a `ValueError`).
        NotLocked: `KERNELS_LOCKED` is set, and no lockfile lists the kernel (a `LockError`).
        MissingPythonDependency: A Python package is not installed (an `ImportError`).
        IncompatibleClient: The kernel needs a newer version of this package (a `RuntimeError`).
        HubUnavailable: The Hub did not answer, and the cache does not help (a `ConnectionError`).
        Exception: What the kernel's own code raises while it is imported, with a note that names the kernel.

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
    request = KernelRequest(
        repo_id, version, revision, backend, user_agent, trust_remote_code, check_arch, device, verify
    )
    with first_requests(request):
        from kernels.operations.load import load_requested

        return load_requested(request).module


@public
def get_kernels(requests: Sequence[KernelRequest]) -> list[ModuleType | Exception]:
    """Get several kernels: all are planned and fetched in parallel before the first is loaded.

    Args:
        requests: The kernels.

    Returns:
        For each request its module, or the error that `get_kernel` would have raised.

    Raises:
        TypeError: An element is no `KernelRequest`.

    Example:
        ```python
        from kernels.api import KernelRequest, get_kernels

        activation, norm = get_kernels(
            [KernelRequest("kernels-community/activation", version=1), KernelRequest("org/norm", version=2)]
        )
        ```
    """
    from kernels.support.formatting import wrong_type

    requests = list(requests)
    for index, request in enumerate(requests):
        if not isinstance(request, KernelRequest):
            raise wrong_type(f"requests[{index}]", "a KernelRequest", request)
    with first_requests(*requests):
        from kernels.operations.load import load_all

        return [each if isinstance(each, Exception) else each.module for each in load_all(requests)]


@public
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
        user_agent: Text to add to the `User-Agent` header of requests.
        check_arch: Whether the build must cover the device's architecture.
        device: The device to choose the build for.
        verify: When the content is checked: `load` on every load. `install` and `off` check only the kernels that
            this one depends on, as for `get_kernel`: a folder that is worked on changes after the build.

    Returns:
        The kernel's module; the same one for every call with the same build.

    Raises:
        TypeError: `repo_path` is not a path.
        RepositoryNotFound: There is no kernel at the path (a `FileNotFoundError`).
        NoSuitableBuild: No build there suits this machine (a `FileNotFoundError`).
        KernelsError: As for `get_kernel`, also for the kernels that this one depends on.

    Example:
        ```python
        from kernels import get_local_kernel

        activation = get_local_kernel("my-kernels/activation")
        ```
    """
    from kernels.operations.load import load_requested
    from kernels.sources.folder import PathSource
    from kernels.support.formatting import wrong_type

    if not isinstance(repo_path, (str, os.PathLike)):
        raise wrong_type("repo_path", "a path", repo_path)
    source = PathSource(Path(os.path.expanduser(repo_path)).absolute(), verify=verify)
    requirement = source.requirement
    request = KernelRequest(
        requirement.repo_id, None, None, backend, user_agent, trust_remote_code, check_arch, device, verify
    )
    return load_requested(request, source).module


@public
def get_locked_kernel(
    repo_id: str,
    *,
    lockfile: str | os.PathLike[str] | None = None,
    trust_remote_code: bool | Sequence[str] = False,
    user_agent: str | Mapping[str, str] | None = None,
    verify: Verify | None = None,
) -> ModuleType:
    """Get a kernel, and those it depends on, at the commits that a lockfile pins.

    Args:
        repo_id: The repository, `org/name`. `LOCAL_KERNELS` is not used.
        lockfile: The lockfile; the default is the caller's.
        trust_remote_code: As for `get_kernel`.
        user_agent: Text to add to the `User-Agent` header of requests.
        verify: When the content of the builds is checked, as for `get_kernel`: also against the hashes in the lockfile.

    Returns:
        The kernel's module.

    Raises:
        NotLocked: No lockfile was found, or it does not list the kernel or one that it depends on (a `ValueError`).
        LockError: The lockfile cannot be read, or pins the kernel in two versions (a `ValueError`).
        KernelsError: As for `get_kernel`.

    Example:
        ```python
        from kernels import get_locked_kernel

        activation = get_locked_kernel("kernels-community/activation", lockfile="kernels.lock")
        ```
    """
    from kernels.operations.load import load_requested
    from kernels.resolver.locks import required_lock

    request = KernelRequest(
        repo_id,
        user_agent=user_agent,
        trust_remote_code=trust_remote_code,
        verify=verify,
        local_kernels=False,
        lock=required_lock(lockfile),
    )
    return load_requested(request).module


@public
def load_kernel(
    repo_id: str,
    lockfile: str | os.PathLike[str] | None = None,
    *,
    backend: BackendName | None = None,
    verify: Verify | None = None,
) -> ModuleType:
    """Load a downloaded kernel at the commit that a lockfile pins. No network is used.

    Args:
        repo_id: The repository, `org/name`. `LOCAL_KERNELS` is not used.
        lockfile: The lockfile; the default is the caller's.
        backend: The backend to load a build for; the default follows Torch's build.
        verify: When the content of the builds is checked, as for `get_kernel`: also against the hashes in the lockfile.

    Returns:
        The kernel's module.

    Raises:
        NotInCache: It is not on disk (a `FileNotFoundError`).
        NotLocked: No lockfile was found, or it does not list the kernel or one that it depends on (a `ValueError`).
        LockError: The lockfile cannot be read, or pins the kernel in two versions (a `ValueError`).
        KernelsError: As for `get_kernel`.

    Example:
        ```python
        from kernels import load_kernel

        activation = load_kernel("kernels-community/activation", lockfile="kernels.lock")
        ```
    """
    from kernels.operations.load import load_requested
    from kernels.resolver.locks import required_lock

    request = KernelRequest(
        repo_id,
        backend=backend,
        verify=verify,
        local_files_only=True,
        local_kernels=False,
        lock=required_lock(lockfile),
    )
    return load_requested(request).module


@public
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

    The Python packages and the version of this package that the kernel needs are not checked: it may run elsewhere.

    Args:
        repo_id: The repository, `org/name`.
        revision: A branch, a tag or a commit; not together with `version`.
        version: A major version.
        backend: The backend to choose a build for.
        local_files_only: Use only what is in the cache.
        user_agent: Text to add to the `User-Agent` header of requests.
        trust_remote_code: As for `get_kernel`.
        check_arch: Whether the build must cover the device's architecture.
        device: The device to choose the build for.
        target: The machine to choose the build for: a `Target`, or a string such as
            `torch2.9-cu128-x86_64-linux+sm_90`. The default is this one.
        verify: When the content of the builds is checked, as for `get_kernel`; `load` means in this call.

    Returns:
        The folder of the chosen build. `LOCAL_KERNELS` is not used.

    Raises:
        KernelsError: As for `get_kernel`.

    Example:
        ```python
        from kernels import install_kernel

        folder = install_kernel("kernels-community/activation", version=1)
        ```
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
    with first_requests(*_if_valid(request, target)):
        from kernels.operations.call import context_for, target_of
        from kernels.operations.install import install

        # What a kernel needs is looked for where it is loaded, which may be elsewhere.
        context = context_for(request, target=target_of(target), prerequisites=False)
        return install(context, request.requirement)[-1].path


@public
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
    """Whether the kernel, and each kernel it depends on, has a build that suits this machine.

    Python packages that the kernel needs are not checked; `get_kernel` names a missing one.

    Args:
        repo_id: The repository, `org/name`.
        revision: A branch, a tag or a commit; not together with `version`.
        version: A major version.
        backend: The backend to choose a build for.
        trust_remote_code: As for `get_kernel`.
        check_arch: Whether the build must cover the device's architecture.
        device: The device to choose the build for.

    Returns:
        True if `get_kernel` would find a build; False if there is no such repository, or no build fits.

    Raises:
        RequestError: An argument is invalid, or there is no such version or revision (a `ValueError`).
        UntrustedPublisher: The publisher is not trusted (a `ValueError`).
        HubUnavailable: The Hub did not answer, and the cache does not help (a `ConnectionError`).

    Example:
        ```python
        from kernels import has_kernel

        if has_kernel("kernels-community/activation", version=1):
            ...
        ```
    """
    request = KernelRequest(repo_id, version, revision, backend, None, trust_remote_code, check_arch, device)
    with first_requests(request):
        from kernels.errors import BackendUnavailable
        from kernels.operations.call import context_for
        from kernels.resolver.plan import plan_tree

        try:
            plan_tree(context_for(request, prerequisites=False), request.requirement)
        except BackendUnavailable:
            raise
        except FileNotFoundError:
            return False
        return True


@public
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
    """Every build of a kernel: accepted, the best first, or rejected with the reason.

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
        One decision for each build folder; a notebook shows the list as a table.

    Raises:
        RequestError: An argument is invalid, or there is no such version or revision (a `ValueError`).
        RepositoryNotFound: There is no such repository (a `FileNotFoundError`).
        HubUnavailable: The Hub did not answer, and the cache does not help (a `ConnectionError`).

    Example:
        ```python
        from kernels import get_kernel_variants

        for each in get_kernel_variants("kernels-community/activation", version=1):
            print(each.variant, getattr(each, "reason", "fits"))
        ```
    """
    from kernels.resolver.decision import VariantList

    choice = explain(
        repo_id,
        revision=revision,
        version=version,
        backend=backend,
        target=target,
        check_arch=check_arch,
        device=device,
    )
    return VariantList(choice.resolution.decisions)


@public
def explain(
    repo_id: str,
    *,
    revision: str | None = None,
    version: int | None = None,
    backend: BackendName | None = None,
    target: Target | str | None = None,
    check_arch: bool = True,
    device: int | str | None = None,
    lockfile: str | os.PathLike[str] | None = None,
) -> BuildChoice:
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
        lockfile: The lockfile that must pin the kernel. The default is the caller's, for the kernels it lists.

    Returns:
        The snapshot, with a decision for each build and the metadata of those that fit by name.

    Raises:
        RequestError: An argument is invalid, or there is no such version or revision (a `ValueError`).
        RepositoryNotFound: There is no such repository (a `FileNotFoundError`).
        HubUnavailable: The Hub did not answer, and the cache does not help (a `ConnectionError`).
        NotLocked: `lockfile` does not list the kernel (a `LockError`).
        LockError: The lockfile lists another version only, or cannot be read (a `ValueError`).

    Example:
        ```python
        from kernels.api import explain

        print(explain("kernels-community/activation", version=1).best)
        ```
    """
    lock = None
    if lockfile is not None:
        from kernels.resolver.locks import required_lock

        lock = required_lock(lockfile)
    request = KernelRequest(repo_id, version, revision, backend, check_arch=check_arch, device=device, lock=lock)
    with first_requests(*_if_valid(request, target)):
        from kernels.operations.call import context_for, target_of
        from kernels.resolver.usable_build import choose_from_sources

        return choose_from_sources(context_for(request, target=target_of(target)), request.requirement)


def _if_valid(request: KernelRequest, target: object) -> list[KernelRequest]:
    """The request, unless the machine to choose for is a text, which may be refused."""
    return [] if isinstance(target, str) else [request]
