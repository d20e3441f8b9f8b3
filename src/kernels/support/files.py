"""Files and folders: only regular files are read, up to a limit; no folder of a cache is a link; writing is whole.

A FIFO or a device instead of a file would block the reader or never end. Files are opened without waiting and checked
through their descriptor, so that none can be replaced between the check and the read.

In a shared cache another user may plant a link instead of a folder. The cache's own folder may be a link, as the user
named it. Every folder below it is checked before anything in it is written or deleted.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from kernels.errors import StoreError

__all__ = [
    "FileTooLarge",
    "LinkedFolder",
    "NotRegularFile",
    "cannot_write",
    "check_folders",
    "has_room",
    "is_real_folder",
    "make_folders",
    "open_regular",
    "read_bounded",
    "read_rest",
    "real_path",
    "replace_file",
]

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


def read_bounded(path: _PathLike, limit: int) -> bytes:
    """The content of a regular file.

    Args:
        path: The file, which may be a symbolic link to it.
        limit: The most bytes it may have.

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
    with open_regular(path) as file:
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


class LinkedFolder(OSError):
    """A link was found instead of a folder."""


def is_real_folder(path: os.PathLike[str] | str) -> bool:
    """Whether a path is a folder itself, not a link (on Windows: a junction) to one.

    Example:
        >>> import tempfile
        >>> is_real_folder(tempfile.mkdtemp())
        True
    """
    try:
        facts = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and not _is_link(facts)


def real_path(path: str, resolved: dict[str, str]) -> str:
    """`os.path.realpath` for many files in few folders: each folder is resolved once."""

    def folder(name: str) -> str:
        if name not in resolved:
            resolved[name] = os.path.realpath(name)
        return resolved[name]

    parent, name = os.path.split(path)
    try:
        target_folder, name = os.path.split(os.path.join(folder(parent), os.readlink(path)))
    except OSError:  # no link
        return os.path.join(folder(parent), name)
    target = os.path.join(folder(target_folder), name)
    return os.path.realpath(target) if name in ("", ".", "..") or os.path.islink(target) else target


def check_folders(folder: Path, root: Path | None = None) -> None:
    """Check that no folder of a cache, down to this one, is a link; they need not exist.

    Args:
        folder: The folder whose content will be read, written or deleted.
        root: The cache's folder, which may be a link. Default: the parent of `.locks` or of the repository's folder in
            the path; without either, only `folder` itself is checked.

    Raises:
        LinkedFolder: One is a link.
        OSError: One cannot be read.

    Example:
        >>> check_folders(Path("/cache/kernels--org--relu/blobs"))
    """
    with suppress(FileNotFoundError):  # then nothing below it exists
        for step in _steps(folder, root):
            _refuse_link(step, os.lstat(step))


def make_folders(folder: Path, root: Path | None = None) -> None:
    """Create a folder of a cache and its parents, none of which may be a link.

    Args:
        folder: The folder, which may exist.
        root: As of `check_folders`.

    Raises:
        LinkedFolder: One is a link.
        OSError: One cannot be created.

    Example:
        >>> import tempfile
        >>> make_folders(Path(tempfile.mkdtemp()) / ".locks" / "kernels--org--relu")
    """
    for step in _steps(folder, root):
        with suppress(FileExistsError):
            os.makedirs(step)  # the cache's own folder, too
        facts = os.lstat(step)
        _refuse_link(step, facts)
        if not stat.S_ISDIR(facts.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), step)


def _refuse_link(step: str, facts: os.stat_result) -> None:
    if _is_link(facts):
        raise LinkedFolder(errno.ELOOP, f"{step} is a link; expected a folder. Remove it", step)


def _is_link(facts: os.stat_result) -> bool:
    # `lstat` shows a junction (Windows) as a folder.
    junction = getattr(stat, "IO_REPARSE_TAG_MOUNT_POINT", None)
    return stat.S_ISLNK(facts.st_mode) or (junction is not None and getattr(facts, "st_reparse_tag", 0) == junction)


def _steps(folder: Path, root: Path | None) -> list[str]:
    """The folders to check, from the one below the cache's own down to this one."""
    if root is None:
        near = [folder, *folder.parents][:3]  # a record or a lock is in `<cache>/.locks/<kind>/<Hub>` at most
        named = [each for each in near if each.name == ".locks"]
        named += [each for each in near if each.name.startswith("kernels--")]
        root = (named or [folder])[0].parent
    steps = [root]
    for name in folder.relative_to(root).parts:
        steps.append(steps[-1] / name)
    return [os.fspath(step) for step in steps[1:]]


def replace_file(path: Path, content: bytes, *, mode: int | None = None) -> None:
    """Write `content` under a temporary name beside `path` and rename it into place.

    Args:
        path: The file.
        content: Its content.
        mode: The most rights on it, whatever the folder's default. Default: those of a new file.
    """
    if not hasattr(os, "geteuid"):  # Windows cannot replace a read-only file
        mode = None

    def opener(path: str, flags: int) -> int:
        return os.open(path, flags, 0o666 if mode is None else mode)

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.urandom(4).hex()}.tmp")
    try:
        with open(temporary, "xb", opener=opener) as file:
            if mode is not None:
                # A default ACL may give more, and a strict umask leave too little for its own process.
                given = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                wanted = given & mode | stat.S_IRUSR
                if wanted != given:
                    os.fchmod(file.fileno(), wanted)
            file.write(content)
        os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink()


def cannot_write(error: OSError, path: Path) -> StoreError:
    """The error for a file of the cache that cannot be written."""
    advice = "Free some space, or name" if error.errno in _FULL else "Name"
    return StoreError(
        f"Cannot write {path}: {error.strerror or error}. Nothing in the cache was changed. {advice} another folder "
        "with KERNELS_CACHE."
    )


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
