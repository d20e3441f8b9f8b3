"""What every store does, over a folder and over an S3 server: one table of behaviour."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from kernels.errors import HubUnavailable, InvalidRepository
from kernels.mirror.stores.base import EntryNotFound, StoreChanged, WriteStore
from kernels.mirror.stores.folder import FolderStore
from kernels.mirror.stores.opening import open_store
from kernels.support.tasks import side_by_side

DOCUMENT, ARCHIVE = "api/kernels/org/relu/refs", f"archives/0a/{'0a' * 32}.tar.zst"


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, isolated_env: Path, tmp_path: Path) -> WriteStore:
    if request.param == "folder":
        return FolderStore(tmp_path / "mirror")
    bucket = request.getfixturevalue("s3_environment").bucket()
    return open_store(f"s3://{bucket}/path/of the mirror")


def content(store: WriteStore, path: str) -> bytes:
    found = store.read(path, 1000)
    assert found is not None
    return found.content


def streamed(store: WriteStore, path: str, size: int, start: int = 0, stop: int | None = None) -> bytes:
    with store.stream(path, size, start, stop) as pieces:
        return b"".join(pieces)


def test_a_document_is_read_as_it_was_written(store: WriteStore) -> None:
    etag = store.write(DOCUMENT, b"one")
    found = store.read(DOCUMENT, 3)
    assert found is not None
    assert (found.content, found.etag) == (b"one", etag)
    assert store.size(DOCUMENT) == 3


def test_an_unchanged_document_is_not_sent_again(store: WriteStore) -> None:
    etag = store.write(DOCUMENT, b"one")
    assert store.read(DOCUMENT, 10, etag=etag) is None
    store.write(DOCUMENT, b"two")
    found = store.read(DOCUMENT, 10, etag=etag)
    assert found is not None
    assert found.content == b"two"


def test_a_document_past_its_limit_is_refused(store: WriteStore) -> None:
    store.write(DOCUMENT, b"four")
    with pytest.raises(HubUnavailable, match="more than 3 bytes"):
        store.read(DOCUMENT, 3)


def test_what_is_not_there_is_not_found(store: WriteStore) -> None:
    for _ in range(2):
        with pytest.raises(EntryNotFound, match=DOCUMENT):
            store.read(DOCUMENT, 10)
        with pytest.raises(EntryNotFound, match=ARCHIVE), store.stream(ARCHIVE, 10) as pieces:
            list(pieces)
        assert store.size(DOCUMENT) is None
        assert list(store.entries()) == list(store.entries("archives")) == []
        store.delete(DOCUMENT)
        store.write(f"{DOCUMENT}/below", b"a folder is no entry")
        with pytest.raises(EntryNotFound, match=DOCUMENT):
            store.read(DOCUMENT, 10)
        store.delete(f"{DOCUMENT}/below")


def test_a_write_expects_what_it_was_told(store: WriteStore) -> None:
    with pytest.raises(StoreChanged):
        store.write(DOCUMENT, b"x", expect='"another"')
    first = store.write(DOCUMENT, b"one", expect="new")
    with pytest.raises(StoreChanged):
        store.write(DOCUMENT, b"x", expect="new")
    second = store.write(DOCUMENT, b"two", expect=first)
    assert second != first
    with pytest.raises(StoreChanged):
        store.write(DOCUMENT, b"x", expect=first)
    assert content(store, DOCUMENT) == b"two"
    store.delete(DOCUMENT)
    with pytest.raises(StoreChanged):
        store.write(DOCUMENT, b"x", expect=second)


def test_of_writers_at_once_each_change_counts(store: WriteStore) -> None:
    store.write(DOCUMENT, b"")
    started = threading.Barrier(4)

    def add(writer: int) -> None:
        started.wait()
        for number in range(5):
            while True:
                before = store.read(DOCUMENT, 1000)
                assert before is not None
                try:
                    store.write(DOCUMENT, before.content + b"%d.%d " % (writer, number), expect=before.etag)
                except StoreChanged:
                    continue
                break

    side_by_side(add, range(4), at_once=4, name="writer")
    assert sorted(content(store, DOCUMENT).split()) == sorted(b"%d.%d" % (w, n) for w in range(4) for n in range(5))


def test_one_of_the_writers_of_a_new_document_wins(store: WriteStore) -> None:
    started = threading.Barrier(4)

    def create(writer: int) -> bool:
        started.wait()
        try:
            store.write(DOCUMENT, b"%d" % writer, expect="new")
        except StoreChanged:
            return False
        return True

    won = side_by_side(create, range(4), at_once=4, name="writer")
    assert won.count(True) == 1
    assert content(store, DOCUMENT) == b"%d" % won.index(True)


def test_an_archive_streams_in_pieces_and_ranges(store: WriteStore, tmp_path: Path) -> None:
    data = bytes(range(256)) * 4096 * 3
    file = tmp_path / "archive"
    file.write_bytes(data)
    store.write(ARCHIVE, file, immutable=True)
    with store.stream(ARCHIVE, len(data)) as pieces:
        arrived = list(pieces)
    assert max(map(len, arrived)) <= 1 << 20
    assert b"".join(arrived) == data
    assert streamed(store, ARCHIVE, len(data), 5, 1_500_000) == data[5:1_500_000]
    assert streamed(store, ARCHIVE, len(data), 3_000_000) == data[3_000_000:]
    assert streamed(store, ARCHIVE, len(data), 7, 7) == b""
    with store.stream(ARCHIVE, len(data)) as pieces:  # the rest is not wanted
        assert data.startswith(next(pieces))


@pytest.mark.parametrize("size", [3, 5])
def test_an_archive_of_another_size_is_refused(store: WriteStore, size: int) -> None:
    store.write(ARCHIVE, b"four", immutable=True)
    with pytest.raises(HubUnavailable, match=f"4 bytes, expected {size}: .*`--repair` replaces archives"):
        streamed(store, ARCHIVE, size)


def test_an_error_of_the_reader_stays_its_own(store: WriteStore) -> None:
    store.write(ARCHIVE, b"four")
    problem = OSError("the disk is full")
    with pytest.raises(OSError, match="the disk is full") as raised, store.stream(ARCHIVE, 4):
        raise problem
    assert raised.value is problem


def test_entries_are_sorted_by_path(store: WriteStore) -> None:
    paths = ["a-b/x", "a/b", "a/b-c", "a/b/c", "a0", "mirror.json"]
    for path in ("a-b/x", "a/b-c", "a/d/c", "a0", "mirror.json"):
        store.write(path, path.encode())
    paths = sorted(["a-b/x", "a/b-c", "a/d/c", "a0", "mirror.json"])
    assert [(each.path, each.size) for each in store.entries()] == [(path, len(path)) for path in paths]
    now = time.time()
    assert all(each.modified is not None and abs(each.modified - now) < 600 for each in store.entries())
    assert [entry.path for entry in store.entries("a")] == ["a/b-c", "a/d/c"]


def test_what_is_deleted_is_gone(store: WriteStore) -> None:
    store.write(DOCUMENT, b"one")
    store.write("mirror.json", b"{}")
    store.delete(DOCUMENT)
    assert store.size(DOCUMENT) is None
    assert [entry.path for entry in store.entries()] == ["mirror.json"]


@pytest.mark.parametrize("path", ["../out", "/etc/passwd", "a//b", "a/./b", "", "C:/x", "a\\b", "a\nb", "a\0b"])
def test_a_path_never_leaves_the_root(store: WriteStore, path: str) -> None:
    for use in (
        lambda: store.read(path, 10),
        lambda: store.stream(path, 10).__enter__(),
        lambda: store.write(path, b"x"),
        lambda: store.size(path),
        lambda: store.delete(path),
    ):
        with pytest.raises(InvalidRepository, match="not a path within a mirror"):
            use()
