"""Which store an address names."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from kernels.errors import InvalidRepository, MissingPythonDependency, RequestError
from kernels.mirror.stores.base import WriteStore
from kernels.mirror.stores.folder import FolderStore
from kernels.mirror.stores.paths import check_path
from kernels.support.env_values import folder_in, without_password
from kernels.support.formatting import format_value

__all__ = ["open_store"]

#: One letter is a drive of Windows.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")

#: What may be named, for messages.
_EXPECTED = "a folder (a path or file:///…), s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"

#: Buckets of S3, Google and Azure; the first two also have dots and underscores.
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,221}")

#: Other names of a scheme.
_CLOUDS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "az", "azure": "az"}


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
    if name not in _CLOUDS:
        raise RequestError(f"{format_value(address, 200)} is not the address of a mirror; expected {_EXPECTED}.")
    return _cloud_store(_CLOUDS[name], *_bucket(address))


def _cloud_store(scheme: str, bucket: str, prefix: str) -> WriteStore:
    # Imported only for such an address.
    from kernels.mirror.stores.cloud import CloudStore
    from kernels.mirror.stores.clouds import azure_store, google_store, s3_store

    if find_spec("obstore") is None:
        raise MissingPythonDependency(
            f"{scheme}:// needs the package obstore, which is not installed: pip install obstore (the extra `mirror`)"
        )
    connect = {"s3": s3_store, "gs": google_store, "az": azure_store}[scheme](bucket, prefix)
    return CloudStore(f"{scheme}://{bucket}{'/' * bool(prefix)}{prefix}", connect)


def _bucket(address: str) -> tuple[str, str]:
    """The bucket and the prefix in an address."""
    bucket, _, prefix = address.partition("://")[2].partition("/")
    prefix = prefix.rstrip("/")
    if not _BUCKET.fullmatch(bucket):
        raise RequestError(f"{format_value(address, 200)} names no bucket; expected {_EXPECTED}.")
    try:
        return bucket, check_path(prefix, "") if prefix else ""
    except InvalidRepository:
        raise RequestError(
            f"{format_value(address, 200)} has a prefix that no mirror can have: a part of it is empty, a dot or not "
            "printable."
        ) from None


def _check_no_secret(address: str) -> None:
    shown = without_password(address).partition("?")[0].partition("#")[0]
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
    from urllib.request import url2pathname  # it imports much

    return Path(url2pathname(parts.path)).absolute()
