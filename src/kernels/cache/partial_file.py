"""A large file while it is downloaded: never more bytes than listed, and hashed while they are written."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kernels.support.concurrency import check_cancelled
from kernels.support.json_store import cannot_write

if TYPE_CHECKING:
    from hashlib import _Hash
    from io import FileIO

    from kernels.models.snapshot import RepoFile

__all__ = ["GIVEN_UP", "PartialFile", "take_over"]

#: The end of a partial file's name that no process writes any more.
GIVEN_UP = ".left.incomplete"

_BLOCK = 1024 * 1024


class PartialFile:
    """The part of a listed file that was downloaded.

    Args:
        opened: The file, open for reading and writing without a buffer, and closed with this; its content counts as
            downloaded. It is not opened again by its path, which may be another file by now.
        path: Its path.
        file: The listed file.
        arrived: Called with the number of bytes after each write.

    Raises:
        StoreError: It cannot be written.

    Example:
        >>> import tempfile
        >>> from kernels.models.snapshot import RepoFile
        >>> path = Path(tempfile.mkdtemp()) / "part"
        >>> with PartialFile(path.open("x+b", buffering=0), path, RepoFile("data.bin", 3)) as part:
        ...     part.append(b"1234"), part.append(b"123"), part.offset
        (False, True, 3)
    """

    def __init__(
        self, opened: FileIO, path: Path, file: RepoFile, arrived: Callable[[int], None] = lambda size: None
    ) -> None:
        self.path = path
        self.file = file
        self._arrived = arrived
        self.offset = 0
        self._out = opened
        self._hasher = self._start()
        try:
            opened.seek(0)
            while block := self._out.read(_BLOCK):
                check_cancelled()
                self.offset += len(block)
                self._hasher.update(block)
        except OSError as error:
            opened.close()
            raise cannot_write(error, path) from error
        except BaseException:  # Ctrl-C
            opened.close()
            raise
        if self.offset > file.size:
            self.restart()
        arrived(self.offset)

    def _start(self) -> _Hash:
        return self.file.hasher() if self.file.blob else hashlib.sha256()

    def append(self, chunk: bytes) -> bool:
        """Append a chunk; False, and nothing is written, if the file would become larger than listed.

        Raises:
            StoreError: It cannot be written.
        """
        if self.offset + len(chunk) > self.file.size:
            return False
        view = memoryview(chunk)
        try:
            while view:
                view = view[self._out.write(view) :]
        except OSError as error:
            raise cannot_write(error, self.path) from error
        self._hasher.update(chunk)
        self.offset += len(chunk)
        self._arrived(len(chunk))
        return True

    def restart(self) -> None:
        """Discard what was downloaded.

        Raises:
            StoreError: It cannot be written.
        """
        try:
            self._out.seek(0)
            self._out.truncate()
        except OSError as error:
            raise cannot_write(error, self.path) from error
        self._hasher, self.offset = self._start(), 0

    @property
    def complete(self) -> bool:
        """Whether the file has the listed size."""
        return self.offset == self.file.size

    @property
    def blob(self) -> str:
        """The hash of the content, of the kind that the listing has; SHA-256 if it has none."""
        return self._hasher.hexdigest()

    @property
    def as_listed(self) -> bool:
        """Whether the file has the listed size and hash."""
        return self.complete and self.file.blob in ("", self.blob)

    def remove(self) -> None:
        """Close the file and delete it."""
        self.close()
        try:
            os.unlink(self.path)
        except OSError:  # `kernels cache prune` removes it
            pass

    def close(self) -> None:
        """Close the file and keep it.

        Raises:
            StoreError: It cannot be written.
        """
        try:
            self._out.close()
        except OSError as error:
            raise cannot_write(error, self.path) from error

    def __enter__(self) -> PartialFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def take_over(begun: Path, path: Path) -> FileIO | None:
    """Open a partial file that its process gave up, under another name; None if it must be copied.

    A file that another user can write, or that has a second name, could change after it was checked.

    Args:
        begun: The partial file.
        path: Its new name, beside the old one.
    """
    if not begun.name.endswith(GIVEN_UP) or sys.platform == "win32":
        return None
    try:
        opened = os.fdopen(os.open(begun, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK), "r+b", buffering=0)
    except OSError:
        return None
    facts = os.fstat(opened.fileno())
    own = facts.st_uid == os.geteuid() and not facts.st_mode & 0o022
    if stat.S_ISREG(facts.st_mode) and own and facts.st_nlink == 1:
        with suppress(OSError):
            os.rename(begun, path)  # of several processes, one succeeds
            return opened
    opened.close()
    return None
