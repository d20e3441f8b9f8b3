"""The bytes of an archive from a store that breaks off, in one request and in parts."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mirror_tree import StaticServer

from kernels.errors import HubUnavailable
from kernels.mirror import ranges
from kernels.mirror.ranges import archive_chunks
from kernels.mirror.stores.base import EntryNotFound, StoredDocument
from kernels.models.mirror import MirrorArchive, archive_path
from kernels.sources.http import Http
from kernels.sources.http_store import HttpStore
from kernels.support.tasks import pause, side_by_side

DATA = random.Random(14).randbytes(1_000_000)
SHA256 = hashlib.sha256(DATA).hexdigest()
ARCHIVE = MirrorArchive(archive_path(SHA256), len(DATA), SHA256)


class FlakyStore:
    """A store with one archive.

    Args:
        parallel: Whether it gives parts side by side.
        breaks: After how many bytes each request breaks off; None for the end.
    """

    url = "https://mirror.example"

    def __init__(self, *, parallel: bool = False, breaks: int | None = None, silent: bool = False) -> None:
        self.parallel = parallel
        self.requests: list[tuple[int, int]] = []
        self.open = 0
        self._breaks = breaks
        self._silent = silent

    def read(self, path: str, limit: int, *, etag: str = "") -> StoredDocument | None:
        raise NotImplementedError

    @contextmanager
    def stream(self, path: str, size: int, start: int = 0, stop: int | None = None) -> Iterator[Iterator[bytes]]:
        if path != ARCHIVE.name:
            raise EntryNotFound(path)
        assert size == len(DATA)
        stop = size if stop is None else stop
        self.requests.append((start, stop))
        self.open += 1
        try:
            yield self._pieces(start, stop)
        finally:
            self.open -= 1

    def _pieces(self, start: int, stop: int) -> Iterator[bytes]:
        end = stop if self._breaks is None else min(stop, start + self._breaks)
        while start < end:
            piece = DATA[start : min(start + 10_000, end)]
            start += len(piece)
            yield piece
        if end < stop and not self._silent:
            raise HubUnavailable(f"{self.url} broke off")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "_WHOLE_BYTES", 300_000)
    monkeypatch.setattr(ranges, "_PART_BYTES", 150_000)
    monkeypatch.setattr(ranges, "_FIRST_BYTES", 100_000)
    monkeypatch.setattr(ranges, "_ADVANCE", 40_000)
    monkeypatch.setattr(ranges, "_WAIT", 0.001)


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("breaks", [None, 50_000, 40_000])
def test_a_break_is_resumed_from_the_byte_reached(parallel: bool, silent: bool, breaks: int | None) -> None:
    store = FlakyStore(parallel=parallel, breaks=breaks, silent=silent)
    with archive_chunks(store, ARCHIVE) as pieces:
        assert b"".join(pieces) == DATA
    assert store.open == 0
    parts = 7 if parallel else 2
    assert len(store.requests) == (parts if breaks is None else len({start for start, _ in store.requests}))
    assert len({stop for _, stop in store.requests}) == parts


def test_a_small_archive_is_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FlakyStore(parallel=True)
    monkeypatch.setattr(ranges, "_WHOLE_BYTES", len(DATA))
    with archive_chunks(store, ARCHIVE) as pieces:
        assert b"".join(pieces) == DATA
    assert store.requests == [(0, len(DATA))]


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("breaks", [0, 10, 20_000])
def test_a_store_without_progress_is_given_up(parallel: bool, breaks: int) -> None:
    store = FlakyStore(parallel=parallel, breaks=breaks)
    with pytest.raises(HubUnavailable, match="broke off"), archive_chunks(store, ARCHIVE) as pieces:
        list(pieces)
    assert len(store.requests) <= ranges._BREAKS * (ranges._AT_ONCE if parallel else 2)
    assert not parallel or no_threads()


@pytest.mark.parametrize("parallel", [False, True])
def test_an_archive_that_is_missing(parallel: bool) -> None:
    store = FlakyStore(parallel=parallel)
    other = MirrorArchive(archive_path("0" * 64), len(DATA), "0" * 64)
    with pytest.raises(EntryNotFound), archive_chunks(store, other) as pieces:
        list(pieces)
    assert no_threads()


@pytest.mark.parametrize("parallel", [False, True])
def test_an_error_of_the_reader_ends_the_requests(parallel: bool) -> None:
    store = FlakyStore(parallel=parallel)

    def fail_after(pieces: Iterator[bytes]) -> None:
        next(pieces)
        raise KeyError

    with pytest.raises(KeyError), archive_chunks(store, ARCHIVE) as pieces:
        fail_after(pieces)
    assert no_threads()
    assert store.open == 0
    assert len(store.requests) <= ranges._AT_ONCE + 1


@pytest.mark.parametrize("parallel", [False, True])
def test_a_download_is_cancelled(parallel: bool) -> None:
    store = FlakyStore(parallel=parallel)
    begun = threading.Event()

    def work(fails: bool) -> None:
        if fails:
            begun.wait(60)
            raise KeyError
        with archive_chunks(store, ARCHIVE) as pieces:
            for _ in pieces:
                begun.set()
                pause(600)

    with pytest.raises(KeyError):
        side_by_side(work, [True, False], at_once=2, name="test")
    assert no_threads()
    assert store.open == 0


@pytest.mark.parametrize("known", [True, False])
def test_a_web_server_is_asked_for_parts_if_it_knows_ranges(tmp_path: Path, known: bool) -> None:
    (tmp_path / ARCHIVE.name).parent.mkdir(parents=True)
    (tmp_path / ARCHIVE.name).write_bytes(DATA)
    with StaticServer(tmp_path, ranges=known) as server:
        store = HttpStore(Http(server.url, list))
        server.cut("archives/", 70_000, times=2)
        with archive_chunks(store, ARCHIVE) as pieces:
            assert b"".join(pieces) == DATA
        statuses = [each.status for each in server.requests]
    # The first part breaks off; without ranges the second request for it does so too.
    assert statuses == ([206] * 8 if known else [200] * 4)


def no_threads() -> bool:
    """Whether the threads of the parts have ended."""
    for thread in threading.enumerate():
        if thread.name.startswith("kernels-archive"):
            thread.join(60)
    return not any(thread.name.startswith("kernels-archive") for thread in threading.enumerate())
