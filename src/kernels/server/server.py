"""An embedded Hub on a port of this machine, running in a thread."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable, Collection
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

import uvicorn

from kernels.errors import KernelsError, RequestError
from kernels.server.addresses import check_public_url
from kernels.server.app import create_app
from kernels.server.catalog import Catalog
from kernels.server.connections import ConnectionLimits, Connections, LimitedProtocol, Listener

if TYPE_CHECKING:
    from starlette.types import ASGIApp

__all__ = ["HubServer"]

_START_SECONDS = 30.0
_LARGEST_PORT = 65535

# Connections that wait to be accepted, and how many asyncio accepts before it looks at the others again.
_WAITING = 2048
_AT_ONCE = 32


class HubServer:
    """A Hub over a folder of kernel repositories, up between `start` and `stop`, or inside a `with`.

    Args:
        root: The folder, `<root>/<org>/<name>/<version>/…`, or a `Catalog`.
        trusted: Publishers marked as trusted for kernels; read at every request.
        users: Publishers that are persons, not organizations.
        models: Repositories of type `model`.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one, which `port` and `url` then name.
        bytecode: Whether bytecode files are part of a repository.
        token: What a client sends (`Authorization: Bearer …`) to see private repositories, and to write.
        writable: Whether those with the token may write: repositories, branches and commits.
        public_url: Where clients reach it, `https://hub.example.org/kernels`, for the addresses in answers. Default:
            `url`, or where that is the address of all networks (`0.0.0.0`), the one that each connection came to.
        limits: How many connections there may be, and how long each may take.
        wrap: Applied to the ASGI application, to put something around it.

    Raises:
        RequestError: `root` is not a folder, `port` is no port, `public_url` is no URL, or everyone would be let write.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as root, HubServer(root) as hub:
        ...     hub.url.startswith("http://127.0.0.1:")
        True
    """

    def __init__(
        self,
        root: os.PathLike[str] | str | Catalog,
        *,
        trusted: Collection[str] = (),
        users: Collection[str] = (),
        models: Collection[str] = (),
        host: str = "127.0.0.1",
        port: int = 0,
        bytecode: bool = False,
        token: str | None = None,
        writable: bool = False,
        public_url: str | None = None,
        limits: ConnectionLimits | None = None,
        wrap: Callable[[ASGIApp], ASGIApp] | None = None,
    ) -> None:
        if not 0 <= port <= _LARGEST_PORT:
            raise RequestError(f"`port` is {port}; allowed is 0 (a free one) to {_LARGEST_PORT}.")
        if token is not None and (not token.isascii() or not token.isprintable() or not token.strip()):
            raise RequestError("`token` is empty, or has characters that a header cannot carry; allowed is ASCII text.")
        if writable and token is None:
            raise RequestError("`writable` is True without a `token`; allowed is writing for those who send a token.")
        self.catalog = (
            root
            if isinstance(root, Catalog)
            else Catalog(root, trusted=trusted, users=users, models=models, bytecode=bytecode)
        )
        self.host = host
        self.port = port
        self.public_url = None if public_url is None else check_public_url(public_url)
        self.limits = limits or ConnectionLimits()
        self._hub = create_app(self.catalog, token=token, writable=writable, public_url=self.public_url)
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

    def start(self) -> HubServer:
        """Listen, and return once requests are answered.

        Raises:
            RequestError: The address cannot be listened on.
        """
        if self._thread is not None:
            return self
        listening = _listen(self.host, self.port)
        self.port = listening.getsockname()[1]
        config = uvicorn.Config(
            self._app,
            # `warning` has a line for each request that is not HTTP: whoever can connect could fill the disk with them.
            log_level="error",
            access_log=False,
            lifespan="off",
            ws="none",
            # Chosen, not found: another protocol or loop would keep none of the limits.
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
        """Stop listening and return once nothing runs any more.

        Args:
            grace: Seconds for which answers under way may be finished.
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


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = Listener(family, kind, protocol)
        try:
            if os.name == "posix":  # elsewhere the option lets two servers share a port
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(2048)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        free = ". Port 0 takes a free one" if error.errno == errno.EADDRINUSE else ""
        raise RequestError(f"`host` and `port` are {host!r} and {port}; cannot listen there: {error}{free}.") from None
    return listening
