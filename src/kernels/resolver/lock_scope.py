"""Which lock is in force: the one that `KERNELS_LOCKFILE` names, else that of whoever calls this package.

The caller is the code that calls `get_kernel` or makes a `LayerRepository`. An installed one has the lock of its
distribution, any other one that of the project its file lies in, and someone at a terminal, in a notebook or at a
command that of the project they are in. A lock above the project is nobody's. Who has none, and must have one, has the
lock that was carried along with the kernels, where those come from a folder.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from io import BufferedReader
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from kernels import settings
from kernels.errors import DigestMismatch, LockError, NotLocked, RequestError
from kernels.models.lockfile import (
    LOCK_FILE,
    ContentHash,
    Lock,
    Pin,
    hashes_path,
    lock_again,
    unpinned_build,
)
from kernels.models.requirement import Requirement
from kernels.support.files import open_regular, read_bounded

__all__ = [
    "NO_LOCK",
    "Caller",
    "LockInForce",
    "asked_lock",
    "caller",
    "lock_in_force",
    "lock_path",
    "project_here",
    "read_lock",
    "same_lock",
]

PROJECT_FILE = "pyproject.toml"

#: Folders that packages are installed into; others are known by the distributions that lie in them.
_SITES = ("site-packages", "dist-packages")

#: The largest list of a distribution's packages that is read; a few names.
_MAX_NAMES_BYTES = 1024 * 1024

#: Where a lock stands in a distribution's metadata: as setuptools writes it, and as other build backends can.
_IN_METADATA = (LOCK_FILE, f"extra_metadata/{LOCK_FILE}")

#: The most of a lock, or of the hashes beside it, that is compared with another: what is larger is none.
_COMPARED_BYTES = 64 * 1024 * 1024


class Caller(NamedTuple):
    """Whoever calls this package, as far as it says which lock is in force.

    Attributes:
        file: The module's file; None for someone at a terminal, in a notebook, or at a command.
    """

    file: str | None


#: Someone without a file: what counts is the folder they are in.
AT_A_TERMINAL = Caller(None)


@dataclass(frozen=True)
class LockInForce:
    """A lock, and what holds for what it does not list.

    Attributes:
        lock: The lock, None where there is none.
        required: Why nothing else may be loaded; None where something else may.
        looked: Where a lock was looked for, where there is none.

    Example:
        >>> relu = Requirement("org/relu", version=1)
        >>> LockInForce(Lock((Pin(relu, "1" * 40),))).find(relu).commit[:4]
        '1111'
        >>> LockInForce().find(relu) is None
        True
    """

    lock: Lock | None = None
    required: str | None = None
    looked: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """What to call the lock in a message."""
        return "no lock" if self.lock is None else self.lock.where

    def find(self, requirement: Requirement) -> Pin | None:
        """The pin that serves what is asked for; None where it may be loaded without one.

        Raises:
            LockError: The lock lists the repository, but not what is asked for.
            NotLocked: Only locked kernels may be loaded, and this one is not.
        """
        pin = None if self.lock is None else self.lock.find(requirement)
        if pin is None and self.required is not None:
            raise self._not_locked(requirement)
        return pin

    def pins_content(self, repo_id: str, commit: str) -> bool:
        """Whether the content of a commit's builds is pinned."""
        return self.lock is not None and (repo_id, commit) in self.lock.hashes

    def pins_builds(self, repo_id: str, commit: str) -> bool:
        """Whether the content of any build of a commit is pinned; not of one that led elsewhere when it was locked."""
        return self.lock is not None and bool(self.lock.hashes.get((repo_id, commit)))

    def content(self, repo_id: str, commit: str, variant: str) -> ContentHash | None:
        """The content that is pinned of a build; None where that of the commit's builds is not.

        Raises:
            DigestMismatch: That of all the commit's builds is pinned, and this one is none of them.
        """
        if self.lock is None or (repo_id, commit) not in self.lock.hashes:
            return None
        pinned = self.lock.hashes[repo_id, commit]
        if variant not in pinned:
            raise DigestMismatch(
                f"{repo_id}: {unpinned_build(variant)} ({self.where}, commit {commit}). It was not loaded: what gave "
                f"it gives something else than when it was locked. Is that meant? "
                f"{lock_again(self.where, 'kernels lock --rehash')}"
            )
        return pinned[variant]

    def lists(self, repo_id: str) -> bool:
        """Whether the lock has anything of a repository."""
        return self.lock is not None and bool(self.lock.of(repo_id))

    def _not_locked(self, requirement: Requirement) -> NotLocked:
        if self.lock is None:
            return NotLocked(
                f"{requirement} is not locked, and {self.required}. There is no lock: KERNELS_LOCKFILE is not set, and "
                f"the caller has none ({', '.join(self.looked)}). Write one with `kernels lock`."
            )
        return NotLocked(
            f"{requirement} is not locked: {self.where} does not list it, and {self.required}. It belongs into "
            f"[tool.kernels.dependencies] of the project. {lock_again(self.where, 'kernels lock')}"
        )


