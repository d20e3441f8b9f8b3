"""A mirror in a folder.

A file is written under a temporary name in `.incoming` and renamed into place. That folder exists only while something
is written: it also has the lock of conditional writes, so that writers on several machines share it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Literal

from kernels.errors import HubUnavailable, KernelsError, StoreError
from kernels.mirror.stores.base import EntryNotFound, StoreChanged, StoredDocument, StoredEntry
from kernels.mirror.stores.paths import check_path
from kernels.models.mirror_form import REPAIR_ADVICE
from kernels.support.files import FileTooLarge, NotRegularFile, check_folders, make_folders, open_regular, read_rest
from kernels.support.lock import LockHeld, WorkLock
from kernels.support.tasks import check_cancelled

__all__ = ["FolderStore"]

_PIECE = 1 << 20

#: The folder of files that are being written.
_INCOMING = ".incoming"

#: A temporary file that was not written for so many seconds has lost its process.
_ABANDONED_SECONDS = 3600.0

#: Another process may remove an empty folder that this one just made.
_TRIES = 20

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR})


class FolderStore:
    """A mirror in a folder; no links below it are followed.

    Args:
        root: The folder. It may be a link; the first write creates it.

    Attributes:
        url: Its address, `file:///…`.
        root: The folder.

    Example:
        >>> import tempfile
        >>> store = FolderStore(Path(tempfile.mkdtemp()) / "mirror")
        >>> etag = store.write("mirror.json", b"{}", expect="new")
        >>> store.read("mirror.json", 100, etag=etag) is None
        True
    """

    #: A folder gives one stream as fast as several.
    parallel = False

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.url = self.root.as_uri()

    def read(self, path: str, limit: int, *, etag: str = "") -> StoredDocument | None:
        """A small document; see `ReadStore.read`."""
        with self._open(path) as file:
            try:
                content = read_rest(file, limit)
            except FileTooLarge as error:
                raise HubUnavailable(f"{self.root / path} has {error.strerror}.") from None
            except OSError as error:
                raise self._unreadable(path, error) from error
        found = _etag(hashlib.sha256(content))
        return None if found == etag else StoredDocument(content, found)

    @contextmanager
    def stream(self, path: str, size: int, start: int = 0, stop: int | None = None) -> Iterator[Iterator[bytes]]:
        """The bytes of an entry; see `ReadStore.stream`."""
        with self._open(path) as file:
            found = os.fstat(file.fileno()).st_size
            if found != size:
                raise HubUnavailable(f"{self._place(path)} has {found} bytes, expected {size}: {REPAIR_ADVICE}.")
            file.seek(start)
            yield self._pieces(path, file, (size if stop is None else min(stop, size)) - start)

    def _pieces(self, path: str, file: BinaryIO, left: int) -> Iterator[bytes]:
        while left > 0:
            check_cancelled()
            try:
                piece = file.read(min(left, _PIECE))
            except OSError as error:
                raise self._unreadable(path, error) from error
            if not piece:
                raise HubUnavailable(f"{self._place(path)} became shorter while it was read.")
            left -= len(piece)
            yield piece

    def write(
        self, path: str, content: bytes | Path, *, expect: str | Literal["new"] | None = None, immutable: bool = False
    ) -> str:
        """Put an entry at a path; see `WriteStore.write`."""
        place = self._place(path)
        with self._writing(place), self._received(content) as (temporary, etag):
            if expect is None:
                self._put(temporary, place)
            else:
                with self._locked():
                    self._check_unchanged(path, expect)
                    self._put(temporary, place)
        return etag

    def size(self, path: str) -> int | None:
        """Bytes of an entry, or None; see `WriteStore.size`."""
        place = self._place(path)
        try:
            check_folders(place, self.root)
            facts = os.lstat(place)
        except OSError as error:
            if error.errno in _MISSING:
                return None
            raise self._unreadable(path, error) from error
        return facts.st_size if stat.S_ISREG(facts.st_mode) else None

    def entries(self, prefix: str = "") -> Iterator[StoredEntry]:
        """The entries below a prefix; see `WriteStore.entries`."""
        folder = self._place(prefix) if prefix else self.root
        try:
            if prefix:
                check_folders(folder, self.root)
        except OSError as error:
            raise self._unreadable(prefix, error) from error
        yield from self._entries(folder, f"{prefix}/" if prefix else "")

    def _entries(self, folder: Path, before: str) -> Iterator[StoredEntry]:
        try:
            with os.scandir(folder) as found:
                # Sorted as whole paths are: `a-b` comes before `a/b`.
                inside = sorted((f"{each.name}/" if _is_folder(each) else each.name, each) for each in found)
        except OSError as error:
            if error.errno in _MISSING:
                return
            raise self._unreadable(before, error) from error
        for name, each in inside:
            if name == f"{_INCOMING}/" and not before:
                continue
            if name.endswith("/"):
                yield from self._entries(Path(each.path), before + name)
            elif each.is_file(follow_symlinks=False):
                with suppress(FileNotFoundError):
                    facts = each.stat(follow_symlinks=False)
                    yield StoredEntry(before + name, facts.st_size, facts.st_mtime)

    def delete(self, path: str) -> None:
        """Remove an entry, and the folders that it leaves empty; see `WriteStore.delete`."""
        place = self._place(path)
        with self._writing(place):
            try:
                check_folders(place.parent, self.root) if place.parent != self.root else None
                place.unlink()
            except OSError as error:
                if error.errno not in _MISSING:
                    raise
            with suppress(OSError):
                while (place := place.parent) != self.root:
                    place.rmdir()

    def _place(self, path: str) -> Path:
        return self.root / check_path(path, self.url)

    def _open(self, path: str) -> BinaryIO:
        place = self._place(path)
        try:
            if place.parent != self.root:
                check_folders(place.parent, self.root)
            return open_regular(place, follow=False)
        except OSError as error:
            if error.errno in _MISSING or (isinstance(error, NotRegularFile) and place.is_dir()):
                missing = "" if self.root.is_dir() else f": the folder {self.root} does not exist"
                raise EntryNotFound(f"{self.url} has no {path}{missing}.") from None
            raise self._unreadable(path, error) from error

    def _unreadable(self, path: str, error: OSError) -> HubUnavailable:
        return HubUnavailable(f"{self.root / path} cannot be read: {error.strerror or error}.")

    @contextmanager
    def _writing(self, place: Path) -> Iterator[None]:
        try:
            yield
        except KernelsError:  # some are an OSError too
            raise
        except LockHeld as error:
            raise StoreError(str(error)) from None
        except OSError as error:
            advice = "Free some space, or name" if error.errno in _FULL else "Name"
            raise StoreError(
                f"Cannot write {place}: {error.strerror or error}. {advice} another folder for the mirror."
            ) from error

    @contextmanager
    def _received(self, content: bytes | Path) -> Iterator[tuple[Path, str]]:
        """The content in a temporary file of this file system, and its ETag."""
        hasher = hashlib.sha256()
        temporary = self.root / _INCOMING / f"{secrets.token_hex(8)}.tmp"
        try:
            with self._new(temporary) as file:
                for piece in _pieces_of(content):
                    check_cancelled()
                    hasher.update(piece)
                    file.write(piece)
            yield temporary, _etag(hasher)
        finally:
            with suppress(OSError):
                temporary.unlink()
            self._tidy()

    def _new(self, temporary: Path) -> BinaryIO:
        for _ in range(_TRIES):
            with suppress(FileNotFoundError):  # another process has removed the empty folder
                _make_folder(temporary.parent, self.root)
                return open(temporary, "xb")
        return open(temporary, "xb")

    def _tidy(self) -> None:
        """Remove what killed processes left, and the folder if nothing is in it."""
        incoming = self.root / _INCOMING
        with suppress(OSError):
            for left in incoming.glob("*.tmp"):
                if time.time() - left.lstat().st_mtime > _ABANDONED_SECONDS:
                    left.unlink()
        with suppress(OSError):
            incoming.rmdir()

    def _put(self, temporary: Path, place: Path) -> None:
        for _ in range(_TRIES):
            try:
                _make_folder(place.parent, self.root)
                os.replace(temporary, place)
            except FileNotFoundError:  # `delete` of another process removed the folder again
                if not temporary.exists():
                    raise
            else:
                return
        raise StoreError(f"Cannot write {place}: its folder is removed again and again.")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # The temporary file beside it keeps its folder from being removed.
        lock = WorkLock(self.root / _INCOMING / "lock")
        lock.acquire()
        try:
            yield
        finally:
            # Others that wait for a removed lock see that it is removed, and make a new one.
            with suppress(OSError):
                os.unlink(lock.lock_file)
            lock.release()

    def _check_unchanged(self, path: str, expect: str) -> None:
        try:
            with self._open(path) as file:
                hasher = hashlib.sha256()
                while piece := file.read(_PIECE):
                    hasher.update(piece)
            found = _etag(hasher)
        except EntryNotFound:
            found = "new"
        if found != expect:
            raise StoreChanged(f"{self._place(path)} was changed by another process meanwhile.")


def _etag(hasher: hashlib._Hash) -> str:
    return f'"{hasher.hexdigest()}"'


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)


def _make_folder(folder: Path, root: Path) -> None:
    if folder == root:
        os.makedirs(root, exist_ok=True)
    else:
        make_folders(folder, root)


def _pieces_of(content: bytes | Path) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    with open_regular(content) as file:
        while piece := file.read(_PIECE):
            yield piece
