"""A Hub over a folder: the Hub's REST API, served from kernel repositories on disk.

    from kernels.server import HubServer

    with HubServer("repositories", trusted={"acme"}) as hub:
        print(hub.url)  # HF_ENDPOINT or KERNELS_HUB for any client

It is read-only, unless clients with a token may write (`HubServer(…, token=…, writable=True)`).
It needs the packages of the extra `serve`.
"""

from __future__ import annotations

from kernels.errors import MissingPythonDependency

try:
    import markdown_it as _markdown_it  # noqa: F401
    import starlette as _starlette  # noqa: F401
    import uvicorn as _uvicorn  # noqa: F401
except ImportError as error:
    _package = "markdown-it-py" if error.name == "markdown_it" else error.name
    raise MissingPythonDependency(
        f"Serving a Hub needs the Python package {_package}, which is not installed: "
        "pip install jinja2 markdown-it-py starlette uvicorn (extra `serve`)"
    ) from None

from kernels.server.app import create_app
from kernels.server.catalog import Catalog, Publisher
from kernels.server.connections import ConnectionLimits
from kernels.server.server import HubServer
from kernels.server.snapshot import Commit, File, Folder

__all__ = ["Catalog", "Commit", "ConnectionLimits", "File", "Folder", "HubServer", "Publisher", "create_app"]
