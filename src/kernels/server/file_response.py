"""Send an open file as an answer, so that a file that replaces it on disk meanwhile is not sent.

Starlette's `FileResponse` opens its file by name, only when it sends it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from email.utils import formatdate
from typing import BinaryIO

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

__all__ = ["INERT", "OpenFileResponse"]

#: A browser neither guesses a type for what a repository contains, nor runs it as part of this Hub.
INERT = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox"}

_CHUNK = 256 * 1024

# One range of bytes (RFC 9110, 14.1.2). A server may ignore ranges (14.2); this one ignores several at once.
_RANGE = re.compile(r"bytes=(?:([0-9]{1,18})-([0-9]{0,18})|-([0-9]{1,18}))", re.IGNORECASE)


class OpenFileResponse(StreamingResponse):
    """The content of an open file, or the requested range of it; closes the file. `headers` must have an `ETag`."""

    def __init__(self, request: Request, opened: BinaryIO, headers: dict[str, str]) -> None:
        self._opened = opened
        status = os.fstat(opened.fileno())
        modified = formatdate(status.st_mtime, usegmt=True)
        start, end, code = _requested_range(request, status.st_size, (headers["ETag"], modified))
        fields = {
            "Content-Length": str(end - start),
            "Accept-Ranges": "bytes",
            "Last-Modified": modified,
            **INERT,
            **headers,
        }
        if code != 200:
            fields["Content-Range"] = f"bytes {f'{start}-{end - 1}' if code == 206 else '*'}/{status.st_size}"
        content = () if request.method == "HEAD" else self._read(start, end)
        super().__init__(content, status_code=code, headers=fields, media_type="application/octet-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._opened.close()

    def _read(self, start: int, end: int) -> Iterator[bytes]:
        self._opened.seek(start)
        # If the file is truncated meanwhile, too few bytes are sent, and uvicorn closes the connection.
        while start < end and (chunk := self._opened.read(min(end - start, _CHUNK))):
            start += len(chunk)
            yield chunk


def _requested_range(request: Request, size: int, validators: tuple[str, str]) -> tuple[int, int, int]:
    """The first byte to send, the one after the last, and the status."""
    found = _RANGE.fullmatch(request.headers.get("Range", "").replace(" ", ""))
    if found is None or request.headers.get("If-Range", validators[0]) not in validators:
        return 0, size, 200
    first, last, suffix = found.groups()
    if first and last and int(last) < int(first):  # not a valid range, so it is ignored
        return 0, size, 200
    start = int(first) if first else max(size - int(suffix), 0)
    end = min(int(last) + 1, size) if last else size
    return (start, end, 206) if start < end else (0, 0, 416)
