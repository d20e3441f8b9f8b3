"""The active lock of a call: what it pins, and whether anything else may be loaded.

A caller that requires a lockfile and has none uses the one in a folder that `KERNELS_HUB` names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kernels import settings
from kernels.errors import DigestMismatch, LockError, NotLocked, RequestError
from kernels.models import LOCK_FILE
from kernels.models.requirement import Requirement
from kernels.resolver.find_lock import caller, lock_path, places_of, site_folder
from kernels.support.formatting import did_you_mean, wrong_type

if TYPE_CHECKING:
    from kernels.models.lockfile import ContentHash, Lock, Pin

__all__ = ["NO_LOCK", "ActiveLock", "active_lock", "read_lock", "required_lock", "same_lock"]


@dataclass(frozen=True)
class ActiveLock:
    """A lock, and whether kernels that it does not list may be loaded.

    Attributes:
        lock: The lock, or None.
        required: Why only locked kernels may be loaded; None where others may.
        searched: Where a lockfile was searched and not found.

    Example:
        >>> from kernels.models.lockfile import Lock, Pin
        >>> relu = Requirement("org/relu", version=1)
        >>> ActiveLock(Lock((Pin(relu, "1" * 40),))).find(relu).commit[:4]
        '1111'
        >>> ActiveLock().find(relu) is None
        True
    """

    lock: Lock | None = None
    required: str | None = None
    searched: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """The lock's name in messages."""
        return "no lock" if self.lock is None else self.lock.where

    def find(self, requirement: Requirement) -> Pin | None:
        """The pin of a requirement; None where it may be loaded without one.

        Raises:
            LockError: The lock lists the repository in another version only.
            NotLocked: Only locked kernels may be loaded, and this one is not locked.
        """
        pin = None if self.lock is None else self.lock.find(requirement)
        if pin is None and self.required is not None:
            raise self._not_locked(requirement)
        return pin

    def hashes(self, repo_id: str, commit: str) -> Mapping[str, ContentHash] | None:
        """The pinned content of a commit's builds: empty if it was a redirect when locked; None if it is not pinned."""
        return None if self.lock is None else self.lock.hashes.get((repo_id, commit))

    def content(self, repo_id: str, commit: str, variant: str) -> ContentHash | None:
        """The pinned content of a build; None where the content of the commit's builds is not pinned.

        Raises:
            DigestMismatch: The content of the commit's builds is pinned, and this build is not among them.
        """
        pinned = self.hashes(repo_id, commit)
        if pinned is None:
            return None
        if variant not in pinned:
            from kernels.models.lockfile import lock_again, unpinned_build

            raise DigestMismatch(
                f"{repo_id}: {unpinned_build(variant)} ({self.where}, commit {commit}). It was not loaded: the source "
                "has changed since the kernel was locked. If that is intended: "
                f"{lock_again(self.where, 'kernels lock --rehash')}"
            )
        return pinned[variant]

    def lists(self, repo_id: str) -> bool:
        """Whether the lock lists a repository."""
        return self.lock is not None and bool(self.lock.of(repo_id))

    def _not_locked(self, requirement: Requirement) -> NotLocked:
        if self.lock is None:
            return NotLocked(
                f"{requirement} is not locked, and {self.required}. No lockfile was found: KERNELS_LOCKFILE is not "
                f"set, and the caller has none ({', '.join(self.searched)}). Write one with `kernels lock`."
            )
        from kernels.models.lockfile import lock_again

        return NotLocked(
            f"{requirement} is not locked: {self.where} does not list it, and {self.required}."
            f"{did_you_mean(requirement.repo_id, [pin.requirement.repo_id for pin in self.lock.pins], 0.8)} Add it to "
            f"[tool.kernels.dependencies] of the project. {lock_again(self.where, 'kernels lock')}"
        )


#: No lock, and none is required.
NO_LOCK = ActiveLock()


def active_lock(
    by: str | None = None, *, only: str | None = None, file: str | os.PathLike[str] | None = None
) -> ActiveLock:
    """The lock of a caller. A lockfile is read once, and again when it has changed.

    Args:
        by: The caller; the default is the code that calls this package now.
        only: Why only locked kernels may be loaded, also without `KERNELS_LOCKED`. A caller without a lockfile then
            uses the one in the folder that `KERNELS_HUB` names.
        file: The lockfile to use instead of any other.

    Raises:
        TypeError: `file` is no path.
        LockError: The lock cannot be read.
        RequestError: `KERNELS_LOCKFILE` is no path, or `KERNELS_HUB` has an address that is not valid.
    """
    if only is None and settings.locked_only():
        only = "KERNELS_LOCKED=1 allows locked kernels only"
    if file is not None:
        if not isinstance(file, (str, os.PathLike)):
            raise wrong_type("lockfile", "a path", file)
        return ActiveLock(read_lock(os.path.expanduser(file)), only)
    by = caller() if by is None else by
    path = lock_path(by)
    if path is None and only is not None:
        path = next(filter(os.path.lexists, _carried_lock()), None)
    if path is None:
        return NO_LOCK if only is None else ActiveLock(None, only, _searched(by))
    try:
        return ActiveLock(read_lock(path), only)
    except LockError as error:
        if settings.lock_file() is None:
            raise
        raise error.reworded(f"`KERNELS_LOCKFILE` is {path!r}: {error}") from None


def required_lock(lockfile: str | os.PathLike[str] | None, by: str | None = None) -> ActiveLock:
    """The lock for a call that loads locked kernels only.

    Args:
        lockfile: The lockfile; None for the caller's.
        by: The caller; the default is the code that calls this package now.

    Raises:
        TypeError, LockError, RequestError: As for `active_lock`.
    """
    return active_lock(by, only="a locked kernel is required", file=lockfile)


def same_lock(one: str, other: str) -> bool:
    """Whether two callers have the same lockfile, or none."""
    try:
        return one == other or lock_path(one) == lock_path(other)
    except (LockError, RequestError):  # one cannot be read, so its pins are not known
        return False


def _searched(by: str) -> tuple[str, ...]:
    """Where a lockfile was searched, for a message."""
    site = site_folder(os.path.abspath(by)) if by else None
    metadata = [] if site is None else [f"metadata of {by}'s distribution in {site}"]
    places = places_of(by) or (f"{by or 'the current folder'} is in no project",)
    return (*metadata, *places, *_carried_lock())


def _carried_lock() -> tuple[str, ...]:
    """The lockfile that `kernels download --to` put beside the kernels."""
    return tuple(str(folder / LOCK_FILE) for folder in settings.hub_folders())


_known: dict[str, tuple[object, Lock]] = {}


def read_lock(path: str | os.PathLike[str]) -> Lock:
    """The lock in a file; read again when the file has changed.

    Raises:
        LockError: It cannot be read, or is not a lockfile.
    """
    from kernels.models.lockfile import Lock, hashes_path

    path = os.path.abspath(path)
    try:
        identity = _file_state(path), _file_state(hashes_path(Path(path)))
    except ValueError:
        raise LockError(f"Cannot read {path!r}: that can be no file's name.") from None
    known = _known.get(path)
    if known is not None and known[0] == identity:
        return known[1]
    lock = Lock.read(Path(path))
    _known[path] = identity, lock
    return lock


def _file_state(path: str | Path) -> object:
    """What changes when a file changes; None where it cannot be examined."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
