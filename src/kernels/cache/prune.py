"""The removal of commits that are not needed any more.

Only files in the repository's own folder are removed; no link is followed. A build that a process is downloading or
loading stays, and contents that another snapshot uses stay. A kill at any moment leaves a cache
that the next download completes.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kernels.cache.in_use import unused
from kernels.cache.inventory import CacheContents, CachedCommit, freed_size, leftover_size, listings
from kernels.cache.repo_store import CLEARING, RepoStore
from kernels.cache.work_folders import remove_work
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
        leftovers: Temporary files, folders of them, and locks that no process holds.
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
        reason = _stays(commit, locks, everything) or _young(commit, older_than, now)
        if reason is None:
            remove.append(commit)
        elif commit.size:
            kept.append(KeptCommit(commit, reason))
    leftovers = () if repos else (*contents.leftovers, *_idle_locks(contents.path, now))
    size = sum(map(leftover_size, leftovers))
    return PrunePlan(tuple(remove), tuple(kept), leftovers, freed_size(contents, remove) + size)


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
            free = [commit for commit in commits if _not_in_use(commit, held)]
            skipped += [commit for commit in commits if commit not in free]
            freed += _remove(commits[0].store, free)
            removed += free
    for path in planned.leftovers:
        with suppress(OSError):  # it can stay
            check_folders(path.parent)  # again: it may have been replaced by a link
            if is_real_folder(path):
                freed += remove_work(path)
            else:
                freed += _remove_lock(path) if path.suffix == ".lock" else _unlink(path)
    return PruneResult(tuple(removed), tuple(skipped), freed)


# What stays


def _stays(commit: CachedCommit, locks: Sequence[Lock], everything: bool) -> str | None:
    for lock in locks:
        if any(pin.commit == commit.commit for pin in lock.pins):
            return f"pinned by {lock.where}"
    if commit.refs:
        return f"recorded by another tool: {', '.join(commit.refs)}"
    if commit.branches and not everything:
        return f"head of {', '.join(commit.branches)}"
    if not commit.branches_known and not everything:
        return "no branch of it is recorded"
    return None


def _young(commit: CachedCommit, older_than: float | None, now: float) -> str | None:
    last = max(commit.used or 0, commit.downloaded or 0)
    days = (now - last) / _DAY
    if older_than is None or days >= older_than:
        return None
    return f"used or downloaded {days:.0f} days ago"


def _idle_locks(cache: Path, now: float) -> Iterator[Path]:
    """Lock files of kernels' repositories that are older than a day; some may be held."""
    root = cache / ".locks"
    if not is_real_folder(root):
        return
    for folder in sorted(root.glob("kernels--*")):
        if is_real_folder(folder):
            for path in sorted(folder.glob("*.lock")):
                with suppress(OSError):
                    if now - path.lstat().st_mtime > _DAY and not path.is_symlink():
                        yield path


# Removal


def _not_in_use(commit: CachedCommit, held: ExitStack) -> bool:
    """Whether no process downloads or loads files of a commit; until `held` is closed, none can."""
    variants = {build.variant for build in commit.builds}
    for _, files in listings(commit.store, commit.commit):
        variants |= {parts[1] for file in files if len(parts := file.path.split("/", 2)) == 3}
    store = commit.store
    locks = [store.lock(f"{commit.commit}-{name}") for name in ("index", *sorted(variants))]
    locks += [
        store.reading_lock(commit.commit, path)
        for path in (STATUS_FILE, *(f"{BUILD_FOLDER}/{name}/{METADATA_FILE}" for name in sorted(variants)))
    ]
    with ExitStack() as mine:
        for lock in locks:
            if not mine.enter_context(_at_once(lock)):
                return False
        for name in sorted(variants):
            if not mine.enter_context(unused(store.snapshot(commit.commit) / BUILD_FOLDER / name)):
                return False
        held.push(mine.pop_all())
    return True


