"""Download the files of a snapshot into the cache, in parallel.

Every file is requested directly: the listing has its size and hash, so no request for headers comes first, and no
answer decides where a file is written. Small files are checked in memory. Large ones are written under the listed hash
while they arrive, from Xet where they are stored there, and an interrupted download is continued.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import quote

from kernels.cache.partial_file import PartialFile
from kernels.errors import HubUnavailable, StoreError
from kernels.sources.http_client import Patience
from kernels.sources.hub_client import HubClient
from kernels.sources.hub_errors import HubMoved, HubRefused, of_hub
from kernels.sources.progress import downloading, report
from kernels.sources.xet import in_xet, xet_stream
from kernels.support.concurrency import Cancelled, check_cancelled, side_by_side
from kernels.support.logs import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernels.cache.repo_store import RepoStore
    from kernels.models.snapshot import RepoFile, Snapshot

__all__ = ["download", "resolve_path"]

#: Up to this size a file is checked in memory; huggingface_hub itself counts larger ones as large (10 MB).
DIRECT_BYTES = 10_000_000

#: Parallel requests; huggingface_hub's own snapshot download uses 8, and these are smaller.
WORKERS = 16

#: How often a large file is downloaded from the start if its content is not as listed.
LARGE_TRIES = 4

#: A try that downloaded this much of a large file does not count.
_ADVANCE = 1024 * 1024

_log = logger(__name__)


def download(client: HubClient, store: RepoStore, snapshot: Snapshot, files: list[RepoFile]) -> None:
    """Download files of a snapshot into the cache, each checked against its listed size and hash.

    Raises:
        HubUnavailable: A file is not available, or was wrong at each try.
        StoreError: The cache cannot be written.
    """
    if not files:
        return
    with downloading(snapshot.repo_id, sum(file.size for file in files)):
        side_by_side(
            lambda file: _one(client, store, snapshot, file),
            files,
            at_once=WORKERS,
            name="download",
        )


def resolve_path(snapshot: Snapshot, file: RepoFile) -> str:
    """The path of a file of a snapshot on a Hub."""
    prefix = "" if snapshot.repo_type == "model" else f"/{snapshot.repo_type}s"
    return f"{prefix}/{snapshot.repo_id}/resolve/{snapshot.commit}/{quote(file.path)}"


def _one(client: HubClient, store: RepoStore, snapshot: Snapshot, file: RepoFile) -> None:
    left = file.size

    def arrived(size: int) -> None:
        """Count each byte once, also if it is downloaded again."""
        nonlocal left
        size = min(size, left)
        left -= size
        report(0, size)

    try:
        if file.size > DIRECT_BYTES:
            _large(client, store, snapshot, file, arrived)
        else:
            content = client.content(resolve_path(snapshot, file), file, Patience(), arrived)
            store.place(snapshot.commit, file, content)
    except (HubRefused, HubMoved) as error:
        gone = HubUnavailable(f"{snapshot.repo_id}: {file.path} is listed but not available: {error}")
        refusal = error if isinstance(error, HubRefused) else None
        missing = refusal is not None and refusal.code == "EntryNotFound"
        raise of_hub(gone, "RemoteEntryNotFoundError" if missing else "HfHubHTTPError", refusal) from error
    report(1, left)


def _large(
    client: HubClient, store: RepoStore, snapshot: Snapshot, file: RepoFile, arrived: Callable[[int], None]
) -> None:
    with store.part(file, arrived) as part:
        try:
            for _ in range(LARGE_TRIES):
                if in_xet(file):
                    _from_xet(client, snapshot, part)
                if not part.complete:
                    _from_hub(client, snapshot, part)
                if part.as_listed:
                    store.keep(snapshot.commit, part)
                    return
                part.restart()
        except StoreError:  # perhaps a full disk: keep nothing
            part.remove()
            raise
        part.remove()
    raise HubUnavailable(
        f"{snapshot.repo_id}: {file.path} could not be downloaded in {LARGE_TRIES} tries: each time the content was "
        f"not as {client.endpoint} lists it."
    )


def _from_hub(client: HubClient, snapshot: Snapshot, part: PartialFile) -> None:
    """Download the rest of a file over HTTP, for as long as each try adds to it."""
    while True:
        before = part.offset
        try:
            client.receive(resolve_path(snapshot, part.file), part, snapshot.commit, Patience())
            return
        except HubRefused as error:
            if error.status != 416 or not before:  # "Range Not Satisfiable": the partial file is of another file
                raise
            part.restart()
        except HubUnavailable:
            if part.offset - before < _ADVANCE:
                raise


def _from_xet(client: HubClient, snapshot: Snapshot, part: PartialFile) -> None:
    """Download the rest of a file from Xet; on any error, the Hub's HTTP download continues."""
    try:
        with closing(xet_stream(client, snapshot, part.file, part.offset)) as stream:
            for chunk in stream:
                check_cancelled()
                if not part.append(chunk):
                    part.restart()
                    return
        if part.complete and not part.as_listed:
            part.restart()
    except (StoreError, Cancelled):
        raise
    except Exception as error:  # noqa: BLE001 - hf_xet's errors have no common type
        _log.debug("%s: Xet did not give %s (%s)", snapshot.repo_id, part.file.path, type(error).__name__)
