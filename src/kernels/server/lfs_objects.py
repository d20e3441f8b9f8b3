"""Uploads of large files (LFS objects): received, checked against their hash, kept for a day."""

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
from threading import Lock
from typing import IO, BinaryIO

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from kernels.errors import StoreError
from kernels.support.files import has_room
from kernels.trust.file_hashes import sha256_file

__all__ = ["MAX_OBJECT_BYTES", "LfsObjects", "is_sha256"]

#: Far above the size of any kernel's library, which has some hundred megabytes at most.
MAX_OBJECT_BYTES = 16 * 2**30

#: Seconds for which an upload URL is valid, as on the public Hub.
_URL_SECONDS = 12 * 3600

#: Seconds after which an object, or a part of one, is deleted. A commit that uses it has its own copy.
_KEPT_SECONDS = 24 * 3600

#: The slowest upload, in bytes a second after the first minute: 100 MB in three hours.
_MIN_RATE = 10_000
_FIRST_SECONDS = 60.0

#: Concurrent uploads, and bytes of the disk that are left free.
_MAX_PARTS = 64
_LEFT_FREE = 2**26

_RETRY = {"Retry-After": "60"}

_SHA256 = re.compile(r"[0-9a-f]{64}")


class LfsObjects:
    """Uploaded objects by their SHA-256, in a hidden folder below the folder of repositories."""

    def __init__(self, root: Path) -> None:
        self.folder = root / ".incoming"  # no publisher's name begins with a dot
        # A client sends no token with an upload: a URL is signed for one object, and valid until the server ends.
        self._secret = secrets.token_bytes(32)
        self._uploads: dict[Path, int] = {}
        self._lock = Lock()

    def find(self, sha256: str, size: int | None = None) -> Path | None:
        """The file of an object, or None if it was not uploaded, or does not have the given size (bytes).

        An object that no longer has its content, as the disk was full or someone changed it, is not there.
        """
        path = self.folder / sha256
        if not is_sha256(sha256) or not path.is_file() or (size is not None and path.stat().st_size != size):
            return None
        try:
            return path if sha256_file(path) == sha256 else None
        except StoreError:  # deleted meanwhile
            return None

    def scratch(self) -> IO[bytes]:
        """An unnamed temporary file on the disk of the repositories."""
        self._prepare()
        return tempfile.TemporaryFile(dir=self.folder)

    def sign(self, sha256: str, size: int) -> dict[str, str]:
        """The query of a URL to which an object of that many bytes may be uploaded."""
        expires = str(int(time.time()) + _URL_SECONDS)
        return {"size": str(size), "expires": expires, "signature": self._signature(sha256, str(size), expires)}

    def signed_size(self, sha256: str, size: str, expires: str, signature: str) -> int | None:
        """The size in a signed URL, or None if the signature is not this server's, or has expired."""
        expected = self._signature(sha256, size, expires)
        if not hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace")):
            return None
        return int(size) if int(expires) >= time.time() else None

    def _signature(self, *parts: str) -> str:
        return hmac.new(self._secret, " ".join(parts).encode("utf-8", "replace"), "sha256").hexdigest()

    async def receive(self, sha256: str, size: int, chunks: AsyncIterator[bytes]) -> None:
        """Keep an object of the announced SHA-256 and size (bytes); otherwise nothing is kept.

        Raises:
            HTTPException: Its size or hash differs, or it arrives too slowly (400); there are too many uploads, or the
                disk is full (503).
        """
        digest, received = hashlib.sha256(), 0
        end = time.monotonic() + _FIRST_SECONDS + size / _MIN_RATE
        file, part = await run_in_threadpool(self._begin, size)
        try:
            async for chunk in chunks:
                received += len(chunk)
                if received > size:
                    raise HTTPException(400, f"The object has more than the announced {size} bytes.")
                if time.monotonic() > end:
                    raise HTTPException(400, f"The upload is slower than {_MIN_RATE} bytes a second.")
                await run_in_threadpool(_append, file, digest, chunk)
            if received != size or digest.hexdigest() != sha256:
                raise HTTPException(
                    400, f"The SHA-256 is {digest.hexdigest()} of {received} bytes; expected {sha256} of {size} bytes."
                )
            await run_in_threadpool(self._finish, file, part, sha256)
        finally:
            # On the event loop: a cancelled request cannot wait for a thread.
            file.close()
            part.unlink(missing_ok=True)
            self._uploads.pop(part, None)

    def _begin(self, size: int) -> tuple[BinaryIO, Path]:
        self._prepare()
        with self._lock:  # uploads that begin together must not pass the limits together
            sizes = list(self._uploads.values())
            if len(sizes) >= _MAX_PARTS:
                raise HTTPException(503, "There are too many uploads; try again later.", _RETRY)
            if not has_room(self.folder, size + sum(sizes) + _LEFT_FREE):
                raise HTTPException(503, "The server's disk has no room for an object of that size.", _RETRY)
            handle, name = tempfile.mkstemp(prefix="part-", dir=self.folder)
            self._uploads[Path(name)] = size
        return open(handle, "wb"), Path(name)

    def _finish(self, file: BinaryIO, part: Path, sha256: str) -> None:
        file.flush()
        part.chmod(0o644)
        part.replace(self.folder / sha256)

    def _prepare(self) -> None:
        """Make the folder, and delete what is too old."""
        self.folder.mkdir(exist_ok=True)
        oldest = time.time() - _KEPT_SECONDS
        for path in self.folder.iterdir():
            with suppress(FileNotFoundError):  # another request deleted it
                if path.lstat().st_mtime < oldest:
                    if path.is_dir() and not path.is_symlink():
                        shutil.rmtree(path, ignore_errors=True)  # a commit that never ended
                    else:
                        path.unlink()


def _append(file: BinaryIO, digest: hashlib._Hash, chunk: bytes) -> None:
    digest.update(chunk)
    file.write(chunk)


def is_sha256(text: object) -> bool:
    """Whether a text is a SHA-256 in lowercase hexadecimal.

    Example:
        >>> is_sha256("0" * 64), is_sha256("../" * 21 + "0")
        (True, False)
    """
    return isinstance(text, str) and _SHA256.fullmatch(text) is not None
