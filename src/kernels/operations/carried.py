"""What `kernels download --to` writes: a mirror in a folder, with the lockfile beside it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from kernels import settings
from kernels.errors import RequestError, StoreError
from kernels.models.lockfile import HASHES_FILE, LOCK_FILE, hashes_path
from kernels.operations.mirroring.request import MirrorProgress
from kernels.operations.mirroring.run import PlannedMirroring
from kernels.sources.call_sources import Sources
from kernels.sources.folder import FolderSource
from kernels.support.files import replace_file

__all__ = ["keep_lock", "open_carried"]


def open_carried(
    root: Path, sources: Sources, repositories: Sequence[str], progress: MirrorProgress | None
) -> PlannedMirroring:
    """A mirror in a folder, for machines that cannot reach a Hub. The folder is created with the first build.

    Args:
        root: The folder.
        sources: Where kernels come from.
        repositories: The repositories that were asked for.
        progress: Receives the progress.

    Raises:
        RequestError: It contains other files, or the cache, or is signed and there is no key. Nothing was changed.
        StoreError: It cannot be written. Nothing was changed.
    """
    if isinstance(sources.default, FolderSource):
        raise RequestError(
            f"Kernels come from {sources.default.name} (KERNELS_HUB): copy that folder to {root} instead."
        )
    cache = Path(os.path.realpath(settings.cache_dir()))
    if cache.is_relative_to(os.path.realpath(root)):
        raise RequestError(f"{root} contains the cache ({cache}). Name another folder.")
    _check_writable(root)
    return PlannedMirroring(str(root), sources, repositories, progress)


def keep_lock(root: Path, path: Path) -> None:
    """Put a lockfile, and its hashes if it has them, beside a mirror.

    Args:
        root: The mirror.
        path: The lockfile.

    Raises:
        StoreError: They cannot be written.
    """
    # The hashes first: a lockfile is never without its hashes.
    for source, place in ((hashes_path(path), root / HASHES_FILE), (path, root / LOCK_FILE)):
        try:
            if not source.is_file():
                place.unlink(missing_ok=True)  # of the old lockfile
            elif not place.is_file() or place.read_bytes() != source.read_bytes():
                replace_file(place, source.read_bytes())
        except OSError as error:
            raise StoreError(f"Cannot write {place}: {error.strerror or error}.") from error


def _check_writable(root: Path) -> None:
    place = root
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if place.is_dir() and not os.access(place, os.W_OK | os.X_OK):
        raise StoreError(f"{place} is not writable, so nothing can be put into {root}. Name another folder.")
    if not place.is_dir():
        raise RequestError(f"{root} cannot be created: {place} is not a folder. Name another one.")
