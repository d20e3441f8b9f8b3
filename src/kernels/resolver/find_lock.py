"""Which lockfile counts for a caller: that of `KERNELS_LOCKFILE`, else that of the calling code.

The caller is the code that calls `get_kernel` or makes a `LayerRepository`. Installed code has the lockfile of its
distribution; other code that of the project its file is in; a terminal, a notebook or a command that of the project of
the current folder. Nothing that reads lockfiles is imported, so that this can be asked before the first request.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FrameType

from kernels.models import LOCK_FILE, PROJECT_FILE

__all__ = ["AT_A_TERMINAL", "caller", "lock_path", "may_be_locked", "places_of", "project_here", "site_folder"]

#: The caller that has no file, such as a terminal, a notebook or a command: the current folder decides.
AT_A_TERMINAL = ""

#: Folders that packages are installed into.
_SITE_FOLDERS = ("site-packages", "dist-packages")

_LIBRARY = os.path.dirname(os.__file__) + os.sep

#: Where a lockfile is in a distribution's metadata: as setuptools writes it, and as other build backends do.
_IN_METADATA = (LOCK_FILE, os.path.join("extra_metadata", LOCK_FILE))

#: The largest RECORD that is read: one of 100,000 files has some 15 MB.
_MAX_RECORD_BYTES = 256 * 1024 * 1024


def caller(own: int = 0) -> str:
    """The file of the code that called this package: the first frame outside of it, of kernels and of the library.

    Args:
        own: How many frames above the function that calls this one are known to be of this package.
    """
    frame: FrameType | None = sys._getframe(1 + own)
    while frame is not None:
        names = frame.f_globals
        name, file = names.get("__name__"), names.get("__file__")
        frame = frame.f_back
        if isinstance(name, str) and name.startswith("kernels") and name[7:8] in ("", "."):
            if name.startswith("kernels.cli."):
                return AT_A_TERMINAL
        elif isinstance(file, str) and file:
            # What a kernel requests while it is used counts as requested by the code that uses it; the standard
            # library, such as a thread pool, passes on the calls of others.
            by_kernel = type(names.get("__loader__")).__module__.startswith("kernels.")
            if not by_kernel and not _is_library(file):
                return file
        elif name == "__main__":
            return AT_A_TERMINAL
    # A thread that runs a function of this package: the program is the caller.
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return file if isinstance(file, str) else AT_A_TERMINAL


def _is_library(file: str) -> bool:
    return file.startswith(("<frozen", _LIBRARY)) and not any(site in file for site in _SITE_FOLDERS)


def may_be_locked(by: str | None = None) -> bool:
    """Whether a lockfile, or a setting about locks, may say what a caller's call loads.

    Args:
        by: The caller; the default is the code that calls this package now.

    Returns:
        False where `active_lock` is certain to return `NO_LOCK`; True where it finds a lockfile, requires one,
        raises an error, or where only it can tell.

    Example:
        >>> may_be_locked("/nowhere/model.py")
        False
    """
    from kernels import settings  # not for a module that only marks its layers

    try:
        if settings.lock_file() is not None or settings.locked_only():
            return True
        return any(map(os.path.lexists, places_of(caller() if by is None else by)))
    except Exception:  # noqa: BLE001 - `active_lock` meets it as well, and says what is wrong
        return True


def lock_path(by: str) -> str | None:
    """The lockfile of a caller, or None.

    Raises:
        LockError: It belongs to another user, or it or the caller's file to several distributions.
        RequestError: `KERNELS_LOCKFILE` is not a path.
    """
    from kernels import settings

    named = settings.lock_file()
    if named is not None:
        return str(named)
    found = next(filter(os.path.lexists, places_of(by)), None)  # one that cannot be read is not ignored silently
    if found is not None:
        _check_user(found, by)
        _check_distributions(found, by)
    return found


def places_of(by: str) -> tuple[str, ...]:
    """Where a caller's lockfile may be, the place that counts most first."""
    if by != AT_A_TERMINAL:
        return _places_of_file(by)
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
    places = [(info, os.path.join(info, place)) for info in _distributions(site) for place in _IN_METADATA]
    found = [place for info, place in places if os.path.lexists(place) and _lists(info, inside)]
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
        if parts[number] in _SITE_FOLDERS:
            return os.sep.join(parts[: number + 1])
    return None


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


def _check_user(lock: str, by: str) -> None:
    """Refuse a lockfile that another user put there, unless the code of that user runs already."""
    if not hasattr(os, "geteuid"):
        return
    mine = {0, os.geteuid()}
    for examine in (os.lstat, os.stat):  # a link, and what it leads to
        try:
            uid = examine(lock).st_uid
            if uid in mine or (by and uid == os.stat(by).st_uid):
                continue
        except OSError:  # reported where it is read
            continue
        from kernels.errors import LockError

        raise LockError(
            f"{lock} belongs to another user (uid {uid}), who could choose the commits that you load. It was not used. "
            f"If you trust it, name it: KERNELS_LOCKFILE={lock}"
        )


def _check_distributions(lock: str, by: str) -> None:
    """Refuse the lockfile of installed code where several distributions have the file that it is for, or itself."""
    path = os.path.abspath(by)
    site = site_folder(path) if by else None
    if site is None:
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
            f"{by}, or its lockfile {lock}, belongs to {names}. Uninstall the distribution that is not needed, or "
            "name the lockfile to use with KERNELS_LOCKFILE."
        )


@cache
def _owners(site: str, *files: str) -> list[str]:
    """The distributions that list one of these files as their own."""
    return [info for info in _distributions(site) if _lists(info, *files)]
