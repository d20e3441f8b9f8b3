"""Which lockfile counts for a caller: that of `KERNELS_LOCKFILE`, else that of the calling code.

The caller is the code that calls `get_kernel` or makes a `LayerRepository`. Installed code has the lockfile of its
distribution; other code that of the project its file is in; a terminal, a notebook or a command that of the project of
the current folder. Nothing that reads lockfiles is imported, so that this can be asked before the first request.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from kernels import settings
from kernels.models import LOCK_FILE, PROJECT_FILE
from kernels.resolver.caller import AT_A_TERMINAL, SITE_FOLDERS, Caller, caller

__all__ = ["lock_path", "may_be_locked", "places_of", "project_here", "site_folder"]

#: Where a lockfile is in a distribution's metadata: as setuptools writes it, and as other build backends do.
_IN_METADATA = (LOCK_FILE, os.path.join("extra_metadata", LOCK_FILE))

#: The largest RECORD that is read: one of 100,000 files has some 15 MB.
_MAX_RECORD_BYTES = 256 * 1024 * 1024


def may_be_locked(by: Caller | None = None) -> bool:
    """Whether a lockfile, or a setting about locks, may say what a caller's call loads.

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
        return any(map(os.path.lexists, places_of(caller() if by is None else by)))
    except Exception:  # noqa: BLE001 - `active_lock` meets it as well, and says what is wrong
        return True


def lock_path(by: Caller) -> str | None:
    """The lockfile of a caller, or None.

    Raises:
        LockError: It belongs to another user, or it or the caller's file to several distributions.
        RequestError: `KERNELS_LOCKFILE` is not a path.
    """
    named = settings.lock_file()
    if named is not None:
        return str(named)
    found = next(filter(os.path.lexists, places_of(by)), None)  # one that cannot be read is not ignored silently
    if found is not None:
        _check_user(found, by.file)
        _check_distributions(found, by.file)
    return found


def places_of(by: Caller) -> tuple[str, ...]:
    """Where a caller's lockfile may be, the place that counts most first."""
    if by.file is not None:
        return _places_of_file(by.file)
    try:
        return tuple(_project_locks(os.getcwd()))
    except OSError:  # the current folder was deleted
        return ()


@cache
def _places_of_file(file: str) -> tuple[str, ...]:
    path = os.path.abspath(file)
    site = site_folder(path)
    if site is None:
        return tuple(_project_locks(os.path.dirname(path)))
    inside = os.path.relpath(path, site)
    package = os.path.join(site, inside.partition(os.sep)[0])
    # Few distributions have a lockfile: the list of files of no other one is read.
    locked = ((info, [os.path.join(info, place) for place in _IN_METADATA]) for info in _distributions(site))
    found = [place for info, places in locked for place in filter(os.path.lexists, places) if _lists(info, inside)]
    # A namespace package has no `__init__.py`, and nobody owns it.
    own = [os.path.join(package, LOCK_FILE)] if os.path.lexists(os.path.join(package, "__init__.py")) else []
    return (*found, *own)


def _project_locks(folder: str) -> Iterator[str]:
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


def project_here() -> Path:
    """The root of the project that the current folder is in, relative to it; else the current folder.

    Example:
        >>> project_here().is_dir()
        True
    """
    places = places_of(AT_A_TERMINAL)  # the last one is in the root
    return Path(os.path.relpath(os.path.dirname(places[-1]))) if places else Path()


def site_folder(path: str) -> str | None:
    """The folder of installed packages that a file is in, or None."""
    parts = path.split(os.sep)
    for number in range(len(parts) - 2, 0, -1):
        if parts[number] in SITE_FOLDERS:
            return os.sep.join(parts[: number + 1])
    return None


@cache
def _distributions(site: str) -> tuple[str, ...]:
    """The folders of the metadata of installed distributions."""
    from kernels.support.installed import metadata_folders  # where a package calls

    return tuple(os.path.join(site, name) for name in metadata_folders(site) if name.endswith(".dist-info"))


def _lists(info: str, *files: str) -> bool:
    """Whether a distribution lists one of these files as its own."""
    from kernels.support.files import read_bounded

    with suppress(OSError):
        record = b"\n" + read_bounded(os.path.join(info, "RECORD"), _MAX_RECORD_BYTES)
        for path in (os.fsencode(file.replace(os.sep, "/")) for file in files):
            if b"\n" + path + b"," in record or b'\n"' + path + b'",' in record:
                return True
    return False


def _check_user(lock: str, file: str | None) -> None:
    """Refuse a lockfile that another user put there, unless the code of that user runs already."""
    if not hasattr(os, "geteuid"):
        return
    mine = {0, os.geteuid()}
    for examine in (os.lstat, os.stat):  # a link, and what it leads to
        try:
            uid = examine(lock).st_uid
            if uid in mine or (file is not None and uid == os.stat(file).st_uid):
                continue
        except OSError:  # reported where it is read
            continue
        from kernels.errors import LockError

        raise LockError(
            f"{lock} belongs to another user (uid {uid}), who could choose the commits that you load. It was not used. "
            f"If you trust it, name it: KERNELS_LOCKFILE={lock}"
        )


def _check_distributions(lock: str, file: str | None) -> None:
    """Refuse the lockfile of installed code where several distributions have the file that it is for, or itself."""
    path = None if file is None else os.path.abspath(file)
    site = None if path is None else site_folder(path)
    if path is None or site is None:
        return
    inside = os.path.relpath(lock, site)
    folder = inside.partition(os.sep)[0]
    # That of a package is for its `__init__.py`: other distributions may add modules to the package.
    belongs = os.path.relpath(path, site) if folder.endswith(".dist-info") else os.path.join(folder, "__init__.py")
    owners = _owners(site, inside, belongs)
    if len(owners) > 1:
        from kernels.errors import LockError

        names = " and ".join(os.path.basename(info).removesuffix(".dist-info") for info in owners)
        raise LockError(
            f"{file}, or its lockfile {lock}, belongs to {names}. Uninstall the distribution that is not needed, or "
            "name the lockfile to use with KERNELS_LOCKFILE."
        )


@cache
def _owners(site: str, *files: str) -> list[str]:
    """The distributions that list one of these files as their own."""
    return [info for info in _distributions(site) if _lists(info, *files)]
