"""Download the files of a snapshot into the cache, in parallel.

Every file is requested directly: the listing has its size and hash, so no request for headers comes first, and no
answer decides where a file is written. Small files are checked in memory. Large ones are written under the listed hash
while they arrive, from Xet where they are stored there, and an interrupted download is continued.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from kernels.errors import HubUnavailable, StoreError
from kernels.sources.http import SLOWEST, Http, Patience, unpacked
from kernels.sources.hub_errors import HubRefused, Moved, of_hub
from kernels.sources.progress import downloading, report
from kernels.sources.response import WrongAnswer, begins_at, chunks
from kernels.sources.xet import XetGrant, in_xet, xet_grant, xet_stream
from kernels.support.forks import after_fork
from kernels.support.formatting import format_value
from kernels.support.logs import logger
from kernels.support.tasks import Cancelled, check_cancelled, side_by_side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from kernels.cache.store import RepoStore
    from kernels.cache.writing import Part, SnapshotWriter
    from kernels.models.snapshot import RepoFile, Snapshot

__all__ = ["IN_MEMORY", "Gate", "download", "resolve_path"]

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

#: The most seconds that files wait at the gate, and other processes for them, while dependencies are planned.
WAIT_SECONDS = 30.0

#: Seconds between looks at whether the work was cancelled.
_POLL_SECONDS = 0.2

_log = logger(__name__)


class Gate:
    """Where a download that began before its build was chosen waits, before anything is written.

    Args:
        closed: Called once if it is closed, or if nobody claims it in time.

    Example:
        >>> gate = Gate(lambda: print("closed"))
        >>> gate.close(), gate.claim()
        closed
        (None, False)
    """

    def __init__(self, closed: Callable[[], object]) -> None:
        self._closed = closed
        self._guard = threading.Lock()
        self._decided = threading.Event()
        self._is_claimed = self._is_open = False
        self._deadline = time.monotonic() + WAIT_SECONDS

    def claim(self) -> bool:
        """Keep the gate from being closed; False if it is closed."""
        with self._guard:
            self._is_claimed = not self._decided.is_set()
            return self._is_claimed

    def open(self) -> None:
        """Let the download go on. The gate was claimed."""
        self._is_open = True
        self._decided.set()

    def close(self) -> None:
        """End the download, unless the gate was claimed."""
        with self._guard:
            if self._is_claimed or self._decided.is_set():
                return
            self._decided.set()
        self._closed()

    def wait(self) -> None:
        """Wait until the gate is open.

        Raises:
            Cancelled: It was closed.
        """
        while not self._decided.wait(_POLL_SECONDS):
            check_cancelled()
            if time.monotonic() > self._deadline:
                self.close()
        if not self._is_open:
            raise Cancelled


def download(
    client: Http, store: RepoStore, snapshot: Snapshot, files: list[RepoFile], gate: Gate | None = None
) -> None:
    """Download files of a snapshot into the cache, each checked against its listed size and hash.

    Args:
        client: The Hub.
        store: The repository in the cache.
        snapshot: The snapshot.
        files: The files.
        gate: Waited for before anything is written. Then the cache must have no part of the large files.

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
            lambda same: _one(client, snapshot, writer, same, gate),
            contents.values(),
            at_once=WORKERS if gate is None else len(contents),
            name="download",
        )


def resolve_path(snapshot: Snapshot, file: RepoFile) -> str:
    """The path of a file of a snapshot on a Hub."""
    return f"/kernels/{snapshot.repo_id}/resolve/{snapshot.commit}/{quote(file.path)}"


def _one(client: Http, snapshot: Snapshot, writer: SnapshotWriter, same: list[RepoFile], gate: Gate | None) -> None:
    file = same[0]

    def arrived(size: int) -> None:
        report(0, size)

    if file.size <= IN_MEMORY:
        with _turn(), _listed_but_refused(snapshot, file):
            content = client.content(resolve_path(snapshot, file), file, arrived)
        if gate is not None:
            gate.wait()
        writer.put(content, *same)
    else:
        with _turn(), _listed_but_refused(snapshot, file):
            _large(client, snapshot, writer, same, arrived, gate)
    report(len(same), sum(other.size for other in same[1:]))


@contextmanager
def _listed_but_refused(snapshot: Snapshot, file: RepoFile) -> Iterator[None]:
    try:
        yield
    except (HubRefused, Moved) as error:
        gone = HubUnavailable(f"{snapshot.repo_id}: {file.path} is listed but not available: {error}")
        refusal = error if isinstance(error, HubRefused) else None
        gone = of_hub(gone, None if refusal is None else refusal.response)
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
    client: Http,
    snapshot: Snapshot,
    writer: SnapshotWriter,
    same: list[RepoFile],
    arrived: Callable[[int], None],
    gate: Gate | None,
) -> None:
    file = same[0]
    grant = xet_grant(client, snapshot) if file.size > DIRECT_BYTES and in_xet(file) else None
    with ExitStack() as opened:
        answer = None
        if gate is not None and grant is None:  # the headers of the first answer; its body is read past the gate
            _, answer = opened.enter_context(_get(client, snapshot, file, lambda response, seconds: None, unpacked))
        if gate is not None:
            gate.wait()
        part = opened.enter_context(writer.part(file, arrived))
        try:
            if answer is not None:
                with suppress(HubUnavailable), client.reading(resolve_path(snapshot, file)):
                    _append(answer, Patience().budget, part)  # what is missing then is requested again
            for _ in range(LARGE_TRIES):
                if grant is not None:
                    _from_xet(grant, snapshot, part)
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


def _from_hub(client: Http, snapshot: Snapshot, part: Part) -> None:
    """Download the rest of a file over HTTP, for as long as each try adds to it."""

    def rest() -> dict[str, str]:
        return unpacked() | ({"Range": f"bytes={part.offset}-"} if part.offset else {})

    while True:
        before = part.offset
        try:
            with _get(client, snapshot, part.file, lambda response, seconds: _append(response, seconds, part), rest):
                return
        except HubRefused as error:
            if error.status != 416 or not before:  # "Range Not Satisfiable": the partial file is of another file
                raise
            part.restart()
        except HubUnavailable:
            if part.offset - before < _ADVANCE:
                raise


def _get(
    client: Http,
    snapshot: Snapshot,
    file: RepoFile,
    read: Callable[[Any, float], None],
    headers: Callable[[], dict[str, str]],
) -> AbstractContextManager[tuple[None, Any]]:
    """Request a file, or a part of it, from the Hub."""

    def check(response: Any) -> None:
        _check_identity(client.endpoint, response, file, snapshot.commit)

    url = f"{client.endpoint}{resolve_path(snapshot, file)}"
    return client.get(url, Patience(), read, any_host=True, headers=headers, check=check)


def _append(response: Any, seconds: float, part: Part) -> None:
    """Append the rest of a large file to its downloaded part; the caller compares the hash.

    If the Hub does not support ranges, the file is downloaded from the start.
    """
    file = part.file
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


def _from_xet(grant: XetGrant, snapshot: Snapshot, part: Part) -> None:
    """Download the rest of a file from Xet; on any error, the Hub's HTTP download continues."""
    try:
        with closing(xet_stream(grant, part.file, part.offset)) as stream:
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