#: No lock, and nothing that needs one.
NO_LOCK = LockInForce()


def lock_in_force(
    by: Caller | None = None, *, only: str | None = None, file: str | os.PathLike[str] | None = None
) -> LockInForce:
    """The lock that counts for a caller. A lock file is read once, and again when it has changed.

    Args:
        by: The caller, default the one who calls this package now.
        only: Why only locked kernels may be loaded, where `KERNELS_LOCKED` need not say so. Then the lock in the folder
            that `KERNELS_HUB` names counts for a caller who has none.
        file: The lock that the caller names, which then counts instead of any other.

    Raises:
        LockError: The lock cannot be read.
        RequestError: `KERNELS_LOCKFILE` is no path, or `KERNELS_HUB` no folder and no URL.
    """
    if only is None and settings.locked_only():
        only = "KERNELS_LOCKED=1 allows locked kernels alone"
    if file is not None:
        return LockInForce(read_lock(file), only)
    by = caller() if by is None else by
    path = lock_path(by)
    if path is None and only is not None:
        path = next(filter(_is_there, _carried()), None)
    if path is None:
        return NO_LOCK if only is None else LockInForce(None, only, _looked(by))
    try:
        return LockInForce(read_lock(path), only)
    except LockError as error:
        if settings.lock_file() is None:
            raise
        raise LockError(f"`KERNELS_LOCKFILE` is {path!r}: {error}") from None


def asked_lock(lockfile: str | os.PathLike[str] | None, by: Caller | None = None) -> LockInForce:
    """The lock for someone who asks for a locked kernel, and for nothing else.

    Args:
        lockfile: The lock's file, None for the lock that counts for the caller.
        by: The caller, default the one who calls this package now.

    Raises:
        TypeError: `lockfile` is no path.
        LockError: The lock cannot be read.
    """
    only = "a locked kernel is asked for"
    if lockfile is None:
        return lock_in_force(by, only=only)
    if not isinstance(lockfile, (str, os.PathLike)):
        raise TypeError(f"`lockfile` is {lockfile!r}, a {type(lockfile).__name__}; allowed is a path.")
    return LockInForce(read_lock(os.path.expanduser(lockfile)), only)


def same_lock(one: Caller, other: Caller) -> bool:
    """Whether the same lock, or none, counts for two callers."""
    try:
        return one == other or lock_path(one) == lock_path(other)
    except (LockError, RequestError):  # there is one that cannot be read: what it says is not known
        return False


def lock_path(by: Caller) -> str | None:
    """The file of the lock that counts for a caller, None where there is none.

    Raises:
        LockError: There is something of that name that is no file, or cannot be looked at; or the caller's file
            belongs to several installed distributions, whose locks differ.
        RequestError: `KERNELS_LOCKFILE` is no path.
    """
    named = settings.lock_file()
    if named is not None:
        return str(named)
    if by.file is not None:
        _check_agreement(by.file)
    return next((place for place in _places(by) if _is_there(place)), None)


def project_here() -> Path:
    """The folder of the project that the current folder lies in, as it is named from here; else the current folder.

    Example:
        >>> project_here().is_dir()
        True
    """
    try:
        here = os.getcwd()
    except OSError:  # it is gone
        return Path()
    above = (os.path.dirname(place) for place in _in_project(here))
    found = next((folder for folder in above if os.path.lexists(os.path.join(folder, PROJECT_FILE))), here)
    return Path(os.path.relpath(found, here))


# Reading

_known: dict[str, tuple[object, Lock]] = {}


