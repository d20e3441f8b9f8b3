"""A mirror's files over plain web servers, with and without ranges and ETags."""

from __future__ import annotations

import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace

import pytest
from mirror_tree import StaticServer

from kernels.errors import HubUnavailable
from kernels.mirror.stores.base import EntryNotFound
from kernels.sources import response
from kernels.sources.http import Http
from kernels.sources.http_store import HttpStore
from kernels.sources.response import condition, validator_of

DATA = bytes(range(256)) * 400


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StaticServer]:
    root = tmp_path_factory.mktemp("tree")
    (root / "archives").mkdir()
    (root / "archives" / "data").write_bytes(DATA)
    (root / "mirror.json").write_bytes(b'{"mirror-format":1}')
    with StaticServer(root) as server:
        yield server


@pytest.fixture
def server(served: StaticServer, isolated_env: Path) -> StaticServer:
    served.clear()
    served.ranges = served.etags = True
    return served


def store(server: StaticServer) -> HttpStore:
    return HttpStore(Http(server.url, list))


def received(server: StaticServer, start: int = 0, stop: int | None = None, size: int = len(DATA)) -> bytes:
    with store(server).stream("archives/data", size, start, stop) as pieces:
        return b"".join(pieces)


def test_a_document_that_is_known_is_answered_with_304(server: StaticServer) -> None:
    found = store(server).read("mirror.json", 1000)
    assert found is not None
    assert found.content == b'{"mirror-format":1}'
    assert found.etag
    assert store(server).read("mirror.json", 1000, etag=found.etag) is None
    assert server.asked() == ["GET /mirror.json: 200", "GET /mirror.json: 304"]


def test_a_server_without_etags_gives_the_document_again(server: StaticServer) -> None:
    server.etags = False
    found = store(server).read("mirror.json", 1000, etag='"old"')
    assert found is not None
    assert found.etag == ""


def test_what_is_missing_is_said(server: StaticServer) -> None:
    with pytest.raises(EntryNotFound, match=rf"{server.url} has no api/none"):
        store(server).read("api/none", 1000)
    with pytest.raises(EntryNotFound, match="has no archives/none"), store(server).stream("archives/none", 5):
        pass


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize(("start", "stop"), [(0, None), (0, 1000), (70_000, None), (100, 65_700), (102_399, 102_400)])
def test_any_part_is_given_with_and_without_ranges(
    server: StaticServer, ranges: bool, start: int, stop: int | None
) -> None:
    server.ranges = ranges
    assert received(server, start, stop) == DATA[start:stop]
    assert len(server.requests) == 1


def test_whether_ranges_are_known_is_learnt_from_answers(server: StaticServer) -> None:
    tried = store(server)
    assert not tried.parallel
    with tried.stream("archives/data", len(DATA), 0, 10) as pieces:
        assert b"".join(pieces) == DATA[:10]
    assert tried.parallel


def test_a_document_of_more_bytes_is_refused(server: StaticServer) -> None:
    with pytest.raises(HubUnavailable, match="more than 5 bytes"):
        store(server).read("mirror.json", 5)


@pytest.mark.parametrize("size", [len(DATA) - 1, len(DATA) + 1])
def test_an_archive_of_another_size_is_refused_before_it_is_read(server: StaticServer, size: int) -> None:
    with pytest.raises(
        HubUnavailable, match=f"a file of {len(DATA)} bytes, not the {size} listed .*--verify.*--repair"
    ):
        received(server, size=size)
    assert len(server.requests) == 2


def test_a_part_beyond_the_end_of_an_archive_that_was_cut_short_is_refused(server: StaticServer) -> None:
    size = 2 * len(DATA)
    with (
        pytest.raises(HubUnavailable, match=f"fewer bytes of archives/data than the {size} listed: .*--repair"),
        store(server).stream("archives/data", size, len(DATA), size),
    ):
        pass


def test_an_archive_that_is_cut_short_is_an_error_while_it_is_read(server: StaticServer) -> None:
    server.cut("archives/", 3000)
    with store(server).stream("archives/data", len(DATA)) as pieces, pytest.raises(HubUnavailable, match="archives/da"):
        list(pieces)


def test_a_busy_server_is_asked_again(server: StaticServer, brief_waits: list[float]) -> None:
    server.answer("", 503, headers={"Retry-After": "3"}, times=1)
    server.answer("", 429, times=1)
    assert store(server).read("mirror.json", 1000) is not None
    server.answer("", 503, times=1)
    assert received(server) == DATA
    assert brief_waits[0] == 3.0
    assert len(brief_waits) == 3


def test_a_redirect_of_an_archive_to_another_host_gets_no_token(
    server: StaticServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELS_HUB", server.url)
    monkeypatch.setenv("KERNELS_HUB_TOKEN", "for-this-mirror")
    with StaticServer(server.root) as other:
        server.answer("archives/", 302, headers={"Location": f"{other.url}/archives/data?X-Signature=secret"})
        assert received(server) == DATA
        assert server.requests[0].headers["authorization"] == "Bearer for-this-mirror"
        assert "authorization" not in other.requests[0].headers


def test_a_document_from_another_host_is_refused(server: StaticServer) -> None:
    with StaticServer(server.root) as other:
        server.answer("mirror.json", 302, headers={"Location": f"{other.url}/mirror.json"})
        with pytest.raises(
            HubUnavailable, match=f"redirected the request about mirror.json to another host, '{other.url}'"
        ):
            store(server).read("mirror.json", 1000)
        assert other.requests == []


def test_a_304_that_nobody_asked_for_is_no_answer(server: StaticServer) -> None:
    server.answer("mirror.json", 304)
    with pytest.raises(HubUnavailable, match="answered 304"):
        store(server).read("mirror.json", 1000)


@pytest.mark.parametrize(
    ("etag", "age", "sent"),
    [
        ('"1"', 0, '"1"'),
        ('W/"1 read 5"', 86_399, 'W/"1 read 5"'),
        ('"1"', 86_401, None),  # one day later the document is read whole
        ('"1"', -86_401, None),
        ("none", 0, None),
        ('"\u0661"', 0, None),
        ("", 0, None),
    ],
)
def test_an_etag_counts_for_a_day(monkeypatch: pytest.MonkeyPatch, etag: str, age: int, sent: str | None) -> None:
    known = validator_of(SimpleNamespace(headers={"ETag": etag, "Last-Modified": formatdate(0, usegmt=True)}))
    now = time.time()
    monkeypatch.setattr(response.time, "time", lambda: now + age)
    assert condition(known) == ({} if sent is None else {"If-None-Match": sent})
