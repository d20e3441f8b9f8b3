"""The archive of a build: packed with the same bytes each time, and unpacked without trust in any of them.

`docs/mirror-format.md` describes the format.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kernels.errors import ArchiveDamaged, DigestMismatch, HubUnavailable, InvalidRepository, StoreError
from kernels.mirror.tar_format import END, padding, tar_header, tar_size
from kernels.mirror.zstd_frame import CutFrame, InvalidFrame, compressor, decompressed, frame_bound
from kernels.models.mirror import MirrorArchive, MirrorBuild, MirrorFile, archive_path
from kernels.support.files import open_regular
from kernels.support.formatting import format_value
from kernels.support.tasks import check_cancelled, read_ahead

if TYPE_CHECKING:
    from hashlib import _Hash

__all__ = ["FileSink", "pack", "unpack"]

#: What is read, compressed and written at once.
_PIECE = 1024 * 1024

#: From this size on, one thread decompresses while another one hashes and writes; starting it takes 0.1 ms.
_THREADED = 4 * 1024 * 1024

#: Decompressed pieces that wait for it, of 1 MiB at most.
_AHEAD = 4


#: How many times larger than its archive a build may be, and the size in bytes up to which that does not count. Zeros
#: become 32,000 times smaller, and so fill a disk with what was never sent. Measured with `compressor`, 124 objects and
#: libraries of example kernels, Triton and others: 2 to 8 times, and 330 times for one that is padded to 2 MB.
_MAX_RATIO, _ANY_RATIO = 1000, 64 * 1024 * 1024


class FileSink(Protocol):
    """What takes the files of an archive, in their order."""

    def begin(self, file: MirrorFile) -> bool:
        """Whether the content of the next file is wanted."""
        ...

    def write(self, piece: memoryview) -> None:
        """The next bytes of the file, only valid during the call. They are not checked yet."""
        ...

    def end(self) -> None:
        """The file is complete, with the listed hash. It may only be used once the whole archive was checked."""
        ...


def pack(build_folder: Path, files: Sequence[MirrorFile], to: Path) -> MirrorArchive:
    """Write the archive of a build. The same files give the same bytes, with the same version of the zstd library.

    Args:
        build_folder: The build's folder.
        files: Its files, as they are listed. Each is compared with its size and hash while it is read.
        to: The file to write.

    Returns:
        The archive's name in a mirror, its size and hash.

    Raises:
        DigestMismatch: A file is not the one that is listed.
        InvalidRepository: A name is not Unicode, or the archive is so small that no reader takes it.
        MissingPythonDependency: There is no library for zstd.
        StoreError: A file cannot be read, or the archive not be written. Nothing is left of it.
    """
    compress, flush = compressor(tar_size(files))
    hasher, size = hashlib.sha256(), 0
    try:
        with to.open("wb", buffering=0) as out:
            for piece in _tar(build_folder, files):
                check_cancelled()
                size += _append(out.fileno(), compress(piece), hasher)
            size += _append(out.fileno(), flush(), hasher)
        if _is_bomb(tar_size(files), size):
            raise InvalidRepository(
                f"{build_folder} becomes more than {_MAX_RATIO} times smaller in an archive: no client would unpack "
                "it. A table of equal values belongs in code that makes it."
            )
    except BaseException as error:
        with suppress(OSError):
            to.unlink()
        if isinstance(error, OSError) and not isinstance(error, StoreError):
            raise StoreError(f"Cannot write {to}: {error.strerror or error}.") from error
        raise
    sha256 = hasher.hexdigest()
    return MirrorArchive(archive_path(sha256), size, sha256)


def unpack(chunks: Iterable[bytes], build: MirrorBuild, sink: FileSink | None, where: str) -> None:
    """Check an archive while it arrives, and pass its files on.

    No header is interpreted: each is compared with the one that `pack` writes for the listed file. The output is never
    larger than the list says; the memory for it is some 20 MB, and the window of the frame, at most 128 MiB.

    Args:
        chunks: The bytes of the archive, as they arrive.
        build: The build.
        sink: What takes the files; None to only check them. It must keep nothing
            if this raises.
        where: The archive as messages call it: `the archive https://…`, without a secret.

    Raises:
        HubUnavailable: The bytes end too early; another try may give the rest.
        ArchiveDamaged: The bytes are not those of the index; another try may give them.
        DigestMismatch: The archive is the one of the index, and a file in it is not as listed.
        InvalidRepository: The archive is the one of the index, and is not an archive of these files.
        MissingPythonDependency: There is no library for zstd.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "__init__.py").write_bytes(b"")
        >>> files = (MirrorFile("__init__.py", 0, "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"),)
        >>> archive = pack(folder, files, folder / "archive")
        >>> unpack([(folder / "archive").read_bytes()], MirrorBuild(files, archive), None, "the archive")
    """
    plain_size = tar_size(build.files)
    if build.archive.size > frame_bound(plain_size):
        raise InvalidRepository(
            f"{where} is listed with {build.archive.size} bytes, more than an archive of its files can have. "
            "Nothing was kept."
        )
    if _is_bomb(plain_size, build.archive.size):
        raise InvalidRepository(
            f"{where} is listed with {build.archive.size} bytes, and its files with {plain_size}: more than "
            f"{_MAX_RATIO} times as many. Nothing was kept."
        )
    arriving = _Arriving(chunks, build.archive, where)
    pieces = decompressed(arriving, plain_size)
    try:
        if plain_size > _THREADED:
            with read_ahead(lambda: pieces, ahead=_AHEAD, name="unpack") as ready:
                _unpack_files(ready, build, sink)
        else:
            _unpack_files(pieces, build, sink)
    except CutFrame:
        arriving.check()
        raise InvalidRepository(f"{where}: it ends before its frame does. Nothing was kept.") from None
    except InvalidFrame as error:
        arriving.check()
        raise InvalidRepository(f"{where}: {error}. Nothing was kept.") from None
    except _WrongContent as error:
        arriving.check()
        raise DigestMismatch(f"{where}: {error}. Nothing was kept.") from None
    arriving.check()


def _is_bomb(plain: int, packed: int) -> bool:
    return plain > max(_ANY_RATIO, _MAX_RATIO * packed)


class _WrongContent(Exception):
    """A file has another hash than listed."""


class _Arriving:
    """The compressed bytes, hashed and counted as they pass."""

    def __init__(self, chunks: Iterable[bytes], archive: MirrorArchive, where: str) -> None:
        self._chunks = iter(chunks)
        self._archive = archive
        self._where = where
        self._hasher = hashlib.sha256()
        self._size = 0

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            check_cancelled()
            self._size += len(chunk)
            if self._size > self._archive.size:
                raise ArchiveDamaged(
                    f"{self._where} has more than the listed {self._archive.size} bytes. Nothing was kept."
                )
            self._hasher.update(chunk)
            yield chunk

    def check(self) -> None:
        """Receive the rest, and compare all with the index.

        So an error says whether the mirror's index lists a wrong archive, or something on the way changed it.
        """
        for _ in self:
            pass
        if self._size < self._archive.size:
            raise HubUnavailable(
                f"{self._where} ended after {self._size} of {self._archive.size} bytes. Nothing was kept."
            )
        if self._hasher.hexdigest() != self._archive.sha256:
            raise ArchiveDamaged(f"{self._where} is not the file that its index lists. Nothing was kept.")


class _Plain:
    """The decompressed bytes, taken in portions of known size."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def take(self, size: int) -> Iterator[memoryview]:
        """The next `size` bytes, in the pieces in which they are there."""
        while size:
            if not self._rest:
                piece = next(self._pieces, None)
                if piece is None:
                    raise InvalidFrame("it ends before the last of its listed files")
                self._rest = memoryview(piece)
            taken, self._rest = self._rest[:size], self._rest[size:]
            size -= len(taken)
            yield taken

    def expect(self, wanted: bytes, problem: str) -> None:
        """Compare the next bytes."""
        if wanted and b"".join(self.take(len(wanted))) != wanted:
            raise InvalidFrame(problem)

    def end(self) -> None:
        """Check that there are no more bytes."""
        if self._rest or next(self._pieces, None) is not None:
            raise InvalidFrame("it has more than its listed files")


