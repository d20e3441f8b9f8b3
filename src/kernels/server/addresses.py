"""The addresses in answers: of the server's own choosing, never what a request says of its host."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from contextlib import suppress
from urllib.parse import quote, urlsplit

from starlette.requests import Request

from kernels.errors import RequestError
from kernels.support.env_values import url_in

__all__ = ["absolute", "check_public_url", "location"]


def check_public_url(value: str) -> str:
    """A URL at which clients reach a Hub, without a trailing slash.

    Raises:
        RequestError: It is no http(s) URL with a host, or holds a password, a query or what a header cannot carry.

    Example:
        >>> check_public_url("https://hub.example.org/kernels/")
        'https://hub.example.org/kernels'
    """
    url = url_in("public_url", value, "an http(s) URL with a host", token="token")
    if not url.isascii() or set(url) & set('?#<>"\\\\'):
        raise RequestError(
            f"`public_url` is {value!r}; expected an http(s) URL in ASCII, with a host, perhaps a path, and no query."
        )
    return url


def absolute(request: Request, path: str) -> str:
    """The URL of a path of this Hub: below its public URL, else at the address that the connection came to.

    That address may have names, of which the client's is used if it is one of the server's own: huggingface_hub takes
    the address of a commit only from the host that it asked.
    """
    state = request.app.state
    base = state.public_url or _own_address(request.scope.get("server"), request.headers.get("Host", ""), state.names)
    return f"{base}{quote(path)}"


def location(request: Request, path: str) -> str:
    """The reference to a path of this Hub for a `Location` header: on the host that was asked (RFC 9110, 10.2.2).

    Clients send a token on to the same host only, so this serves each name and port by which the Hub is reached.
    """
    public = request.app.state.public_url
    return f"{urlsplit(public or '').path}{quote(path)}"


def _own_address(server: tuple[str, int | None] | None, asked: str, names: Collection[str]) -> str:
    if server is None or server[1] is None:  # no TCP socket
        return ""
    host, port = server
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        address = getattr(address, "ipv4_mapped", None) or address  # an IPv4 client of a socket for both
        host = f"[{host}]" if address.version == 6 else str(address)
        names = [*names, "localhost"] if address.is_loopback else names
    own = next((name for name in names if asked.lower() == f"{name}:{port}"), host)
    return f"http://{own}:{port}"
