"""Download kernels ahead of use: several at once, for this machine, for others, or every build.

requirements x targets -> plans -> builds, each once -> the cache, or a mirror in a folder (`mirroring/`)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from kernels.errors import LockError, RequestError
from kernels.models.lockfile import Lock
from kernels.models.requirement import Requirement
from kernels.operations.call import check_user_agent, distinct_targets
from kernels.operations.carried import keep_lock, open_carried
from kernels.operations.download_plan import (
    PROBLEMS,
    DownloadedBuild,
    DownloadFailure,
    KernelPlan,
    WantedBuild,
    deduplicate_builds,
    is_dependency_only,
    plan_download,
)
from kernels.operations.install import AT_ONCE, fetch_build
from kernels.operations.mirroring.request import MirrorProgress
from kernels.operations.mirroring.run import PlannedMirroring
from kernels.operations.open_sources import open_sources
from kernels.resolver.context import ResolveContext
from kernels.resolver.likely_builds import LikelyBuilds
from kernels.resolver.locks import active_lock
from kernels.resolver.plan import without_undelivered
from kernels.resolver.target import Target
from kernels.support.formatting import wrong_type
from kernels.support.tasks import side_by_side
from kernels.tracebacks import public
from kernels.trust.policy import active_policy
from kernels.trust.publishers import TrustPolicy

__all__ = [
    "DownloadFailure",
    "DownloadRequest",
    "DownloadedBuild",
    "Downloads",
    "download_kernels",
    "prefetch",
]

#: Kernels that are planned at once: listings and metadata, and files of few likely builds. The builds themselves are
#: fetched as those of a call.
_PLANS_AT_ONCE = 32


@dataclass(frozen=True)
class Downloads:
    """The result of a download.

    Attributes:
        builds: Every build that is on disk, dependencies included.
        failures: Kernels and builds that could not be downloaded.
    """

    builds: tuple[DownloadedBuild, ...]
    failures: tuple[DownloadFailure, ...]


@dataclass(frozen=True)
class DownloadRequest:
    """What to download, with the arguments of `download_kernels`.

    Raises:
        TypeError: `kernels` or `user_agent` is of the wrong type.
        RequestError: `targets` and `all_variants` are given together.
    """

    kernels: Sequence[str] = ()
    version: int | None = None
    revision: str | None = None
    lock: str | os.PathLike[str] | None = None
    targets: Sequence[Target | str] = ()
    all_variants: bool = False
    to: str | os.PathLike[str] | None = None
    backend: str | None = None
    trust_remote_code: bool | Sequence[str] = False
    user_agent: str | Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.kernels, str):
            raise wrong_type("kernels", "a list of repositories such as ['org/name']", self.kernels)
        check_user_agent(self.user_agent)
        if self.all_variants and self.targets:
            raise RequestError("`targets` and `all_variants` cannot be used together.")


@public
def download_kernels(
    kernels: Sequence[str] = (),
    *,
    version: int | None = None,
    revision: str | None = None,
    lock: str | os.PathLike[str] | None = None,
    targets: Sequence[Target | str] = (),
    all_variants: bool = False,
    to: str | os.PathLike[str] | None = None,
    backend: str | None = None,
    trust_remote_code: bool | Sequence[str] = False,
    user_agent: str | Mapping[str, str] | None = None,
) -> tuple[DownloadedBuild, ...]:
    """Download kernels and all they depend on, for this machine or for others, without loading them.

    Args:
        kernels: Repositories, `org/name`; none for all kernels of `lock`.
        version: A major version of each.
        revision: A branch, a tag or a commit of each; not together with `version`.
        lock: The lockfile with the commits. The default is the caller's, for the kernels it lists.
        targets: The machines to choose builds for, as `Target` or as strings such as
            `torch2.9-cu128-x86_64-linux+sm_90`. The default is this one.
        all_variants: Whether to download every build, for any machine.
        to: The folder of a mirror for the builds, which other machines use with `KERNELS_HUB=<folder>`. The default is
            the cache.
        backend: The backend to choose builds for.
        trust_remote_code: As for `get_kernel`.
        user_agent: Text to add to the `User-Agent` header of requests.

    Returns:
        Every build that is on disk now.

    Raises:
        RequestError: An argument is invalid, or `to` contains other files.
        KernelsError: As for `get_kernel`: the first failure, after everything else was downloaded.

    Example:
        ```python
        from kernels import download_kernels

        hopper = "torch2.9-cu128-x86_64-linux+sm_90"
        for build in download_kernels(["kernels-community/activation"], version=1, targets=[hopper]):
            print(build.repo_id, build.variant, build.size)
        ```
    """
    request = DownloadRequest(
        kernels, version, revision, lock, targets, all_variants, to, backend, trust_remote_code, user_agent
    )
    downloads = prefetch(request)
    for failure in downloads.failures:
        raise failure.error
    return downloads.builds


def prefetch(request: DownloadRequest, progress: MirrorProgress | None = None) -> Downloads:
    """Download kernels as `download_kernels` does, and report every failure and the progress.

    Args:
        request: What to download.
        progress: Receives the progress.

    Raises:
        RequestError: An argument is invalid, or `to` contains other files. Nothing was downloaded.
        LockError: The lock cannot be used.
        StoreError: `to` cannot be written.
    """
    locked = active_lock(file=request.lock)
    pins = None if request.lock is None else locked.lock
    asked = _requirements(request, pins)
    machines = [None] if request.all_variants else distinct_targets(request.targets or (None,))
    sources = open_sources(user_agent=request.user_agent, overrides=False)
    root = None if request.to is None else Path(os.path.expanduser(request.to)).absolute()
    mirroring = None if root is None else open_carried(root, sources, [each.repo_id for each in asked], progress)
    context = ResolveContext(
        sources=sources,
        target=Target.current(),
        trust=TrustPolicy.of(request.trust_remote_code),
        signing=active_policy(),
        lock=locked,
        backend=request.backend,
        # Python packages are checked on the machine where the kernel will run.
        prerequisites=not (request.targets or request.to or request.all_variants),
    )
    plan = partial(_plan, asked=asked, machines=machines, pins=None if request.kernels else pins)
    if root is not None and mirroring is not None:
        return _carry(root, mirroring, *plan(context), locked.lock)
    with LikelyBuilds() as likely:
        # Of several machines, the likely build of one would be dropped for that of the next.
        ahead = likely if len(machines) == 1 else None
        return _download(msgspec.structs.replace(context, likely=ahead), plan, progress)


_Plans = tuple[list[KernelPlan], list[DownloadFailure]]


def _carry(
    root: Path, mirroring: PlannedMirroring, plans: list[KernelPlan], failures: list[DownloadFailure], lock: Lock | None
) -> Downloads:
    """Put kernels into a mirror in a folder, with the lock that chose their commits."""
    wanted = deduplicate_builds(plans)
    if not wanted:
        return Downloads((), tuple(failures))
    result = mirroring.put(plans)
    there = {(each.repo_id, each.commit, each.variant): each for each in result.builds}
    builds = tuple(
        DownloadedBuild(*each.key, each.size, each.targets, root / mirroring.archive(found), found.new)
        for each in wanted
        if (found := there.get(each.key)) is not None
    )
    if lock is not None and any(each.planned.found.lock for each in wanted):
        keep_lock(root, Path(lock.where))
    return Downloads(builds, (*failures, *result.failures))


def _download(
    context: ResolveContext, plan: Callable[[ResolveContext], _Plans], progress: MirrorProgress | None
) -> Downloads:
    """Put kernels into the cache; what one source lists and cannot give is planned again without it."""
    arrived: set[Path] = set()
    while True:
        plans, failures = plan(context)
        builds, failed = _fetch(deduplicate_builds(plans), progress)
        arrived |= {each.path for each in builds if each.new}
        again = without_undelivered(
            context, [(each.planned, each.error) for each in failed if each.planned is not None]
        )
        if again is None:
            return Downloads(tuple(replace(each, new=each.path in arrived) for each in builds), (*failures, *failed))
        context = again


def _plan(
    context: ResolveContext, asked: Sequence[Requirement], machines: Sequence[Target | None], pins: Lock | None
) -> tuple[list[KernelPlan], list[DownloadFailure]]:
    planned = side_by_side(
        lambda item: plan_download(context, *item),
        [(each, machine) for each in asked for machine in machines],
        at_once=_PLANS_AT_ONCE,
        name="plan",
    )
    failures = [each for each in planned if isinstance(each, DownloadFailure)]
    if pins is not None:  # all kernels of a lockfile
        failures = [each for each in failures if not is_dependency_only(each, context, pins)]
    return [each for each in planned if isinstance(each, KernelPlan)], failures


# The requirements


def _requirements(request: DownloadRequest, lock: Lock | None) -> list[Requirement]:
    version, revision = request.version, request.revision
    if request.kernels:
        named = [Requirement(repo_id, version, revision) for repo_id in dict.fromkeys(request.kernels)]
        unpinned = [] if lock is None else [each.repo_id for each in named if lock.find(each) is None]
        if lock is not None and unpinned:
            raise LockError(
                f"{lock.where} does not pin {unpinned[0]}. Lock it first, or download without the lockfile."
            )
        return named
    if lock is None:
        raise RequestError("Nothing to download: name kernels, or a lockfile.")
    if version is not None or revision is not None:
        raise RequestError("`version` and `revision` need kernels: a lockfile has its own versions.")
    return [pin.asked for pin in lock.pins]


# From builds to disk


def _fetch(
    wanted: list[WantedBuild], progress: MirrorProgress | None
) -> tuple[list[DownloadedBuild], list[DownloadFailure]]:
    new = {each.key for each in wanted if not each.planned.source.on_disk(each.planned.snapshot, each.planned.variant)}
    if progress is not None and new:
        missing = [each for each in wanted if each.key in new]
        progress.start(sum(each.files for each in missing), sum(each.size for each in missing))

    def bring(each: WantedBuild) -> DownloadedBuild | list[DownloadFailure]:
        is_new = each.key in new
        try:
            with each.counted(progress.arrived if progress is not None and is_new else None):
                folder = fetch_build(each.planned).path
        except PROBLEMS as error:
            kernel = f"{each.planned.snapshot.repo_id} {each.planned.variant}"
            return [DownloadFailure(kernel, target, error, planned=each.planned) for target in each.targets or (None,)]
        return DownloadedBuild(*each.key, each.size, each.targets, folder, is_new)

    done = side_by_side(bring, wanted, at_once=AT_ONCE, name="fetch")
    builds = [each for each in done if isinstance(each, DownloadedBuild)]
    return builds, [failure for each in done if isinstance(each, list) for failure in each]
