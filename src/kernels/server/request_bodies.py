"""Bodies of requests: read in bounds, each and all of them together, and refused without a loss of the answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

__all__ = ["Bodies", "Refusal", "check_announced", "pieces"]

_READ = "kernels.server.body_read"

#: Seconds for which the body of a request that was refused is read, and thrown away: a client reads the answer once it
#: has sent everything, and not at all where the connection was closed before (as nginx's `lingering_time`).
_LINGERING_SECONDS = 10.0


class Bodies:
    """Reads bodies of one kind into memory.

    Args:
        largest: Bytes of one body.
        together: Bytes of all that are in memory at once.
    """

    def __init__(self, largest: int, together: int) -> None:
        self._largest = largest
        self._together = together
        self._held = 0

    @asynccontextmanager
    async def of(self, request: Request) -> AsyncIterator[bytearray]:
        """The body of a request; it counts as long as it is in use.

        Raises:
            HTTPException: It is too large (413), or too many are on their way (503).
            ClientDisconnect: It has an end before it is complete.
        """
        check_announced(request, self._largest)
        body = bytearray()
        try:
            async for piece in pieces(request):
                body += piece
                self._held += len(piece)
                if len(body) > self._largest:
                    raise _too_large(self._largest)
                if self._held > self._together:
                    raise HTTPException(503, "Too many bodies are on their way; ask again later.", {"Retry-After": "1"})
            yield body
        finally:
            self._held -= len(body)
            body.clear()  # an exception that is being answered would keep it


async def pieces(request: Request) -> AsyncIterator[bytes]:
    """The body of a request as it comes.

    Raises:
        ClientDisconnect: It has an end before it is complete.
    """
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        more = message.get("more_body", False)
        request.scope[_READ] = not more
        yield message.get("body", b"")


def check_announced(request: Request, largest: int) -> None:
    """Refuse a body for the size that its header gives, before it is read.

    Raises:
        HTTPException: It is too large (413).
    """
    announced = request.headers.get("Content-Length", "0")
    if not announced.isdecimal() or len(announced) > len(str(largest)) or int(announced) > largest:
        raise _too_large(largest)


class Refusal(JSONResponse):
    """An error as the answer, at once, also to a request of which the body is still on its way."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        if not scope.get(_READ, False):
            with anyio.move_on_after(_LINGERING_SECONDS):
                while (await receive()).get("more_body", False):
                    pass
        await send({"type": "http.response.body", "body": b""})


def _too_large(largest: int) -> HTTPException:
    return HTTPException(413, f"The body has more than the {largest} bytes that are read here.")
