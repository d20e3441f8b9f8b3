"""The removal of commits that are not needed any more.

Only files in the repository's own folder are removed; no link is followed. A build that a process is downloading or
loading stays, and contents that another snapshot uses stay. A kill at any moment leaves a cache
that the next download completes.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kernels.cache.in_use import unused
from kernels.cache.inventory import CacheContents, CachedCommit, freed_size
from kernels.cache.store import CLEARING, RepoStore
from kernels.errors import StoreError
from kernels.models.lockfile import Lock
from kernels.models.snapshot import BUILD_FOLDER, METADATA_FILE, STATUS_FILE
from kernels.support.files import check_folders, is_real_folder
from kernels.support.lock import LockHeld, WorkLock, exclusively

__all__ = ["KeptCommit", "PrunePlan", "PruneResult", "plan_prune", "prune"]

_DAY = 24 * 3600.0


class KeptCommit(NamedTuple):
    """A commit that stays, and why."""

    commit: CachedCommit
    reason: str


@dataclass(frozen=True)
class PrunePlan:
    """What `prune` would remove.

    Attributes:
        remove: The commits to remove.
        kept: The commits that stay, each with the reason.
        leftovers: Temporary files, folders of them, and locks; a lock that a process holds stays.
        frees: Bytes that this frees.
    """

    remove: tuple[CachedCommit, ...]
    kept: tuple[KeptCommit, ...]
    leftovers: tuple[Path, ...]
    frees: int


@dataclass(frozen=True)
class PruneResult:
    """What was removed.

    Attributes:
        removed: The commits.
        skipped: Commits that stay because another process uses them.
        freed: Bytes of the files that were removed.
    """

    removed: tuple[CachedCommit, ...]
    skipped: tuple[CachedCommit, ...]
    freed: int


def plan_prune(
    contents: CacheContents,
    *,
    locks: Sequence[Lock] = (),
    repos: Collection[str] = (),
    older_than: float | None = None,
    everything: bool = False,
    now: float | None = None,
) -> PrunePlan:
    """The commits that may be removed: those that are not the head of a recorded branch, nor pinned by a lockfile.

    A repository without a recorded branch, because another client filled the cache, keeps all commits.

    Args:
        contents: What is in the cache.
        locks: Lockfiles whose commits stay.
        repos: The repositories, `org/name`; empty for all.
        older_than: Remove only commits that were neither used nor downloaded for this many days.
        everything: Also remove the heads of branches. What a lockfile pins, or another tool recorded under `refs/`,
            stays.
        now: The time, in seconds since 1970.
    """
    now = time.time() if now is None else now
    remove, kept = [], []
    for commit in contents.commits:
        if repos and commit.repo_id not in repos:
            continue
        reason = _reason_to_keep(commit, locks, everything, older_than, now)
        if reason is None:
            remove.append(commit)
        elif commit.size:
            kept.append(KeptCommit(commit, reason))
    frees = freed_size(contents, remove)
    if repos:
        return PrunePlan(tuple(remove), tuple(kept), (), frees)
    return PrunePlan(tuple(remove), tuple(kept), contents.leftovers, frees + contents.temporary)


def prune(planned: PrunePlan) -> PruneResult:
    """Remove what a plan lists.

    Args:
        planned: The plan. A commit that another process uses by now stays.

    Raises:
        StoreError: The cache cannot be written.
    """
    removed: list[CachedCommit] = []
    skipped: list[CachedCommit] = []
    freed = 0
    by_repository: dict[Path, list[CachedCommit]] = {}
    for commit in planned.remove:
        by_repository.setdefault(commit.store.folder, []).append(commit)
    for commits in by_repository.values():
        with _explained(commits[0].store), ExitStack() as held:
            free = [commit for commit in commits if _hold(commit, held)]
            skipped += [commit for commit in commits if commit not in free]
            freed += _remove(commits[0].store, free)
            removed += free
    for path in planned.leftovers:
        with suppress(OSError):  # it can stay
            check_folders(path.parent)  # again: it may have been replaced by a link
            freed += _remove_leftover(path)
    return PruneResult(tuple(removed), tuple(skipped), freed)


# What stays


def _reason_to_keep(
    commit: CachedCommit, locks: Sequence[Lock], everything: bool, older_than: float | None, now: float
) -> str | None:
    for lock in locks:
        if any(pin.commit == commit.commit for pin in lock.pins):
            return f"pinned by {lock.where}"
    if commit.refs:
        return f"recorded by another tool: {', '.join(commit.refs)}"
    if commit.branches and not everything:
        return f"head of {', '.join(commit.branches)}"
    if not commit.branches_known and not everything:
        return "no branch of it is recorded"
    days = (now - max(commit.used or 0, commit.downloaded or 0)) / _DAY
    if older_than is not None and days < older_than:
        return f"used or downloaded {days:.0f} days ago"
    return None


# Removal


def _hold(commit: CachedCommit, held: ExitStack) -> bool:
    """Hold all locks of a commit until `held` is closed; False if a process downloads or loads files of it."""
    store = commit.store
    variants = {build.variant for build in commit.builds}.union(*(snapshot.builds for snapshot in commit.listed))
    read = [STATUS_FILE, *(f"{BUILD_FOLDER}/{name}/{METADATA_FILE}" for name in sorted(variants))]
    locks = [store.lock(f"{commit.commit}-{name}") for name in ("index", *sorted(variants))]
    with ExitStack() as mine:
        for lock in (*locks, *(store.reading_lock(commit.commit, path) for path in read)):
            try:
                lock.acquire(seconds=0)
            except LockHeld:
                return False
            mine.callback(lock.release)
        for name in sorted(variants):
            if not mine.enter_context(unused(store.snapshot(commit.commit) / BUILD_FOLDER / name)):
                return False
        held.push(mine.pop_all())
    return True


def _remove(store: RepoStore, commits: Sequence[CachedCommit]) -> int:
    """Remove commits of a repository, whose locks are held; returns the bytes of the files removed."""
    snapshots, blobs, index = (store.folder / name for name in ("snapshots", "blobs", "index"))
    # Checked again: a folder may have been replaced by a link.
    if not commits or not all(map(is_real_folder, (store.folder, snapshots))):
        return 0
    with exclusively(store.lock(CLEARING)):
        roots = [root for commit in commits if is_real_folder(root := store.snapshot(commit.commit))]
        released = {name for root in roots for name in _blobs_of(store, root)}
        freed = sum(map(_remove_tree, roots))
        if is_real_folder(blobs):
            freed += sum(_unlink(blobs / name) for name in released.difference(_blobs_of(store, snapshots)))
        if is_real_folder(index):
            for commit in commits:
                for path in index.glob(f"{commit.commit}-*"):
                    _unlink(path)
            if not any(snapshots.iterdir()) and not (store.folder / "refs").exists():
                for path in index.glob("heads-*.json"):
                    _unlink(path)
        for folder in (index, blobs, snapshots, store.folder):
            with suppress(OSError):  # something else is in it
                os.rmdir(folder)
    return freed


def _blobs_of(store: RepoStore, root: Path) -> Iterator[str]:
    """The names of the contents of a repository that links below a folder lead to; linked folders are not entered."""
    blobs = os.fspath(store.folder / "blobs")
    for parent, folders, names in os.walk(root):
        for name in (*folders, *names):
            with suppress(OSError):
                target = os.path.normpath(os.path.join(parent, os.readlink(os.path.join(parent, name))))
                if os.path.dirname(target) == blobs:
                    yield os.path.basename(target)


def _remove_tree(root: Path) -> int:
    """Remove a folder and the links in it, not their targets; a file that is added meanwhile stays."""
    size = 0
    for parent, folders, names in os.walk(root, topdown=False):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        size += sum(_unlink(Path(parent, name)) for name in (*links, *names))
        with suppress(OSError):  # something else is in it
            os.rmdir(parent)
    return size


def _remove_leftover(path: Path) -> int:
    """Remove a temporary file, the folder of a run that was killed, or a lock that no process holds."""
    if is_real_folder(path):
        return _remove_tree(path)
    if path.suffix != ".lock":
        return _unlink(path)
    lock = WorkLock(path)
    if not lock.try_acquire():
        return 0
    try:
        return _unlink(path)
    finally:
        lock.release()


def _unlink(path: Path) -> int:
    """Remove a file, or a link and not its target; returns the bytes of a file."""
    try:
        facts = path.lstat()
        os.unlink(path)
    except FileNotFoundError:
        return 0
    return facts.st_size if stat.S_ISREG(facts.st_mode) else 0


@contextmanager
def _explained(store: RepoStore) -> Iterator[None]:
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(
            f"Cannot clear {store.folder}: {error.strerror or error}. The rest of the cache is still usable."
        ) from error
