"""Which lockfile is active for a call: that of `KERNELS_LOCKFILE`, else that of the calling code.

The caller is the code that calls `get_kernel` or makes a `LayerRepository`. Installed code has the lockfile of its
distribution; other code that of the project its file is in; a terminal, a notebook or a command that of the project of
the current folder. Lockfiles outside the project root are ignored. A caller that requires a lockfile and has none uses
the one in a folder that `KERNELS_HUB` names.
"""

from __future__ import annotations

import os
from pathlib import Path

from kernels import settings
from kernels.errors import LockError, RequestError
from kernels.models import LOCK_FILE
from kernels.resolver.caller import Caller, caller
from kernels.resolver.installed_locks import site_folder
from kernels.resolver.lock_pins import NO_LOCK, ActiveLock, read_lock
from kernels.resolver.lock_places import PROJECT_FILE, lock_exists, places_of, project_locks
from kernels.support.formatting import wrong_type

__all__ = ["active_lock", "lock_path", "project_here", "required_lock", "same_lock"]


def active_lock(
    by: Caller | None = None, *, only: str | None = None, file: str | os.PathLike[str] | None = None
) -> ActiveLock:
    """The lock of a caller. A lockfile is read once, and again when it has changed.

    Args:
        by: The caller; the default is the code that calls this package now.
        only: Why only locked kernels may be loaded, also without `KERNELS_LOCKED`. A caller without a lockfile then
            uses the one in the folder that `KERNELS_HUB` names.
        file: The lockfile to use instead of any other.

    Raises:
        LockError: The lock cannot be read.
        RequestError: `KERNELS_LOCKFILE` is no path, or `KERNELS_HUB` has an address that is not valid.
    """
    if only is None and settings.locked_only():
        only = "KERNELS_LOCKED=1 allows locked kernels only"
    if file is not None:
        return ActiveLock(read_lock(file), only)
    by = caller() if by is None else by
    path = lock_path(by)
    if path is None and only is not None:
        path = next(filter(lock_exists, _carried_lock()), None)
    if path is None:
        return NO_LOCK if only is None else ActiveLock(None, only, _searched(by))
    try:
        return ActiveLock(read_lock(path), only)
    except LockError as error:
        if settings.lock_file() is None:
            raise
        raise error.reworded(f"`KERNELS_LOCKFILE` is {path!r}: {error}") from None


def required_lock(lockfile: str | os.PathLike[str] | None, by: Caller | None = None) -> ActiveLock:
    """The lock for a call that loads locked kernels only.

    Args:
        lockfile: The lockfile; None for the caller's.
        by: The caller; the default is the code that calls this package now.

    Raises:
        TypeError: `lockfile` is no path.
        LockError: The lock cannot be read.
    """
    only = "a locked kernel is required"
    if lockfile is None:
        return active_lock(by, only=only)
    if not isinstance(lockfile, (str, os.PathLike)):
        raise wrong_type("lockfile", "a path", lockfile)
    return ActiveLock(read_lock(os.path.expanduser(lockfile)), only)


def same_lock(one: Caller, other: Caller) -> bool:
    """Whether two callers have the same lockfile, or none."""
    try:
        return one == other or lock_path(one) == lock_path(other)
    except (LockError, RequestError):  # one cannot be read, so its pins are not known
        return False


def lock_path(by: Caller) -> str | None:
    """The lockfile of a caller, or None.

    Raises:
        LockError: It cannot be examined or belongs to another user; or the caller's file belongs to several installed
            distributions with different lockfiles.
        RequestError: `KERNELS_LOCKFILE` is not a path.
    """
    named = settings.lock_file()
    if named is not None:
        return str(named)
    found = next(filter(lock_exists, places_of(by)), None)
    if found is not None:
        from kernels.resolver.lock_owner import check_owner

        check_owner(found, by.file)
    return found


def project_here() -> Path:
    """The root of the project that the current folder is in, relative to it; else the current folder.

    Example:
        >>> project_here().is_dir()
        True
    """
    try:
        here = os.getcwd()
    except OSError:  # it was deleted
        return Path()
    above = (os.path.dirname(place) for place in project_locks(here))
    found = next((folder for folder in above if os.path.lexists(os.path.join(folder, PROJECT_FILE))), here)
    return Path(os.path.relpath(found, here))


def _searched(by: Caller) -> tuple[str, ...]:
    """Where a lockfile was searched, for a message."""
    site = None if by.file is None else site_folder(os.path.abspath(by.file))
    metadata = [] if site is None else [f"metadata of {by.file}'s distribution in {site}"]
    places = places_of(by) or (f"{by.file or 'the current folder'} is in no project",)
    return (*metadata, *places, *_carried_lock())


def _carried_lock() -> tuple[str, ...]:
    """The lockfile that `kernels download --to` put beside the kernels."""
    return tuple(str(folder / LOCK_FILE) for folder in settings.hub_folders())