def read_lock(path: str | os.PathLike[str]) -> Lock:
    """The lock in a file, read once for each state of the file.

    Raises:
        LockError: It cannot be read, or is no lock.
    """
    path = os.path.abspath(path)
    try:
        identity = _identity(path), _identity(hashes_path(Path(path)))
    except ValueError:
        raise LockError(f"Cannot read {path!r}: that can be no file's name.") from None
    known = _known.get(path)
    if known is not None and known[0] == identity:
        return known[1]
    lock = Lock.read(Path(path))
    _known[path] = identity, lock
    return lock


def _identity(path: str | Path) -> object:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _is_there(place: str) -> bool:
    """Whether a lock stands there; what cannot be read is one as well, so that it is not passed over in silence."""
    try:
        os.stat(place)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return os.path.islink(place)
    except OSError as error:
        raise LockError(f"Cannot look at {place}: {error.strerror or error}.") from error
    return True


# The caller


def caller() -> Caller:
    """Whoever called this package: the first frame that is not its own, a kernel's, or the standard library's.

    Example:
        >>> Caller("/project/model.py").file
        '/project/model.py'
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        names = frame.f_globals
        name, file = names.get("__name__"), names.get("__file__")
        frame = frame.f_back
        if isinstance(name, str) and (name == "kernels" or name.startswith("kernels.")):
            if name.startswith("kernels.cli."):
                return AT_A_TERMINAL
            continue
        if isinstance(file, str) and file:
            # What a kernel asks for while it is used is asked for by who uses it.
            if not _is_library(file) and not type(names.get("__loader__")).__module__.startswith("kernels."):
                return Caller(file)
        elif name == "__main__":
            return AT_A_TERMINAL
    # A thread whose work is a function of this package: the program asks.
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Caller(file) if isinstance(file, str) and file else AT_A_TERMINAL


_LIBRARY = os.path.dirname(os.__file__) + os.sep


def _is_library(file: str) -> bool:
    """Whether a file is Python's own, such as a thread pool's: it passes on what others ask for."""
    return file.startswith(("<frozen", _LIBRARY)) and not any(site in file for site in _SITES)


# Where a caller's lock may stand


def _places(by: Caller) -> tuple[str, ...]:
    if by.file is not None:
        return _places_of_file(by.file)
    try:
        return tuple(_in_project(os.getcwd()))
    except OSError:  # the current folder is gone
        return ()


@cache
def _places_of_file(file: str) -> tuple[str, ...]:
    path = os.path.abspath(file)
    site = _site(path)
    if site is None:
        return tuple(_in_project(os.path.dirname(path)))
    inside = path[len(site) :].lstrip(os.sep)
    package, below, _ = inside.partition(os.sep)
    places = _places_of_owners(site, inside, package)
    return (*places, os.path.join(site, package, LOCK_FILE)) if below else places


@cache
def _places_of_owners(site: str, inside: str, package: str) -> tuple[str, ...]:
    """Where locks stand in the metadata of the distributions that a file belongs to."""
    owners = [(info, locks) for info, locks in _distributions(site) if locks and _has(info, inside, package)]
    # What lists its files knows better than what names a package, which several may share.
    owners = [each for each in owners if os.path.lexists(os.path.join(each[0], "RECORD"))] or owners
    # What an older installer left of a project counts where a newer one has installed nothing of it.
    newer = {_project(info) for info, _ in owners if info.endswith(".dist-info")}
    return tuple(
        lock for info, locks in owners if info.endswith(".dist-info") or _project(info) not in newer for lock in locks
    )


def _project(info: str) -> str:
    """The name of a metadata folder's project: what precedes the version, in which names have no dashes."""
    name = os.path.basename(info).rpartition(".")[0].partition("-")[0]
    return re.sub(r"[-_.]+", "-", name).lower()


#: The locks that were found to be the same, each with the state of its files then.
_agreed: dict[tuple[str, ...], object] = {}


def _check_agreement(file: str) -> None:
    """Refuse to choose among the locks of several distributions that a file belongs to, where they differ."""
    path = os.path.abspath(file)
    site = _site(path)
    if site is None:
        return
    inside = path[len(site) :].lstrip(os.sep)
    places = _places_of_owners(site, inside, inside.partition(os.sep)[0])
    if len(places) < 2:
        return
    places = tuple(place for place in places if _is_there(place))
    state = [(_identity(place), _identity(hashes_path(Path(place)))) for place in places]
    if _agreed.get(places) == state:
        return
    if len({_said_by(place) for place in places}) > 1:
        owners = " and ".join(dict.fromkeys(_owner(place) for place in places))
        raise LockError(
            f"{file} belongs to {owners}, with different locks: {', '.join(places)}. Which one is meant cannot be "
            "told: uninstall what is not needed, or name the lock that counts with KERNELS_LOCKFILE."
        )
    _agreed[places] = state


