"""An open file as an answer: what takes its place on disk meanwhile is not sent."""

from __future__ import annotations

import os
import re
from email.utils import formatdate
from typing import BinaryIO

import anyio
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

__all__ = ["OpenFile"]

_CHUNK = 256 * 1024

# One range of bytes (RFC 9110, 14.1.2). A server may ignore ranges (14.2), as this one does where there are several.
_RANGE = re.compile(r"bytes=(?:([0-9]{1,18})-([0-9]{0,18})|-([0-9]{1,18}))", re.IGNORECASE)


class OpenFile(Response):
    """The content of a file, or the range of it that a request wants; the file is closed in the end.

    Args:
        request: The request.
        opened: The file.
        headers: Headers, with an `ETag`.
    """

    def __init__(self, request: Request, opened: BinaryIO, headers: dict[str, str]) -> None:
        status = os.fstat(opened.fileno())
        self._opened = opened
        self._head = request.method == "HEAD"
        modified = formatdate(status.st_mtime, usegmt=True)
        start, end, code = _wanted(request, status.st_size, (headers["ETag"], modified))
        self._start, self._end = start, end
        ranged = {206: f"bytes {start}-{end - 1}/{status.st_size}", 416: f"bytes */{status.st_size}"}
        fields = {
            "Content-Length": str(end - start),
            "Accept-Ranges": "bytes",
            "Last-Modified": modified,
            **({"Content-Range": ranged[code]} if code in ranged else {}),
            **headers,
        }
        super().__init__(status_code=code, headers=fields, media_type="application/octet-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if self._head or self._start == self._end:
                await send({"type": "http.response.body", "body": b""})
                return
            async with anyio.create_task_group() as tasks:

                async def stop_once_gone() -> None:
                    while (await receive())["type"] != "http.disconnect":
                        pass
                    tasks.cancel_scope.cancel()

                tasks.start_soon(stop_once_gone)
                await self._send(send)
                tasks.cancel_scope.cancel()
        finally:
            self._opened.close()

    async def _send(self, send: Send) -> None:
        self._opened.seek(self._start)
        left = self._end - self._start
        while left:
            chunk = await run_in_threadpool(self._opened.read, min(left, _CHUNK))
            if not chunk:
                return  # the file was cut off meanwhile: the connection is closed before the length that was announced
            left -= len(chunk)
            await send({"type": "http.response.body", "body": chunk, "more_body": left > 0})


def _wanted(request: Request, size: int, validators: tuple[str, str]) -> tuple[int, int, int]:
    """The first byte to send, the one after the last, and the status."""
    found = _RANGE.fullmatch(request.headers.get("Range", "").replace(" ", ""))
    if found is None or request.headers.get("If-Range", validators[0]) not in validators:
        return 0, size, 200
    first, last, suffix = found.groups()
    if suffix is not None:
        start, end = max(size - int(suffix), 0), size
    else:
        start, end = int(first), min(int(last) + 1, size) if last else size
    if first and last and int(last) < int(first):  # no valid range, so it is ignored
        return 0, size, 200
    return (start, end, 206) if start < end else (0, 0, 416)
