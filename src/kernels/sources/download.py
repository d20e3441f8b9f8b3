"""Files of a snapshot into the cache, side by side.

Every file is asked for directly: its size and hash are in the listing, so nothing needs to be asked about it first,
and nothing that an answer says of itself decides where it is written. Small files are checked in memory. Large ones
are written under the hash that was listed as they arrive, from Xet where they are kept there, and a download that broke
off is gone on with.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kernels import settings
from kernels.cache.partial_file import PartialFile
from kernels.errors import HubUnavailable, StoreError
from kernels.sources.hub_client import HubClient, Patience
from kernels.sources.progress import watcher
from kernels.sources.refusal import HubMoved, HubRefused
from kernels.sources.xet import in_xet, xet_stream
from kernels.support.concurrency import Cancelled, check_cancelled, side_by_side
from kernels.support.logs import logger

if TYPE_CHECKING:
    from kernels.cache.repository import RepoStore
    from kernels.models.snapshot import RepoFile, Snapshot

__all__ = ["download", "resolve_path"]

#: Up to this size a file is asked for directly: huggingface_hub itself counts larger ones as large (10 MB).
DIRECT_BYTES = 10_000_000

#: Requests under way at once; huggingface_hub's own snapshot download uses 8, and these are smaller.
WORKERS = 16

#: How often a large file is begun anew whose content is not the one listed.
LARGE_TRIES = 4

#: A try that brought as much of a large file costs none of the tries.
_ADVANCE = 1024 * 1024

_log = logger(__name__)


def download(client: HubClient, store: RepoStore, snapshot: Snapshot, files: list[RepoFile]) -> None:
    """Bring files of a snapshot into the cache, each checked against its listed size and hash.

    Raises:
        HubUnavailable: A file could not be had, or was wrong each time it was sent.
        StoreError: The cache cannot be written.
    """
    if not files:
        return
    bar = _progress(snapshot, len(files))
    try:
        side_by_side(
            lambda file: _one(client, store, snapshot, file),
            files,
            at_once=WORKERS,
            name="download",
            done=lambda: bar.update(1),
        )
    finally:
        bar.close()


def resolve_path(snapshot: Snapshot, file: RepoFile) -> str:
    """The path on a Hub under which a file of a snapshot can be had."""
    prefix = "" if snapshot.repo_type == "model" else f"/{snapshot.repo_type}s"
    return f"{prefix}/{snapshot.repo_id}/resolve/{snapshot.commit}/{quote(file.path)}"


def _one(client: HubClient, store: RepoStore, snapshot: Snapshot, file: RepoFile) -> None:
    try:
        if file.size > DIRECT_BYTES:
            _large(client, store, snapshot, file)
        else:
            content = client.content(resolve_path(snapshot, file), file, Patience())
            store.place(snapshot.commit, file, content)
            _tell(0, file.size)
    except (HubRefused, HubMoved) as error:
        raise HubUnavailable(f"{snapshot.repo_id}: {file.path} is listed but cannot be had: {error}") from error
    _tell(1, 0)


def _large(client: HubClient, store: RepoStore, snapshot: Snapshot, file: RepoFile) -> None:
    with store.part(file, lambda size: _tell(0, size)) as part:
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
        except StoreError:  # a full disk, perhaps: leave nothing on it
            part.remove()
            raise
        part.remove()
    raise HubUnavailable(
        f"{snapshot.repo_id}: {file.path} could not be had in {LARGE_TRIES} tries; each time it was not the file that "
        f"{client.endpoint} lists."
    )


def _from_hub(client: HubClient, snapshot: Snapshot, part: PartialFile) -> None:
    """The rest of a file over HTTP, going on for as long as each try brings more of it."""
    while True:
        before = part.offset
        try:
            client.receive(resolve_path(snapshot, part.file), part, snapshot.commit, Patience())
            return
        except HubRefused as error:
            if error.status != 416 or not before:  # "Range Not Satisfiable": what is here is of another file
                raise
            part.restart()
        except HubUnavailable:
            if part.offset - before < _ADVANCE:
                raise


def _from_xet(client: HubClient, snapshot: Snapshot, part: PartialFile) -> None:
    """What Xet gives of the rest of a file: all of it, or nothing that the Hub does not give as well."""
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


def _tell(files: int, size: int) -> None:
    arrived = watcher()
    if arrived is not None:
        arrived(files, size)


def _progress(snapshot: Snapshot, total: int) -> Any:
    from huggingface_hub import utils

    bar: Any = utils.tqdm
    # `disable=None` shows nothing where standard error is not a terminal.
    hidden = True if watcher() is not None else settings.progress_disabled() or None
    return bar(total=total, desc=f"Fetching {snapshot.repo_id}", unit="file", disable=hidden)
