"""`kernels serve`: serve a folder of kernel repositories as a Hub."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernels.cli._output import print_line
from kernels.errors import RequestError
from kernels.support.formatting import did_you_mean, format_names, shell_word

if TYPE_CHECKING:
    from types import FrameType

    from kernels.server import HubServer
    from kernels.server.catalog import Catalog

__all__ = ["serve"]

_GRACE_SECONDS = 5

#: The most folders with a wrong name that are listed.
_MAX_LEFT_OUT = 10


def serve(
    root: Annotated[Path, typer.Argument(metavar="ROOT", help="Folder of repositories: ROOT/<org>/<name>/<version>/…")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for a free one.")] = 8910,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    trusted: Annotated[
        list[str] | None, typer.Option(metavar="ORG", help="Mark this publisher as trusted; may be repeated.")
    ] = None,
    writable: Annotated[bool, typer.Option("--writable", help="Allow writes by clients that send the token.")] = False,
    public_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="URL for clients, if it differs from that address: for example behind a proxy."
        ),
    ] = None,
) -> None:
    """Serve a folder of kernel repositories as a Hub, until interrupted.

    A changed file is a new commit. Everyone who can connect to the port can read what is served; without --writable
    nobody can change it. KERNELS_HUB_TOKEN is the token for writes and private repositories. Needs the extra `serve`.

    Examples:
        $ kernels serve build/examples --trusted kernels-examples
        $ kernels serve hub --writable --host 0.0.0.0 --public-url https://hub.example.org/kernels
    """
    from kernels import settings
    from kernels.models import MIRROR_FILE
    from kernels.server import HubServer

    if (root / MIRROR_FILE).is_file():
        raise RequestError(
            f"{root} is a mirror, which any web server can serve: python -m http.server --directory "
            f"{shell_word(root)} {port}. Clients set KERNELS_HUB to its URL."
        )
    token = settings.hub_token()
    if writable and token is None:
        raise RequestError("--writable needs a token: set KERNELS_HUB_TOKEN.")
    if writable and root.parent.is_dir():
        root.mkdir(exist_ok=True)
    server = HubServer(
        root,
        trusted=frozenset(trusted or ()),
        host=host,
        port=port,
        token=token,
        writable=writable,
        public_url=public_url,
    )
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.set()

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        server.start()
        print_line(f"Serving {server.catalog.root} at {server.reachable_url}")
        url = server.public_url or server.reachable_url
        print_line(f"  kernels only:                    KERNELS_HUB={url}")
        print_line(f"  every huggingface_hub client:    HF_ENDPOINT={url}")
        if writable:
            print_line(f"  to publish, with the token:      KERNELS_HUB={url} KERNELS_HUB_TOKEN=… kernels upload DIR")
        print_line(f"  repositories with builds:        {_count_repositories(server.catalog, writable)}")
        for note in _notes(server, trusted or (), private=token is not None, writable=writable):
            print_line(f"Note: {note}")
        print_line("Press Ctrl-C to stop.")
        stopped.wait()
        print_line("Stopped.")
    finally:
        server.stop(grace=_GRACE_SECONDS)
        for number, handler in previous.items():
            signal.signal(number, handler)


def _notes(server: HubServer, trusted: Sequence[str], *, private: bool, writable: bool) -> Iterator[str]:
    """What is probably not meant."""
    if not server.is_local:
        token = "Private repositories and writes need the token." if private else "Nothing needs a token."
        yield f"every machine that reaches {server.reachable_url} can read the repositories. {token}"
    absent = [name for name in dict.fromkeys(trusted) if server.catalog.publisher(name) is None]
    for name in absent:
        near = did_you_mean(name, server.catalog.publishers())
        yield f"--trusted {name}: there is no such publisher{' yet' if writable else ''}.{near}"
    left_out = server.catalog.left_out()
    if left_out:
        listed = format_names(map(repr, left_out), limit=_MAX_LEFT_OUT)
        yield f"not served, because no publisher, repository or branch can have this name: {listed}"


def _count_repositories(catalog: Catalog, writable: bool) -> str:
    """The number of repositories with builds, or a hint when there are none: ROOT may have another layout."""
    if found := len(catalog.with_builds()):
        return str(found)
    if (catalog.root / "build.toml").is_file():
        return "none; this is the folder of a single kernel, which `kernels upload` publishes"
    return "none yet" if writable else "none; the layout is ROOT/<org>/<name>/<version>/build/<variant>"
