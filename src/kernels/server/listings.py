"""Cached listings of a catalog's folders: the commit of each, and how it was hashed.

Requests that wait for the same folder share one scan of it. A scan answers only requests that came before it began, so
an answer is never older than its request.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from weakref import WeakValueDictionary

from kernels.server.snapshot import Commit

__all__ = ["FileRow", "FolderListing", "Listings"]

#: A file: path in the repository, path on disk, time of change in ns, size, inode.
FileRow = tuple[str, str, int, int, int]

#: Files that are cached, of some 2 kB each: half a gigabyte at most.
_MAX_FILES = 250_000


@dataclass(frozen=True)
class FolderListing:
    """A scanned folder: its files on disk, the commit made of them, and when the scan began (as a count)."""

    rows: list[FileRow]
    commit: Commit
    repo_id: str
    began: int


class Listings:
    """A cache of folder listings with at most `max_files` files; the least recently used folders are dropped first."""

    def __init__(self, max_files: int = _MAX_FILES) -> None:
        self._max_files = max_files
        self._files = 0
        self._listings: OrderedDict[Path, FolderListing] = OrderedDict()
        self._folders: dict[tuple[str, str], Path] = {}
        self._lock = Lock()
        self._count = itertools.count()
        # A lock exists while a thread holds it or waits for it.
        self._locks: WeakValueDictionary[Path, Lock] = WeakValueDictionary()

    @contextmanager
    def locked(self, folder: Path) -> Iterator[None]:
        """Hold the folder's lock: no other thread scans it."""
        with self._lock:
            lock = self._locks.get(folder)
            if lock is None:
                lock = self._locks[folder] = Lock()
        with lock:
            yield

    def current(
        self,
        repo_id: str,
        folder: Path,
        scan: Callable[[FolderListing | None], tuple[list[FileRow], Callable[[], Commit]]],
    ) -> Commit:
        """The commit of a folder as it is now.

        `scan` takes the cached listing, and returns the folder's files and a function that makes a commit of them. The
        function is called only if the files have changed.
        """
        requested = next(self._count)
        with self.locked(folder):  # one request hashes a new repository, the others wait for it
            cached = self.cached(folder)
            if cached is not None and cached.began > requested:
                return cached.commit
            began = next(self._count)
            rows, make_commit = scan(cached)
            commit = cached.commit if cached is not None and cached.rows == rows else make_commit()
            self._keep(folder, FolderListing(rows, commit, repo_id, began))
            return commit

    def cached(self, folder: Path) -> FolderListing | None:
        """The cached listing of a folder."""
        with self._lock:
            return self._listings.get(folder)

    def cached_commit(self, repo_id: str, commit: str) -> Commit | None:
        """A commit of a repository, or None if no cached folder is at that commit."""
        with self._lock:
            folder = self._folders.get((repo_id, commit))
            if folder is None:
                return None
            self._listings.move_to_end(folder)
            return self._listings[folder].commit

    def _keep(self, folder: Path, listing: FolderListing) -> None:
        with self._lock:
            self._drop(folder)
            self._listings[folder] = listing
            self._folders[listing.repo_id, listing.commit.id] = folder
            self._files += len(listing.rows) + 1
            while self._files > self._max_files and len(self._listings) > 1:
                self._drop(next(iter(self._listings)))

    def _drop(self, folder: Path) -> None:
        listing = self._listings.pop(folder, None)
        if listing is not None:
            self._files -= len(listing.rows) + 1
            if self._folders.get(key := (listing.repo_id, listing.commit.id)) == folder:
                del self._folders[key]