def _said_by(place: str) -> tuple[bytes | None, bytes | None]:
    """What a lock and the hashes beside it hold, for a comparison; what cannot be read is like nothing else."""
    hashes = hashes_path(Path(place))
    try:
        lock = read_bounded(place, _COMPARED_BYTES)
        return lock, read_bounded(hashes, _COMPARED_BYTES) if os.path.lexists(hashes) else None
    except OSError:
        return os.fsencode(place), None


def _owner(place: str) -> str:
    """The distribution in whose metadata a lock stands: its name and version."""
    folder = os.path.dirname(place)
    folder = os.path.dirname(folder) if os.path.basename(folder) == "extra_metadata" else folder
    return os.path.basename(folder).rpartition(".")[0]


def _looked(by: Caller) -> tuple[str, ...]:
    """Where a lock was looked for, for a message."""
    site = None if by.file is None else _site(os.path.abspath(by.file))
    metadata = [] if site is None else [f"metadata of {by.file}'s distribution in {site}"]
    places = _places(by) or (f"{by.file or 'the current folder'} lies in no project",)
    return (*metadata, *places, *_carried())


def _carried() -> tuple[str, ...]:
    """Where the lock stands that `kernels download --to` put beside the kernels.

    It says which of those kernels are meant, to who asks for a locked one. Others have what the folder offers.
    """
    folder = settings.hub_folder()
    return () if folder is None else (str(folder / LOCK_FILE),)


def _in_project(folder: str) -> Iterator[str]:
    """Beside a file, and in the project that it lies in: the nearest folder above with a `pyproject.toml`."""
    first = folder
    while not _anybodys(folder):
        is_project = os.path.lexists(os.path.join(folder, PROJECT_FILE))
        if is_project or folder == first:
            yield os.path.join(folder, LOCK_FILE)
        above = os.path.dirname(folder)
        if is_project or above == folder:
            return
        folder = above


def _anybodys(folder: str) -> bool:
    """Whether it is a folder for everybody's files, such as /tmp: what lies there may be a stranger's."""
    shared = stat.S_ISVTX | stat.S_IWOTH
    try:
        return os.stat(folder).st_mode & shared == shared
    except (OSError, ValueError):
        return False


def _site(path: str) -> str | None:
    """The folder of installed packages that a file lies in."""
    parts = path.split(os.sep)
    for number in range(len(parts) - 2, 0, -1):
        if parts[number] in _SITES:
            return os.sep.join(parts[: number + 1])
    # A folder that `pip install --target` filled has any name.
    above = [each for each in map(os.path.abspath, filter(None, sys.path)) if path.startswith(each + os.sep)]
    folder = max(above, key=len, default=None)
    if folder is None:
        return None
    # An `.egg-info` alone is what a build left beside the sources: there the project's own lock is the newer one.
    return folder if any(info.endswith(".dist-info") for info, _ in _distributions(folder)) else None


@cache
def _distributions(site: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The metadata folders of a folder of installed packages, each with the locks in it."""
    found = []
    with suppress(OSError), os.scandir(site) as entries:
        for entry in entries:
            if entry.name.endswith((".dist-info", ".egg-info")):
                locks = [os.path.join(entry.path, *name.split("/")) for name in _IN_METADATA]
                found.append((entry.path, tuple(lock for lock in locks if os.path.lexists(lock))))
    return tuple(sorted(found))


def _has(info: str, file: str, package: str) -> bool:
    """Whether a file belongs to the distribution with that metadata."""
    path = file.replace(os.sep, "/").encode()
    with suppress(OSError), BufferedReader(open_regular(os.path.join(info, "RECORD"))) as record:  # type: ignore[type-var]
        return any(line.strip(b'"').startswith((path + b",", path + b'",')) for line in record)
    # Installed without a wheel: all there is to know is the packages' names.
    with suppress(OSError):
        names = read_bounded(os.path.join(info, "top_level.txt"), _MAX_NAMES_BYTES)
        return os.fsencode(package.removesuffix(".py")) in map(bytes.strip, names.splitlines())
    return False
