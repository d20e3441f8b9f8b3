"""A Hub over a folder: the Hub's REST API, served from kernel repositories on disk.

    from kernels.server import HubServer

    with HubServer("repositories", trusted={"acme"}) as hub:
        print(hub.url)  # HF_ENDPOINT or KERNELS_HUB for any client

It is read-only, unless clients with a token may write (`HubServer(…, token=…, writable=True)`).
It needs the extra `serve` (starlette and uvicorn).
"""

from __future__ import annotations

from kernels.errors import MissingPythonDependency

try:
    import starlette as _starlette  # noqa: F401
    import uvicorn as _uvicorn  # noqa: F401
except ImportError as error:
    raise MissingPythonDependency(
        f"Serving a Hub needs the Python package {error.name}, which is not installed: "
        "pip install starlette uvicorn (extra `serve`)"
    ) from None

from kernels.server.app import create_app
from kernels.server.catalog import Catalog, Publisher
from kernels.server.connections import ConnectionLimits
from kernels.server.server import HubServer
from kernels.server.snapshot import Commit, File, Folder

__all__ = ["Catalog", "Commit", "ConnectionLimits", "File", "Folder", "HubServer", "Publisher", "create_app"]
