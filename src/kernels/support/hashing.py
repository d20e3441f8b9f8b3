"""Hash files on all cores: hashlib releases the interpreter's lock, so each core hashes another file.

SHA-1 and SHA-256 take the bytes of a file one after the other, so one core hashes one file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Protocol, TypeVar

from kernels.support.files import open_regular
from kernels.support.tasks import check_cancelled, side_by_side

if TYPE_CHECKING:
    from hashlib import _Hash

__all__ = ["feed_file", "git_blob_hasher", "hasher_of", "lfs_pointer", "on_every_core"]

# Reading costs a tenth of the time (docs/benchmarks.md, the note on row 11). Smaller blocks are as fast. A memory map
# would gain a part of it, and end the process when the file is truncated meanwhile. A second thread that reads ahead
# gains nothing on two cores, where its blocks leave the core's cache before they are hashed.
_BLOCK_BYTES = 1024 * 1024

#: What is smaller takes longer to open than to hash, which needs the interpreter's lock: other threads are in its way.
_SMALL_BYTES = 16 * 1024

_T = TypeVar("_T")
_R = TypeVar("_R")


class _Hashing(Protocol):
    """A hash, or several of one content."""

    def update(self, block: memoryview, /) -> None: ...


_H = TypeVar("_H", bound=_Hashing)


def feed_file(path: os.PathLike[str] | str, start: Callable[[int], _H]) -> _H:
    """Feed a file to a hash.

    Args:
        path: The file, read in blocks.
        start: Makes the hash from the file's size in bytes.

    Raises:
        OSError: It cannot be read, or is not a regular file.
        Cancelled: The work was cancelled meanwhile.

    Example:
        >>> import hashlib, tempfile
        >>> file = os.path.join(tempfile.mkdtemp(), "empty")
        >>> open(file, "wb").close()
        >>> feed_file(file, lambda size: hashlib.sha256()).hexdigest()[:16]
        'e3b0c44298fc1c14'
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        hashed = start(size)
        # Not larger than the file: clearing a megabyte takes longer than hashing a small file.
        buffer = memoryview(bytearray(min(size + 1, _BLOCK_BYTES)))
        done = 0
        while count := file.readinto(buffer):  # type: ignore[attr-defined]  # it has no buffer of its own
            check_cancelled()
            hashed.update(buffer[:count])
            done += count
            if done == size and count < len(buffer):
                break  # there was room for more
    return hashed


def git_blob_hasher(size: int, algorithm: str = "sha1") -> _Hash:
    """A hash that gives git's blob id once it was fed a content of `size` bytes (gitformat-pack(5)).

    SHA-1 names the object and protects nothing, so FIPS builds allow it.

    Example:
        >>> git_blob_hasher(0).hexdigest()
        'e69de29bb2d1d6434b8b29ae775ad8c2e48c5391'
    """
    return hashlib.new(algorithm, b"blob %d\0" % size, usedforsecurity=algorithm != "sha1")


def hasher_of(algorithm: str, size: int) -> _Hash:
    """A hash for a content of `size` bytes: `sha256` and others of hashlib, or git's ids (`git-sha1`, `git-sha256`)."""
    if algorithm.startswith("git-"):
        return git_blob_hasher(size, algorithm.removeprefix("git-"))
    return hashlib.new(algorithm)


def lfs_pointer(sha256: str, size: int) -> bytes:
    """The file that git stores for one kept in LFS (git-lfs specification, version 1)."""
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()


def on_every_core(work: Callable[[_T], _R], items: Sequence[_T], size: Callable[[_T], int]) -> list[_R]:
    """Run a function on several items, on all cores.

    Args:
        work: The function; it releases the interpreter's lock.
        items: The items.
        size: The size of an item in bytes.

    Returns:
        The results, in the order of the items.

    Example:
        >>> on_every_core(str.upper, ["a", "bcd"], len)
        ['A', 'BCD']
    """
    sizes = list(map(size, items))
    small = [index for index, size in enumerate(sizes) if size < _SMALL_BYTES]
    large = sorted(set(range(len(items))).difference(small), key=lambda index: -sizes[index])
    # The small ones are one piece of work. Of the others the largest come first: at the end, one would leave the other
    # cores idle.
    batches = [small] * bool(small) + [[index] for index in large]
    cores = min(_cores(), len(batches))
    if cores < 2 or sum(sizes[index] for index in large) < _BLOCK_BYTES:  # starting threads takes longer
        return [work(item) for item in items]
    results = side_by_side(lambda batch: [work(items[index]) for index in batch], batches, at_once=cores, name="hash")
    found = dict(zip(chain(*batches), chain(*results), strict=True))
    return [found[index] for index in range(len(items))]


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        return os.cpu_count() or 1
