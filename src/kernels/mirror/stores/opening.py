"""Which store an address names."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from kernels.errors import RequestError
from kernels.mirror.stores.base import WriteStore
from kernels.mirror.stores.folder import FolderStore
from kernels.support.env_values import folder_in, without_password
from kernels.support.formatting import format_value

__all__ = ["open_store"]

#: One letter is a drive of Windows.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")

#: What may be named, for messages.
_EXPECTED = "a folder (a path or file:///…), s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"


def open_store(address: str) -> WriteStore:
    """The store of a mirror, of which nothing is read yet.

    Args:
        address: A path, `file:///…`, `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`.

    Raises:
        RequestError: It is another address, or has a password or a query; the message does not show those.
        MissingPythonDependency: The store needs a package that is not installed.

    Example:
        >>> open_store("file:///srv/mirror").url
        'file:///srv/mirror'
    """
    if not address.strip() or not address.isprintable():
        raise RequestError(f"The address of a mirror is {format_value(address, 200)}; expected {_EXPECTED}.")
    scheme = _SCHEME.match(address)
    if scheme is None:
        return FolderStore(folder_in("mirror", address))
    name = scheme[1].lower()
    _check_no_secret(address)
    if name == "file":
        return FolderStore(_file_path(address))
    if name in ("http", "https"):
        raise RequestError(f"{address} can be read as a mirror, but not written. To write, name {_EXPECTED}.")
    raise RequestError(f"{format_value(address, 200)} is not the address of a mirror; expected {_EXPECTED}.")


def _check_no_secret(address: str) -> None:
    shown = without_password(address.partition("?")[0].partition("#")[0])
    for sign, what in (("?", "a query"), ("#", "a fragment")):
        if sign in address:
            raise RequestError(f"The address {shown} has {what}; expected {_EXPECTED}, without one.")
    if "@" in urlsplit(address).netloc:
        raise RequestError(
            f"The address {shown} has a user or a password. Credentials are read where the tools of the cloud have "
            "them; docs/mirrors.md lists the places."
        )


def _file_path(address: str) -> Path:
    parts = urlsplit(address)
    if parts.netloc.lower() not in ("", "localhost") or not parts.path:
        raise RequestError(f"{format_value(address, 200)} names a host; expected file:///path, with three slashes.")
    return Path(url2pathname(parts.path)).absolute()
