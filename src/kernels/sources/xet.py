"""Files in Xet, as a stream of bytes: where they go, and how many are taken, is decided here.

Xet's own download writes files itself. Its streams, which hf_xet has since 1.3, leave the writing to us. Whatever
goes wrong with them, the Hub gives the same file over plain HTTP.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from kernels.sources.answers import XET_TOKEN
from kernels.sources.http import BRIEF, HubClient

if TYPE_CHECKING:
    from kernels.release import Release, RepoFile

__all__ = ["in_xet", "xet_stream"]

#: Where a storage server may be: a Hub must not name a file of this machine.
_SCHEMES = frozenset({"https", "http"})

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


def xet_stream(client: HubClient, release: Release, file: RepoFile, start: int) -> Generator[bytes, None, None]:
    """The bytes of a file from an offset on, as Xet gives them.

    Args:
        client: The Hub.
        release: The release that lists the file.
        file: The file.
        start: The first byte wanted.

    Raises:
        Exception: hf_xet's own errors, of no common type.
        ValueError: The Hub names a storage server at an address that is not one.
    """
    import hf_xet

    asked = f"/api/{release.repo_type}s/{release.repo_id}/xet-read-token/{quote(release.commit, safe='')}"
    granted = client.json(asked, BRIEF, XET_TOKEN)
    scheme = urlsplit(granted.cas_url).scheme
    if scheme not in _SCHEMES or (scheme == "http" and client.endpoint.startswith("https:")):
        raise ValueError("the Hub names no address of a Xet server")
    # The runtime's threads do not survive a fork.
    session = _sessions.setdefault(os.getpid(), None) or hf_xet.XetSession()
    _sessions[os.getpid()] = session
    group = session.new_download_stream_group(
        endpoint=granted.cas_url,
        token=granted.access_token,
        token_expiry_unix_secs=min(granted.exp, int(time.time()) + 24 * 3600),
    )
    stream = group.download_stream(hf_xet.XetFileInfo(file.xet_hash, file.size), start=start or None)
    try:
        yield from stream
    finally:
        stream.cancel()
