"""The server's own addresses, for answers, and the names that it answers to. A request's `Host` is never trusted."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Collection
from contextlib import suppress
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from kernels.errors import RequestError
from kernels.support.env_values import url_in

__all__ = ["OwnNames", "absolute", "check_public_url", "location"]

#: The names of this machine for itself.
_LOCAL = ("localhost", "127.0.0.1", "[::1]")

_PORT = re.compile(r":[0-9]*$")


class OwnNames:
    """Middleware: requests for another host are refused.

    A website can make its name an address of this machine (DNS rebinding): a browser then lets it read the answers. A
    request without a host comes from no browser.

    Args:
        app: The application, with `state.names` and `state.public_url`.
        refuse: Makes the answer of a message.
    """

    def __init__(self, app: ASGIApp, refuse: Callable[[str], Response]) -> None:
        self._app = app
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = Headers(scope=scope).get("Host", "")
        state = scope["app"].state
        public = _PORT.sub("", urlsplit(state.public_url or "").netloc)
        if not host or _PORT.sub("", host).lower() in {*_LOCAL, *state.names, public.lower()}:
            await self._app(scope, receive, send)
            return
        message = (
            f"`Host` is {host[:80]!r}; expected localhost, 127.0.0.1 or the host of the Hub's --public-url, as the Hub "
            "listens on this machine alone"
        )
        await self._refuse(message)(scope, receive, send)


def check_public_url(value: str) -> str:
    """A URL at which clients reach a Hub, without a trailing slash.

    Raises:
        RequestError: It is not an http(s) URL with a host, or has a password, a query or unsafe characters.

    Example:
        >>> check_public_url("https://hub.example.org/kernels/")
        'https://hub.example.org/kernels'
    """
    url = url_in("public_url", value, "an http(s) URL with a host", token="token")
    if not url.isascii() or set(url) & set('?#<>"\\\\'):
        raise RequestError(f"`public_url` is {value!r}; expected an http(s) URL in ASCII with a host and no query.")
    return url


def absolute(request: Request, path: str) -> str:
    """The URL of a path of this Hub: below its public URL, else at the address that the client connected to.

    If that address has names of this server, and the request names one of them, the URL has that name: huggingface_hub
    accepts a commit's URL only from the host that it connected to.
    """
    state = request.app.state
    base = state.public_url or _own_address(request.scope.get("server"), request.headers.get("Host", ""), state.names)
    return f"{base}{quote(path)}"


def location(request: Request, path: str) -> str:
    """The relative reference to a path of this Hub, for a `Location` header (RFC 9110, 10.2.2).

    It works for each name and port of the Hub, and clients send their token on to the same host only.
    """
    public = request.app.state.public_url
    return f"{urlsplit(public or '').path}{quote(path)}"


def _own_address(server: tuple[str, int | None] | None, requested: str, names: Collection[str]) -> str:
    if server is None or server[1] is None:  # no TCP socket
        return ""
    host, port = server
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:  # an IPv4 client of a dual-stack socket
            address = address.ipv4_mapped
        host = f"[{host}]" if address.version == 6 else str(address)
        names = [*names, "localhost"] if address.is_loopback else names
    own = next((name for name in names if requested.lower() == f"{name}:{port}"), host)
    return f"http://{own}:{port}"
