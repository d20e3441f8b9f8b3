"""Files in Xet as streams of bytes, so that this package writes them and limits their size.

Xet's own download writes files itself; newer releases of hf_xet have streams. On any error the Hub serves the same file
over HTTP.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from kernels.errors import HubUnavailable
from kernels.sources.http import BRIEF, Http
from kernels.sources.hub_errors import HubRefused, Moved
from kernels.sources.hub_responses import XET_GRANT, XetGrant
from kernels.support.logs import logger
from kernels.support.tasks import read_ahead

if TYPE_CHECKING:
    from kernels.models.snapshot import RepoFile, Snapshot

__all__ = ["XetGrant", "in_xet", "xet_grant", "xet_stream"]

#: The schemes of a storage server: a Hub must not name a folder of this machine.
_SCHEMES = frozenset({"https", "http"})

#: Seconds without a byte before the file is requested over HTTP. hf_xet itself retries for several minutes.
_STALLED_SECONDS = 30.0

#: Pieces that are read and not written yet.
_PIECES = 8

_log = logger(__name__)


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


def xet_grant(client: Http, snapshot: Snapshot) -> XetGrant | None:
    """What is needed to read a snapshot's files from Xet; None where the Hub gives nothing that can be used.

    Args:
        client: The Hub.
        snapshot: The snapshot.
    """
    path = f"/api/kernels/{snapshot.repo_id}/xet-read-token/{quote(snapshot.commit, safe='')}"
    try:
        granted = client.json(path, BRIEF, XET_GRANT)
        scheme = urlsplit(granted.cas_url).scheme
    except (HubUnavailable, HubRefused, Moved, ValueError) as error:
        _log.debug("%s: Xet cannot be asked (%s)", snapshot.repo_id, type(error).__name__)
        return None
    return granted if scheme in _SCHEMES and (scheme, client.endpoint[:6]) != ("http", "https:") else None


def xet_stream(granted: XetGrant, file: RepoFile, start: int) -> Generator[bytes, None, None]:
    """The bytes of a file in Xet from an offset on.

    Args:
        granted: What a Hub gave for the snapshot that lists the file.
        file: The file.
        start: The first byte wanted.

    Raises:
        Exception: hf_xet's own errors, of no common type.
        TimeoutError: No byte for 30 s.
    """
    import hf_xet

    def read() -> Iterable[bytes]:
        group = _session(os.getpid()).new_download_stream_group(
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


@cache
def _session(process: int) -> Any:
    """The session of a process: its threads do not survive a fork."""
    import hf_xet

    return hf_xet.XetSession()
