"""One revision of a repository: its files with their hashes, its folders, its commit id.

The hashes are git's, so a file has the same `oid` as on any other Hub.
"""

from __future__ import annotations

import errno
import hashlib
import os
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from kernels.support.files import open_regular

__all__ = ["Commit", "File", "Folder", "blob_oid", "take_snapshot"]


@dataclass(frozen=True)
class File:
    """A file of a commit.

    Attributes:
        path: POSIX path relative to the repository.
        source: The file on disk.
        size: Bytes.
        oid: Git blob id of the file, or of its pointer if it is kept in LFS.
        sha256: SHA-256 of the content if it is kept in LFS, else None.
        seen: Time of change (ns), size and inode when it was hashed; None if unknown.
    """

    path: str
    source: Path
    size: int
    oid: str
    sha256: str | None = None
    seen: tuple[int, int, int] | None = field(default=None, compare=False)

    def open(self) -> BinaryIO | None:
        """The file, open for reading; None if it was replaced or removed. Later commits do not change the open file."""
        try:
            opened = open_regular(self.source)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise  # the process has too many open files
            return None
        status = os.fstat(opened.fileno())
        if self.seen in (None, (status.st_mtime_ns, status.st_size, status.st_ino)):
            return opened
        opened.close()
        return None


@dataclass(frozen=True)
class Folder:
    """A folder of a commit: its POSIX path and its git tree id."""

    path: str
    oid: str


@dataclass(frozen=True)
class Commit:
    """The content of a revision.

    Attributes:
        id: 40 hexadecimal digits that depend on the content and the repository's name only.
        date: When the newest file was written.
        files: The files by path.
    """

    id: str
    date: datetime
    files: Mapping[str, File]
    _entries: Mapping[str, File | Folder] = field(repr=False)
    _paths: list[str] = field(repr=False)
    _children: Mapping[str, list[str]] = field(repr=False)

    def entry(self, path: str) -> File | Folder | None:
        """The file or folder at a path; None if there is none, and for ""."""
        return self._entries.get(path)

    def paths(self, folder: str = "", *, recursive: bool = False) -> list[str] | None:
        """The paths of the entries in a folder ("" is the repository), sorted; None if the folder does not exist.

        With `recursive`, the content of its sub-folders is included.
        """
        if folder not in self._children:
            return None
        if not recursive:
            return self._children[folder]
        if not folder:
            return self._paths
        # "0" is the character after "/": everything in `folder` sorts between the two.
        return self._paths[bisect_left(self._paths, folder + "/") : bisect_left(self._paths, folder + "0")]


def blob_oid(data: bytes) -> str:
    """Git's id of a file's content.

    Example:
        >>> blob_oid(b"")
        'e69de29bb2d1d6434b8b29ae775ad8c2e48c5391'
    """
    return _object_id("blob", data)


def take_snapshot(repo_id: str, files: Iterable[File], date: datetime) -> Commit:
    """Arrange files into a commit; its id depends on their content and the repository's name.

    Example:
        >>> file = File("build/torch-cpu/__init__.py", Path("/dev/null"), 0, blob_oid(b""))
        >>> take_snapshot("acme/relu", [file], datetime(2026, 1, 1)).paths("build")
        ['build/torch-cpu']
    """
    by_path = {file.path: file for file in sorted(files, key=lambda file: file.path)}
    children: dict[str, list[str]] = {"": []}
    for path in by_path:
        _add_to_folders(path, children)
    oids = {path: file.oid for path, file in by_path.items()}
    # Deepest first: a tree's id depends on the ids of its entries.
    for folder in sorted(children, key=lambda path: path.count("/") + bool(path), reverse=True):
        oids[folder] = _tree_oid(children[folder], oids, children)
        children[folder].sort()
    entries: dict[str, File | Folder] = dict(by_path)
    entries.update({folder: Folder(folder, oids[folder]) for folder in children if folder})
    epoch = "kernels serve <serve@localhost> 0 +0000"
    commit = f"tree {oids['']}\nauthor {epoch}\ncommitter {epoch}\n\n{repo_id}\n"
    return Commit(_object_id("commit", commit.encode()), date, by_path, entries, sorted(entries), children)


def _add_to_folders(path: str, children: dict[str, list[str]]) -> None:
    while path:
        folder = path.rpartition("/")[0]
        known = folder in children
        children.setdefault(folder, []).append(path)
        if known:
            return
        path = folder


def _tree_oid(paths: list[str], oids: Mapping[str, str], folders: Mapping[str, object]) -> str:
    # Git sorts a tree as if folder names ended in a slash.
    rows = sorted((path.rpartition("/")[2].encode() + b"/" * (path in folders), path) for path in paths)
    parts = []
    for name, path in rows:
        mode = b"40000 " if path in folders else b"100644 "
        parts.append(mode + name.rstrip(b"/") + b"\0" + bytes.fromhex(oids[path]))
    return _object_id("tree", b"".join(parts))


def _object_id(kind: str, data: bytes) -> str:
    return hashlib.sha1(f"{kind} {len(data)}\0".encode() + data, usedforsecurity=False).hexdigest()
