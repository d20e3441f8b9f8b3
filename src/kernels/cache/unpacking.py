"""The files of an archive while they arrive: under temporary names until the whole archive was checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kernels.errors import InvalidRepository
from kernels.support.formatting import format_names
from kernels.support.json_store import cannot_write

if TYPE_CHECKING:
    from kernels.models.mirror import MirrorFile
    from kernels.models.snapshot import RepoFile

__all__ = ["UnpackedFiles"]

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)

#: Files that an error names.
_NAMED = 5


class UnpackedFiles:
    """The wanted files of an archive, in temporary files; those that were not taken are removed at the end.

    Its methods are called as `mirror.archive.FileSink` says. Two files with the same content are written once.

    Args:
        blobs: The folder of contents. It exists.
        files: The wanted files of the snapshot.
        folder: The folder of the build in the snapshot, with a slash at its end.
        arrived: Called with `(files, bytes)` that were written since the last call.
    """

    def __init__(
        self, blobs: Path, files: Iterable[RepoFile], folder: str, arrived: Callable[[int, int], None]
    ) -> None:
        self._blobs = blobs
        self._folder = folder
        self._arrived = arrived
        self._wanted = {file.path: file for file in files}
        self._complete: set[str] = set()
        self._paths: dict[str, Path] = {}
        self._path = blobs
        self._out = -1
        self._file: RepoFile | None = None

    def begin(self, file: MirrorFile) -> bool:
        """Whether a file is wanted, and its content was not written yet.

        Raises:
            InvalidRepository: The snapshot lists it with another content.
            StoreError: It cannot be written.
        """
        listed = file.listed(self._folder)
        wanted = self._wanted.get(listed.path)
        if wanted is None:
            return False
        if (wanted.size, wanted.blob) != (listed.size, listed.blob):
            raise InvalidRepository(
                f"{listed.path} is listed with another content than when its commit was first read. Nothing was kept."
            )
        if wanted.blob in self._paths:
            self._complete.add(wanted.path)
            self._arrived(1, wanted.size)
            return False
        self._path = self._blobs / f"{wanted.blob}.{os.urandom(4).hex()}.incomplete"
        try:
            self._out = os.open(self._path, _FLAGS, 0o666)
        except OSError as error:
            raise cannot_write(error, self._path) from error
        self._paths[wanted.blob] = self._path
        self._file = wanted
        return True

    def write(self, piece: memoryview) -> None:
        """Write the next bytes of the file.

        Raises:
            StoreError: They cannot be written.
        """
        size = len(piece)
        try:
            while piece:
                piece = piece[os.write(self._out, piece) :]
        except OSError as error:
            raise cannot_write(error, self._path) from error
        self._arrived(0, size)

    def end(self) -> None:
        """Close the file, which has its listed content.

        Raises:
            StoreError: It cannot be written.
        """
        self._close()
        assert self._file is not None
        self._complete.add(self._file.path)
        self._arrived(1, 0)

    def take(self) -> dict[str, Path]:
        """The temporary file of each content. The caller renames them, and removes each from what is returned then.

        Raises:
            InvalidRepository: The archive did not have all wanted files.
        """
        missing = self._wanted.keys() - self._complete
        if missing:
            names = format_names(map(repr, sorted(missing)), limit=_NAMED)
            raise InvalidRepository(f"The mirror's archive does not have {names}. Nothing was kept.")
        return self._paths

    def _close(self) -> None:
        out, self._out = self._out, -1
        if out >= 0:
            try:
                os.close(out)
            except OSError as error:  # a network's file system may say only now that the disk is full
                raise cannot_write(error, self._path) from error

    def __enter__(self) -> UnpackedFiles:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._close()
        finally:
            for path in self._paths.values():
                with suppress(OSError):  # it was taken
                    path.unlink()
