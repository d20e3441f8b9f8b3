"""The steps of a call, in a row: find and plan, fetch and check (`install`), load."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from types import ModuleType
from typing import TYPE_CHECKING

import msgspec

from kernels import backends
from kernels.errors import KernelsError
from kernels.loader.load import is_loaded, load_variant
from kernels.models.requirement import RepoInfo
from kernels.models.snapshot import BUILD_FOLDER
from kernels.operations.call import KernelRequest, context_for
from kernels.operations.install import AT_ONCE, Installed, fetch_build, install
from kernels.resolver.find_lock import caller
from kernels.resolver.found import SnapshotKey
from kernels.resolver.locks import active_lock
from kernels.resolver.plan import Planned
from kernels.support.logs import logger
from kernels.support.tasks import side_by_side

if TYPE_CHECKING:
    from kernels.sources.folder import PathSource

__all__ = ["Loaded", "load", "load_all", "load_requested"]

_log = logger(__name__)


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
