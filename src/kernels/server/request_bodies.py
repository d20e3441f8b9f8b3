"""Request bodies: read within bounds, for each and for all together, and refused so that the client gets the answer.

Starlette's body limit is one number for a whole application; here each kind of request has its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

__all__ = ["Bodies", "Refusal", "check_content_length", "read_chunks"]

_COMPLETE = "kernels.server.body_complete"

#: Seconds for which the body of a refused request is read and discarded (as nginx's `lingering_time`): a client reads
#: the answer only once it has sent everything, and never if the connection is closed before.
_LINGERING_SECONDS = 10.0


class Bodies:
    """Reads bodies of at most `max_bytes` into memory, at most `max_total_bytes` at once."""

    def __init__(self, max_bytes: int, max_total_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._max_total_bytes = max_total_bytes
        self._total = 0

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytearray]:
        """The body of a request; it counts towards the total until the `with` block ends."""
        check_content_length(request, self._max_bytes)
        body = bytearray()
        try:
            async for chunk in read_chunks(request):
                body += chunk
                self._total += len(chunk)
                if len(body) > self._max_bytes:
                    raise _too_large(self._max_bytes)
                if self._total > self._max_total_bytes:
                    raise HTTPException(503, "Too many requests are being received; try again.", {"Retry-After": "1"})
            yield body
        finally:
            self._total -= len(body)
            body.clear()  # the exception may still refer to it


async def read_chunks(request: Request) -> AsyncIterator[bytes]:
    """The body of a request as it arrives; raises `ClientDisconnect` if the client leaves before the end."""
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        more = message.get("more_body", False)
        request.scope[_COMPLETE] = not more
        yield message.get("body", b"")


def check_content_length(request: Request, max_bytes: int) -> None:
    """Refuse a body (413) by the size in its header, before it is read."""
    length = request.headers.get("Content-Length", "0")
    if not length.isdecimal() or len(length) > len(str(max_bytes)) or int(length) > max_bytes:
        raise _too_large(max_bytes)


class Refusal(JSONResponse):
    """An error that is sent at once, even if the request's body has not arrived yet."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        if not scope.get(_COMPLETE, False):
            with anyio.move_on_after(_LINGERING_SECONDS):
                while (await receive()).get("more_body", False):
                    pass
        await send({"type": "http.response.body", "body": b""})


def _too_large(max_bytes: int) -> HTTPException:
    return HTTPException(413, f"The body is too large; the limit is {max_bytes} bytes.")