@contextmanager
def _at_once(lock: WorkLock) -> Iterator[bool]:
    """Take a lock that no process holds."""
    try:
        lock.acquire(seconds=0)
    except LockHeld:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _remove(store: RepoStore, commits: Sequence[CachedCommit]) -> int:
    """Remove commits of a repository; returns the bytes of the files removed."""
    # Checked again: a folder may have been replaced by a link.
    if not commits or not all(is_real_folder(path) for path in (store.folder, store.folder / "snapshots")):
        return 0
    freed = 0
    with exclusively(store.lock(CLEARING)):
        released: dict[str, None] = {}
        for commit in commits:
            released.update(dict.fromkeys(_blobs_of(store, commit)))
            freed += _remove_snapshot(store, commit)
        freed += _remove_blobs(store, released)
        for commit in commits:
            for path in _records(store, commit.commit):
                _unlink(path)
        _tidy(store)
    return freed


def _blobs_of(store: RepoStore, commit: CachedCommit) -> Iterator[str]:
    """The names of the contents in the repository's own folder that a commit links to."""
    root = store.snapshot(commit.commit)
    for target in _links(root):
        if os.path.dirname(target) == os.fspath(store.folder / "blobs"):
            yield os.path.basename(target)


def _links(root: Path) -> Iterator[str]:
    """The absolute targets of the links below a folder; linked folders are not entered."""
    for parent, folders, names in os.walk(root, followlinks=False):
        for name in (*folders, *names):
            path = os.path.join(parent, name)
            with suppress(OSError):
                yield os.path.normpath(os.path.join(parent, os.readlink(path)))


def _remove_snapshot(store: RepoStore, commit: CachedCommit) -> int:
    root = store.snapshot(commit.commit)
    if not is_real_folder(root):
        return 0
    size = sum(leftover_size(Path(parent, name)) for parent, _, names in os.walk(root) for name in names)
    _remove_tree(root)
    return size


def _remove_tree(root: Path) -> None:
    """Remove a folder and the links in it, not their targets; a file that is added meanwhile stays."""

    def ignore(_: object, __: str, problem: Any) -> None:
        # From Python 3.12 on the error itself, before what `sys.exc_info` says.
        error = problem[1] if isinstance(problem, tuple) else problem
        if not (isinstance(error, OSError) and error.errno in _MEANWHILE):
            raise error

    if sys.version_info >= (3, 12):
        shutil.rmtree(root, onexc=ignore)
    else:
        shutil.rmtree(root, onerror=ignore)


#: Another process added a file to a folder (ENOTEMPTY, on some systems EEXIST), or removed it first.
_MEANWHILE = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT})


def _remove_blobs(store: RepoStore, names: Mapping[str, None]) -> int:
    blobs = store.folder / "blobs"
    if not is_real_folder(blobs):
        return 0
    used = {os.path.basename(target) for target in _links(store.folder / "snapshots")}
    return sum(_unlink(blobs / name) for name in names if name not in used)


def _records(store: RepoStore, commit: str) -> Iterator[Path]:
    index = store.folder / "index"
    if is_real_folder(index):
        yield from sorted(index.glob(f"{commit}-*"))


def _tidy(store: RepoStore) -> None:
    """Remove the folder of a kernel without commits; a folder with any other file stays."""
    snapshots = store.folder / "snapshots"
    if any(snapshots.glob("*")) or (store.folder / "refs").exists():
        return
    index = store.folder / "index"
    if is_real_folder(index):
        for path in (*index.glob("heads-*.json"), *index.glob("mirror-*.json")):
            _unlink(path)
    for folder in (index, store.folder / "blobs", snapshots, store.folder):
        with suppress(OSError):
            os.rmdir(folder)


def _remove_lock(path: Path) -> int:
    """Remove a lock file that no process holds."""
    lock = WorkLock(path)
    if not lock.try_acquire():
        return 0
    try:
        return _unlink(path)
    finally:
        lock.release()


def _unlink(path: Path) -> int:
    """Remove a file, or a link and not its target; returns its bytes."""
    try:
        size = path.lstat().st_size
        os.unlink(path)
    except FileNotFoundError:
        return 0
    return size


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
