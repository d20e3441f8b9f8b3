"""Files through a hash, at the machine's speed.

hashlib gives up the interpreter's lock while it hashes, so two cores hash two files at once. A single file is hashed by
a single core.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from kernels.support.files import open_regular

if TYPE_CHECKING:
    from hashlib import _Hash

__all__ = ["feed_file", "git_blob_hasher", "on_every_core"]

# Large enough that reading costs little beside hashing: 1.6 GB/s on a core that hashes 1.7 GB/s from memory (64 KiB:
# 1.2).
# Not a memory map, which gains 7% and ends the process when the file is cut short meanwhile.
_BLOCK_BYTES = 1024 * 1024

_T = TypeVar("_T")
_R = TypeVar("_R")


def feed_file(path: os.PathLike[str] | str, start: Callable[[int], _Hash]) -> _Hash:
    """Feed a file to a hash.

    Args:
        path: The file, read in blocks.
        start: Makes the hash from the file's size in bytes.

    Raises:
        OSError: It could not be read, or is no regular file.

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
        # No more than the file has: clearing a megabyte for each of many small files takes longer than hashing them.
        buffer = memoryview(bytearray(min(size + 1, _BLOCK_BYTES)))
        while count := file.readinto(buffer):  # type: ignore[attr-defined]  # it has no buffer of its own
            hashed.update(buffer[:count])
    return hashed


def git_blob_hasher(size: int, algorithm: str = "sha1") -> _Hash:
    """A hash that gives git's blob id once it was fed a content of `size` bytes (gitformat-pack(5)).

    SHA-1 names the object and protects nothing, so FIPS builds allow it.

    Example:
        >>> git_blob_hasher(0).hexdigest()
        'e69de29bb2d1d6434b8b29ae775ad8c2e48c5391'
    """
    return hashlib.new(algorithm, b"blob %d\0" % size, usedforsecurity=algorithm != "sha1")


def on_every_core(work: Callable[[_T], _R], items: Sequence[_T], size: Callable[[_T], int]) -> list[_R]:
    """The results of `work` on each item, in order, as many at once as there are cores.

    Args:
        work: What to do; it spends its time outside of the interpreter.
        items: What to do it on.
        size: How much work an item is.

    Example:
        >>> on_every_core(str.upper, ["a", "bcd"], len)
        ['A', 'BCD']
    """
    workers = min(_cores(), len(items))
    if workers < 2 or sum(map(size, items)) < _BLOCK_BYTES:  # starting threads takes longer
        return [work(item) for item in items]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(workers) as pool:
        # Largest first: a large file that starts last leaves the other cores idle at the end.
        order = sorted(range(len(items)), key=lambda index: -size(items[index]))
        futures = {index: pool.submit(work, items[index]) for index in order}
        return [futures[index].result() for index in range(len(items))]


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        return os.cpu_count() or 1
