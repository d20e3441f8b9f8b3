"""A build that will probably be chosen is downloaded while that is decided: up to a gate.

There the small files wait in memory, and of the large ones no more is read than the headers of the answer. The build's
lock is held: other processes wait for the files instead of requesting them too. Of a build that is not fetched nothing
stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.sources.download import IN_MEMORY, Gate
from kernels.sources.progress import downloading, watched
from kernels.support.tasks import Task, pause

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kernels.models.snapshot import RepoFile
    from kernels.sources.progress import Arrived
    from kernels.support.lock import WorkLock

__all__ = ["MAX_FILES", "MAX_LARGE", "Ahead", "worth_requesting"]

#: The most files that are requested of a build before it is chosen. Published builds have up to some 60 besides large
#: ones; a Hub allows 3,000 requests in five minutes without a token (https://huggingface.co/docs/hub/rate-limits).
MAX_FILES = 64

#: The most bytes of them: a third of a second at 100 Mbit/s, where the build is not used after all. Eight kernels at a
#: time have 32 MiB in memory.
MAX_BYTES = 4 * 2**20

#: The most large files that are requested of a build before it is chosen: published ones have one, few have two or
#: three. The server sends what the sockets' buffers hold of each: some 200 KiB on Linux, whose buffers grow only while
#: they are read.
MAX_LARGE = 4

#: Seconds that the files of a build which is not chosen yet leave to the request for its metadata, which decides.
_HEAD_START = 0.003

#: Seconds for which a download that was cancelled is waited for: `side_by_side` waits half a second for its threads.
_GRACE_SECONDS = 0.8


class Ahead:
    """Files of a build that are downloaded before it is chosen, up to a gate.

    Args:
        name: The repository, for the progress bar.
        files: The files.
        lock: The lock of the build, which is held; it is released when they are dropped, or at the `end`.
        download: Downloads them, and waits at the gate.
    """

    def __init__(self, name: str, files: Sequence[RepoFile], lock: WorkLock, download: Callable[[Gate], None]) -> None:
        self._name = name
        self._files = files
        self._lock = lock
        # The progress of the call that takes the download; what arrives before that is reported at its end.
        self._arrived: Arrived = lambda files, size: None
        self._gate = Gate(self._give_up)

        def work() -> None:
            pause(_HEAD_START)
            with watched(lambda files, size: self._arrived(files, size)):
                download(self._gate)

        self._task = Task(work, name="ahead")

    def drop(self) -> None:
        """End the download and release the lock, unless it was taken."""
        self._gate.close()

    def take(self) -> bool:
        """Take over the download and the lock; False if it was dropped. If not, `end` must follow."""
        return self._gate.claim()

    def finish(self) -> None:
        """Let the download write, which was taken, and wait for it.

        Raises:
            HubUnavailable: A file is not available, or was wrong at each try.
            StoreError: The cache cannot be written.
        """
        with downloading(self._name, sum(file.size for file in self._files), len(self._files)) as self._arrived:
            self._gate.open()
            self._task.result()

    def end(self) -> None:
        """End what is left of a download that was taken, and release the lock."""
        self._task.cancel()
        self._task.thread.join(_GRACE_SECONDS)  # it leaves partial files for the next call
        self._lock.release()

    def _give_up(self) -> None:
        self._lock.release()
        self._task.cancel()


def worth_requesting(files: Sequence[RepoFile]) -> list[RepoFile]:
    """The files of a build that are requested before it is chosen: the largest and the smallest, up to a limit.

    Example:
        >>> from kernels.models.snapshot import RepoFile
        >>> files = [RepoFile("a.py", 10, "2" * 40), RepoFile("a.so", 2**30, "1" * 40)]
        >>> [file.path for file in worth_requesting(files)]
        ['a.so', 'a.py']
    """
    contents: dict[str, list[RepoFile]] = {}
    for file in sorted(files, key=lambda file: file.size):
        contents.setdefault(file.blob or file.path, []).append(file)
    by_size = list(contents.values())
    large = [same for same in reversed(by_size) if same[0].size > IN_MEMORY][:MAX_LARGE]
    small: list[list[RepoFile]] = []
    size = 0
    for same in by_size[:MAX_FILES]:
        size += same[0].size
        if size > MAX_BYTES or same[0].size > IN_MEMORY:
            break
        small.append(same)
    return [file for same in (*large, *small) for file in same]
