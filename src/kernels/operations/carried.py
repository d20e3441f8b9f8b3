"""What `kernels download --to` writes: a mirror in a folder, with the lockfile beside it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kernels import settings
from kernels.errors import LockError, RequestError, StoreError
from kernels.models.lockfile import HASHES_FILE, LOCK_FILE, Lock, hashes_path
from kernels.operations.download_plan import DownloadFailure, KernelPlan, WantedBuild
from kernels.operations.download_progress import Progress
from kernels.operations.mirroring.run import PlannedMirroring
from kernels.sources.call_sources import Sources
from kernels.sources.folder import FolderSource
from kernels.support.files import FileTooLarge, NotRegularFile, read_bounded, replace_file
from kernels.support.logs import logger
from kernels.support.warn import warn_once

__all__ = ["CarriedMirror", "DownloadedBuild", "keep_lock"]

_log = logger(__name__)

#: Larger than any lockfile, or its file of hashes.
_MAX_LOCK_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True)
class DownloadedBuild:
    """One build that is on disk now.

    Attributes:
        repo_id: The repository, after redirects.
        commit: The commit.
        variant: The build.
        size: Bytes of its files.
        targets: The machines it is for, as strings; none if every build is downloaded.
        path: Its folder; in a mirror (`to`), its archive.
        new: Whether it was not there before.
    """

    repo_id: str
    commit: str
    variant: str
    size: int
    targets: tuple[str, ...]
    path: Path
    new: bool


class CarriedMirror:
    """A mirror in a folder, for machines that cannot reach a Hub.

    Args:
        to: The folder; it is created with the first build.
        sources: Where kernels come from.
        repositories: The repositories that were asked for.
        progress: Receives the progress.

    Raises:
        RequestError: It contains other files, or the cache, or is signed and there is no key. Nothing was changed.
        StoreError: It cannot be written. Nothing was changed.
    """

    def __init__(self, to: Path, sources: Sources, repositories: Sequence[str], progress: Progress | None) -> None:
        self.root = Path(os.path.expanduser(to)).absolute()
        if isinstance(sources.default, FolderSource):
            raise RequestError(
                f"Kernels come from {sources.default.name} (KERNELS_HUB): copy that folder to {to} instead."
            )
        cache = Path(os.path.realpath(settings.cache_dir()))
        if cache.is_relative_to(os.path.realpath(self.root)):
            raise RequestError(f"{self.root} contains the cache ({cache}). Name another folder.")
        _check_writable(self.root)
        passed_on = None if progress is None else _WithoutStored(progress)
        self._mirroring = PlannedMirroring(str(self.root), sources, repositories, passed_on)

    def put(
        self, plans: Iterable[KernelPlan], wanted: Sequence[WantedBuild]
    ) -> tuple[list[DownloadedBuild], list[DownloadFailure]]:
        """Put the builds of plans into the mirror.

        Args:
            plans: The plans.
            wanted: Their builds, each once.
        """
        if not wanted:
            return [], []
        result = self._mirroring.put(plans)
        there = {(each.repo_id, each.commit, each.variant): each for each in result.builds}
        builds = []
        for each in wanted:
            snapshot, variant = each.planned.snapshot, each.planned.variant
            found = there.get((snapshot.repo_id, snapshot.commit, variant))
            if found is not None:
                archive = self.root / self._mirroring.archive(found)
                builds.append(
                    DownloadedBuild(
                        snapshot.repo_id, snapshot.commit, variant, each.size, each.targets, archive, found.new
                    )
                )
        return builds, list(result.failures)


class _WithoutStored:
    """The progress of a download, for a mirror: it counts what arrives."""

    def __init__(self, progress: Progress) -> None:
        self.start = progress.start
        self.arrived = progress.arrived

    def stored(self, size: int) -> None:
        """Nothing: an archive in a folder is there at once."""


def keep_lock(root: Path, path: Path, pins: Lock) -> None:
    """Put a lockfile and its hashes beside a mirror, and warn of repositories that only the old one listed.

    Args:
        root: The mirror.
        path: The lockfile.
        pins: Its content.

    Raises:
        StoreError: They cannot be written.
    """
    beside = hashes_path(path)
    _mention_unlisted(root, path, pins)
    hashes = read_bounded(beside, _MAX_LOCK_BYTES) if beside.is_file() else None
    # The hashes first: a lockfile is never without its hashes.
    for name, content in {HASHES_FILE: hashes, LOCK_FILE: read_bounded(path, _MAX_LOCK_BYTES)}.items():
        place = root / name
        try:
            if content is None:
                place.unlink(missing_ok=True)  # of the old lockfile
            elif not _holds(place, content):
                replace_file(place, content)
        except OSError as error:
            raise StoreError(f"Cannot write {place}: {error.strerror or error}.") from error


def _mention_unlisted(root: Path, lock: Path, pins: Lock) -> None:
    place = root / LOCK_FILE
    with suppress(LockError):  # one that cannot be read is replaced as well
        before = Lock.read(place).pins if place.is_file() else ()
        gone = dict.fromkeys(each.requirement.repo_id for each in before if not pins.of(each.requirement.repo_id))
        if gone:
            warn_once(
                _log,
                f"{place} is replaced by {lock}, which does not list {', '.join(gone)}. If they belong to another "
                "project, download each project into its own folder.",
            )


def _holds(path: Path, content: bytes) -> bool:
    try:
        return read_bounded(path, len(content)) == content
    except (FileNotFoundError, NotRegularFile, FileTooLarge):
        return False


def _check_writable(root: Path) -> None:
    place = root
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if place.is_dir() and not os.access(place, os.W_OK | os.X_OK):
        raise StoreError(f"{place} is not writable, so nothing can be put into {root}. Name another folder.")
    if not place.is_dir():
        raise RequestError(f"{root} cannot be created: {place} is not a folder. Name another one.")
