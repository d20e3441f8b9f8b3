"""Where a caller's lockfile may be, found without importing what reads lockfiles: before the first request is sent."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from kernels import settings
from kernels.models import LOCK_FILE
from kernels.resolver.caller import Caller, caller
from kernels.resolver.installed_locks import locks_of_owners, site_folder

__all__ = ["PROJECT_FILE", "lock_exists", "may_be_locked", "owners_locks", "places_of", "project_locks"]

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
        return _places_of_file(by.file).places
    try:
        return tuple(project_locks(os.getcwd()))
    except OSError:  # the current folder was deleted
        return ()


def owners_locks(by: Caller) -> tuple[str, ...]:
    """The lockfiles in the metadata of the distributions that a caller's file belongs to, which may be several."""
    return () if by.file is None else _places_of_file(by.file).owners


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


class _Places(NamedTuple):
    """Where a file's lockfile may be; `owners` are those of them in the metadata of its distributions."""

    places: tuple[str, ...]
    owners: tuple[str, ...] = ()


@cache
def _places_of_file(file: str) -> _Places:
    path = os.path.abspath(file)
    site = site_folder(path)
    if site is None:
        return _Places(tuple(project_locks(os.path.dirname(path))))
    inside = path[len(site) :].lstrip(os.sep)
    package, below, _ = inside.partition(os.sep)
    owners = locks_of_owners(site, inside, package)
    return _Places((*owners, os.path.join(site, package, LOCK_FILE)) if below else owners, owners)


def project_locks(folder: str) -> Iterator[str]:
    """Lockfiles beside a file, and in the root of its project: the nearest folder above with a `pyproject.toml`."""
    first = folder
    while not _is_world_writable(folder):
        is_project = os.path.lexists(os.path.join(folder, PROJECT_FILE))
        if is_project or folder == first:
            yield os.path.join(folder, LOCK_FILE)
        above = os.path.dirname(folder)
        if is_project or above == folder:
            return
        folder = above


def _is_world_writable(folder: str) -> bool:
    """Whether every user may put files into a folder, such as /tmp: a lockfile there may be another user's."""
    # Without the sticky bit others can replace the caller's file too, so nothing is gained; and drives of Windows and
    # volumes of containers often have such a mode, where pins must not get lost.
    shared = stat.S_ISVTX | stat.S_IWOTH
    try:
        return os.stat(folder).st_mode & shared == shared
    except (OSError, ValueError):
        return False
