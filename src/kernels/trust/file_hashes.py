"""The hashes of a file on disk, as a Hub's listing, a digest or a lock has them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from kernels.errors import StoreError
from kernels.support.hashing import feed_file, git_blob_hasher, hasher_of, on_every_core

if TYPE_CHECKING:
    from kernels.models.snapshot import RepoFile

__all__ = ["changed_files", "git_blob_id", "hash_file", "is_as_listed", "sha256_file"]


def hash_file(path: os.PathLike[str] | str, algorithms: Iterable[str]) -> dict[str, str]:
    """Several hashes of a file, which is read once.

    Args:
        path: The file, read in blocks.
        algorithms: `sha256`, `sha512`, or `git-sha1` and `git-sha256`: git's object ids, over a header and the content.

    Returns:
        The hashes, hexadecimal, by algorithm.

    Raises:
        StoreError: It could not be read.

    Example:
        >>> import pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "empty"
        >>> _ = file.write_bytes(b"")
        >>> {name: value[:8] for name, value in hash_file(file, ["sha256", "git-sha1"]).items()}
        {'sha256': 'e3b0c442', 'git-sha1': 'e69de29b'}
    """
    try:
        return feed_file(path, lambda size: _Hashers(size, algorithms)).found()
    except OSError as error:
        raise StoreError(f"Cannot read {os.fspath(path)}: {error.strerror or error}.") from error


def sha256_file(path: os.PathLike[str] | str) -> str:
    """The SHA-256 of a file, as 64 hexadecimal digits: what a Hub's listing gives for large files (`lfs.oid`).

    Args:
        path: The file, read in blocks.

    Raises:
        StoreError: It could not be read.

    Example:
        >>> import pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "empty"
        >>> _ = file.write_bytes(b"")
        >>> sha256_file(file)[:16]
        'e3b0c44298fc1c14'
    """
    return hash_file(path, ["sha256"])["sha256"]


def git_blob_id(content: os.PathLike[str] | str | bytes) -> str:
    """The id git gives a file, as 40 hexadecimal digits: what a Hub's listing gives for small files (`oid`).

    Args:
        content: The file's path, or its bytes.

    Raises:
        StoreError: The file could not be read.

    Example:
        >>> git_blob_id(b"")
        'e69de29bb2d1d6434b8b29ae775ad8c2e48c5391'
    """
    if not isinstance(content, bytes):
        return hash_file(content, ["git-sha1"])["git-sha1"]
    hasher = git_blob_hasher(len(content))
    hasher.update(content)
    return hasher.hexdigest()


def is_as_listed(path: Path, file: RepoFile) -> bool:
    """Whether a file on disk has the size that was listed, and the hash where the listing has one."""
    try:
        facts = path.stat()
        if not stat.S_ISREG(facts.st_mode) or facts.st_size != file.size:
            return False
        return not file.blob or hash_file(path, [file.algorithm])[file.algorithm] == file.blob
    except (OSError, StoreError):
        return False


def changed_files(root: Path, files: Iterable[RepoFile]) -> list[RepoFile]:
    """The files below a folder whose content is not what was listed; those that are missing too."""
    listed = list(files)
    same = on_every_core(lambda file: is_as_listed(root / file.path, file), listed, lambda file: file.size)
    return [file for file, as_listed in zip(listed, same, strict=True) if not as_listed]


class _Hashers:
    """Several hashes of one content."""

    def __init__(self, size: int, algorithms: Iterable[str]) -> None:
        self._hashers = {each: hasher_of(each, size) for each in algorithms}

    def update(self, block: memoryview) -> None:
        for hasher in self._hashers.values():
            hasher.update(block)

    def found(self) -> dict[str, str]:
        return {algorithm: hasher.hexdigest() for algorithm, hasher in self._hashers.items()}
