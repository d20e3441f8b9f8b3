"""Connections that do not outstay their use: bounded in number, and each in the time that its client takes.

uvicorn closes connections that are idle between two requests. What it lacks is here: a time for the header of a
request, for its body and for reading the answer, and a number of connections below the process's limit of open files.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["ConnectionLimits", "Connections", "LimitedProtocol", "Listener"]

_LOG = logging.getLogger("kernels.server")

#: Open files that are not connections or what they send: threads at work, and connections on their way in.
_RESERVED_FILES = 192

#: A connection needs its socket and the file that is sent over it.
_FILES_EACH = 2

#: More connections than this need more memory (some 100 kB each at worst) than they are worth.
_MOST_CONNECTIONS = 2048
_FEWEST_CONNECTIONS = 8

#: Seconds between two lines about the same trouble.
_QUIET_SECONDS = 60.0

_NO_MORE_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\nretry-after: 1\r\n"
    b"content-length: 24\r\nconnection: close\r\n\r\nToo many connections now"
)


@dataclass(frozen=True)
class ConnectionLimits:
    """What a client may take of a server.

    The times and the rate are those of Apache's `mod_reqtimeout`, or more generous.

    Args:
        connections: How many at once; None for as many as the process's limit of open files leaves room for.
        header_seconds: For the header of a request, from its first byte or the connection's beginning.
        body_seconds: Between two pieces of a request's body, and before `body_rate` counts.
        body_rate: Bytes a second that a body must come with on average.
        answer_seconds: For reading some 50 kB of an answer, which is when more of it is sent.
        idle_seconds: Between two requests: longer than a client's pause between two calls.
    """

    connections: int | None = None
    header_seconds: float = 30.0
    body_seconds: float = 30.0
    body_rate: int = 500
    answer_seconds: float = 30.0
    idle_seconds: int = 75


class Connections:
    """The connections of one server.

    Args:
        limits: What a client may take.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.most = _most_connections() if limits.connections is None else limits.connections
        # Those that wait for their client, the one that has waited longest first.
        self.waiting: dict[LimitedProtocol, None] = {}


class LimitedProtocol(H11Protocol):
    """uvicorn's connection, with an end to every wait for its client.

    Where there are too many, the one goes whose client was waited for longest: a client that sends its request and
    reads the answer is served, however many there are that do not.

    Args:
        shared: The connections of the server.
        arguments: What uvicorn gives.
    """

    def __init__(self, *, shared: Connections, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._shared = shared
        self._limits = shared.limits
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self._phase = "header"
        self._began = 0.0
        self._received = 0
        self._ending = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait("header", self._limits.header_seconds)
        if len(self.connections) > self._shared.most:
            longest = next(iter(self._shared.waiting))
            if longest is not self:
                longest.drop()
            else:
                transport.write(_BUSY)
                transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._shared.waiting.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        if self._phase == "body":
            self._received += len(data)
        super().data_received(data)
        self._follow()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._follow()

    def send_400_response(self, msg: str) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # what is still at work on an answer need not send it
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:  # an answer has been begun, or sent
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait("reading", self._limits.answer_seconds)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._phase == "reading":
            self._phase = ""
            self._follow()

    def drop(self) -> None:
        """Close the connection at once."""
        self._shared.waiting.pop(self, None)
        self.transport.abort()

    def _follow(self) -> None:
        """Find out who is waited for now: the client, with a deadline, or ourselves."""
        if self.flow.write_paused or self._timer is None:
            return
        state, limits = self.conn.their_state, self._limits
        if state is h11.IDLE:
            begun = bool(self.conn.trailing_data[0])
            if begun and self._phase != "header":
                self._wait("header", limits.header_seconds)
            elif not begun and self._phase not in ("idle", "header"):
                self._wait("idle", limits.idle_seconds)
        elif state is h11.SEND_BODY and self.cycle.response_complete:
            if self._phase != "rest":  # answered before it was sent: the rest is read for a while, and thrown away
                self._wait("rest", limits.body_seconds)
        elif state is h11.SEND_BODY:
            now = self.loop.time()
            if self._phase != "body":
                self._began, self._received = now, 0
            allowed = self._began + limits.body_seconds + self._received / limits.body_rate
            self._wait("body", min(limits.body_seconds, allowed - now))
        else:
            self._phase = "working"
            self._shared.waiting.pop(self, None)
            self._arm(limits.answer_seconds)

    def _wait(self, phase: str, seconds: float) -> None:
        self._phase = phase
        self._shared.waiting.pop(self, None)
        self._shared.waiting[self] = None
        self._arm(seconds)

    def _arm(self, seconds: float) -> None:
        self._deadline = self.loop.time() + max(seconds, 0.0)
        if self._timer is None or self._timer.when() > self._deadline:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_at(self._deadline, self._look)

    def _look(self) -> None:
        if self.loop.time() < self._deadline:
            self._timer = self.loop.call_at(self._deadline, self._look)
            return
        self._timer = None
        if self.transport.is_closing():
            if self._ending:  # closed long ago, and its client does not read the rest
                self.drop()
                return
            self._ending = True
            self._arm(self._limits.answer_seconds)
        elif self._phase == "working":
            self._arm(self._limits.answer_seconds)
        elif self._phase == "body" and self.flow.read_paused:  # it is we who do not read on
            self._began += self._limits.body_seconds
            self._arm(self._limits.body_seconds)
        else:
            self.drop()


class Listener(socket.socket):
    """A listening socket that has no more to accept, rather than an error, once the process can open no more files.

    asyncio would log a traceback for each of thousands of attempts, and start as many timers (CPython's
    `selector_events._accept_connection`).
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._spare: int | None = os.open(os.devnull, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        self._told = -_QUIET_SECONDS

    def accept(self) -> tuple[socket.socket, Any]:
        try:
            return super().accept()
        except OSError as error:
            if error.errno not in _NO_MORE_FILES:
                raise
            self._refuse(error)
            raise BlockingIOError(errno.EAGAIN, "no more files can be opened") from None

    def close(self) -> None:
        super().close()
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _refuse(self, error: OSError) -> None:
        """Close the next connection, in the place of a file that is kept open for this."""
        if time.monotonic() - self._told >= _QUIET_SECONDS:
            self._told = time.monotonic()
            _LOG.error("Connections are refused, as the process can open no more files: %s.", error)
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
        with suppress(OSError):
            super().accept()[0].close()
        with suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        if self._spare is None:
            time.sleep(0.01)  # else the loop would spin


def _most_connections() -> int:
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return _MOST_CONNECTIONS
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return max(_FEWEST_CONNECTIONS, min(_MOST_CONNECTIONS, (files - _RESERVED_FILES) // _FILES_EACH))
