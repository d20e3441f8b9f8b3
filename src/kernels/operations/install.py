"""A kernel and all it depends on are found, planned, fetched and checked: builds on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from kernels.cache.in_use import in_use
from kernels.errors import HubUnavailable, KernelsError
from kernels.models.requirement import Requirement
from kernels.operations.install_check import ExpectedContent, check_build
from kernels.resolver.context import ResolveContext
from kernels.resolver.found import with_passed
from kernels.resolver.likely_builds import LikelyBuilds
from kernels.resolver.plan import Planned, plan_tree, without_undelivered
from kernels.support.tasks import side_by_side

if TYPE_CHECKING:
    from kernels.sources.folder import PathSource

__all__ = ["AT_ONCE", "Installed", "fetch_build", "install"]

#: Kernels that are planned and fetched at once; each fetches its own files side by side as well.
AT_ONCE = 8


class Installed(msgspec.Struct, frozen=True):
    """A build that is on disk, and its folder."""

    planned: Planned
    path: Path


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
            failed: list[tuple[Planned, HubUnavailable]] = []

            def fetch(planned: Planned, there: Path | None = None) -> Installed:
                try:
                    return fetch_build(planned, held, there)
                except HubUnavailable as error:
                    failed.append((planned, error))  # noqa: B023
                    raise

            try:
                return _each(fetch, tree.builds)
            except HubUnavailable:
                # What one source lists and cannot give is planned again without it.
                elsewhere = without_undelivered(context, failed)
                if elsewhere is None:
                    planned, error = failed[0]
                    raise with_passed(error, planned.found.passed) from error
                context = elsewhere


def _each(fetch: Callable[..., Installed], builds: Sequence[Planned]) -> list[Installed]:
    """Every build on disk, side by side; in this thread alone where nothing is to be downloaded.

    A finder on `sys.meta_path` may get a kernel, and while it does, Python lets no other thread import anything.
    """
    alone = len(builds) == 1 or all(each.source.user_owned for each in builds)
    folders = [each.source.on_disk(each.snapshot, each.variant) for each in builds] if alone else [None]
    if None not in folders:
        return [fetch(each, folder) for each, folder in zip(builds, folders, strict=True)]
    return side_by_side(fetch, builds, at_once=AT_ONCE, name="fetch")


def fetch_build(planned: Planned, held: ExitStack | None = None, there: Path | None = None) -> Installed:
    """One build of a plan on disk, with the content that its source lists and its metadata's digest names.

    Args:
        planned: The build.
        held: Keeps the build from being pruned until it is closed.
        there: Its folder, if it was found complete just now.
    """
    source, snapshot, variant = planned.source, planned.snapshot, planned.variant
    lock = planned.found.lock or ""
    expected = ExpectedContent(planned.metadata.digest, planned.pinned, lock, signed=planned.signed)
    # Another process may prune the build between the download and the lock: it is downloaded again, once.
    for again in (False, True):
        path = source.fetch(snapshot, variant) if there is None or again else there
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
