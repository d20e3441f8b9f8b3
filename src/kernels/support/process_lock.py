"""One process does the work, and the others find it done: a lock that also works where a file system has none.

Nothing is right because of a lock. Files are written under temporary names, checked and renamed into place, so two
processes that hold one at once only do the work twice: network file systems may keep `flock` to one machine, or have
none. There a file says who is at work, and counts for nothing once that process is gone, or has not ended for long.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels.errors import StoreError
from kernels.support.concurrency import pause
from kernels.support.files import FileTooLarge, NotRegularFile, read_bounded
from kernels.support.formatting import format_value
from kernels.support.json_store import cannot_write
from kernels.support.real_folders import make_folders
from kernels.support.warn import warn_once

if TYPE_CHECKING:
    from filelock import BaseFileLock

__all__ = ["WorkLock", "exclusively", "lock_at", "without_flock"]

#: Waiting for a lock ends: a process that holds one this long is not downloading a kernel.
_LOCK_SECONDS = 3600.0

#: What `flock` answers where there is none: no service for it (NFS), no such call (some FUSE and Lustre mounts), not
#: supported (SMB).
_NO_FLOCK = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})

#: A holder on another machine cannot be asked whether it lives. Most work takes less; where it does take more, waiting
#: on would cost about as much as doing it twice.
_HOLDER_SECONDS = 600.0

#: A marker has a number, a host's name and a token.
_MAX_MARKER_BYTES = 4096

#: Seconds between looks at another's file: each is a question to the file system's server.
_POLL_SECONDS = 0.25

#: Tells this process from an earlier one of the same number, as in a container that was started again.
_TOKEN = secrets.token_hex(8)


class WorkLock:
    """A lock that every process shares, in a file of its own.

    Args:
        path: The file; its folder is made. Where there is no `flock`, the lock is `<path>.held`.
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
        self._held: BaseFileLock | _Marker | None = None

    def acquire(self, timeout: float | None = None) -> None:
        """Wait for the lock and hold it.

        Args:
            timeout: Seconds to wait, in place of the lock's own.

        Raises:
            filelock.Timeout: Another process holds it.
            OSError: Its file cannot be written, or a folder on the way to it is a link.
        """
        from filelock import FileLock

        make_folders(Path(self.lock_file).parent)
        seconds = self._seconds if timeout is None else timeout
        # Newer versions of filelock have an answer of their own to one of the errors, and warn about it each time.
        options: dict[str, Any] = {"fallback_to_soft": False} if hasattr(FileLock, "fallback_to_soft") else {}
        lock = FileLock(self.lock_file, timeout=seconds, **options)
        try:
            lock.acquire()
        except OSError as error:
            if not without_flock(error):
                raise
            marker = _Marker(f"{self.lock_file}.held")
            marker.acquire(seconds)
            self._held = marker
        else:
            self._held = lock

    def release(self) -> None:
        """Let go of the lock."""
        held, self._held = self._held, None
        if held is not None:
            held.release()


def without_flock(error: BaseException) -> bool:
    """Whether an error says that a file system has no `flock`.

    Example:
        >>> without_flock(OSError(errno.ENOLCK, "No locks available"))
        True
    """
    return isinstance(error, OSError) and error.errno in _NO_FLOCK


class _Marker:
    """A file that is there while somebody is at work, and names them."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._mine = f"{os.getpid()} {socket.gethostname()} {_TOKEN}".encode()
        self._seen: tuple[object, float] | None = None

    def acquire(self, seconds: float) -> None:
        from filelock import Timeout

        deadline = time.monotonic() + seconds
        while not self._create():
            if self._abandoned(min(_HOLDER_SECONDS, seconds or _HOLDER_SECONDS)):
                continue
            if time.monotonic() >= deadline:
                raise Timeout(self.path)
            pause(_POLL_SECONDS)

    def release(self) -> None:
        with suppress(OSError):
            if read_bounded(self.path, _MAX_MARKER_BYTES, follow=False) == self._mine:
                os.unlink(self.path)

    def _create(self) -> bool:
        try:
            file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return False
        try:
            os.write(file, self._mine)
        except OSError:  # a disk that is full
            with suppress(OSError):
                os.unlink(self.path)
            raise
        finally:
            os.close(file)
        return True

    def _abandoned(self, patience: float) -> bool:
        """Whether the file is gone, or was just removed because nobody seems to be at work."""
        try:
            facts = os.lstat(self.path)
            try:
                content = read_bounded(self.path, _MAX_MARKER_BYTES, follow=False)
            except (FileTooLarge, NotRegularFile):  # no lock of this kind, a link for one: nobody can be asked
                content = b""
        except FileNotFoundError:
            return True
        except OSError:  # another machine just removed it (ESTALE)
            return False
        pid, host, token = _holder(content)
        gone = host == socket.gethostname() and (token != _TOKEN if pid == os.getpid() else not _lives(pid))
        if not gone:
            # The times of files are their server's: how long one has stood is seen from here.
            seen = (content, facts.st_mtime_ns, facts.st_ino)
            if self._seen is None or self._seen[0] != seen:
                self._seen = seen, time.monotonic()
            if time.monotonic() - self._seen[1] < patience:
                return False
            by = f"process {pid} on {format_value(host)}" if host else "somebody"
            warn_once(
                f"{self.path} has been held for {patience:.0f} seconds by {by}, who counts as gone: the work is "
                "done again. If it is still under way, nothing breaks."
            )
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            pass
        except OSError:
            return False
        return True


def _holder(content: bytes) -> tuple[int, str, str]:
    parts = content.decode(errors="replace").split(" ")
    if len(parts) != 3 or re.fullmatch("[0-9]{1,9}", parts[0]) is None:
        return 0, "", ""  # nothing is written yet, or something else
    return int(parts[0]), parts[1], parts[2]


def _lives(pid: int) -> bool:
    if sys.platform == "win32":  # where `os.kill` ends a process, and locks are always there
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # another user's
        return True
    return True


def lock_at(path: Path, seconds: float | None = None) -> WorkLock:
    """A lock that every process shares, in a file of its own; waiting for it ends after an hour or so many seconds."""
    return WorkLock(path, _LOCK_SECONDS if seconds is None else seconds)


@contextmanager
def exclusively(lock: WorkLock) -> Iterator[None]:
    """Hold a lock.

    Raises:
        StoreError: The lock cannot be had: its folder cannot be written, or another process has held it for an hour.
    """
    from filelock import Timeout

    try:
        lock.acquire()
    except Timeout:
        raise StoreError(
            f"Another process has held {lock.lock_file} for {_LOCK_SECONDS / 60:.0f} minutes. If it hangs, end it."
        ) from None
    except OSError as error:
        raise cannot_write(error, Path(lock.lock_file)) from error
    try:
        yield
    finally:
        lock.release()
