"""`kernels serve`: a Hub over a folder of kernel repositories."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from types import FrameType

    from kernels.server.catalog import Catalog

__all__ = ["serve"]

_GRACE_SECONDS = 5


def serve(
    root: Annotated[Path, typer.Argument(metavar="ROOT", help="Folder of repositories: ROOT/<org>/<name>/<version>/…")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8910,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    trusted: Annotated[
        list[str] | None, typer.Option(metavar="ORG", help="Publisher to mark as trusted; may be given again.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(metavar="REPO", help="Repository of type `model`; may be given again.")
    ] = None,
    writable: Annotated[bool, typer.Option("--writable", help="Let those who send the token write.")] = False,
    token: Annotated[
        str | None,
        typer.Option(metavar="TOKEN", help="What they send, also to see private repositories; else KERNELS_HUB_TOKEN."),
    ] = None,
    public_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where clients reach it, if not at that address: behind a proxy, say."),
    ] = None,
) -> None:
    """Serve a folder of kernel repositories as a Hub, until interrupted."""
    from kernels import settings
    from kernels.cli._output import say
    from kernels.errors import RequestError
    from kernels.server import HubServer

    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.set()

    if token is None:
        token = settings.hub_token()
    if writable and token is None:
        raise RequestError("--writable needs a token that writers send: give --token, or set KERNELS_HUB_TOKEN.")
    if writable and root.parent.is_dir():
        root.mkdir(exist_ok=True)  # the first that is published comes to an empty folder
    server = HubServer(
        root,
        trusted=frozenset(trusted or ()),
        models=frozenset(model or ()),
        host=host,
        port=port,
        token=token,
        writable=writable,
        public_url=public_url,
    )
    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        server.start()
        say(f"Serving {server.catalog.root} at {server.url}")
        url = server.public_url or server.url
        say(f"  kernels only:                    KERNELS_HUB={url}")
        say(f"  every huggingface_hub client:    HF_ENDPOINT={url}")
        if writable:
            say(f"  to publish, with the token:      KERNELS_HUB={url} KERNELS_HUB_TOKEN=… kernels upload DIR")
        say(_offered(server.catalog, writable))
        say("Interrupt (Ctrl-C) to stop.")
        stopped.wait()
        say("Stopped.")
    finally:
        server.stop(grace=_GRACE_SECONDS)
        for number, handler in previous.items():
            signal.signal(number, handler)


def _offered(catalog: Catalog, writable: bool) -> str:
    """How many repositories there are: a folder of another layout would be served, and nothing found in it."""
    found = len(catalog.with_builds())
    if found:
        return f"  repositories with builds:        {found}"
    if (catalog.root / "build.toml").is_file():
        return (
            "  repositories with builds:        none; this is a kernel's own folder, which `kernels upload` publishes"
        )
    where = "" if writable else "; one is ROOT/<org>/<name>/<version>/build/<variant>"
    return f"  repositories with builds:        none{' yet' * writable}{where}"
