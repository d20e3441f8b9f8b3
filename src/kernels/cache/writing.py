"""The one way of contents to disk: a temporary file in `blobs/`, renamed to its hash, then linked to from the snapshot.

A kill at any moment leaves the old state or the new one, and perhaps a temporary file. The folders of a commit are
checked before the first file is written: none may be a link.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kernels.cache.records import cache_errors
from kernels.models.cache_places import GIVEN_UP
from kernels.support.files import LinkedFolder, check_folders, is_real_folder, make_folders
from kernels.support.tasks import check_cancelled
from kernels.trust.file_hashes import is_as_listed

if TYPE_CHECKING:
    from io import FileIO

    from kernels.models.mirror import MirrorFile
    from kernels.models.snapshot import RepoFile

__all__ = ["ArchiveSink", "Part", "SnapshotWriter"]

#: How often a step is done again if its folder was removed meanwhile.
_TRIES = 5

_BLOCK = 1024 * 1024

#: Less than this of a file is not kept for the next try: downloading it again costs no more.
_WORTH_KEEPING = 1024 * 1024

#: The errors of a file system without symbolic links.
_NO_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.ENOTSUP})

_T = TypeVar("_T")


class Part:
    """A temporary file with the first bytes of a listed file: never more bytes than listed, hashed as they are written.

    Args:
        opened: The file, open for reading and writing without a buffer. Its content counts as the first bytes.
        path: Its path. It is not opened again by it: there may be another file by now.
        file: The listed file.
        arrived: Called with the number of bytes after each write.
        hashed: False where the caller checks the content.

    Attributes:
        path: Its path.
        file: The listed file.
        offset: How many bytes it has.

    Raises:
        StoreError: It cannot be read.

    Example:
        >>> import tempfile
        >>> from kernels.models.snapshot import RepoFile
        >>> path = Path(tempfile.mkdtemp()) / "part"
        >>> part = Part(path.open("x+b", buffering=0), path, RepoFile("data.bin", 3))
        >>> part.append(b"1234"), part.append(b"123"), part.offset
        (False, True, 3)
        >>> part.close()
    """

    def __init__(
        self,
        opened: FileIO,
        path: Path,
        file: RepoFile,
        arrived: Callable[[int], None] = lambda size: None,
        *,
        hashed: bool = True,
    ) -> None:
        self.path = path
        self.file = file
        self.offset = 0
        self._out = opened
        self._arrived = arrived
        self._hashed = hashed
        self._hasher = file.hasher() if file.blob else hashlib.sha256()
        try:
            with cache_errors(path):
                while block := opened.read(_BLOCK):
                    check_cancelled()
                    self.offset += len(block)
                    self._hasher.update(block)
        except BaseException:
            opened.close()
            raise
        if self.offset > file.size:
            self.restart()
        arrived(self.offset)

    def append(self, chunk: bytes | memoryview) -> bool:
        """Append a chunk; False, and nothing is written, if the file would become larger than listed.

        Raises:
            StoreError: It cannot be written.
        """
        size = len(chunk)
        if self.offset + size > self.file.size:
            return False
        rest = memoryview(chunk)
        with cache_errors(self.path):
            while rest:
                rest = rest[self._out.write(rest) :]
        if self._hashed:
            self._hasher.update(chunk)
        self.offset += size
        self._arrived(size)
        return True

    def restart(self) -> None:
        """Discard what was written.

        Raises:
            StoreError: It cannot be written.
        """
        with cache_errors(self.path):
            self._out.seek(0)
            self._out.truncate()
        self._hasher = self.file.hasher() if self.file.blob else hashlib.sha256()
        self.offset = 0

    @property
    def complete(self) -> bool:
        """Whether the file has the listed size."""
        return self.offset == self.file.size

    @property
    def as_listed(self) -> bool:
        """Whether the file has the listed size and hash."""
        return self.complete and self.file.blob in ("", self._hasher.hexdigest())

    @property
    def blob(self) -> str:
        """The listed hash; without one, the SHA-256 of the content."""
        return self.file.blob or self._hasher.hexdigest()

    def close(self) -> None:
        """Close the file and keep it.

        Raises:
            StoreError: It cannot be written. The file system of a network may say only now that the disk is full.
        """
        with cache_errors(self.path):
            self._out.close()

    def remove(self) -> None:
        """Close the file and delete it, unless it was kept."""
        try:
            self.close()
        finally:
            with suppress(OSError):
                self.path.unlink()

    def leave(self) -> None:
        """Close the file and leave it for the next try, if it is large enough and was not kept."""
        if self.offset < _WORTH_KEEPING:
            self.remove()
            return
        try:
            self.close()
        finally:
            with suppress(OSError):
                os.rename(self.path, self.path.with_suffix(GIVEN_UP))


class SnapshotWriter:
    """Puts contents into the snapshot of one commit, from any number of threads.

    Args:
        cache: The cache's folder.
        folder: The repository's folder in it.
        snapshot: The commit's folder in that.
        begun: Finds the part of a file that an earlier try left.
    """

    def __init__(self, cache: Path, folder: Path, snapshot: Path, begun: Callable[[RepoFile], Path | None]) -> None:
        self._cache = cache
        self._folder = folder
        self._blobs = folder / "blobs"
        self._begun = begun
        self._snapshot = snapshot
        self._made: set[Path] = set()

    def put(self, content: bytes, *files: RepoFile) -> None:
        """Put a content whose size and hash were checked into the snapshot.

        Args:
            content: The content.
            files: The files that have it.

        Raises:
            StoreError: The cache cannot be written.
            InvalidRepository: A folder of the cache is a link.
        """
        if all(self.reuse(file) for file in files):  # do not replace a file that a process may have open
            return
        part = self._temporary(files[0], hashed=not files[0].blob)
        try:
            part.append(content)
            self.keep(part, *files)
        finally:
            part.remove()

    @contextmanager
    def part(self, file: RepoFile, arrived: Callable[[int], None] = lambda size: None) -> Iterator[Part]:
        """A temporary file that a large file is downloaded into.

        It begins with what an earlier try left, and stays for the next try unless it is kept.

        Args:
            file: The listed file.
            arrived: Called with the number of bytes after each write.

        Raises:
            StoreError: The cache cannot be written.
            InvalidRepository: A folder of the cache is a link.
        """
        with cache_errors(self._blobs):
            part = self._continued(file, arrived) or self._temporary(file, arrived)
        try:
            yield part
        finally:
            part.leave()

    def keep(self, part: Part, *files: RepoFile) -> None:
        """Move a file, which the caller has found to be as listed, into the snapshot.

        Args:
            part: The file.
            files: The files that have its content.

        Raises:
            StoreError: The cache cannot be written.
            InvalidRepository: A folder of the cache is a link.
        """
        part.close()
        blob = part.blob
        with cache_errors(self._blobs / blob):
            os.replace(part.path, self._blobs / blob)
            self._retried(lambda: self._link(blob, files))

    @contextmanager
    def unpacking(
        self,
        files: Iterable[RepoFile],
        folder: str,
        arrived: Callable[[int, int], None] = lambda files, size: None,
    ) -> Iterator[ArchiveSink]:
        """What takes the files of a build's archive; they are put into the snapshot when the block ends without error.

        Args:
            files: The files to keep. The archive may have others, which are not written.
            folder: The folder of the build in the snapshot, with a slash at its end.
            arrived: Called with `(files, bytes)` that were written since the last call.

        Raises:
            StoreError: The cache cannot be written.
            InvalidRepository: A folder of the cache is a link.
        """
        with cache_errors(self._blobs):
            self._make(self._blobs)
        sink = ArchiveSink(self._temporary, files, folder, arrived)
        try:
            yield sink
            for part, same in sink.taken():
                self.keep(part, *same)
        finally:
            for part, _ in sink.taken():
                part.remove()

    def reuse(self, file: RepoFile) -> bool:
        """Put a file into the snapshot if another commit already has its content; False if none has.

        Raises:
            StoreError: The cache cannot be written.
            InvalidRepository: A folder of the cache is a link.
        """
        if not file.blob or not is_as_listed(self._blobs / file.blob, file):
            return False
        with cache_errors(self._snapshot / file.path):
            try:
                self._retried(lambda: self._link(file.blob, (file,)))
            except FileNotFoundError:  # `prune` removed the folder of contents; the file is downloaded instead
                return False
        return True

    def remove(self, file: RepoFile) -> None:
        """Remove a file whose content is not as listed from the snapshot and the contents.

        Raises:
            InvalidRepository: A folder of the cache is a link.
        """
        placed = self._snapshot / file.path
        with cache_errors(placed):
            check_folders(placed.parent, self._cache)
            self._in_blobs(check_folders)
        for path in (placed, self._blobs / file.blob):
            with suppress(OSError):
                path.unlink()

    # Temporary files

    def _temporary(
        self, file: RepoFile, arrived: Callable[[int], None] = lambda size: None, *, hashed: bool = True
    ) -> Part:
        path = self._name(file)

        def opened() -> FileIO:
            self._make(self._blobs)
            return path.open("x+b", buffering=0)

        with cache_errors(path):
            return Part(self._retried(opened), path, file, arrived, hashed=hashed)

    def _name(self, file: RepoFile) -> Path:
        return self._blobs / f"{file.blob or 'unnamed'}.{os.urandom(4).hex()}.incomplete"

    def _continued(self, file: RepoFile, arrived: Callable[[int], None]) -> Part | None:
        """What an earlier try left of a file, under a new name; None if it left nothing."""
        self._make(self._blobs)
        left, path = self._begun(file), self._name(file)
        if left is not None:
            with suppress(OSError):  # another process has taken it
                os.rename(left, path)
                return Part(path.open("r+b", buffering=0), path, file, arrived)
        return None

    # Folders and links

    def _link(self, blob: str, files: Iterable[RepoFile]) -> None:
        check_cancelled()
        self._make(self._blobs)
        for file in files:
            self._make_link(self._snapshot / file.path, self._blobs / blob)

    def _make_link(self, link: Path, blob: Path) -> None:
        """Make a path a link to a content, or a copy of it on a file system without links."""
        self._make(link.parent)
        # Not beside the link: a leftover of a kill must not be a file of the build.
        temporary = blob.with_name(f"{os.urandom(6).hex()}.incomplete")
        try:
            try:
                os.symlink(os.path.relpath(blob, link.parent), temporary)
            except OSError as error:
                if sys.platform != "win32" and error.errno not in _NO_LINKS:
                    raise
                shutil.copyfile(blob, temporary)
            os.replace(temporary, link)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise

    def _retried(self, step: Callable[[], _T]) -> _T:
        for _ in range(_TRIES - 1):
            with suppress(FileNotFoundError):  # `prune` removed a folder that was empty a moment ago
                return step()
            self._made.clear()
        return step()

    def _make(self, folder: Path) -> None:
        if folder not in self._made:
            if folder == self._blobs:
                self._in_blobs(make_folders)
            else:
                make_folders(folder, self._cache)
            self._made.add(folder)

    def _in_blobs(self, prepare: Callable[[Path, Path], None]) -> None:
        """Check or make the folder of contents, which may be a link to `<cache>/blobs`, shared by repositories."""
        shared = self._cache / "blobs"
        try:
            prepare(self._blobs, self._cache)
        except LinkedFolder:
            inside = is_real_folder(self._folder) and is_real_folder(shared)
            if not inside or os.path.realpath(self._blobs) != os.path.realpath(shared):
                raise


class ArchiveSink:
    """Takes the files of an archive, as `mirror.archive.FileSink` says. Two files with one content are written once.

    Args:
        new: Makes a temporary file.
        files: The files to keep.
        folder: The folder of the build in the snapshot, with a slash at its end.
        arrived: Called with `(files, bytes)` that were written since the last call.
    """

    def __init__(
        self, new: Callable[..., Part], files: Iterable[RepoFile], folder: str, arrived: Callable[[int, int], None]
    ) -> None:
        self._new = new
        self._folder = folder
        self._arrived = arrived
        self._wanted = {file.path: file for file in files}
        self._taken: dict[str, tuple[Part, list[RepoFile]]] = {}
        self._part: Part | None = None

    def begin(self, file: MirrorFile) -> bool:
        """Whether a file is wanted, and its content was not written yet.

        Raises:
            StoreError: It cannot be written.
        """
        listed = file.listed(self._folder)
        if listed.path not in self._wanted:
            return False
        if listed.blob in self._taken:
            self._taken[listed.blob][1].append(listed)
            self._arrived(1, listed.size)
            return False
        self._part = self._new(listed, lambda size: self._arrived(0, size), hashed=False)
        self._taken[listed.blob] = self._part, [listed]
        return True

    def write(self, piece: memoryview) -> None:
        """Write the next bytes of the file.

        Raises:
            StoreError: They cannot be written.
        """
        assert self._part is not None
        self._part.append(piece)

    def end(self) -> None:
        """Close the file, which has its listed content.

        Raises:
            StoreError: It cannot be written.
        """
        assert self._part is not None
        self._part.close()
        self._arrived(1, 0)

    def taken(self) -> list[tuple[Part, list[RepoFile]]]:
        """The temporary files, each with the files that have its content."""
        return list(self._taken.values())
