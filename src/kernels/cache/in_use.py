"""A lock on a build's folder, so that `prune` does not remove a build that is being loaded.

The folder itself is locked with `flock`: no file is written. Where a file system has no `flock`, or only within one
machine, and on Windows, nothing is locked; a build that is removed meanwhile is found missing and downloaded again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["in_use", "unused"]


@contextmanager
def in_use(folder: Path) -> Iterator[bool]:
    """Keep a build's folder from being removed.

    Args:
        folder: The folder.

    Yields:
        Whether it is there, and is not being removed.

    Example:
        >>> import tempfile
        >>> with in_use(Path(tempfile.mkdtemp())) as there:
        ...     there
        True
    """
    with _opened(folder) as descriptor:
        yield folder.is_dir() if descriptor is None else _lock(descriptor, folder, shared=True)


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
    with _opened(folder) as descriptor:
        yield descriptor is None or _lock(descriptor, folder, shared=False)


@contextmanager
def _opened(folder: Path) -> Iterator[int | None]:
    try:
        descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0))
    except OSError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path, *, shared: bool) -> bool:
    """Whether a folder is locked now, and is still the one of that path."""
    if sys.platform != "win32":
        import fcntl

        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # this file system has no locks
            pass
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(folder))
    except OSError:
        return False
