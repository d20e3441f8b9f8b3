"""A lock between processes, also on a file system without `flock`.

Correctness never depends on a lock: files are written under temporary names, checked and renamed into place, so two
processes that hold one lock at once only do the work twice. Network file systems may keep `flock` to one machine, or
have none; there a marker file with a heartbeat names the process at work, and expires when the heartbeat stops.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakSet

from kernels.errors import StoreError
from kernels.support.files import cannot_write, make_folders
from kernels.support.forks import after_fork
from kernels.support.logs import logger
from kernels.support.tasks import pause

if TYPE_CHECKING:
    from io import FileIO

    from filelock import BaseFileLock

__all__ = ["LockHeld", "WorkLock", "exclusively"]

_log = logger(__name__)

#: Waiting for a lock ends: a process that holds one this long is not downloading a kernel.
_LOCK_SECONDS = 3600.0

#: The errors of `flock` where it is missing: no service for it (NFS), no such call (some FUSE and Lustre mounts), not
#: supported (SMB).
_NO_FLOCK = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})

#: A marker without a heartbeat for so long has lost its process. Its heartbeat comes three times as often.
_LEASE_SECONDS = 45.0

#: A wait of so many seconds is logged.
_NOTED_SECONDS = 1.0

#: Seconds between two tries; for a marker each is a request to the file system's server.
_POLL_SECONDS, _MARKER_POLL_SECONDS = 0.05, 0.25

_T = TypeVar("_T")


class LockHeld(TimeoutError):
    """Another process holds a lock, and did not release it in time."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"Another process holds the lock {path}. If that process hangs, end it; if no process uses the file, "
            "delete it."
        )


class WorkLock:
    """A lock that all processes share, in a file of its own. Any thread may release it.

    Args:
        path: The file; its folder is made. Without `flock` the lock is `<path>.held`.
        seconds: How long to wait for another process.

    Example:
        >>> import tempfile
        >>> lock = WorkLock(Path(tempfile.mkdtemp()) / "work.lock")
        >>> lock.try_acquire()
        True
        >>> lock.release()
    """

    def __init__(self, path: Path, seconds: float = _LOCK_SECONDS) -> None:
        self.lock_file = os.fspath(path)
        self._seconds = seconds
        self._file: FileIO | None = None
        self._other: BaseFileLock | None = None  # on Windows, and without `flock`

    def acquire(self, seconds: float | None = None) -> None:
        """Wait for the lock and hold it.

        Args:
            seconds: How long to wait, instead of the lock's own time.

        Raises:
            LockHeld: Another process holds it.
            Cancelled: The work was cancelled meanwhile.
            OSError: Its file cannot be written, or a folder on the way to it is a link.
        """
        make_folders(Path(self.lock_file).parent)
        limit = self._seconds if seconds is None else seconds
        if sys.platform == "win32":
            from filelock import FileLock

            self._other = _wait(self.lock_file, partial(_taken, FileLock(self.lock_file, thread_local=False)), limit)
            return
        try:
            self._file = _wait(self.lock_file, partial(_locked, self.lock_file), limit)
            _held.add(self)
        except OSError as error:
            if error.errno not in _NO_FLOCK:
                raise
            from filelock import SoftFileLease

            marker = SoftFileLease(f"{self.lock_file}.held", lease_duration=_LEASE_SECONDS, thread_local=False)
            self._other = _wait(marker.lock_file, partial(_taken, marker), limit, _MARKER_POLL_SECONDS)

    def try_acquire(self) -> bool:
        """Hold the lock if nobody does and its file can be written; whether it is held."""
        try:
            self.acquire(seconds=0)
        except OSError:  # `LockHeld` is one
            return False
        return True

    def release(self) -> None:
        """Let go of the lock."""
        other, self._other = self._other, None
        if other is not None:
            other.release()
        file, self._file = self._file, None
        if file is not None and sys.platform != "win32":
            import fcntl

            _held.discard(self)
            with file:
                fcntl.flock(file, fcntl.LOCK_UN)  # a child of this process may have the file open

    def forget(self) -> None:
        """Close the lock's file, in a fork: its parent holds the lock, and releases it."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


#: The locks that are held with `flock`.
_held: WeakSet[WorkLock] = WeakSet()


@after_fork
def _forget() -> None:
    for lock in list(_held):
        lock.forget()
    _held.clear()


def _wait(path: str, take: Callable[[], _T | None], seconds: float, poll: float = _POLL_SECONDS) -> _T:
    """What `take` gives when it gives something; a wait that takes long is logged once."""
    begun, noted = time.monotonic(), False
    while (taken := take()) is None:
        waited = time.monotonic() - begun
        if waited >= seconds:
            raise LockHeld(path)
        if waited >= _NOTED_SECONDS and not noted:
            noted = True
            _log.info("Waiting for the lock %s, which another process holds", path)
        pause(poll)
    return taken


def _taken(lock: BaseFileLock) -> BaseFileLock | None:
    from filelock import Timeout

    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    return lock


def _locked(path: str) -> FileIO | None:
    """A lock's file, opened and locked as filelock does it on POSIX; None where another process holds the lock.

    The import of filelock takes 10 ms, a part of a call's time.
    """
    assert sys.platform != "win32"
    import fcntl

    def opener(path: str, flags: int) -> int:
        return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)

    with ExitStack() as opened:
        file = opened.enter_context(open(path, "r+b", buffering=0, opener=opener))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        if not os.fstat(file.fileno()).st_nlink:  # it was removed, and another process may lock its successor
            return None
        opened.pop_all()
        return file


@contextmanager
def exclusively(lock: WorkLock) -> Iterator[None]:
    """Hold a lock.

    Raises:
        StoreError: Its folder cannot be written, or another process holds it for too long.
    """
    try:
        lock.acquire()
    except LockHeld as error:
        raise StoreError(str(error)) from None
    except OSError as error:
        raise cannot_write(error, Path(lock.lock_file)) from error
    try:
        yield
    finally:
        lock.release()
