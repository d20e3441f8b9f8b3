"""The folders in which `kernels mirror` packs archives: each run has one, and removes it in the end."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kernels.cache.store import is_stale
from kernels.errors import StoreError
from kernels.support.files import check_folders, is_real_folder, make_folders

__all__ = ["abandoned_work", "work_folder"]


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
            shutil.rmtree(left, ignore_errors=True)
        folder.mkdir()
    except OSError as error:
        raise StoreError(
            f"Archives are packed in {root}, which cannot be written: {error.strerror or error}. Set KERNELS_CACHE to "
            "a folder that can."
        ) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def abandoned_work(cache: Path) -> list[Path]:
    """The folders of runs that were killed: those in which nothing has changed for a day."""
    root = _root(cache)
    with suppress(OSError):
        check_folders(root)
        return sorted(folder for folder in root.iterdir() if is_real_folder(folder) and _is_idle(folder))
    return []


def _is_idle(folder: Path) -> bool:
    return all(is_stale(Path(parent, name)) for parent, _, names in os.walk(folder) for name in ("", *names))


def _root(cache: Path) -> Path:
    return cache / ".locks" / "kernels-mirroring"
