"""Files of a build that is likely to be chosen, requested while that is decided.

Until the build is fetched the small ones are in memory, checked against the listing, and of the large ones no more is
read than the headers of the answer. The build's lock is held: other processes wait for the files instead of requesting
them too. Of a build that is not fetched nothing stays.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from kernels.models.snapshot import RepoFile
from kernels.sources.download import WORKERS, is_small
from kernels.sources.progress import downloading, report
from kernels.support.forks import after_fork
from kernels.support.tasks import begin

if TYPE_CHECKING:
    from kernels.cache.repo_store import RepoStore
    from kernels.models.snapshot import Snapshot
    from kernels.sources.remote import Remote
    from kernels.support.lock import WorkLock
    from kernels.support.tasks import Begun

__all__ = ["MAX_BYTES", "MAX_FILES", "MAX_LARGE", "SpeculativeFetch", "large_files", "small_files", "speculative_fetch"]

#: The most files that are requested of a build. Published builds have up to some 60 besides large ones; a Hub allows
#: 3,000 requests in five minutes without a token (https://huggingface.co/docs/hub/rate-limits).
MAX_FILES = 64

#: The most bytes of them: a third of a second at 100 Mbit/s, where the build is not used after all. Eight kernels at a
#: time have 32 MiB in memory.
MAX_BYTES = 4 * 2**20

#: The most large files that are requested of a build: published ones have one, few have two or three. The server sends
#: what the sockets' buffers hold of each: some 200 KiB on Linux, whose buffers grow only while they are read.
MAX_LARGE = 4

#: The most large files that wait to be read in this process: each has a connection, of which huggingface_hub's session
#: has 100, and downloads take 64.
_MAX_WAITING = 16


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


def large_files(files: Sequence[RepoFile]) -> list[RepoFile]:
    """The largest files, each content once, as many as are requested ahead.

    Example:
        >>> [file.path for file in large_files([RepoFile("b.so", 2**20, "1" * 40), RepoFile("a.so", 2**30, "2" * 40)])]
        ['a.so', 'b.so']
    """
    contents = {file.blob or file.path: file for file in sorted(files, key=lambda file: -file.size)}
    return list(contents.values())[:MAX_LARGE]


def speculative_fetch(
    remote: Remote, store: RepoStore, snapshot: Snapshot, variant: str, files: Iterable[RepoFile]
) -> SpeculativeFetch | None:
    """The requests of those files of a build that are worth it, which hold the build's lock.

    Only a Hub gives files one by one. Files whose content the repository's other commits have are not requested, nor
    are large ones of which a part is here.

    Args:
        remote: Sends the requests.
        store: The repository in the cache.
        snapshot: The snapshot.
        variant: The build.
        files: Its files beside those that are read to choose it.

    Returns:
        The requests; None where there are none, or another process has the lock.
    """
    commit = snapshot.commit
    single = remote.single_files(snapshot.repo_id, store.missing(commit, files))
    small = small_files([file for file in single if is_small(file)])
    large = large_files([file for file in single if not is_small(file)])
    lock = store.lock(f"{commit}-{variant}")
    if not (small or large) or not lock.try_acquire():
        return None
    with ExitStack() as held:
        held.callback(lock.release)
        # Another process may have had the lock until now; and other commits may have the same contents.
        wanted = [file for file in store.missing(commit, small + large) if not store.has_content(file)]
        if not wanted:
            return None
        found = SpeculativeFetch(
            snapshot.repo_id,
            [file for file in wanted if is_small(file)],
            partial(remote.file_content, snapshot),
            lock,
            large=[file for file in wanted if not is_small(file) and store.begun(file) is None],
            send=partial(remote.send_early, snapshot),
        )
        held.pop_all()
    return found


_waiting = threading.Semaphore(_MAX_WAITING)


@after_fork
def _renew() -> None:
    # What the parent waits for, a fork does not.
    global _waiting
    _waiting = threading.Semaphore(_MAX_WAITING)


class SpeculativeFetch:
    """The requests of files of one build, which are sent from `begin` on.

    Args:
        name: The repository, for the progress bar.
        small: The files whose content is requested.
        request: Gives the content of a file, as listed. Its error is that of `put_into`.
        lock: The lock of the build, which is held; it is released with what becomes of the files.
        large: The files of which only the answers' headers are waited for.
        send: Sends the requests for large files; a download of one takes its answer over.
    """

    def __init__(
        self,
        name: str,
        small: Sequence[RepoFile],
        request: Callable[[RepoFile], bytes],
        lock: WorkLock,
        *,
        large: Sequence[RepoFile] = (),
        send: Callable[[Sequence[RepoFile]], ExitStack | None] = lambda files: None,
    ) -> None:
        self._name = name
        self._small = small
        self._request = request
        self._lock = lock
        self._large = large
        self._send = send
        self._guard = threading.Lock()
        self._over = False
        self._work: Begun[tuple[RepoFile, bytes]] | None = None
        self._sent: ExitStack | None = None
        self._places: list[threading.Semaphore] = []

    def begin(self) -> None:
        """Send the requests, unless the files were dropped."""
        request = self._request
        with self._guard:
            if self._over or self._work is not None:
                return
            waiting = _waiting
            large = [file for file in self._large if waiting.acquire(blocking=False)]
            self._places = [waiting] * len(large)
            self._sent = self._send(large) if large else None
            self._work = begin(lambda file: (file, request(file)), self._small, at_once=WORKERS, name="ahead")

    def take(self) -> bool:
        """Take over the files and the lock; False if they were dropped. If not, `end` must follow."""
        with self._guard:
            taken, self._over = not self._over, True
        return taken

    def among(self, files: Iterable[RepoFile]) -> set[RepoFile]:
        """Those files whose contents are requested."""
        contents = {file.blob or file.path for file in self._small} if self._work is not None else set()
        return {file for file in files if (file.blob or file.path) in contents}

    def put_into(self, store: RepoStore, commit: str, missing: Iterable[RepoFile]) -> None:
        """Put the contents that were taken into the snapshot of a commit, each as it arrives.

        Args:
            store: The repository in the cache.
            commit: The commit.
            missing: Files that the snapshot lacks; those with one of the contents are placed.

        Raises:
            HubUnavailable: A content is not available, or was wrong at each try.
            StoreError: The cache cannot be written.
        """
        if self._work is None:
            return
        lacking: dict[str, list[RepoFile]] = {}
        for each in missing:
            lacking.setdefault(each.blob or each.path, []).append(each)
        size = sum(file.size for file in self._small)
        writer = store.writer(commit)
        with downloading(self._name, size, len(self._small)):
            for file, content in self._work.as_they_come():
                same = lacking.get(file.blob or file.path)
                if same:
                    writer.put(content, *same)
                report(1, file.size)

    def end(self) -> None:
        """End what is left of the requests, and release the lock, after the files were taken."""
        try:
            work, self._work = self._work, None  # with it the contents
            if work is not None:
                work.cancel()
            if self._sent is not None:
                self._sent.close()
        finally:
            for each in self._places:
                each.release()
            self._lock.release()

    def drop(self) -> None:
        """End the requests and release the lock, unless the files were taken."""
        if self.take():
            self.end()