def _unpack_files(pieces: Iterator[bytes], build: MirrorBuild, sink: FileSink | None) -> None:
    plain = _Plain(pieces)
    for file in build.files:
        _unpack_file(plain, file, sink)
    plain.expect(END, "its end is not that of an archive")
    plain.end()


def _unpack_file(plain: _Plain, file: MirrorFile, sink: FileSink | None) -> None:
    name = format_value(file.path)
    plain.expect(tar_header(file), f"expected the file {name} of {file.size} bytes, found something else")
    write = sink.write if sink is not None and sink.begin(file) else None
    listed = file.listed()
    hasher = listed.hasher()
    for piece in plain.take(file.size):
        hasher.update(piece)
        if write is not None:
            write(piece)
    if hasher.hexdigest() != listed.blob:
        raise _WrongContent(f"the content of {name} is not what its index lists")
    plain.expect(padding(file.size), f"there are bytes after the file {name}")
    if sink is not None and write is not None:
        sink.end()


def _tar(folder: Path, files: Sequence[MirrorFile]) -> Iterator[bytes]:
    """The tar of the files, in pieces; each file is compared with the list."""
    for file in files:
        yield tar_header(file)
        path = folder / file.path
        try:
            yield from _content(path, file)
        except FileNotFoundError:
            raise DigestMismatch(f"{path} is missing. Nothing was packed.") from None
        except OSError as error:
            raise StoreError(f"Cannot read {path}: {error.strerror or error}. Nothing was packed.") from error
        yield padding(file.size)
    yield END


def _content(path: Path, file: MirrorFile) -> Iterator[bytes]:
    listed = file.listed()
    hasher, left = listed.hasher(), file.size
    with open_regular(path) as opened:
        while piece := opened.read(min(_PIECE, left + 1)):
            left -= len(piece)
            if left < 0:
                break
            hasher.update(piece)
            yield piece
    if left or hasher.hexdigest() != listed.blob:
        raise DigestMismatch(f"{path} is not the file that is listed: it was changed. Nothing was packed.")


def _append(out: int, data: bytes, hasher: _Hash) -> int:
    """Write compressed bytes; returns their number."""
    hasher.update(data)
    view = memoryview(data)
    while view:
        view = view[os.write(out, view) :]
    return len(data)
