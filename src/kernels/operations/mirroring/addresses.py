"""The store of a mirror that is read, by its address: also one behind a web server, which nobody can write."""

from __future__ import annotations

from kernels.mirror.stores.base import ReadStore, WriteStore
from kernels.mirror.stores.opening import open_store
from kernels.support.env_values import is_url, url_in

__all__ = ["open_mirror"]


def open_mirror(address: str) -> tuple[ReadStore, WriteStore | None]:
    """The store of a mirror, of which nothing is read yet; and the same if it can be listed and written.

    Args:
        address: As `open_store` takes it, or `https://…` of a web server.

    Raises:
        RequestError: It is another address, or has a password.
        MissingPythonDependency: The store needs a package that is not installed.

    Example:
        >>> open_mirror("file:///srv/mirror")[0].url
        'file:///srv/mirror'
    """
    if not is_url(address):
        store = open_store(address)
        return store, store
    from kernels.sources.http import Http
    from kernels.sources.http_store import HttpStore

    url = url_in("URL", address, "the URL of a mirror", token="KERNELS_HUB_TOKEN")
    return HttpStore(Http(url, list)), None
