"""A build that is being loaded is not cleared away: whoever loads it holds its folder, and who clears up sees that.

The folder itself is locked with `flock`, so that nothing is written for it. Where a file system has no `flock`, or
keeps it to one machine, and on Windows, nothing is held: then what is cleared away is found missing, and fetched again.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernels.support.concurrency import pause

__all__ = ["in_use", "unused"]

#: Removing a commit mostly takes less. It is not waited for longer, as anybody who reads a folder can hold it; what is
#: cleared away after all is fetched again.
_CLEARING_SECONDS = 2.0

_POLL_SECONDS = 0.01


@contextmanager
def in_use(folder: Path) -> Iterator[bool]:
    """Keep a build's folder from being cleared away.

    Args:
        folder: The folder.

    Yields:
        Whether it is there.

    Example:
        >>> import tempfile
        >>> with in_use(Path(tempfile.mkdtemp())) as there:
        ...     there
        True
    """
    try:
        descriptor = _open(folder)
    except OSError:
        yield folder.is_dir()
        return
    try:
        deadline = time.monotonic() + _CLEARING_SECONDS
        while not _lock(descriptor, shared=True) and time.monotonic() < deadline:
            pause(_POLL_SECONDS)  # it is being cleared away
        yield _is_still(descriptor, folder)
    finally:
        os.close(descriptor)


@contextmanager
def unused(folder: Path) -> Iterator[bool]:
    """Keep a build from being loaded, unless somebody is loading it.

    Args:
        folder: The build's folder, which need not be there.

    Yields:
        Whether nobody is.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with in_use(folder), unused(folder) as free:
        ...     free
        False
    """
    try:
        descriptor = _open(folder)
    except OSError:
        yield True
        return
    try:
        yield _lock(descriptor, shared=False)
    finally:
        os.close(descriptor)


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0))


def _lock(descriptor: int, *, shared: bool) -> bool:
    """Whether a folder is locked now; where it cannot be, it counts as if it were."""
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _is_still(descriptor: int, folder: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(folder))
    except OSError:
        return False
