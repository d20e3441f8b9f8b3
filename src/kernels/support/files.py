"""Read third-party files: regular files only, up to a limit.

A FIFO or a device instead of a file would block the reader or never end. Files are opened without waiting and checked
through their descriptor, so that none can be replaced between the check and the read.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from typing import BinaryIO

__all__ = ["FileTooLarge", "NotRegularFile", "has_room", "open_regular", "read_bounded", "read_rest"]

_PathLike = os.PathLike[str] | str

#: `O_NONBLOCK` opens a FIFO without a writer at once; `O_NOCTTY` keeps a terminal from becoming ours.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_CLOEXEC", 0)
_FLAGS |= getattr(os, "O_BINARY", 0)


class NotRegularFile(OSError):
    """The path is a FIFO, a device, a socket or a directory."""


class FileTooLarge(OSError):
    """The file has more bytes than the limit."""


def open_regular(path: _PathLike, *, follow: bool = True) -> BinaryIO:
    """Open a regular file for reading, without buffering.

    Args:
        path: The file.
        follow: Whether `path` itself may be a symbolic link.

    Raises:
        NotRegularFile: It is not a regular file.
        OSError: It cannot be opened.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as file, open_regular(file.name) as opened:
        ...     opened.read()
        b''
    """
    try:
        descriptor = os.open(path, _FLAGS | (0 if follow else getattr(os, "O_NOFOLLOW", 0)))
    except OSError as error:
        link = not follow and error.errno == errno.ELOOP
        folder = error.errno == errno.EACCES and os.path.isdir(path)  # on Windows
        if link or folder or error.errno == errno.ENXIO:  # a socket
            raise _not_regular(path) from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _not_regular(path)
        return os.fdopen(descriptor, "rb", buffering=0)
    except BaseException:
        os.close(descriptor)
        raise


def read_bounded(path: _PathLike, limit: int, *, follow: bool = True) -> bytes:
    """The content of a regular file.

    Args:
        path: The file.
        limit: The most bytes it may have.
        follow: Whether `path` itself may be a symbolic link.

    Raises:
        NotRegularFile: It is not a regular file.
        FileTooLarge: It has more than `limit` bytes.
        OSError: It cannot be read.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     read_bounded(file.name, 10)
        b''
    """
    with open_regular(path, follow=follow) as file:
        return read_rest(file, limit)


def read_rest(file: BinaryIO, limit: int) -> bytes:
    """The rest of a file that `open_regular` has opened.

    Args:
        file: The file.
        limit: The most bytes.

    Raises:
        FileTooLarge: It has more than `limit` bytes.
        OSError: It cannot be read.
    """
    content = bytearray()
    # The size is a hint: the file may grow, and files below /proc have the size 0.
    wanted = min(os.fstat(file.fileno()).st_size, limit) + 1
    while chunk := file.read(wanted):
        content += chunk
        if len(content) > limit:
            raise FileTooLarge(errno.EFBIG, f"more than {limit} bytes", str(file.name))
        wanted = min(limit + 1 - len(content), 1024 * 1024)
    return bytes(content)


def _not_regular(path: _PathLike) -> NotRegularFile:
    return NotRegularFile(errno.EINVAL, "not a regular file", os.fspath(path))


def has_room(folder: _PathLike, size: int) -> bool:
    """Whether the disk of a folder has room for more bytes; also True where the file system does not say.

    Args:
        folder: A folder that exists.
        size: The bytes.

    Example:
        >>> has_room(".", 0), has_room(".", 2**60)
        (True, False)
    """
    disk = shutil.disk_usage(folder)
    return disk.total == 0 or disk.free >= size
