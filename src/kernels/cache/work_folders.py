"""The folders in which `kernels mirror` packs archives: each run has one, and removes it in the end."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kernels.cache.in_use import in_use, unused
from kernels.errors import StoreError
from kernels.support.files import check_folders, is_real_folder, make_folders

__all__ = ["abandoned_work", "folder_size", "remove_work", "work_folder", "work_folders"]

#: Where a file system has no locks, a folder without a change for so long belongs to a process that was killed.
_STALE_SECONDS = 24 * 3600.0


@contextmanager
def work_folder(cache: Path) -> Iterator[Path]:
    """A folder for temporary files beside the cache; it is removed in the end, and so are those of killed processes.

    Args:
        cache: The cache's folder.

    Raises:
        StoreError: The cache cannot be written.
    """
    root = _root(cache)
    folder = root / secrets.token_hex(8)
    try:
        make_folders(root)
        for left in abandoned_work(cache):
            remove_work(left)
        folder.mkdir()
    except OSError as error:
        raise StoreError(
            f"Archives are packed in {root}, which cannot be written: {error.strerror or error}. Set KERNELS_CACHE to "
            "a folder that can."
        ) from error
    with in_use(folder):
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def work_folders(cache: Path) -> list[Path]:
    """The folders of all runs, also of those at work."""
    root = _root(cache)
    with suppress(OSError):
        check_folders(root)
        return sorted(path for path in root.iterdir() if is_real_folder(path))
    return []


def abandoned_work(cache: Path) -> list[Path]:
    """The folders of runs that were killed more than a day ago."""
    found = []
    for folder in work_folders(cache):
        with suppress(OSError), unused(folder) as free:
            if free and time.time() - folder.lstat().st_mtime > _STALE_SECONDS:
                found.append(folder)
    return found


def remove_work(folder: Path) -> int:
    """Remove the folder of a run, unless the run is at work; returns the bytes of its files."""
    with unused(folder) as free:
        if not free:
            return 0
        size = folder_size(folder)
        shutil.rmtree(folder, ignore_errors=True)
        return size - folder_size(folder)


def folder_size(folder: Path) -> int:
    """Bytes of the files in a folder; a link has none."""
    size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                facts = os.lstat(os.path.join(parent, name))
                size += facts.st_size if stat.S_ISREG(facts.st_mode) else 0
    return size


def _root(cache: Path) -> Path:
    return cache / ".locks" / "kernels-mirroring"
