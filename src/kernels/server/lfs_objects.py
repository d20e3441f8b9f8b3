"""Large files on their way into a repository: received, checked against their hash, kept for a day."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import IO, BinaryIO

from starlette.concurrency import run_in_threadpool

__all__ = ["MAX_OBJECT_BYTES", "NotNow", "ObjectRefused", "Objects", "is_sha256"]

#: The largest object that is taken: far above any kernel's library, which has some hundred megabytes at most.
MAX_OBJECT_BYTES = 16 * 2**30

#: Seconds for which an address to upload to holds: what the public Hub gives, half a day, is generous.
_ADDRESS_SECONDS = 12 * 3600

#: Seconds after which an object, or a part of one, is thrown away; a commit that names it has its own link to it.
_KEPT_SECONDS = 24 * 3600

#: The slowest that an object may come, in bytes a second after a first minute: 100 MB in three hours.
_SLOWEST = 10_000
_FIRST_SECONDS = 60.0

#: Objects that may be on their way at once, and bytes of the disk that are left to others.
_MAX_PARTS = 64
_LEFT_FREE = 2**26

_SHA256 = re.compile(r"[0-9a-f]{64}")


class ObjectRefused(Exception):
    """An upload that is not the object it was announced as; the message says how."""


class NotNow(Exception):
    """There is no room for an upload now; the message says of what."""


class Objects:
    """The objects below a folder, by their SHA-256.

    The folder's name begins with a dot, so that no publisher is called so.

    Args:
        root: The folder of repositories.
    """

    def __init__(self, root: Path) -> None:
        self.folder = root / ".incoming"
        # An address is good for the object it was made for, and until the server ends: the client sends no token there.
        self._secret = secrets.token_bytes(32)
        self._coming: dict[Path, int] = {}

    def find(self, sha256: str, size: int | None = None) -> Path | None:
        """Where an object lies, or None when it is not here, or has another size (bytes) than the one given."""
        path = self.folder / sha256
        if not is_sha256(sha256) or not path.is_file() or (size is not None and path.stat().st_size != size):
            return None
        return path

    def scratch(self) -> IO[bytes]:
        """A nameless file to write and read, on the disk of the repositories."""
        self.folder.mkdir(exist_ok=True)
        self._forget_old()
        return tempfile.TemporaryFile(dir=self.folder)

    def address(self, sha256: str, size: int) -> dict[str, str]:
        """The query of an address to which an object of that many bytes may be uploaded."""
        expires = str(int(time.time()) + _ADDRESS_SECONDS)
        return {"size": str(size), "expires": expires, "signature": self._sign(sha256, str(size), expires)}

    def allowed_size(self, sha256: str, size: str, expires: str, signature: str) -> int | None:
        """The size that an address was made for, or None when it is not one of this server's, or holds no longer."""
        if not hmac.compare_digest(self._sign(sha256, size, expires).encode(), signature.encode("utf-8", "replace")):
            return None
        return int(size) if int(expires) >= time.time() else None

    def _sign(self, *parts: str) -> str:
        return hmac.new(self._secret, " ".join(parts).encode("utf-8", "replace"), "sha256").hexdigest()

    async def receive(self, sha256: str, size: int, chunks: AsyncIterator[bytes]) -> None:
        """Keep an object, once it has arrived whole and is the one announced; otherwise nothing is kept.

        Args:
            sha256: Its announced SHA-256.
            size: Its announced size in bytes.
            chunks: Its bytes.

        Raises:
            ObjectRefused: It has another size or another hash, or comes too slowly.
            NotNow: Too many objects are on their way, or the disk is full.
        """
        digest, received = hashlib.sha256(), 0
        latest = time.monotonic() + _FIRST_SECONDS + size / _SLOWEST
        file, part = await run_in_threadpool(self._begin, size)
        try:
            async for chunk in chunks:
                received += len(chunk)
                if received > size:
                    raise ObjectRefused(f"The object has more than the {size} bytes announced.")
                if time.monotonic() > latest:
                    raise ObjectRefused(f"The object came more slowly than {_SLOWEST} bytes a second.")
                await run_in_threadpool(_add, file, digest, chunk)
            if received != size or digest.hexdigest() != sha256:
                raise ObjectRefused(
                    f"The object's SHA-256 is {digest.hexdigest()} over {received} bytes; announced was {sha256} over "
                    f"{size}."
                )
            await run_in_threadpool(self._finish, file, part, sha256)
        finally:
            # Also when the request is given up: on the loop, as nothing more can be waited for then.
            file.close()
            part.unlink(missing_ok=True)
            self._coming.pop(part, None)

    def _begin(self, size: int) -> tuple[BinaryIO, Path]:
        self.folder.mkdir(exist_ok=True)
        self._forget_old()
        coming = list(self._coming.values())
        if len(coming) >= _MAX_PARTS:
            raise NotNow("Too many objects are uploaded now; try again later.")
        if shutil.disk_usage(self.folder).free < size + sum(coming) + _LEFT_FREE:
            raise NotNow("There is no room on the server's disk for an object of that size.")
        handle, name = tempfile.mkstemp(prefix="part-", dir=self.folder)
        self._coming[Path(name)] = size
        return open(handle, "wb"), Path(name)

    def _finish(self, file: BinaryIO, part: Path, sha256: str) -> None:
        file.flush()
        part.chmod(0o644)
        part.replace(self.folder / sha256)

    def _forget_old(self) -> None:
        oldest = time.time() - _KEPT_SECONDS
        for path in self.folder.iterdir():
            with suppress(FileNotFoundError):  # another request forgot it
                if path.lstat().st_mtime < oldest:
                    if path.is_dir() and not path.is_symlink():
                        shutil.rmtree(path, ignore_errors=True)  # a commit that never ended
                    else:
                        path.unlink()


def _add(file: BinaryIO, digest: hashlib._Hash, chunk: bytes) -> None:
    digest.update(chunk)
    file.write(chunk)


def is_sha256(text: object) -> bool:
    """Whether a text is a SHA-256 in small hexadecimal digits.

    Example:
        >>> is_sha256("0" * 64), is_sha256("../" * 21 + "0")
        (True, False)
    """
    return isinstance(text, str) and _SHA256.fullmatch(text) is not None
