"""Download the files of a snapshot into the cache, in parallel.

Every file is requested directly: the listing has its size and hash, so no request for headers comes first, and no
answer decides where a file is written. Small files are checked in memory. Large ones are written under the listed hash
while they arrive, from Xet where they are stored there, and an interrupted download is continued.
"""

from __future__ import annotations

import threading
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from kernels.errors import HubUnavailable, StoreError
from kernels.sources.http import SLOWEST, Http, Patience, download_timeout, unpacked
from kernels.sources.hub_errors import HubRefused, Moved, of_hub
from kernels.sources.progress import downloading, report
from kernels.sources.response import WrongAnswer, begins_at, chunks
from kernels.sources.wire import EarlyRequest, api_timeout, packed
from kernels.sources.xet import in_xet, token_path, xet_stream
from kernels.support.forks import after_fork
from kernels.support.formatting import format_value
from kernels.support.logs import logger
from kernels.support.tasks import Cancelled, check_cancelled, side_by_side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kernels.cache.repo_store import RepoStore
    from kernels.cache.writing import Part, SnapshotWriter
    from kernels.models.snapshot import RepoFile, Snapshot

__all__ = ["download", "first_request_of", "is_small", "resolve_path", "small_content"]

#: Up to this size a file is checked in memory: 32 at once, each with its parts and as a whole, take 32 MiB.
IN_MEMORY = 512 * 1024

#: A larger file is read from Xet where it is stored there; huggingface_hub too counts it as large (10 MB).
DIRECT_BYTES = 10_000_000

#: Parallel requests. 63 files take two round trips with 32, four with 16 and one with 64, and each connection costs a
#: TLS handshake, here and at the Hub. huggingface_hub's session keeps 100 at most.
WORKERS = 32

#: Parallel requests of all downloads of this process together: huggingface_hub's session has 100 connections, and other
#: requests need some.
TOGETHER = 64

#: How often a large file is downloaded from the start if its content is not as listed.
LARGE_TRIES = 4

#: A try that downloaded this much of a large file does not count.
_ADVANCE = 1024 * 1024

_log = logger(__name__)


def download(client: Http, store: RepoStore, snapshot: Snapshot, files: list[RepoFile]) -> None:
    """Download files of a snapshot into the cache, each checked against its listed size and hash.

    Raises:
        HubUnavailable: A file is not available, or was wrong at each try.
        StoreError: The cache cannot be written.
    """
    if not files:
        return
    contents: dict[str, list[RepoFile]] = {}
    for file in files:  # those with one content, such as empty modules, are downloaded once
        contents.setdefault(file.blob or file.path, []).append(file)
    writer = store.writer(snapshot.commit)
    with downloading(snapshot.repo_id, sum(file.size for file in files), len(files)):
        side_by_side(
            lambda same: _one(client, snapshot, writer, same),
            contents.values(),
            at_once=WORKERS,
            name="download",
        )


def resolve_path(snapshot: Snapshot, file: RepoFile) -> str:
    """The path of a file of a snapshot on a Hub."""
    return f"/kernels/{snapshot.repo_id}/resolve/{snapshot.commit}/{quote(file.path)}"


def _one(client: Http, snapshot: Snapshot, writer: SnapshotWriter, same: list[RepoFile]) -> None:
    file = same[0]

    def arrived(size: int) -> None:
        report(0, size)

    if is_small(file):
        writer.put(small_content(client, snapshot, file, arrived), *same)
    else:
        with _turn(), _listed_but_refused(snapshot, file):
            _large(client, snapshot, writer, same, arrived)
    report(len(same), sum(other.size for other in same[1:]))


def is_small(file: RepoFile) -> bool:
    """Whether a file is checked in memory, and not written before."""
    return file.size <= IN_MEMORY


def first_request_of(client: Http, snapshot: Snapshot, file: RepoFile) -> EarlyRequest:
    """The request that a download of a file begins with where nothing of it is here.

    Args:
        client: The Hub.
        snapshot: The snapshot.
        file: The file.
    """
    if _is_in_xet(file):
        return client.early(token_path(snapshot), packed(), api_timeout())
    return client.early(resolve_path(snapshot, file), unpacked(), download_timeout())


def small_content(
    client: Http, snapshot: Snapshot, file: RepoFile, arrived: Callable[[int], None] = lambda size: None
) -> bytes:
    """The content of a small file, checked against its listed size and hash.

    Args:
        client: The Hub.
        snapshot: The snapshot.
        file: The file.
        arrived: Called with the number of bytes after each part, of every try.

    Raises:
        HubUnavailable: It is not available, or was wrong at each try.
    """
    with _turn(), _listed_but_refused(snapshot, file):
        return client.content(resolve_path(snapshot, file), file, Patience(), arrived)


