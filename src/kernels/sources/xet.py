"""Files in Xet, as a stream of bytes: where they go, and how many are taken, is decided here.

Xet's own download writes files itself. Its streams, which newer releases of hf_xet have, leave the writing to us.
Whatever goes wrong with them, the Hub gives the same file over plain HTTP.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Generator, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from kernels.sources.hub_client import BRIEF, HubClient
from kernels.sources.hub_responses import XET_TOKEN
from kernels.support.concurrency import check_cancelled

if TYPE_CHECKING:
    from kernels.models.snapshot import RepoFile, Snapshot

__all__ = ["in_xet", "xet_stream"]

#: Where a storage server may be: a Hub must not name a folder of this machine.
_SCHEMES = frozenset({"https", "http"})

#: Without a byte for so long, the file is asked for over HTTP. hf_xet itself goes on trying for several minutes.
_STALLED_SECONDS = 30.0

#: Pieces that were read and not yet written.
_PIECES = 8

_sessions: dict[int, Any] = {}


def in_xet(file: RepoFile) -> bool:
    """Whether a file can be read from Xet here: it is listed there, and hf_xet is installed and not disabled.

    Args:
        file: A listed file.
    """
    if not file.xet_hash:
        return False
    try:
        import hf_xet
        from huggingface_hub import constants
    except ImportError:
        return False
    return hasattr(hf_xet, "XetDownloadStreamGroup") and not constants.HF_HUB_DISABLE_XET


def xet_stream(client: HubClient, snapshot: Snapshot, file: RepoFile, start: int) -> Generator[bytes, None, None]:
    """The bytes of a file from an offset on, as Xet gives them.

    Args:
        client: The Hub.
        snapshot: The snapshot that lists the file.
        file: The file.
        start: The first byte wanted.

    Raises:
        Exception: hf_xet's own errors, of no common type.
        ValueError: The Hub names a storage server at an address that is not one.
        TimeoutError: Nothing comes for 30 s.
    """
    import hf_xet

    asked = f"/api/{snapshot.repo_type}s/{snapshot.repo_id}/xet-read-token/{quote(snapshot.commit, safe='')}"
    granted = client.json(asked, BRIEF, XET_TOKEN)
    scheme = urlsplit(granted.cas_url).scheme
    if scheme not in _SCHEMES or (scheme == "http" and client.endpoint.startswith("https:")):
        raise ValueError("the Hub names no address of a Xet server")

    def read() -> Iterable[bytes]:
        # The runtime's threads do not survive a fork.
        session = _sessions.setdefault(os.getpid(), None) or hf_xet.XetSession()
        _sessions[os.getpid()] = session
        group = session.new_download_stream_group(
            endpoint=granted.cas_url,
            token=granted.access_token,
            token_expiry_unix_secs=min(granted.exp, int(time.time()) + 24 * 3600),
        )
        stream: Iterable[bytes] = group.download_stream(
            hf_xet.XetFileInfo(file.xet_hash, file.size), start=start or None
        )
        return stream

    yield from _unless_stalled(read)


def _unless_stalled(read: Any) -> Generator[bytes, None, None]:
    """What is read in a thread of its own, which is left behind when nothing comes of it."""
    pieces: queue.Queue[bytes | Exception | None] = queue.Queue(_PIECES)
    left = threading.Event()

    def put(piece: bytes | Exception | None) -> None:
        while not left.is_set():
            with suppress(queue.Full):
                pieces.put(piece, timeout=0.5)
                return

    def work() -> None:
        try:
            for piece in read():
                put(piece)
                if left.is_set():
                    return
            put(None)
        except Exception as error:  # noqa: BLE001 - it is raised in the thread that waits
            put(error)

    threading.Thread(target=work, name="kernels-xet", daemon=True).start()
    last = time.monotonic()
    try:
        while True:
            check_cancelled()
            try:
                piece = pieces.get(timeout=0.2)
            except queue.Empty:
                if time.monotonic() - last > _STALLED_SECONDS:
                    raise TimeoutError("nothing came from Xet") from None
                continue
            last = time.monotonic()
            if isinstance(piece, Exception):
                raise piece
            if piece is None:
                return
            yield piece
    finally:
        left.set()
