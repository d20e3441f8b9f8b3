"""What is remembered of the folders of a catalog: the commit that each was seen at, and how it was hashed.

Requests that wait for the same folder share one look at it. A look counts for every request that came before it began,
so an answer is never older than its request.
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

__all__ = ["Listed", "Listings", "Row"]

#: A file: path in the repository, path on disk, time of change in ns, size, inode.
Row = tuple[str, str, int, int, int]

#: Files of which something is remembered: of some 2 kB each, so half a gigabyte at most.
_MAX_FILES = 250_000


@dataclass(frozen=True)
class Listed:
    """A folder as it was seen.

    Attributes:
        rows: Its files, as they lay on disk.
        commit: What was made of them.
        repo_id: Whose folder it is.
        began: When the look began, as a count.
    """

    rows: list[Row]
    commit: Commit
    repo_id: str
    began: int


class Listings:
    """The folders that were seen, those last asked for first to stay.

    Args:
        max_files: How many files may be remembered, of all folders together; the last folder always is.
    """

    def __init__(self, max_files: int = _MAX_FILES) -> None:
        self._max_files = max_files
        self._files = 0
        self._listed: OrderedDict[Path, Listed] = OrderedDict()
        self._folders: dict[tuple[str, str], Path] = {}
        self._lock = Lock()
        self._count = itertools.count()
        # A lock is there for as long as somebody holds it or waits for it.
        self._locks: WeakValueDictionary[Path, Lock] = WeakValueDictionary()

    @contextmanager
    def alone(self, folder: Path) -> Iterator[None]:
        """While this is held nobody else looks at the folder."""
        with self._lock:
            lock = self._locks.get(folder)
            if lock is None:
                lock = self._locks[folder] = Lock()
        with lock:
            yield

    def at(
        self, repo_id: str, folder: Path, look: Callable[[Listed | None], tuple[list[Row], Callable[[], Commit]]]
    ) -> Commit:
        """The commit of a folder, as it is now.

        Args:
            repo_id: Whose folder it is.
            folder: The folder.
            look: Finds its files, given what is remembered, and says how to make a commit of them, which is done only
                if they are others.
        """
        asked = next(self._count)
        with self.alone(folder):  # one request hashes a new repository, the others wait for it
            known = self.of(folder)
            if known is not None and known.began > asked:
                return known.commit
            began = next(self._count)
            rows, commit_of = look(known)
            commit = known.commit if known is not None and known.rows == rows else commit_of()
            self._keep(folder, Listed(rows, commit, repo_id, began))
            return commit

    def of(self, folder: Path) -> Listed | None:
        """What is remembered of a folder."""
        with self._lock:
            return self._listed.get(folder)

    def known(self, repo_id: str, commit: str) -> Commit | None:
        """A commit of a repository as it was last seen, or None where none of its folders was seen at that commit."""
        with self._lock:
            folder = self._folders.get((repo_id, commit))
            if folder is None:
                return None
            self._listed.move_to_end(folder)
            return self._listed[folder].commit

    def _keep(self, folder: Path, listed: Listed) -> None:
        with self._lock:
            self._drop(folder)
            self._listed[folder] = listed
            self._folders[listed.repo_id, listed.commit.id] = folder
            self._files += len(listed.rows) + 1
            while self._files > self._max_files and len(self._listed) > 1:
                self._drop(next(iter(self._listed)))

    def _drop(self, folder: Path) -> None:
        listed = self._listed.pop(folder, None)
        if listed is None:
            return
        self._files -= len(listed.rows) + 1
        key = listed.repo_id, listed.commit.id
        if self._folders.get(key) == folder:
            del self._folders[key]
