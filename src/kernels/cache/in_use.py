"""A lock on a build's folder, so that `prune` does not remove a build that is being loaded.

The folder itself is locked with `flock`: no file is written. Where a file system has no `flock`, or only within one
machine, and on Windows, nothing is locked; a build that is removed meanwhile is found missing and downloaded again.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernels.support.tasks import pause

__all__ = ["in_use", "unused"]

#: Removing a commit mostly takes less. The wait is not longer because every process that can read the folder can lock
#: it; a build that is removed after all is downloaded again.
_REMOVAL_SECONDS = 2.0

_POLL_SECONDS = 0.01


@contextmanager
def in_use(folder: Path) -> Iterator[bool]:
    """Keep a build's folder from being removed.

    Args:
        folder: The folder.

    Yields:
        Whether it exists.

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
        deadline = time.monotonic() + _REMOVAL_SECONDS
        while not _lock(descriptor, shared=True) and time.monotonic() < deadline:
            pause(_POLL_SECONDS)  # it is being removed
        yield _is_still(descriptor, folder)
    finally:
        os.close(descriptor)


@contextmanager
def unused(folder: Path) -> Iterator[bool]:
    """Keep a build from being loaded, unless it is being loaded now.

    Args:
        folder: The build's folder, which need not exist.

    Yields:
        Whether no process is loading it.

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
    """Whether a folder is locked now; True where locks do not exist."""
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
