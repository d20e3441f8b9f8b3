"""What is in the cache, by repository, commit and build.

The folders `kernels--<org>--<name>` belong to this project, even if another client filled them; others do not.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from kernels import settings
from kernels.cache.store import RepoStore, is_stale
from kernels.cache.work_folders import abandoned_work
from kernels.errors import KernelsError, StoreError
from kernels.models.cache_places import endpoint_key
from kernels.models.requirement import check_repo_id, is_commit
from kernels.models.snapshot import BUILD_FOLDER, Snapshot
from kernels.support.files import is_real_folder

__all__ = [
    "CacheContents",
    "CachedBuild",
    "CachedCommit",
    "freed_size",
    "scan_cache",
]

_FOLDER = re.compile(r"kernels--([^/]+?)--([^/]+)")
_LISTING = re.compile(r"([0-9a-f]{40}|[0-9a-f]{64})-([0-9a-f]{16})\.json")

#: For how many seconds the branches of an address that `KERNELS_HUB` does not name any more keep their commits.
_FORMER_SECONDS = 30 * 24 * 3600.0

#: A content: its device and inode.
Content = tuple[int, int]


@dataclass(frozen=True)
class CachedBuild:
    """A build on disk.

    Attributes:
        variant: Its name.
        size: Bytes.
        complete: Whether all of its files are on disk; None without a Hub's file list.
    """

    variant: str
    size: int
    complete: bool | None


@dataclass(frozen=True)
class CachedCommit:
    """A commit with files on disk.

    Attributes:
        store: The repository's folder.
        repo_id: The repository.
        commit: The commit.
        branches: The branches and tags that name it, as Hubs last gave them.
        refs: The branches and tags that name it as other tools recorded them.
        branches_known: Whether any branch of the repository is recorded. Without one, a commit may still be the head
            of a branch.
        hubs: The URLs of the Hubs it came from, "" for an unknown one. Empty if another tool downloaded it.
        listed: The files, as each of these Hubs listed them; damaged lists are left out.
        builds: The builds.
        size: Bytes of its files.
        downloaded: When its first file was downloaded, in seconds since 1970.
        used: When a build was last loaded, to the hour; None if unknown.
        contents: The bytes of each content in the repository's own folder.
    """

    store: RepoStore
    repo_id: str
    commit: str
    branches: tuple[str, ...]
    refs: tuple[str, ...]
    branches_known: bool
    hubs: tuple[str, ...]
    listed: tuple[Snapshot, ...] = field(repr=False)
    builds: tuple[CachedBuild, ...]
    size: int
    downloaded: float | None
    used: float | None
    contents: Mapping[Content, int] = field(repr=False)


@dataclass(frozen=True)
class CacheContents:
    """What is in a cache.

    Attributes:
        path: The cache's folder.
        commits: The commits, by repository; the one downloaded last comes first.
        uses: In how many commits each content is.
        leftovers: Temporary files, folders of them, and locks, of processes that ended or were killed long ago.
        temporary: Bytes of these.
        left_alone: The folders that do not belong to this project, and why.
    """

    path: Path
    commits: tuple[CachedCommit, ...]
    uses: Mapping[Content, int] = field(repr=False)
    leftovers: tuple[Path, ...] = ()
    temporary: int = 0
    left_alone: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of all commits; shared contents count once."""
        return sum({key: size for each in self.commits for key, size in each.contents.items()}.values())


def scan_cache(path: Path | None = None) -> CacheContents:
    """The commits in the cache.

    Args:
        path: The cache; the default is the one that the settings name.

    Raises:
        StoreError: It cannot be read. A folder that does not exist is an empty cache.
    """
    path = settings.cache_dir() if path is None else path
    commits: list[CachedCommit] = []
    leftovers: list[Path] = []
    left_alone: list[str] = []
    for store, repo_id in _repositories(path, left_alone):
        commits += sorted(_commits(store, repo_id, left_alone), key=lambda each: -(each.downloaded or 0))
        leftovers += store.leftovers()
    leftovers += [*abandoned_work(path), *_idle_locks(path)]
    uses = Counter(content for each in commits for content in each.contents)
    temporary = sum(map(_size, leftovers))
    return CacheContents(path, tuple(commits), uses, tuple(leftovers), temporary, tuple(left_alone))


def freed_size(contents: CacheContents, removed: Iterable[CachedCommit]) -> int:
    """Bytes that are freed by removing some commits: their contents that no other commit uses."""
    gone: Counter[Content] = Counter()
    sizes: dict[Content, int] = {}
    for commit in removed:
        gone.update(commit.contents.keys())
        sizes.update(commit.contents)
    return sum(size for key, size in sizes.items() if gone[key] >= contents.uses.get(key, 0))


# Repositories


