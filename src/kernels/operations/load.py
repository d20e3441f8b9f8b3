"""The steps of a call, in a row: find and plan, fetch and check, load."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec.structs import replace

from kernels import backends
from kernels.cache.in_use import in_use
from kernels.errors import HubUnavailable, KernelsError
from kernels.loader.load import is_loaded, load_variant
from kernels.models.requirement import RepoInfo, Requirement
from kernels.models.snapshot import BUILD_FOLDER
from kernels.operations.call import KernelRequest, context_for
from kernels.operations.install_check import ExpectedContent, check_build
from kernels.resolver.caller import caller
from kernels.resolver.context import ResolveContext
from kernels.resolver.found import SnapshotKey, with_passed
from kernels.resolver.likely_builds import LikelyBuilds
from kernels.resolver.locks import active_lock
from kernels.resolver.plan import Planned, plan_tree, without_undelivered
from kernels.support.logs import logger
from kernels.support.tasks import side_by_side

if TYPE_CHECKING:
    from kernels.sources.folder import PathSource

__all__ = ["AT_ONCE", "Installed", "Loaded", "fetch_build", "install", "load", "load_all", "load_requested"]

_log = logger(__name__)

_T = TypeVar("_T")

#: Kernels that are planned and fetched at once; each fetches its own files side by side as well.
AT_ONCE = 8


class Installed(msgspec.Struct, frozen=True):
    """A build that is on disk, and its folder."""

    planned: Planned
    path: Path


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
            tree = plan_tree(context, requirement, source)
            undelivered: list[tuple[Planned, HubUnavailable]] = []

            def fetch(planned: Planned) -> Installed:
                try:
                    return fetch_build(planned, held)
                except HubUnavailable as error:
                    undelivered.append((planned, error))  # noqa: B023
                    raise

            try:
                return _each(fetch, tree.builds)
            except HubUnavailable:
                # What one source lists and cannot give is planned again without it.
                planned, error = undelivered[0]
                elsewhere = without_undelivered(context, planned, error)
                if elsewhere is None:
                    raise with_passed(error, planned.found.passed) from error
                context = elsewhere


def _each(fetch: Callable[[Planned], Installed], builds: Sequence[Planned]) -> list[Installed]:
    """Every build on disk, side by side; in this thread alone where nothing is to be downloaded.

    A finder on `sys.meta_path` may get a kernel, and while it does, Python lets no other thread import anything.
    """
    alone = len(builds) == 1 or all(each.source.user_owned for each in builds)
    if alone and all(each.source.on_disk(each.snapshot, each.variant) for each in builds):
        return [fetch(each) for each in builds]
    return side_by_side(fetch, builds, at_once=AT_ONCE, name="fetch")


def fetch_build(planned: Planned, held: ExitStack | None = None) -> Installed:
    """One build of a plan on disk, with the content that its source lists and its metadata's digest names.

    Args:
        planned: The build.
        held: Keeps the build from being pruned until it is closed.
    """
    source, snapshot, variant = planned.source, planned.snapshot, planned.variant
    lock = planned.found.lock or ""
    expected = ExpectedContent(planned.metadata.digest, planned.pinned, lock, signed=planned.signed)
    # Another process may prune the build between the download and the lock: it is downloaded again, once.
    for again in (False, True):
        path = source.fetch(snapshot, variant)
        with ExitStack() as own:
            stays = own.enter_context(in_use(path))
            try:
                check_build(source, snapshot, variant, path, expected)
            except KernelsError:
                if again or source.on_disk(snapshot, variant):
                    raise
                continue
            if stays or again:
                if held is not None:
                    held.enter_context(own.pop_all())
                break
    return Installed(planned, path)


def load(installed: Sequence[Installed]) -> Loaded:
    """Load a plan that is on disk, the kernel after those it depends on; what was removed since is fetched again."""
    try:
        return _load(installed)
    except Exception:
        # Somebody removed the files by hand, or there is no `flock`.
        builds = [each.planned for each in installed]
        removed = [each for each in builds if each.source.on_disk(each.snapshot, each.variant) is None]
        if not removed:
            raise
    with ExitStack() as held:
        for planned in removed:
            fetch_build(planned, held)
        return _load(installed)


def _load(installed: Sequence[Installed]) -> Loaded:
    modules: dict[SnapshotKey, ModuleType] = {}
    for each in installed:
        planned, found, snapshot = each.planned, each.planned.found, each.planned.snapshot
        own = found.source.user_owned  # a folder of the user's, in which everything counts
        prefix = f"{BUILD_FOLDER}/{planned.variant}/"
        known = is_loaded(each.path)
        backend = backends.known(planned.backend)
        # The revision that was asked for; the commit where a version or a lock chose it.
        revision = snapshot.commit if found.lock is not None else found.asked.revision or snapshot.commit
        module = modules[found.key] = load_variant(
            each.path,
            planned.metadata,
            deps={repo_id: modules[key] for repo_id, key in planned.depends.items()},
            repo_info=None if own else RepoInfo(snapshot.repo_id, revision),
            commit=None if own else snapshot.commit,
            stages={} if backend is None else backend.stages(planned.device),
            files=None if own else [file.path.removeprefix(prefix) for file in snapshot.builds[planned.variant]],
        )
        _log.log(
            logging.DEBUG if known else logging.INFO,
            "%s%s: build %s (%s)%s from %s, as %s",
            found.asked if not own else each.path,
            " is loaded already" if known else " is loaded",
            planned.variant,
            planned.why,
            f" of commit {snapshot.commit[:12]} ({_chosen_by(planned)})" if not own else "",
            found.source.name,
            module.__name__,
        )
    return Loaded(each, module)


def _chosen_by(planned: Planned) -> str:
    """What chose the commit, for the log."""
    if planned.found.lock is not None:
        return f"pinned by {planned.found.lock}"
    asked = planned.found.requirement
    return "as asked" if asked.commit is not None else f"its branch {asked.branch}"
