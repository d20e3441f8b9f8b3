"""Small files of a build that is likely to be chosen, requested while that is decided.

Until the build is fetched they are in memory, checked against the listing, and the build's lock is held: other
processes wait for them instead of requesting them too. Of a build that is not fetched nothing stays.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from kernels.models.snapshot import RepoFile
from kernels.sources.progress import downloading, report
from kernels.support.concurrency import begin

if TYPE_CHECKING:
    from kernels.cache.repo_store import RepoStore
    from kernels.support.process_lock import WorkLock

__all__ = ["MAX_BYTES", "MAX_FILES", "FilesAhead", "small_files"]

#: The most files that are requested of a build. Published builds have up to some 60 besides large ones; a Hub allows
#: 3,000 requests in five minutes without a token (https://huggingface.co/docs/hub/rate-limits).
MAX_FILES = 64

#: The most bytes of them: a third of a second at 100 Mbit/s, where the build is not used after all. Eight kernels at a
#: time have 32 MiB in memory.
MAX_BYTES = 4 * 2**20

#: Requests at the same time, as for a download.
_AT_ONCE = 32


def small_files(files: Sequence[RepoFile]) -> list[RepoFile]:
    """The smallest files, each content once, as many as are requested ahead.

    Example:
        >>> [file.path for file in small_files([RepoFile("a.so", 2**30, "1" * 40), RepoFile("a.py", 10, "2" * 40)])]
        ['a.py']
    """
    chosen: list[RepoFile] = []
    size = 0
    contents = {file.blob or file.path: file for file in sorted(files, key=lambda file: file.size)}
    for file in contents.values():
        size += file.size
        if size > MAX_BYTES or len(chosen) == MAX_FILES:
            break
        chosen.append(file)
    return chosen


class FilesAhead:
    """The requests of files of one build, which begin at once.

    Args:
        name: The repository, for the progress bar.
        files: The files.
        request: Gives the content of a file, as listed. Its error is that of `put_into`.
        lock: The lock of the build, which is held; it is released with what becomes of the files.
    """

    def __init__(
        self, name: str, files: Sequence[RepoFile], request: Callable[[RepoFile], bytes], lock: WorkLock
    ) -> None:
        self._name = name
        self._size = sum(file.size for file in files)
        self._lock = lock
        self._guard = threading.Lock()
        self._over = False
        self._work = begin(lambda file: (file, request(file)), files, at_once=_AT_ONCE, name="ahead")

    def take(self) -> bool:
        """Take over the files and the lock; False if they were dropped. If not, `end` must follow."""
        with self._guard:
            taken, self._over = not self._over, True
        return taken

    def put_into(self, store: RepoStore, commit: str, missing: Iterable[RepoFile]) -> set[RepoFile]:
        """Put the contents that were taken into the snapshot of a commit, each as it arrives.

        Args:
            store: The repository in the cache.
            commit: The commit.
            missing: The files that the snapshot lacks.

        Returns:
            Those that have one of the contents.

        Raises:
            HubUnavailable: A content is not available, or was wrong at each try.
            StoreError: The cache cannot be written.
        """
        placed: set[RepoFile] = set()
        lacking: dict[str, list[RepoFile]] = {}
        for each in missing:
            lacking.setdefault(each.blob or each.path, []).append(each)
        with downloading(self._name, self._size), store.placing(commit) as placing:
            for file, content in self._work.as_they_come():
                same = lacking.get(file.blob or file.path)
                if same:
                    placing.put(content, *same)
                    placed.update(same)
                report(1, file.size)
        return placed

    def end(self) -> None:
        """End what is left of the requests, and release the lock, after the files were taken."""
        self._work.cancel()
        del self._work  # with it the contents
        self._lock.release()

    def drop(self) -> None:
        """End the requests and release the lock, unless the files were taken."""
        if self.take():
            self.end()
