"""A Hub server on a local port, in a thread of this process."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

import uvicorn

from kernels.errors import KernelsError, RequestError
from kernels.server.app import create_app
from kernels.server.catalog import Catalog
from kernels.server.connections import ConnectionLimits, Connections, LimitedProtocol, Listener
from kernels.server.own_urls import check_public_url
from kernels.tracebacks import public

if TYPE_CHECKING:
    from starlette.types import ASGIApp

__all__ = ["HubServer"]

_START_SECONDS = 30.0
_MAX_PORT = 65535

#: Hosts that mean all addresses of this machine.
_EVERY_ADDRESS = frozenset({"", "0.0.0.0", "::"})

# Connections that may wait to be accepted, and how many asyncio accepts before it serves others again.
_WAITING = 2048
_AT_ONCE = 32


class HubServer:
    """A Hub over a folder of kernel repositories; it runs between `start` and `stop`, or in a `with` block.

    Args:
        root: The folder, `<root>/<org>/<name>/<version>/…`, or a `Catalog`.
        trusted: Publishers marked as trusted for kernels; read at every request.
        users: Publishers that are persons, not organizations.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one, given by `port` and `url` once started.
        bytecode: Whether bytecode files are part of a repository.
        token: The token (`Authorization: Bearer …`) that gives access to private repositories, and to writing.
        writable: Whether clients with the token may create repositories and branches, and commit.
        public_url: Where clients reach it, such as `https://hub.example.org/kernels`, for the addresses in answers.
            Default: the address that the client connected to.
        limits: Limits on connections and clients.
        wrap: Applied to the ASGI application, to wrap it.

    Attributes:
        catalog: The repositories; its `trusted` and `users` may change while the Hub runs.

    Raises:
        RequestError: `root` is not a folder, `port`, `token` or `public_url` is invalid, or `writable` has no `token`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as root, HubServer(root) as hub:
        ...     hub.url.startswith("http://127.0.0.1:")
        True
    """

    @public
    def __init__(
        self,
        root: os.PathLike[str] | str | Catalog,
        *,
        trusted: Collection[str] = (),
        users: Collection[str] = (),
        host: str = "127.0.0.1",
        port: int = 0,
        bytecode: bool = False,
        token: str | None = None,
        writable: bool = False,
        public_url: str | None = None,
        limits: ConnectionLimits | None = None,
        wrap: Callable[[ASGIApp], ASGIApp] | None = None,
    ) -> None:
        if not 0 <= port <= _MAX_PORT:
            raise RequestError(f"`port` is {port}; expected 0 (a free one) to {_MAX_PORT}.")
        if token is not None and (not token.isascii() or not token.isprintable() or not token.strip()):
            raise RequestError("`token` is empty or not printable ASCII.")
        if writable and token is None:
            raise RequestError("`writable` needs a `token`, so that not everyone can write.")
        self.catalog: Catalog = (
            root if isinstance(root, Catalog) else Catalog(root, trusted=trusted, users=users, bytecode=bytecode)
        )
        self.host = host
        self.port = port
        self.public_url = None if public_url is None else check_public_url(public_url)
        self.limits = limits or ConnectionLimits()
        self._hub = create_app(
            self.catalog, token=token, writable=writable, public_url=self.public_url, local=self.is_local
        )
        if ":" not in host:
            self._hub.state.names.add(host.lower())
        self._app: ASGIApp = self._hub if wrap is None else wrap(self._hub)
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The Hub's URL, without a trailing slash."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches the Hub."""
        return _is_loopback(self.host)

    @property
    def reachable_url(self) -> str:
        """The URL for other machines: with an address of this one, where the Hub listens on all of them."""
        if self.host not in _EVERY_ADDRESS:
            return self.url
        own = _own_address()
        return f"http://{f'[{own}]' if ':' in own else own}:{self.port}"

    def start(self) -> HubServer:
        """Start, and return once requests are answered.

        Raises:
            RequestError: The address is not available.
        """
        if self._thread is not None:
            return self
        listening = _listen(self.host, self.port)
        self.port = listening.getsockname()[1]
        config = uvicorn.Config(
            self._app,
            # `warning` logs each request that is not HTTP, so any client could fill the disk.
            log_level="error",
            access_log=False,
            lifespan="off",
            ws="none",
            # Explicit: another protocol or loop would not enforce the limits.
            http=partial(LimitedProtocol, shared=Connections(self.limits)),  # type: ignore[arg-type]
            loop="asyncio",
            backlog=_AT_ONCE,
            proxy_headers=False,
            timeout_keep_alive=self.limits.idle_seconds,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([listening],), name=f"kernels serve {self.port}", daemon=True
        )
        self._thread.start()
        waited = 0.0
        while not self._server.started:
            self._thread.join(0.002)
            waited += 0.002
            if not self._thread.is_alive() or waited > _START_SECONDS:
                listening.close()
                raise KernelsError(f"The Hub at {self.url} did not start; its log says why.")
        listening.listen(_WAITING)  # uvicorn's `backlog` has set it to the other number
        return self

    def stop(self, *, grace: int = 0) -> None:
        """Stop, and return once the server thread has ended.

        Args:
            grace: Seconds that answers which are being sent have.
        """
        if self._thread is None or self._server is None:
            return
        self._server.force_exit = grace == 0
        self._server.config.timeout_graceful_shutdown = grace or 1  # also bounds the wait for connections to close
        self._server.should_exit = True
        self._thread.join()
        self._thread = self._server = None

    def __enter__(self) -> HubServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _own_address() -> str:
    """The address that this machine uses towards others; its loopback address if it has no network."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # nothing is sent; an address for documentation (RFC 5737)
        return str(probe.getsockname()[0])
    return "127.0.0.1"


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        listening = socket.create_server((host, port), family=family, backlog=_WAITING, dualstack_ipv6=both)
    except OSError as error:
        # `strerror` of the error itself repeats the address; `os` does not know the numbers of `gaierror`.
        number = error.errno or 0
        why = os.strerror(number) if number > 0 else error.strerror or error
        free = " Choose another port; 0 takes a free one." if error.errno == errno.EADDRINUSE else ""
        raise RequestError(f"Cannot listen on `host` {host!r}, `port` {port}: {why}.{free}") from None
    return Listener(fileno=listening.detach())
