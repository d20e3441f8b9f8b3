"""A lock between processes, also on a file system without `flock`.

Correctness never depends on a lock: files are written under temporary names, checked and renamed into place, so two
processes that hold one lock at once only do the work twice. Network file systems may keep `flock` to one machine, or
have none; there a marker file with a heartbeat names the process at work, and expires when the heartbeat stops.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet

from kernels.errors import StoreError
from kernels.support.files import cannot_write, make_folders, open_regular
from kernels.support.forks import after_fork
from kernels.support.logs import logger
from kernels.support.tasks import check_cancelled, is_cancelled

if TYPE_CHECKING:
    from io import FileIO

    from filelock import BaseFileLock

__all__ = ["WorkLock", "exclusively", "lock_at", "without_flock"]

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

#: Seconds between looks at a marker: each is a request to the file system's server.
_POLL_SECONDS = 0.25


#: The locks that are held without filelock.
_held_directly: WeakSet[WorkLock] = WeakSet()


class WorkLock:
    """A lock that all processes share, in a file of its own. Any thread may release it.

    Args:
        path: The file; its folder is made. Without `flock` the lock is `<path>.held`.
        seconds: How long to wait for another process.

    Example:
        >>> import tempfile
        >>> lock = WorkLock(Path(tempfile.mkdtemp()) / "work.lock", seconds=1)
        >>> lock.acquire()
        >>> lock.release()
    """

    def __init__(self, path: Path, seconds: float) -> None:
        self.lock_file = os.fspath(path)
        self._seconds = seconds
        self._held: BaseFileLock | None = None
        self._file: FileIO | None = None  # where nobody had the lock

    def acquire(self, timeout: float | None = None) -> None:
        """Wait for the lock and hold it.

        Args:
            timeout: Seconds to wait, instead of the lock's own.

        Raises:
            filelock.Timeout: Another process holds it.
            Cancelled: The work was cancelled meanwhile.
            OSError: Its file cannot be written, or a folder on the way to it is a link.
        """
        make_folders(Path(self.lock_file).parent)
        file = _locked_at_once(self.lock_file)
        if file is not None:
            self._file = file
            _held_directly.add(self)
            return
        from filelock import FileLock, SoftFileLease

        seconds = self._seconds if timeout is None else timeout
        try:
            # Another thread than the one that acquired it may release it.
            self._acquire(FileLock(self.lock_file, thread_local=False, fallback_to_soft=False), seconds)
        except OSError as error:
            if not without_flock(error):
                raise
            marker = SoftFileLease(f"{self.lock_file}.held", lease_duration=_LEASE_SECONDS, thread_local=False)
            self._acquire(marker, seconds, _EmptyMarker(marker.lock_file))

    def acquire_at_once(self) -> bool:
        """Hold the lock if nobody does and its file can be written; whether it is held."""
        try:
            self.acquire(timeout=0)
        except OSError:  # a `filelock.Timeout` is one
            return False
        return True

    def _acquire(self, lock: BaseFileLock, seconds: float, empty: _EmptyMarker | None = None) -> None:
        from filelock import LeaseSettingsMismatch, Timeout

        begun, noted = time.monotonic(), False

        def is_over() -> bool:
            nonlocal noted
            if not noted and time.monotonic() - begun >= _NOTED_SECONDS:
                noted = True
                from kernels.support.lock_holder import lock_holder

                _log.info("Waiting for the lock %s, which %s holds", lock.lock_file, lock_holder(lock.lock_file))
            if empty is not None:
                empty.remove_abandoned()
            return is_cancelled()

        poll_interval = 0.05 if empty is None else _POLL_SECONDS
        try:
            lock.acquire(timeout=seconds, poll_interval=poll_interval, cancel_check=is_over)
        except (Timeout, LeaseSettingsMismatch):  # a mismatch: the marker of another version of this package
            check_cancelled()
            raise Timeout(lock.lock_file) from None
        self._held = lock

    def release(self) -> None:
        """Let go of the lock."""
        held, self._held = self._held, None
        if held is not None:
            held.release()
        file, self._file = self._file, None
        if file is not None:
            _held_directly.discard(self)
            _unlock(file)

    def forget(self) -> None:
        """Close the lock's file, in a fork: its parent holds the lock, and releases it."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


@after_fork
def _forget() -> None:
    for lock in list(_held_directly):
        lock.forget()
    _held_directly.clear()


def _locked_at_once(path: str) -> FileIO | None:
    """A lock's file, opened and locked as filelock does it, or None where that is left to filelock.

    Most locks are free, and those need nothing of filelock, whose import takes a part of a call's time. It waits where
    another one holds the lock, and says what is wrong where the file cannot be locked.
    """
    try:
        import fcntl
    except ImportError:
        return None

    def opener(path: str, flags: int) -> int:
        return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)

    with suppress(OSError), ExitStack() as opened:
        file = opened.enter_context(open(path, "r+b", buffering=0, opener=opener))
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file.fileno()).st_nlink:  # else it was removed, and another process may lock its successor
            opened.pop_all()
            return file
    return None


def _unlock(file: FileIO) -> None:
    import fcntl

    with file:
        fcntl.flock(file, fcntl.LOCK_UN)  # a child of this process may have the file open


class _EmptyMarker:
    """Removes a marker that stays empty: its process was killed, or lost its disk, before it wrote who it is.

    filelock leaves an empty marker where it is, as its oldest versions wrote no other.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: tuple[tuple[int, int], float] | None = None

    def remove_abandoned(self) -> None:
        """Remove the marker if it has been empty for the duration of a lease."""
        with suppress(OSError):
            with open_regular(self._path, follow=False) as file:  # a network file system looks again at each open
                facts = os.fstat(file.fileno())
            if facts.st_size:
                self._seen = None
                return
            identity = facts.st_ino, facts.st_ctime_ns
            if self._seen is None or self._seen[0] != identity:
                self._seen = identity, time.monotonic()
            elif time.monotonic() - self._seen[1] >= _LEASE_SECONDS:
                os.unlink(self._path)


def without_flock(error: BaseException) -> bool:
    """Whether an error says that a file system has no `flock`.

    Example:
        >>> without_flock(OSError(errno.ENOLCK, "No locks available"))
        True
    """
    return isinstance(error, OSError) and error.errno in _NO_FLOCK


def lock_at(path: Path, seconds: float | None = None) -> WorkLock:
    """A lock that all processes share, in a file of its own.

    Args:
        path: The file.
        seconds: How long to wait for another process. Default: an hour.
    """
    return WorkLock(path, _LOCK_SECONDS if seconds is None else seconds)


@contextmanager
def exclusively(lock: WorkLock) -> Iterator[None]:
    """Hold a lock.

    Raises:
        StoreError: Its folder cannot be written, or another process holds it for too long.
    """
    try:
        lock.acquire()
    except OSError as error:
        from filelock import Timeout

        if isinstance(error, Timeout):
            raise StoreError(
                f"Another process holds the lock {error.lock_file}. If that process hangs, end it; if no process uses "
                "the file, delete it."
            ) from None
        raise cannot_write(error, Path(lock.lock_file)) from error
    try:
        yield
    finally:
        lock.release()
