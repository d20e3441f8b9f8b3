"""The steps of a call, in a row: a request, its plan, its builds on disk, its module."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from kernels import backends
from kernels.cache.in_use import in_use
from kernels.errors import HubUnavailable, KernelsError
from kernels.loader.load import is_loaded, load_variant
from kernels.loader.stages import stages_of
from kernels.models.requirement import RepoInfo, Requirement
from kernels.models.snapshot import BUILD_FOLDER, Snapshot
from kernels.operations.install_check import ExpectedContent, check_build
from kernels.operations.kernel_request import KernelRequest
from kernels.operations.open_sources import open_sources
from kernels.resolver.caller import caller
from kernels.resolver.choice import choose_backend
from kernels.resolver.context import ResolveContext
from kernels.resolver.likely_builds import LikelyBuilds
from kernels.resolver.locks import active_lock
from kernels.resolver.ordered_sources import with_passed
from kernels.resolver.planner import Planned, PlanTree, plan_tree
from kernels.resolver.redirects import SnapshotKey
from kernels.resolver.target import Target
from kernels.resolver.undelivered import NotDelivered, may_be_elsewhere, without_undelivered
from kernels.support.formatting import wrong_type
from kernels.support.logs import logger
from kernels.support.tasks import side_by_side
from kernels.trust.policy import active_policy
from kernels.trust.publishers import TrustPolicy

if TYPE_CHECKING:
    from kernels.sources.folder import PathSource

__all__ = [
    "AT_ONCE",
    "Installed",
    "Loaded",
    "context_for",
    "distinct_targets",
    "fetch",
    "fetch_build",
    "install",
    "load",
    "load_all",
    "load_requested",
    "target_of",
]

_log = logger(__name__)

#: Kernels that are planned and fetched at once; each fetches its own files side by side as well.
AT_ONCE = 8


class Installed(msgspec.Struct, frozen=True):
    """A build that is on disk, and its folder."""

    planned: Planned
    path: Path

    @property
    def build(self) -> tuple[Snapshot, str]:
        """What its source calls it."""
        return self.planned.snapshot, self.planned.variant


class Loaded(msgspec.Struct, frozen=True):
    """A build whose module is loaded, with those it depends on."""

    installed: Installed
    module: ModuleType


def load_requested(request: KernelRequest, source: PathSource | None = None) -> Loaded:
    """Get a kernel, as `get_kernel` does.

    Args:
        request: The kernel.
        source: The folder it is in, for a local kernel.

    Raises:
        KernelsError: As for `get_kernel`.
    """
    with ExitStack() as held:
        return load(install(context_for(request), request.requirement, source, held))


def load_all(requests: Sequence[KernelRequest]) -> list[Loaded | Exception]:
    """Get several kernels: all are planned and fetched side by side before the first is loaded.

    Args:
        requests: The kernels.

    Returns:
        For each request the kernel, or the error that `get_kernel` would have raised.
    """
    by = caller()  # the threads below have other frames

    def get(request: KernelRequest) -> Sequence[Installed] | Exception:
        try:
            request = request.with_changes(lock=request.lock or active_lock(by))
            return install(context_for(request), request.requirement, held=held)
        except (KernelsError, OSError, ValueError, TypeError) as error:
            return error

    results: list[Loaded | Exception] = []
    with ExitStack() as held:
        for got in side_by_side(get, requests, at_once=AT_ONCE, name="get"):
            try:
                results.append(got if isinstance(got, Exception) else load(got))
            except Exception as error:  # noqa: BLE001 - also what the kernel's own code raises
                results.append(error)
    return results


def target_of(target: Target | str | None) -> Target:
    """The machine that a `target` argument names; None is this one."""
    if target is None:
        return Target.current()
    if isinstance(target, str):
        return Target.parse(target)
    if not isinstance(target, Target):
        raise wrong_type("target", "a Target or a string such as 'torch2.9-cu128-x86_64-linux+sm_90'", target)
    return target


def distinct_targets(targets: Iterable[Target | str | None]) -> list[Target]:
    """The machines that a `targets` argument names, each once; two that read alike may differ."""
    found: list[Target] = []
    for target in map(target_of, targets):
        if target not in found:
            found.append(target)
    return found


def context_for(
    request: KernelRequest,
    *,
    target: Target | None = None,
    prerequisites: bool = True,
) -> ResolveContext:
    """The context that a request is resolved in.

    Args:
        request: The kernel.
        target: The machine to choose builds for; the default is this one.
        prerequisites: Whether the client's version and the Python packages that a build needs are checked.

    Raises:
        TypeError: An argument of the request is of the wrong type.
        RequestError, LockError: An argument, a setting, or the caller's lock, cannot be used.
    """
    request.check()
    target = target or Target.current()
    choose_backend(target, request.backend, request.device)  # before the Hub is asked
    return ResolveContext(
        sources=open_sources(
            user_agent=request.user_agent,
            local_files_only=request.local_files_only,
            overrides=request.local_kernels,
            verify=request.verify,
        ),
        target=target,
        trust=TrustPolicy.of(request.trust_remote_code),
        signing=active_policy(),
        lock=active_lock() if request.lock is None else request.lock,
        backend=request.backend,
        check_arch=request.check_arch,
        device=request.device,
        prerequisites=prerequisites,
    )


def install(
    context: ResolveContext,
    requirement: Requirement,
    source: PathSource | None = None,
    held: ExitStack | None = None,
) -> list[Installed]:
    """A kernel and each one it depends on, chosen and put on disk; the kernel itself is the last.

    Args:
        context: What the call resolves with.
        requirement: The kernel.
        source: The folder it is in, for a local kernel.
        held: Keeps the builds from being pruned until it is closed.

    Raises:
        KernelsError: As for `get_kernel`.
    """
    with LikelyBuilds() as likely:
        context = replace(context, likely=likely)
        while True:
            # Resolve and choose: `resolve_snapshot` and `choose_build` for the kernel and each one it depends on.
            tree = plan_tree(context, requirement, source)
            # Fetch and check: `fetch_build` for each, side by side.
            try:
                return fetch(tree, held)
            except NotDelivered as failed:
                # What one source lists and cannot give is planned again without it.
                context = without_undelivered(context, tree, failed)


def fetch(tree: PlanTree, held: ExitStack | None = None) -> list[Installed]:
    """Every build of a plan on disk, in the plan's order.

    Args:
        tree: The plan.
        held: Keeps the builds from being pruned until it is closed.

    Raises:
        NotDelivered: A source does not give a build that it lists, and there is another source to ask.
    """

    def deliver(planned: Planned, there: Path | None = None) -> Installed:
        try:
            return fetch_build(planned, there, held)
        except HubUnavailable as error:
            if not may_be_elsewhere(planned, error):
                raise with_passed(error, planned.found.passed) from error
            raise NotDelivered(planned, error) from error

    if len(tree.builds) == 1 or all(planned.source.user_owned for planned in tree.builds):
        # Nothing to wait for: no thread is needed. A finder on `sys.meta_path` may get a kernel, and while it does,
        # Python lets no other thread import anything.
        there = [planned.source.on_disk(planned.snapshot, planned.variant) for planned in tree.builds]
        if None not in there:
            return [deliver(planned, folder) for planned, folder in zip(tree.builds, there, strict=True)]
    return side_by_side(deliver, tree.builds, at_once=AT_ONCE, name="fetch")


def fetch_build(planned: Planned, there: Path | None = None, held: ExitStack | None = None) -> Installed:
    """One build of a plan on disk, with the content that its source lists and its metadata's digest names.

    Args:
        planned: The build.
        there: Its folder, if it was found complete just now.
        held: Keeps the build from being pruned until it is closed.
    """
    source, snapshot, variant = planned.source, planned.snapshot, planned.variant
    expected = ExpectedContent(planned.metadata.digest, planned.pinned, planned.lock or "", signed=planned.signed)
    # Another process may prune the build between the download and the lock: it is downloaded again, once.
    for again in (False, True):
        path = source.fetch(snapshot, variant) if there is None or again else there
        with ExitStack() as lock:
            stays = lock.enter_context(in_use(path))
            try:
                check_build(source, snapshot, variant, path, expected)
            except KernelsError:
                if again or source.on_disk(snapshot, variant):
                    raise
                continue
            if stays or again:
                if held is not None:
                    held.enter_context(lock.pop_all())
                break
    return Installed(planned, path)


def load(installed: Sequence[Installed]) -> Loaded:
    """Load a plan that is on disk, the kernel after those it depends on; what was removed since is fetched again."""
    try:
        return _load(installed)
    except Exception:
        # Somebody removed the files by hand, or there is no `flock`.
        removed = [each for each in installed if each.planned.source.on_disk(*each.build) is None]
        if not removed:
            raise
    with ExitStack() as held:
        for each in removed:
            fetch_build(each.planned, held=held)
        return _load(installed)


def _load(installed: Sequence[Installed]) -> Loaded:
    modules: dict[SnapshotKey, ModuleType] = {}
    for each in installed:
        planned, snapshot = each.planned, each.planned.snapshot
        own = planned.source.user_owned  # a folder of the user's, in which everything counts
        prefix = f"{BUILD_FOLDER}/{planned.variant}/"
        known = is_loaded(each.path)
        module = modules[planned.found.key] = load_variant(
            each.path,
            planned.metadata,
            deps={repo_id: modules[key] for repo_id, key in planned.depends.items()},
            repo_info=None if own else RepoInfo(snapshot.repo_id, _revision(planned)),
            commit=None if own else snapshot.commit,
            stages=stages_of(backends.known(planned.backend), planned.device),
            files=None if own else [file.path.removeprefix(prefix) for file in snapshot.builds[planned.variant]],
        )
        _log.log(
            logging.DEBUG if known else logging.INFO,
            "%s%s: build %s (%s)%s from %s, as %s",
            planned.found.asked if not own else each.path,
            " is loaded already" if known else " is loaded",
            planned.variant,
            planned.why,
            f" of commit {snapshot.commit[:12]} ({_chosen_by(planned)})" if not own else "",
            planned.source.name,
            module.__name__,
        )
    return Loaded(each, module)


def _chosen_by(planned: Planned) -> str:
    """What chose the commit, for the log."""
    if planned.lock is not None:
        return f"pinned by {planned.lock}"
    asked = planned.requirement
    return "as asked" if asked.commit is not None else f"its branch {asked.branch}"


def _revision(planned: Planned) -> str:
    """The revision that was asked for; the commit where a version or a lock chose it."""
    found = planned.found
    return found.snapshot.commit if found.lock is not None else found.asked.revision or found.snapshot.commit
