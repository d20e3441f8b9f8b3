"""Files in Xet as streams of bytes, so that this package writes them and limits their size.

Xet's own download writes files itself; newer releases of hf_xet have streams. On any error the Hub serves the same file
over HTTP.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from kernels.sources.http import BRIEF, Http
from kernels.sources.hub_responses import XET_TOKEN
from kernels.support.tasks import read_ahead

if TYPE_CHECKING:
    from kernels.models.snapshot import RepoFile, Snapshot

__all__ = ["in_xet", "token_path", "xet_stream"]

#: The schemes of a storage server: a Hub must not name a folder of this machine.
_SCHEMES = frozenset({"https", "http"})

#: Seconds without a byte before the file is requested over HTTP. hf_xet itself retries for several minutes.
_STALLED_SECONDS = 30.0

#: Pieces that are read and not written yet.
_PIECES = 8

_sessions: dict[int, Any] = {}


def in_xet(file: RepoFile) -> bool:
    """Whether a file can be read from Xet: it is stored there, and hf_xet is installed and not disabled.

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


def token_path(snapshot: Snapshot) -> str:
    """The path on a Hub of the token to read a snapshot's files from Xet.

    Args:
        snapshot: The snapshot.
    """
    return f"/api/kernels/{snapshot.repo_id}/xet-read-token/{quote(snapshot.commit, safe='')}"


def xet_stream(client: Http, snapshot: Snapshot, file: RepoFile, start: int) -> Generator[bytes, None, None]:
    """The bytes of a file in Xet from an offset on.

    Args:
        client: The Hub.
        snapshot: The snapshot that lists the file.
        file: The file.
        start: The first byte wanted.

    Raises:
        Exception: hf_xet's own errors, of no common type.
        ValueError: The Hub's URL of the storage server is not valid.
        TimeoutError: No byte for 30 s.
    """
    import hf_xet

    granted = client.json(token_path(snapshot), BRIEF, XET_TOKEN)
    scheme = urlsplit(granted.cas_url).scheme
    if scheme not in _SCHEMES or (scheme == "http" and client.endpoint.startswith("https:")):
        raise ValueError("the Hub names no valid URL of a Xet server")

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

    # hf_xet cannot be interrupted: its thread is left alone where no byte comes.
    with read_ahead(read, ahead=_PIECES, name="xet", seconds=_STALLED_SECONDS) as pieces:
        yield from pieces