def _repositories(path: Path, left_alone: list[str]) -> Iterator[tuple[RepoStore, str]]:
    try:
        entries = sorted(os.scandir(path), key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(f"Cannot read the cache at {path}: {error.strerror or error}.") from error
    for entry in entries:
        match = _FOLDER.fullmatch(entry.name)
        if match is None:
            continue
        repo_id = f"{match[1]}/{match[2]}"
        with suppress(KernelsError):
            check_repo_id(repo_id)
            store = RepoStore(path, repo_id)
            inside = (store.folder / name for name in ("blobs", "snapshots", "index"))
            if entry.is_dir(follow_symlinks=False) and not any(each.is_symlink() for each in inside):
                yield store, repo_id
            else:
                left_alone.append(f"{entry.path} is a link, or has a link instead of a folder")


def _snapshots(store: RepoStore, left_alone: list[str]) -> Iterator[str]:
    with suppress(OSError), os.scandir(store.folder / "snapshots") as entries:
        for entry in entries:
            if is_commit(entry.name) and entry.is_dir(follow_symlinks=False):
                yield entry.name
            elif entry.is_symlink():
                left_alone.append(f"{entry.path} is a link")


def _commits(store: RepoStore, repo_id: str, left_alone: list[str]) -> Iterator[CachedCommit]:
    """The commits of a repository that have files or a Hub's list of them."""
    active, known = _active_hubs(), store.answers()
    hubs = {endpoint_key(url): url for url in active} | {key: said.endpoint for key, said in known.items()}
    names = _by_commit(
        {**said.branches, **said.tags}
        for said in known.values()
        if said.endpoint in active or time.time() - said.time <= _FORMER_SECONDS
    )
    refs = _by_commit([store.foreign_branches()])
    listed_by: dict[str, list[str]] = {}
    with suppress(OSError):
        for match in filter(None, map(_LISTING.fullmatch, sorted(os.listdir(store.folder / "index")))):
            listed_by.setdefault(match[1], []).append(match[2])
    for commit in sorted({*_snapshots(store, left_alone), *listed_by}):
        keys = listed_by.get(commit, [])
        listed = tuple(_listed(store, repo_id, commit, keys))
        files = list(_files(store, commit))
        yield CachedCommit(
            store,
            repo_id,
            commit,
            names.get(commit, ()),
            refs.get(commit, ()),
            bool(known or refs),
            tuple(hubs.get(key, "") for key in keys),
            listed,
            _builds(store, commit, files, listed),
            sum({each.content: each.size for each in files}.values()),
            min((each.arrived for each in files), default=None),
            _used(store, commit),
            {each.content: each.size for each in files if each.own},
        )


def _listed(store: RepoStore, repo_id: str, commit: str, keys: Iterable[str]) -> Iterator[Snapshot]:
    for key in keys:
        files = store.listed_by(key, commit)
        if files is not None:
            with suppress(KernelsError):  # unsafe names
                yield Snapshot(repo_id, commit, files)


def _idle_locks(cache: Path) -> Iterator[Path]:
    """Lock files of kernels' repositories that are older than a day; some may be held."""
    root = cache / ".locks"
    for folder in sorted(root.glob("kernels--*")) if is_real_folder(root) else ():
        if is_real_folder(folder):
            yield from (path for path in sorted(folder.glob("*.lock")) if is_stale(path) and not path.is_symlink())


def _active_hubs() -> set[str]:
    """The URLs that kernels come from now."""
    with suppress(KernelsError):
        addresses = settings.hub_addresses()
        return {Path(each.value).as_uri() if each.kind == "folder" else each.value for each in addresses}
    return set()


def _by_commit(heads: Iterable[Mapping[str, str]]) -> dict[str, tuple[str, ...]]:
    """The branches and tags that name each commit."""
    found: dict[str, dict[str, None]] = {}
    for each in heads:
        for name, commit in each.items():
            found.setdefault(commit, {})[name] = None
    return {commit: tuple(names) for commit, names in found.items()}


# Files


class _File(NamedTuple):
    path: str  # POSIX path in the repository
    content: Content
    size: int
    arrived: float
    own: bool  # whether the content is in the repository's own folder


def _files(store: RepoStore, commit: str) -> Iterator[_File]:
    """The files of a snapshot; folders that are links are not entered."""
    root = store.snapshot(commit)
    blobs = os.path.realpath(store.folder / "blobs")
    for parent, _, names in os.walk(root) if is_real_folder(root) else ():
        for name in names:
            path = Path(parent, name)
            with suppress(OSError):
                facts = path.stat()
                if stat.S_ISREG(facts.st_mode):
                    own = not path.is_symlink() or os.path.dirname(os.path.realpath(path)) == blobs
                    content = facts.st_dev, facts.st_ino
                    arrived = path.lstat().st_mtime
                    yield _File(path.relative_to(root).as_posix(), content, facts.st_size, arrived, own)


def _builds(
    store: RepoStore, commit: str, files: Iterable[_File], listed: Sequence[Snapshot]
) -> tuple[CachedBuild, ...]:
    contents: dict[str, dict[Content, int]] = {}
    for each in files:
        parts = each.path.split("/", 2)
        if len(parts) == 3 and parts[0] == BUILD_FOLDER:
            contents.setdefault(parts[1], {})[each.content] = each.size

    def complete(variant: str) -> bool | None:
        if not listed:
            return None
        lists = [snapshot.builds[variant] for snapshot in listed if snapshot.builds.get(variant)]
        return any(not store.missing(commit, files) for files in lists)

    return tuple(CachedBuild(name, sum(sizes.values()), complete(name)) for name, sizes in sorted(contents.items()))


def _used(store: RepoStore, commit: str) -> float | None:
    times = []
    with suppress(OSError):
        for path in (store.folder / "index").glob(f"{commit}-*.checked"):
            with suppress(OSError):
                times.append(path.stat().st_mtime)
    return max(times, default=None)


def _size(path: Path) -> int:
    """Bytes of a file, or of the files in a folder; a link has none."""
    with suppress(OSError):
        if is_real_folder(path):
            return sum(map(_size, path.iterdir()))
        facts = path.lstat()
        return facts.st_size if stat.S_ISREG(facts.st_mode) else 0
    return 0