@contextmanager
def _listed_but_refused(snapshot: Snapshot, file: RepoFile) -> Iterator[None]:
    try:
        yield
    except (HubRefused, Moved) as error:
        gone = HubUnavailable(f"{snapshot.repo_id}: {file.path} is listed but not available: {error}")
        refusal = error if isinstance(error, HubRefused) else None
        gone = of_hub(gone, refusal)
        gone.refused = refusal is not None and refusal.access_refused
        raise gone from error


_turns = threading.Semaphore(TOGETHER)


@after_fork
def _renew() -> None:
    # Threads of the parent had turns, and a fork has none of them.
    global _turns
    _turns = threading.Semaphore(TOGETHER)


@contextmanager
def _turn() -> Iterator[None]:
    """Wait until fewer files are downloaded in this process than may be at once."""
    turns = _turns
    while not turns.acquire(timeout=0.2):
        check_cancelled()
    try:
        yield
    finally:
        turns.release()


def _large(
    client: Http, snapshot: Snapshot, writer: SnapshotWriter, same: list[RepoFile], arrived: Callable[[int], None]
) -> None:
    file = same[0]
    with writer.part(file, arrived) as part:
        try:
            for _ in range(LARGE_TRIES):
                if _is_in_xet(file):
                    _from_xet(client, snapshot, part)
                if not part.complete:
                    _from_hub(client, snapshot, part)
                if part.as_listed:
                    writer.keep(part, *same)
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


def _is_in_xet(file: RepoFile) -> bool:
    """Whether a file is read from Xet."""
    return file.size > DIRECT_BYTES and in_xet(file)


def _from_hub(client: Http, snapshot: Snapshot, part: Part) -> None:
    """Download the rest of a file over HTTP, for as long as each try adds to it."""
    while True:
        before = part.offset
        try:
            _receive(client, resolve_path(snapshot, part.file), part, snapshot.commit)
            return
        except HubRefused as error:
            if error.status != 416 or not before:  # "Range Not Satisfiable": the partial file is of another file
                raise
            part.restart()
        except HubUnavailable:
            if part.offset - before < _ADVANCE:
                raise


def _receive(client: Http, path: str, part: Part, commit: str) -> None:
    """Append the rest of a large file to its downloaded part; the caller compares the hash.

    If the Hub does not support ranges, the file is downloaded from the start.
    """
    file = part.file

    def rest() -> dict[str, str]:
        return unpacked() | ({"Range": f"bytes={part.offset}-"} if part.offset else {})

    def append(response: Any, seconds: float) -> None:
        if response.status_code != 206:
            part.restart()
        elif not begins_at(response, part.offset):
            part.restart()
            raise WrongAnswer("with another part of the file than the requested one")
        left = file.size - part.offset
        for chunk in chunks(response, left, seconds + left / SLOWEST):
            if not part.append(chunk):
                part.restart()
                raise WrongAnswer(f"more than the {file.size} bytes listed")
        if not part.complete:
            raise WrongAnswer(f"{part.offset} of the {file.size} bytes listed")

    def check(response: Any) -> None:
        _check_identity(client.endpoint, response, file, commit)

    url = f"{client.endpoint}{path}"
    with client.get(url, Patience(), append, download_timeout(), any_host=True, headers=rest, check=check):
        pass


def _check_identity(endpoint: str, response: Any, file: RepoFile, commit: str) -> None:
    """Refuse a file before its content is read if the Hub's own headers say that it is another one.

    The ETag of a CDN is not compared: it is not the Hub's.

    Raises:
        HubUnavailable: It is another one.
    """
    if urlsplit(str(response.url))[:2] != urlsplit(endpoint)[:2]:
        return
    headers = response.headers
    etag = headers.get("X-Linked-ETag") or ("" if response.is_redirect else headers.get("ETag", ""))
    found = {
        "ETag": (etag.removeprefix("W/").strip('"'), {file.blob, file.oid} - {""}),
        "X-Linked-Size": (headers.get("X-Linked-Size", ""), {str(file.size)}),
        "X-Repo-Commit": (headers.get("X-Repo-Commit", ""), {commit}),
    }
    for name, (said, expected) in found.items():
        if said and expected and said not in expected:
            raise HubUnavailable(
                f"{endpoint} answers with another file than it lists as {format_value(file.path, 200)}: {name} is "
                f"{format_value(said)}, expected {' or '.join(sorted(expected))}. Nothing was kept. Try again, "
                "or use another Hub or mirror."
            )


def _from_xet(client: Http, snapshot: Snapshot, part: Part) -> None:
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
