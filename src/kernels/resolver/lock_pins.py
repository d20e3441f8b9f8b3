"""The active lock: what it pins, and whether anything else may be loaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kernels.errors import DigestMismatch, LockError, NotLocked
from kernels.models.requirement import Requirement
from kernels.support.formatting import did_you_mean

if TYPE_CHECKING:
    from kernels.models.lockfile import ContentHash, Lock, Pin
else:  # `inspect.signature` and `help` evaluate the types of a struct's fields
    ContentHash = Lock = Pin = Any

__all__ = ["NO_LOCK", "ActiveLock", "file_state", "read_lock"]


class ActiveLock(msgspec.Struct, frozen=True):
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

    def pins_content(self, repo_id: str, commit: str) -> bool:
        """Whether the content of a commit's builds is pinned."""
        return self.lock is not None and (repo_id, commit) in self.lock.hashes

    def pins_builds(self, repo_id: str, commit: str) -> bool:
        """Whether the content of any build of a commit is pinned; False if the commit was a redirect when locked."""
        return self.lock is not None and bool(self.lock.hashes.get((repo_id, commit)))

    def content(self, repo_id: str, commit: str, variant: str) -> ContentHash | None:
        """The pinned content of a build; None where the content of the commit's builds is not pinned.

        Raises:
            DigestMismatch: The content of the commit's builds is pinned, and this build is not among them.
        """
        if self.lock is None or (repo_id, commit) not in self.lock.hashes:
            return None
        pinned = self.lock.hashes[repo_id, commit]
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
            f"{did_you_mean(requirement.repo_id, [pin.requirement.repo_id for pin in self.lock.pins], '/')} Add it to "
            f"[tool.kernels.dependencies] of the project. {lock_again(self.where, 'kernels lock')}"
        )


#: No lock, and none is required.
NO_LOCK = ActiveLock()


_known: dict[str, tuple[object, Lock]] = {}


def read_lock(path: str | os.PathLike[str]) -> Lock:
    """The lock in a file; read again when the file has changed.

    Raises:
        LockError: It cannot be read, or is not a lockfile.
    """
    from kernels.models.lockfile import Lock, hashes_path

    path = os.path.abspath(path)
    try:
        identity = file_state(path), file_state(hashes_path(Path(path)))
    except ValueError:
        raise LockError(f"Cannot read {path!r}: that can be no file's name.") from None
    known = _known.get(path)
    if known is not None and known[0] == identity:
        return known[1]
    lock = Lock.read(Path(path))
    _known[path] = identity, lock
    return lock


def file_state(path: str | Path) -> object:
    """What changes when a file changes; None where it cannot be examined."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
