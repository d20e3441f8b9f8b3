"""Scan a folder on disk into a commit: its files and their hashes."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from kernels.errors import InvalidRepository
from kernels.models.snapshot import MAX_FILES, is_bytecode
from kernels.server.listings import FileRow, FolderListing
from kernels.server.snapshot import Commit, File, blob_oid, take_snapshot
from kernels.support.files import open_regular
from kernels.support.hashing import lfs_pointer

__all__ = ["is_lfs", "is_served", "make_commit", "scan_folder"]

# The Hub's clients put native code, by its name, and all large files into LFS.
_LFS_SUFFIXES = (".so", ".dylib", ".dll", ".pyd")
_LFS_SIZE = 10 * 10**6
_CHUNK = 1 << 20
# Links to each other can make millions of folders out of a few.
_MAX_FOLDERS = 50_000


def scan_folder(folder: Path, root: Path, *, bytecode: bool) -> list[FileRow]:
    """The regular files in a folder, sorted by path; links are followed inside `root` only.

    Raises:
        InvalidRepository: There are too many files or folders.
    """
    rows = sorted(islice(_walk(folder, root, bytecode), MAX_FILES + 1))
    if len(rows) > MAX_FILES:
        raise InvalidRepository(f"{folder} has more than {MAX_FILES} files; kernel repositories have fewer.")
    return rows


def _walk(top: Path, root: Path, bytecode: bool) -> Iterator[FileRow]:
    pending: list[tuple[str, str, frozenset[str]]] = [("", str(top), frozenset({os.path.realpath(top)}))]
    folders = 0
    while pending:
        prefix, folder, above = pending.pop()
        folders += 1
        if folders > _MAX_FOLDERS:
            raise InvalidRepository(f"{top} has more than {_MAX_FOLDERS} folders; kernel repositories have fewer.")
        with os.scandir(folder) as entries:
            for entry in entries:
                if not is_served(entry.name, bytecode=bytecode):
                    continue
                source = os.path.realpath(entry.path) if entry.is_symlink() else entry.path
                if source is not entry.path and not Path(source).is_relative_to(root):
                    continue
                try:
                    status = entry.stat()
                except OSError:  # a broken link, or removed since the folder was read
                    continue
                path = prefix + entry.name
                if stat.S_ISREG(status.st_mode):
                    yield path, source, status.st_mtime_ns, status.st_size, status.st_ino
                elif stat.S_ISDIR(status.st_mode) and source not in above:  # a link to a parent would never end
                    pending.append((path + "/", source, above | {source}))


def is_served(name: str, *, bytecode: bool) -> bool:
    """Whether a file or folder of that name is part of a repository."""
    try:
        name.encode()
    except UnicodeEncodeError:  # JSON cannot hold a name that is not UTF-8
        return False
    return name != ".git" and (bytecode or not is_bytecode(name))


def make_commit(repo_id: str, rows: list[FileRow], cached: FolderListing | None) -> Commit:
    """The commit of scanned files; hashes of unchanged files come from the cache."""
    before = {} if cached is None else {row[1:]: cached.commit.files[row[0]] for row in cached.rows}
    files = [_file(row, before.get(row[1:])) for row in rows]
    newest = max((row[2] for row in rows), default=0)
    return take_snapshot(repo_id, files, datetime.fromtimestamp(newest / 1e9, timezone.utc))


def _file(row: FileRow, before: File | None) -> File:
    path, source, mtime_ns, size, inode = row
    oid, sha256 = _hash(source, size) if before is None else (before.oid, before.sha256)
    return File(path, Path(source), size, oid, sha256, (mtime_ns, size, inode))


def _hash(source: str, size: int) -> tuple[str, str | None]:
    # Not beyond the listed size: a file that grows meanwhile is another file at the next scan.
    with open_regular(source) as file:
        if not is_lfs(source, size):
            return blob_oid(b"".join(_chunks(file, size))), None
        digest = hashlib.sha256()
        for chunk in _chunks(file, size):
            digest.update(chunk)
    return blob_oid(lfs_pointer(digest.hexdigest(), size)), digest.hexdigest()


def _chunks(file: BinaryIO, size: int) -> Iterator[bytes]:
    while size > 0 and (chunk := file.read(min(size, _CHUNK))):
        size -= len(chunk)
        yield chunk


def is_lfs(path: str, size: int) -> bool:
    """Whether a file of that name and size (bytes) is kept in LFS.

    Example:
        >>> is_lfs("build/torch-cpu/__init__.py", 200), is_lfs("_relu.abi3.so", 200)
        (False, True)
    """
    return path.endswith(_LFS_SUFFIXES) or size >= _LFS_SIZE
