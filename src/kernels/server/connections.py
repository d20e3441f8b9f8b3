"""Limits on connections: their number, and the time that a client may take.

uvicorn closes connections that are idle between two requests, and with `limit_concurrency` refuses everyone once slow
clients hold all connections. Here are time limits for a request's header, its body and the reading of the answer, and a
bound on connections that drops the slowest client.
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
from typing import Any, Literal

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["ConnectionLimits", "Connections", "LimitedProtocol", "Listener"]

_LOG = logging.getLogger("kernels.server")

#: Open files for other purposes: working threads, and connections that are not yet accepted.
_RESERVED_FILES = 192

#: A connection needs its socket and the file that is sent.
_FILES_EACH = 2

#: Each connection needs up to 100 kB of memory.
_MAX_CONNECTIONS = 2048
_MIN_CONNECTIONS = 8

#: Seconds between two log lines about the same problem.
_QUIET_SECONDS = 60.0

_NO_MORE_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

#: What a connection does: it waits for its client (the first five), or for us.
_Phase = Literal["header", "idle", "body", "rest", "reading", "working", ""]

_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\nretry-after: 1\r\n"
    b"content-length: 24\r\nconnection: close\r\n\r\nToo many connections now"
)


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits on the clients of a server; the times and the rate are at least those of Apache's `mod_reqtimeout`.

    Args:
        connections: Open connections; None for as many as the process's limit of open files allows.
        header_seconds: For a request's header, from its first byte or the start of the connection.
        body_seconds: Between two pieces of a request's body, and before `body_rate` applies.
        body_rate: Bytes a second of a body, on average.
        answer_seconds: For reading some 50 kB of an answer, after which more is sent.
        idle_seconds: Between two requests.
    """

    connections: int | None = None
    header_seconds: float = 30.0
    body_seconds: float = 30.0
    body_rate: int = 500
    answer_seconds: float = 30.0
    idle_seconds: int = 75


class Connections:
    """The state that the connections of one server share."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.most = _max_connections() if limits.connections is None else limits.connections
        # Connections that wait for their client, the longest wait first.
        self.waiting: dict[LimitedProtocol, None] = {}


class LimitedProtocol(H11Protocol):
    """uvicorn's connection with a limit on every wait for its client.

    If there are too many connections, the one that has waited longest for its client is closed: clients that send their
    requests and read the answers are served, however many others do not.
    """

    def __init__(self, *, shared: Connections, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._shared = shared
        self._limits = shared.limits
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self._phase: _Phase = "header"
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
            self.cycle.disconnected = True  # the handler need not send its answer
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:  # an answer has begun, or was sent
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
        """Determine what is waited for now: the client, with a deadline, or our own work."""
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
            if self._phase != "rest":  # answered early: the rest is read for a while and discarded
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

    def _wait(self, phase: _Phase, seconds: float) -> None:
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
            if self._ending:  # closed, and the client does not read the rest
                self.drop()
                return
            self._ending = True
            self._arm(self._limits.answer_seconds)
        elif self._phase == "working":
            self._arm(self._limits.answer_seconds)
        elif self._phase == "body" and self.flow.read_paused:  # we do not read on
            self._began += self._limits.body_seconds
            self._arm(self._limits.body_seconds)
        else:
            self.drop()


class Listener(socket.socket):
    """A listening socket that refuses connections quietly while the process can open no more files.

    asyncio would log a traceback and start a timer for each of thousands of attempts (CPython's
    `selector_events._accept_connection`).
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._spare: int | None = os.open(os.devnull, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        self._logged = -_QUIET_SECONDS

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
        """Accept and close the next connection, using the descriptor of a spare file."""
        if time.monotonic() - self._logged >= _QUIET_SECONDS:
            self._logged = time.monotonic()
            _LOG.error("Connections are refused: the process can open no more files: %s.", error)
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
        with suppress(OSError):
            super().accept()[0].close()
        with suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        if self._spare is None:
            time.sleep(0.01)  # else the loop would spin


def _max_connections() -> int:
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return _MAX_CONNECTIONS
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        return _MAX_CONNECTIONS
    return max(_MIN_CONNECTIONS, min(_MAX_CONNECTIONS, (files - _RESERVED_FILES) // _FILES_EACH))
