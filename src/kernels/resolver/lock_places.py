"""Where a caller's lockfile may be, found without importing what reads lockfiles: before the first request is sent."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from functools import cache

from kernels import settings
from kernels.models import LOCK_FILE
from kernels.resolver.caller import Caller, caller
from kernels.resolver.installed_locks import locks_of_owners, package_start, site_folder

__all__ = ["PROJECT_FILE", "lock_exists", "may_be_locked", "places_of", "project_locks"]

PROJECT_FILE = "pyproject.toml"


def may_be_locked(by: Caller | None = None) -> bool:
    """Whether a lockfile, or a setting about locks, may say what a caller's call loads.

    Nothing that reads lockfiles is imported, so that this can be asked first of all.

    Args:
        by: The caller; the default is the code that calls this package now.

    Returns:
        False where `active_lock` is certain to return `NO_LOCK`; True where it finds a lockfile, requires one,
        raises an error, or where only it can tell.

    Example:
        >>> may_be_locked(Caller("/nowhere/model.py"))
        False
    """
    try:
        if settings.lock_file() is not None or settings.locked_only():
            return True
        return any(map(lock_exists, places_of(caller() if by is None else by)))
    except Exception:  # noqa: BLE001 - `active_lock` meets it as well, and says what is wrong
        return True


def places_of(by: Caller) -> tuple[str, ...]:
    """Where a caller's lockfile may be, the place that counts most first."""
    if by.file is not None:
        return _places_of_file(by.file)
    try:
        return tuple(project_locks(os.getcwd()))
    except OSError:  # the current folder was deleted
        return ()


def lock_exists(place: str) -> bool:
    """Whether there is a lockfile; one that cannot be read is one as well, so that it is not ignored silently.

    Raises:
        LockError: It cannot be examined.
    """
    try:
        os.stat(place)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return os.path.islink(place)
    except OSError as error:
        from kernels.errors import LockError

        raise LockError(f"Cannot examine {place}: {error.strerror or error}.") from error
    return True


@cache
def _places_of_file(file: str) -> tuple[str, ...]:
    path = os.path.abspath(file)
    site = site_folder(path)
    if site is None:
        return tuple(project_locks(os.path.dirname(path)))
    inside = path[len(site) :].lstrip(os.sep)
    package, below, _ = inside.partition(os.sep)
    locks = locks_of_owners(site, inside)
    has_own = below and package_start(os.path.join(site, package)) is not None
    return (*locks, os.path.join(site, package, LOCK_FILE)) if has_own else locks


def project_locks(folder: str) -> Iterator[str]:
    """Lockfiles beside a file, and in the root of its project: the nearest folder above with a `pyproject.toml`."""
    first = folder
    while not _is_shared(folder):
        is_project = os.path.lexists(os.path.join(folder, PROJECT_FILE))
        if is_project or folder == first:
            yield os.path.join(folder, LOCK_FILE)
        above = os.path.dirname(folder)
        if is_project or above == folder:
            return
        folder = above


def _is_shared(folder: str) -> bool:
    """Whether other users may put files beside this user's, as into /tmp: a lockfile there may be another user's."""
    # Without the sticky bit they can replace the caller's file too, so nothing is gained; and drives of Windows and
    # volumes of containers often have such a mode, where pins must not get lost.
    try:
        mode = os.stat(folder).st_mode
    except (OSError, ValueError):
        return False
    return bool(mode & stat.S_ISVTX and mode & (stat.S_IWGRP | stat.S_IWOTH))
