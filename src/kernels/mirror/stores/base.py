"""The interface of what holds a mirror's tree.

Paths are POSIX paths relative to the mirror's root, as `models/mirror.py` gives them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from kernels.errors import KernelsError, StoreError

__all__ = [
    "EntryNotFound",
    "ReadStore",
    "StoreChanged",
    "StoredDocument",
    "StoredEntry",
    "WriteStore",
]


class EntryNotFound(KernelsError, FileNotFoundError):
    """A mirror has nothing at a path."""


class StoreChanged(StoreError):
    """Another writer changed a document meanwhile; it is read again, and the change made again."""


class StoredDocument(msgspec.Struct, frozen=True):
    """A small document of a store.

    Attributes:
        content: Its bytes.
        etag: What identifies this content, for a conditional request: of a web server without ETags its time; empty if
            the store has none.
    """

    content: bytes
    etag: str = ""


class StoredEntry(msgspec.Struct, frozen=True):
    """An entry of a listing.

    Attributes:
        path: Its path.
        size: Bytes.
        modified: When it was written, in seconds since 1970; None if the store does not say.
    """

    path: str
    size: int
    modified: float | None = None


class ReadStore(Protocol):
    """What a client needs of a store. Every method may raise `HubUnavailable` if the store gives no usable answer.

    Attributes:
        url: The root's address as messages show it, without a secret: `s3://bucket/prefix`.
        parallel: Whether parts of an entry can be requested, and arrive faster side by side than one after the other.
            False for a folder; of a web server False until an answer had `Accept-Ranges: bytes`, and of an object store
            until one was a part.
    """

    url: str

    @property
    def parallel(self) -> bool: ...

    def read(self, path: str, limit: int, *, etag: str = "") -> StoredDocument | None:
        """A small document.

        Args:
            path: Its path.
            limit: The most bytes.
            etag: What is known already.

        Returns:
            The document; None if it is still the one with that ETag (one conditional request).

        Raises:
            EntryNotFound: There is none.
            HubUnavailable: No answer, or one of more bytes.
        """
        ...

    def stream(
        self, path: str, size: int, start: int = 0, stop: int | None = None
    ) -> AbstractContextManager[Iterator[bytes]]:
        """The bytes of an entry from `start` to before `stop`, in pieces of at most 1 MiB, as they arrive.

        Until the first byte the store tries again by itself; later breaks are for the caller to resume.

        Args:
            path: Its path.
            size: Bytes of the whole entry. No more are given than were asked for.
            start: The first byte. A store that knows no ranges skips what is before it.
            stop: The end; None for all.

        Raises:
            EntryNotFound: There is none.
            HubUnavailable: No answer, one that is cut short, or one with more bytes; also while pieces are read.
        """
        ...


class WriteStore(ReadStore, Protocol):
    """What a writer needs of a store. Every method may also raise `StoreError`."""

    def write(
        self, path: str, content: bytes | Path, *, expect: str | Literal["new"] | None = None, immutable: bool = False
    ) -> str:
        """Put an entry at a path, whole or not at all.

        Args:
            path: Its path.
            content: Its bytes, or the file that has them.
            expect: Write only if the entry there has this ETag, or there is none (`new`); None writes in any case.
            immutable: Whether the content never changes, and may be cached for ever.

        Returns:
            The new ETag.

        Raises:
            StoreChanged: The entry there is another one.
        """
        ...

    def size(self, path: str) -> int | None:
        """Bytes of an entry, or None if there is none."""
        ...

    def entries(self, prefix: str = "") -> Iterator[StoredEntry]:
        """The entries below a prefix (a folder, without the trailing slash), sorted by path."""
        ...

    def delete(self, path: str) -> None:
        """Remove an entry; nothing if there is none."""
        ...
