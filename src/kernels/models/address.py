"""The addresses in `KERNELS_HUB`: where kernels come from, in the order in which they are asked."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from kernels.errors import RequestError
from kernels.support.env_values import folder_in, url_in, without_password

__all__ = ["HUB_WORD", "HubAddress", "parse_addresses"]

#: The word for the Hub in `HF_ENDPOINT`.
HUB_WORD = "hub"

#: Object stores, by their scheme.
_STORES = ("s3", "gs", "az")

_SCHEMES = ("http", "https", "file", *_STORES)

#: One letter is a drive of Windows.
_SCHEME = r"([A-Za-z][A-Za-z0-9+.-]+):(?=//)"

#: `user:password@` of a URL; a password may have a comma.
_PASSWORD = r"//[^/]*@"

_EXPECTED = (
    f"an http(s) URL with a host, s3://…, gs://…, az://…, file:///…, a folder that exists, or `{HUB_WORD}` for the Hub "
    "in HF_ENDPOINT; several are separated by commas"
)


class HubAddress(NamedTuple):
    """Where kernels come from.

    Attributes:
        kind: `hub` for the Hub in `HF_ENDPOINT`, `http` for another Hub or a mirror, `store` for a mirror in an object
            store, `folder` for a mirror or repositories on disk.
        value: The URL without a trailing slash, or the absolute path. It contains no secret.
    """

    kind: Literal["hub", "http", "store", "folder"]
    value: str

    @property
    def host(self) -> str:
        """Who gets a request to a URL: its host, with the port if it has one."""
        return urlsplit(self.value).netloc.lower()


def parse_addresses(name: str, value: str, hub: Callable[[], str]) -> tuple[HubAddress, ...]:
    """The addresses in a variable, each once; a value that is the name of a folder is that folder.

    Args:
        name: The variable.
        value: Its value: one address, or several separated by commas.
        hub: Gives the URL that the word `hub` stands for.

    Raises:
        RequestError: A part is none of them, or has a password or a query, which the message does not show.

    Example:
        >>> addresses = parse_addresses("KERNELS_HUB", "https://mirror.example,hub", lambda: "https://hub.example")
        >>> [each.kind for each in addresses]
        ['http', 'hub']
    """
    # A folder's name may have a comma. `hub` is a word even where a folder has that name.
    if value.strip() != HUB_WORD and not re.match(_SCHEME, value) and _is_folder(name, value):
        return (HubAddress("folder", str(folder_in(name, value))),)
    if re.search(_PASSWORD, value):  # it may have a comma
        own = any(f"{scheme}://" in value for scheme in _STORES)
        stores = " Credentials of an object store are read where its own tools have them." if own else ""
        raise RequestError(
            f"`{name}` is {_shown(value, value)!r}, with a user or a password; put a token in `{name}_TOKEN` instead."
            f"{stores}"
        )
    parts = [part.strip(" ") for part in value.split(",") if part.strip()]
    if not parts:
        raise RequestError(f"`{name}` has no address; expected {_EXPECTED}.")
    return tuple(dict.fromkeys(_address(name, part, hub, _shown(part, value)) for part in parts))


def _address(name: str, part: str, hub: Callable[[], str], shown: str) -> HubAddress:
    if part == HUB_WORD:
        return HubAddress("hub", hub())
    found = re.match(_SCHEME, part)
    scheme = "" if found is None else found[1].lower()
    if not scheme and _is_folder(name, part):
        return HubAddress("folder", str(folder_in(name, part)))
    if scheme not in _SCHEMES:
        from kernels.support.formatting import did_you_mean

        hint = did_you_mean(scheme, _SCHEMES) if scheme else did_you_mean(part, [HUB_WORD])
        raise RequestError(f"`{name}` is {shown!r}; expected {_EXPECTED}.{hint}")
    if "?" in part or "#" in part:
        # A signed query is a secret, which every message that names the address would show.
        raise RequestError(f"`{name}` is {shown!r} with a query or a fragment; leave that out.")
    if scheme == "file":
        return HubAddress("folder", str(_file_path(name, part, shown)))
    if scheme not in _STORES:
        return HubAddress("http", url_in(name, part, _EXPECTED, token=f"{name}_TOKEN", shown=shown))
    if not part.isprintable() or " " in part or re.match(r"[a-z0-9]+://[A-Za-z0-9]", part, re.IGNORECASE) is None:
        raise RequestError(f"`{name}` is {shown!r}; expected {scheme}://bucket/prefix.")
    return HubAddress("store", f"{scheme}{part.rstrip('/')[len(scheme) :]}")


def _shown(part: str, value: str) -> str:
    """A part as messages show it: of a value that may have a password only what is safe."""
    return re.split("[?#]", without_password(value if "@" in value else part))[0][:200]


def _is_folder(name: str, value: str) -> bool:
    return value.isprintable() and os.path.isdir(folder_in(name, value))


def _file_path(name: str, value: str, shown: str) -> Path:
    host, _, path_part = value[len("file://") :].partition("/")
    if host.lower() not in ("", "localhost") or not path_part:
        raise RequestError(f"`{name}` is {shown!r}; expected file:///path, with three slashes.")
    from urllib.request import url2pathname

    path = Path(url2pathname(f"/{path_part}")).absolute()
    if not _is_folder(name, str(path)):
        raise RequestError(f"`{name}` is {shown!r}; expected a folder that exists.")
    return path
