"""What is sent to an embedded Hub by those who mean it harm: each is refused, in bounds, and the Hub goes on."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import logging
import os
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hub import make_repo

from kernels.server import Catalog, ConnectionLimits, HubServer
from kernels.server import catalog as catalog_module
from kernels.server.changes import RepositoryChange, Writer
from kernels.server.lfs_objects import LfsObjects
from kernels.server.listings import Listings

REPO = "acme/relu"
TOKEN = "hf_secret"
LFS = "build/torch-cpu/_relu.abi3.so"
SMALL = "build/torch-cpu/layers.py"
INFO = f"/api/kernels/{REPO}/revision/v1"
FILE = f"/kernels/{REPO}/resolve/v1/{SMALL}"
PATHS = f"/api/kernels/{REPO}/paths-info/v1"
COMMIT = f"/api/kernels/{REPO}/commit/v1"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
QUICK = ConnectionLimits(header_seconds=0.3, body_seconds=0.3, answer_seconds=0.3, idle_seconds=1)

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc, sets limits")

Answer = tuple[int, dict[str, str], bytes]


def _make_root(folder: Path) -> Path:
    make_repo(folder, REPO, variants={"torch-cpu": {"_relu.abi3.so": b"\x7fELF" * 1000}})
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return _make_root(tmp_path / "hub")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    with HubServer(_make_root(tmp_path_factory.mktemp("shared") / "hub"), token=TOKEN, writable=True) as server:
        yield server


@pytest.fixture
def shared_server(running: HubServer, caplog: pytest.LogCaptureFixture) -> Iterator[HubServer]:
    """One Hub for all tests that change nothing; it works, and has logged nothing, after each."""
    yield running
    assert get(running.port, FILE)[0] == 200
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.fixture
def server(root: Path, caplog: pytest.LogCaptureFixture) -> Iterator[HubServer]:
    """A Hub that can be written to, and has nothing to say in its log in the end."""
    with HubServer(root, token=TOKEN, writable=True) as server:
        yield server
        assert get(server.port, FILE)[0] == 200
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    with closing(socket.create_connection(("127.0.0.1", port), timeout=20)) as connection:
        yield connection


def answer_to(connection: socket.socket, method: str = "GET") -> Answer:
    answer = http.client.HTTPResponse(connection, method=method)
    answer.begin()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


def send(port: int, data: bytes, method: str = "GET") -> Answer:
    """Send exactly these bytes; what comes after the answer is not waited for. Status 0: closed without one."""
    with connected(port) as connection:
        with suppress(ConnectionError):  # refused before all of it was sent
            connection.sendall(data)
        try:
            return answer_to(connection, method)
        except ConnectionError:
            return 0, {}, b""


def request(method: str, target: str | bytes, body: bytes | None = None, **headers: str) -> bytes:
    fields = {"Host": "127.0.0.1", **{name.replace("_", "-"): value for name, value in headers.items()}}
    if body is not None and "Transfer-Encoding" not in fields:
        fields.setdefault("Content-Length", str(len(body)))
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    raw = target.encode("latin-1") if isinstance(target, str) else target
    return method.encode() + b" " + raw + b" HTTP/1.1\r\n" + lines.encode("latin-1") + b"\r\n" + (body or b"")


def get(port: int, target: str = INFO, **headers: str) -> Answer:
    return send(port, request("GET", target, **headers))


def written(target: str, body: bytes, method: str = "POST") -> bytes:
    return request(method, target, body, Authorization=f"Bearer {TOKEN}")


def chunked(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


def gone(connection: socket.socket) -> bool:
    """Whether the server closes a connection, within the time that a test waits."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


# ---------------------------------------------------------------------------------------------------------------------
# Requests
# ---------------------------------------------------------------------------------------------------------------------

_TREE = f"/api/kernels/{REPO}/tree/v1"
_BATCH = f"/kernels/{REPO}.git/info/lfs/objects/batch"
_NEW = b'{"type":"kernel","organization":"%s","name":"%s"}'
_ANNOUNCED = {"path": "a", "size": 1}
_MANY = b"[" + b"{}," * 2_000_000 + b"{}]"
_ODD = [
    "%00",
    "%0d%0aX-Evil:%201",
    "%ED%A0%80",
    "%FF",
    "%E2%80%AE",
    "%F0%9F%92%A9",
    "%252e%252e%252f",
    "%",
    "%zz",
    "a" * 8000,
]

READS: dict[str, tuple[bytes, set[int]]] = {
    **{
        f"{odd[:20]} in {where}": (request("GET", where.format(odd)), {404, 400, 405})
        for odd in _ODD
        for where in (
            f"/kernels/{REPO}/resolve/v1/{{}}",
            f"/kernels/{REPO}/resolve/{{}}/x",
            "/kernels/acme/{}/resolve/v1/x",
            "/api/kernels/{}/relu/tree/v1",
            f"{_TREE}/{{}}",
            f"/api/kernels/{REPO}/revision/refs%2Fpr%2F{{}}",
            "/api/{}/acme/relu",
            "/api/organizations/{}/overview",
            f"/lfs/kernels/{REPO}/{'0' * 40}/{{}}/x",
            "/lfs-upload/{}",
        )
    },
    **{
        f"limit={limit[:20]}": (request("GET", f"{_TREE}?limit={limit}"), status)
        for limit, status in [
            ("9" * 5000, {400}), ("1e999", {400}), ("-" + "9" * 4000, {400}), ("%00", {400}), ("%EF%BC%91", {200, 400}),
            ("9" * 4000, {200}), ("1" + "&limit=1" * 1000, {200}),
        ]
    },
    **{
        f"cursor={cursor[:20]}": (request("GET", f"{_TREE}?cursor={cursor}"), status)
        for cursor, status in [
            ("A" * 8000, {200}), ("7aCA", {400}), ("AAAA", {200}), ("=", {200, 400}), ("%C3%A9", {400}),
            ("8J-SqQ==", {200}),
        ]
    },
    "a long query": (request("GET", f"{INFO}?{'a=b&' * 4000}"), {200, 400}),
    "a long target": (request("GET", "/" + "a" * 10**6), {0, 400}),
    "a long header": (request("GET", INFO, X_Long="a" * 10**6), {0, 400}),
    "many headers": (request("GET", INFO, **{f"X{number}": "a" * 50 for number in range(10_000)}), {0, 400}),
    **{
        f"Range: {given[:30]}": (request("GET", FILE, Range=given), {200, 206, 400, 416})
        for given in [
            "bytes=" + "0-," * 3000, "bytes=" + "0-0," * 2500 + "5-6", "bytes=0-0,0-0,0-0", "bytes=-" + "9" * 5000,
            "bytes=" + "9" * 5000 + "-", "bytes=5-1", "bytes=--1", "bytes=", "bytes", "lines=1-2", "bytes=\xb2-\xb3",
        ]
    },
    **{
        f"Host: {host}": (request("GET", INFO, Host=host), {400, 421} if host else {200})
        for host in ["", "evil.test", "[", "[::1", "a:b:c", "evil.test/x?y#z", "\xe9", "evil@test", "e" * 3000]
    },
    "two hosts": (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", {400}),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", {400}),
    "not HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20 + b"\r\n\r\n", {400}),
    "another version": (b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n", {400, 404}),
    "an absolute target": (request("GET", "http://evil.test" + INFO), {200, 404}),
    "no target": (request("GET", ""), {400}),
    "a method": (request("BREW" * 500, INFO), {400, 405}),
    "CONNECT": (request("CONNECT", "evil.test:443"), {400, 404, 405}),
    "OPTIONS": (request("OPTIONS", "*"), {400, 404, 405}),
    "a websocket": (request("GET", INFO, Upgrade="websocket", Connection="Upgrade", Sec_WebSocket_Key="x"), {200, 400}),
    "HTTP/2": (request("GET", INFO, Upgrade="h2c", Connection="Upgrade, HTTP2-Settings"), {200, 400}),
    "a folded header": (b"GET / HTTP/1.1\r\nHost: a\r\n b\r\nX: y\r\n z\r\n\r\n", {400, 421}),
    "a NUL in a header": (request("GET", INFO, X="a\0b"), {200, 400}),
    "a length of 5,000 digits": (request("POST", PATHS, b"", Content_Length="9" * 5000), {400, 413}),
    "a negative length": (request("POST", PATHS, b"", Content_Length="-1"), {400}),
    "a length that is none": (request("POST", PATHS, b"", Content_Length="\xb2"), {400}),
    "length and chunks": (
        request("POST", PATHS, chunked(b"x"), Content_Length="1", Transfer_Encoding="chunked"), {200, 400}
    ),
    "a large length": (request("POST", PATHS, b"", Content_Length="600000000"), {413}),
    "an endless chunk": (request("POST", PATHS, b"f" * 20_000, Transfer_Encoding="chunked"), {400}),
    "a chunk of a wrong size": (request("POST", PATHS, b"2\r\nabcdef\r\n", Transfer_Encoding="chunked"), {400}),
    "another coding": (request("POST", PATHS, b"", Transfer_Encoding="gzip, chunked"), {400, 501}),
    "a large body": (request("POST", PATHS, b"paths=" + b"x" * 2**21), {413}),
    "a large body in chunks": (request("POST", PATHS, chunked(b"x" * 2**21), Transfer_Encoding="chunked"), {413}),
    "many paths": (request("POST", PATHS, b"paths=a&" * 11_000, **FORM), {413}),
    "odd paths": (request("POST", PATHS, b"paths=%00&paths=%ED%A0%80&paths=\xff&expand=%00&expand", **FORM), {200}),
    "a body where none is read": (request("GET", INFO, b"x" * 2**20), {200}),
    "a body that is refused": (request("PUT", FILE, b"x" * 2**22), {405}),
    "an expectation": (request("POST", PATHS, b"", Content_Length="99999999", Expect="100-continue"), {413}),
}  # fmt: skip


@pytest.mark.parametrize("name", READS)
def test_a_hostile_request_is_answered_and_nothing_else_happens(shared_server: HubServer, name: str) -> None:
    data, statuses = READS[name]
    started = time.monotonic()
    status, headers, body = send(shared_server.port, data)
    assert status in statuses
    assert not [field for field in headers if "evil" in field]
    assert len(body) < 200_000
    assert sum(len(field) + len(value) for field, value in headers.items()) < 20_000
    assert time.monotonic() - started < 5


def _line(key: object = "file", **value: object) -> bytes:
    return json.dumps({"key": key, "value": value}).encode() + b"\n"


WRITES: dict[str, tuple[bytes, set[int]]] = {
    **{
        f"{name} to {target.rpartition('/')[2]}": (written(target, body), {400})
        for target in ("/api/repos/create", f"/api/kernels/{REPO}/preupload/v1", _BATCH, COMMIT)
        for name, body in {
            "no JSON": b"\xff\xfe{",
            "many objects": b'{"files":' + _MANY + b"}",
            "nested": b'{"name":' * 100_000,
            "nested lists": b'{"key":"file","value":{"path":' + b"[" * 100_000,
            "a number": b'{"name": ' + b"9" * 100_000 + b"}",
            "a large exponent": b'{"size": 1e99999, "files": 1e99999}',
            "a list": b"[]",
            "a text": b'"' + b"x" * 10**6 + b'"',
            "half a character": b'{"name": "\\ud800", "organization": "acme", "type": "kernel"}',
        }.items()
    },
    "a type": (written("/api/repos/create", b'{"name":"a","type":"' + b"x" * 10**6 + b'"}'), {400}),
    **{
        f"the name {name[-20:]}": (written("/api/repos/create", _NEW % (publisher, name.encode())), {400})
        for publisher, name in [
            (b"acme", "x" * 10**6), (b"acme", "a\\u0000"), (b".incoming", "a"), (b"acme", ".."), (b"acme", ".private"),
        ]
    },
    "a large question": (written(f"/api/kernels/{REPO}/preupload/v1", b" " * (9 * 2**20)), {413}),
    "a large announcement": (
        request("POST", COMMIT, b"", Content_Length=str(2**40), Authorization=f"Bearer {TOKEN}"), {413}
    ),
    "many files": (
        written(f"/api/kernels/{REPO}/preupload/v1", json.dumps({"files": [_ANNOUNCED] * 26_000}).encode()), {400}
    ),
    "a long line": (written(COMMIT, b"x" * (17 * 2**20)), {400}),
    "many lines": (written(COMMIT, b'{"key":"header","value":{}}\n' * 26_000), {400}),
    "a deep path": (written(COMMIT, _line(path="/".join("a" * 900), content="")), {400}),
    "an unknown key": (written(COMMIT, _line("x" * 10**6)), {400}),
    "an unknown encoding": (written(COMMIT, _line(path="a", content="", encoding="x" * 10**6)), {400}),
    "a branch with a NUL": (written(f"/api/kernels/{REPO}/branch/a%00b", b"{}"), {400}),
    "a branch from nowhere": (written(f"/api/kernels/{REPO}/branch/v9", b'{"startingPoint":"../..\\u0000"}'), {404}),
    "a branch of half a character": (written(f"/api/kernels/{REPO}/branch/%ED%A0%80", b"{}"), {200, 400}),
    **{
        f"the address {query[:10]}": (request("PUT", f"/lfs-upload/{'0' * 64}?{query}", b""), {403})
        for query in ("size=" + "9" * 5000 + "&expires=" + "9" * 5000, "size=%ED%A0%80&expires=x&signature=%C3%A9", "")
    },
    "a token of another kind": (request("POST", COMMIT, b"", Authorization="Basic " + "x" * 5000), {401}),
    "a token of no characters": (request("POST", COMMIT, b"", Authorization="Bearer \xe9\xff"), {401}),
    "a body without the token": (request("POST", COMMIT, b"x" * 2**22), {401}),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITES)
def test_a_hostile_write_changes_nothing(shared_server: HubServer, name: str) -> None:
    server = shared_server
    data, statuses = WRITES[name]
    before = server.catalog.commit(REPO, "v1").id
    started = time.monotonic()
    status, _, body = send(server.port, data)
    assert status in statuses
    assert len(body) < 200_000
    assert TOKEN.encode() not in body
    assert time.monotonic() - started < 5
    assert server.catalog.commit(REPO, "v1").id == before
    assert not list((server.catalog.root / ".incoming").glob("*"))


def test_invalid_requests_are_not_logged(shared_server: HubServer) -> None:
    for _ in range(50):
        send(shared_server.port, b"\0\r\n\r\n")
        send(shared_server.port, request("GET", INFO, Upgrade="websocket", Connection="Upgrade"))


def test_garbage_after_a_request_is_no_failure_of_the_server(shared_server: HubServer) -> None:
    for data in (
        request("POST", FILE, b"zz\r\n", Transfer_Encoding="chunked"),
        request("GET", INFO) + b"\0\0\r\n\r\n",
        request("PUT", "/lfs-upload/0", b"1\r\nabc", Transfer_Encoding="chunked"),
        request("POST", PATHS, b"1\r\na\r\n-1\r\n", Transfer_Encoding="chunked"),
    ):
        with connected(shared_server.port) as connection:
            connection.sendall(data)
            assert answer_to(connection)[0] in (200, 400, 403, 405)


@pytest.mark.parametrize("close", [False, True])
def test_who_sends_too_much_still_gets_to_read_why(server: HubServer, close: bool) -> None:
    headers = {"Connection": "close"} if close else {}
    with connected(server.port) as connection:
        connection.sendall(request("POST", PATHS, b"", Content_Length=str(2**24), **headers))
        for _ in range(2**24 // 2**16):  # it reads nothing before all is sent
            connection.sendall(b"x" * 2**16)
        assert answer_to(connection)[0] == 413


# ---------------------------------------------------------------------------------------------------------------------
# Time, connections, memory
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(root: Path) -> Iterator[HubServer]:
    """A Hub that waits for nobody for long."""
    with open(root / REPO / "v1" / "large.bin", "wb") as file:
        file.truncate(64 * 2**20)
    with HubServer(root, limits=QUICK) as server:
        yield server
        assert get(server.port, FILE)[0] == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: a\r\n",
        request("GET", INFO) + b"GET / HT",
        request("POST", PATHS, b"paths=", Content_Length="1000"),
        request("POST", PATHS, b"400\r\npaths", Transfer_Encoding="chunked"),
        request("GET", INFO, b"x", Content_Length="1000"),
        request("POST", FILE, b"x", Content_Length="1000"),
        request("GET", INFO),
    ],
    ids=["nothing", "header", "second-header", "body", "chunk", "body-not-read", "body-refused", "idle"],
)
def test_a_client_that_stops_in_the_middle_is_left(quick: HubServer, sent: bytes) -> None:
    with connected(quick.port) as connection:
        connection.sendall(sent)
        assert gone(connection)


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\nX: ", request("POST", PATHS, b"", Content_Length="100000")])
def test_a_client_that_sends_a_byte_now_and_then_is_left(quick: HubServer, sent: bytes) -> None:
    with connected(quick.port) as connection:
        connection.sendall(sent)
        for _ in range(200):
            time.sleep(0.05)
            try:
                connection.sendall(b"x")
            except ConnectionError:
                return
        pytest.fail("it was waited for")


@linux
def test_a_client_that_reads_nothing_is_left(quick: HubServer) -> None:
    location = get(quick.port, f"/kernels/{REPO}/resolve/v1/large.bin")[1]["location"]
    with closing(socket.socket()) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", quick.port))
        connection.sendall(request("GET", location))
        connection.recv(1)
        _wait_until(lambda: _open_times("large.bin") == 0)
        assert gone(connection)


@linux
def test_a_file_is_closed_when_its_client_leaves(root: Path) -> None:
    with open(root / REPO / "v1" / "large.bin", "wb") as file:
        file.truncate(64 * 2**20)
    with HubServer(root) as server:
        location = get(server.port, f"/kernels/{REPO}/resolve/v1/large.bin")[1]["location"]
        for _ in range(10):
            with connected(server.port) as connection:
                connection.sendall(request("GET", location))
                connection.recv(1000)
        _wait_until(lambda: _open_times("large.bin") == 0)


def test_the_connections_are_so_many_and_those_that_send_nothing_go_first(root: Path) -> None:
    with HubServer(root, limits=ConnectionLimits(connections=20)) as server, connected(server.port) as honest:
        held = []
        for number in range(60):
            held.append(socket.create_connection(("127.0.0.1", server.port), timeout=20))
            held[-1].sendall(b"GET / HTTP/1.1\r\n")
            if number % 5 == 0:  # who goes on asking is kept
                honest.sendall(request("GET", FILE))
                assert answer_to(honest)[0] == 200
        assert len(server._server.server_state.connections) <= 21  # type: ignore[union-attr]
        assert get(server.port, FILE)[0] == 200
        assert gone(held[0])
        for connection in held:
            connection.close()


def test_a_connection_too_many_is_told_so_while_all_others_are_at_work(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, commit = threading.Event(), Catalog.commit

    def slow(*arguments: Any, **options: Any) -> Any:
        release.wait(20)
        return commit(*arguments, **options)

    monkeypatch.setattr(Catalog, "commit", slow)
    with HubServer(root, limits=ConnectionLimits(connections=8)) as server:
        held = [socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(8)]
        for connection in held:
            connection.sendall(request("GET", INFO))
        time.sleep(0.2)
        with connected(server.port) as late:
            assert answer_to(late)[0] == 503
        release.set()
        assert {answer_to(connection)[0] for connection in held} == {200}
        assert get(server.port)[0] == 200
        for connection in held:
            connection.close()


_SERVE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), int(sys.argv[2])))
from kernels.server import ConnectionLimits, HubServer
most = int(sys.argv[3]) or None
server = HubServer(sys.argv[1], token="hf_secret", writable=True, limits=ConnectionLimits(connections=most)).start()
print(server.port, flush=True)
sys.stdin.read()
"""


@contextmanager
def process(root: Path, files: int, most: int = 0) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """A Hub in a process of its own, that may open so many files."""
    command = [sys.executable, "-c", _SERVE, str(root), str(files), str(most)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        try:
            yield int(running.stdout.readline()), running
        finally:
            running.kill()


@linux
@pytest.mark.parametrize("most", [0, 100_000], ids=["in-bounds", "past-the-limit-of-open-files"])
def test_half_sent_requests_neither_stop_the_hub_nor_fill_its_log(root: Path, most: int) -> None:
    with process(root, files=256, most=most) as (port, running):
        held = []
        for _ in range(1100):
            held.append(socket.create_connection(("127.0.0.1", port), timeout=20))
            with suppress(ConnectionError):
                held[-1].sendall(b"GET / HTTP/1.1\r\nHost: a\r\n")
        if not most:
            assert get(port, FILE)[0] == 200
        for connection in held:
            connection.close()
        _wait_until(lambda: _answers(port))
        running.kill()
        assert len(running.communicate()[1].splitlines()) <= (1 if most else 0)


@linux
def test_no_body_fills_the_memory(root: Path) -> None:
    with process(root, files=1024) as (port, running):
        send(port, request("POST", PATHS, b"paths=a", **FORM))
        before = _peak(running.pid)
        with connected(port) as connection, suppress(ConnectionError):
            connection.sendall(request("POST", PATHS, b"", Transfer_Encoding="chunked"))
            for _ in range(200):
                connection.sendall(b"100000\r\n" + b"x" * 2**20 + b"\r\n")
        assert _peak(running.pid) - before < 30
        lines = [_line(path=f"{number}.py", content=_ENCODED, encoding="base64") for number in range(30)]
        assert send(port, written(COMMIT, b"".join(lines)))[0] == 200  # 90 MB
        assert _peak(running.pid) - before < 60
        assert send(port, written(COMMIT, b'{"key":"file","value":{"path":' + _MANY))[0] == 400
        assert _peak(running.pid) - before < 60


_ENCODED = base64.b64encode(bytes(3 * 10**6)).decode()


@linux
def test_many_bodies_at_once_are_bounded_together(root: Path) -> None:
    with process(root, files=1024) as (port, running):
        send(port, request("POST", PATHS, b"paths=a", **FORM))
        before = _peak(running.pid)
        held = []
        for _ in range(300):
            held.append(socket.create_connection(("127.0.0.1", port), timeout=20))
            held[-1].sendall(request("POST", PATHS, b"x" * (2**20 - 1), Content_Length=str(2**20)))
        statuses = []
        for connection in held:
            with suppress(ConnectionError):
                connection.sendall(b"x")
                statuses.append(answer_to(connection)[0])
            connection.close()
        assert set(statuses) == {200, 503}
        assert _peak(running.pid) - before < 250
        assert get(port, FILE)[0] == 200


def test_no_work_is_done_where_everybody_waits(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop of the server looks at no disk and decodes nothing: it would keep every other client waiting."""
    seen: list[str] = []

    def noted(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            seen.append(threading.current_thread().name)
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, call)

    for owner, name in [
        *((Catalog, name) for name in ("commit", "repository", "private", "publisher", "branches", "known")),
        (catalog_module, "scan_folder"),
        *((LfsObjects, name) for name in ("find", "_begin", "_finish", "_prepare", "scratch")),
        *((Writer, name) for name in ("create_repository", "create_branch", "commit")),
        (os, "scandir"),
        (os.path, "realpath"),
    ]:
        noted(owner, name)
    monkeypatch.setattr(
        "kernels.server.app.parse_qs", lambda *a, **o: seen.append(threading.current_thread().name) or {}
    )
    data = b"\x7fELF"
    wanted = {"operation": "upload", "objects": [{"oid": hashlib.sha256(data).hexdigest(), "size": len(data)}]}
    question = json.dumps(wanted).encode()
    for sent in (
        request("GET", INFO), request("GET", FILE), request("GET", _TREE), request("GET", f"/api/kernels/{REPO}/refs"),
        request("GET", "/api/organizations/acme/overview"), request("POST", PATHS, b"paths=build", **FORM),
        written("/api/repos/create", b'{"organization":"acme","name":"new","type":"kernel"}'),
        written(f"/api/kernels/{REPO}/branch/v9", b"{}"),
        written(f"/api/kernels/{REPO}/preupload/v1", b'{"files":[{"path":"a","size":1}]}'),
        written(_BATCH, question), written(COMMIT, _line(path="a.py", content="")),
    ):  # fmt: skip
        assert send(server.port, sent)[0] == 200
    href = json.loads(send(server.port, written(_BATCH, question))[2])["objects"][0]["actions"]["upload"]["href"]
    assert send(server.port, request("PUT", href.removeprefix(server.url), data))[0] == 200
    assert len(seen) > 20
    assert f"kernels serve {server.port}" not in seen


# ---------------------------------------------------------------------------------------------------------------------
# What is looked at, and what is kept
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that were walked."""
    walked: list[Path] = []
    scan = catalog_module.scan_folder
    monkeypatch.setattr(
        catalog_module, "scan_folder", lambda top, root, **options: (walked.append(top), scan(top, root, **options))[1]
    )
    return walked


def test_a_commit_is_walked_once_for_all_of_its_files(server: HubServer, walks: list[Path]) -> None:
    commit = json.loads(get(server.port)[2])["sha"]
    walks.clear()
    files = server.catalog.known(REPO, commit)
    assert files is not None
    for path in files.files:
        status, headers, _ = get(server.port, f"/kernels/{REPO}/resolve/{commit}/{path}")
        if status == 302:
            status, _, _ = get(server.port, headers["location"])
        assert status == 200
    assert walks == []


def test_the_pages_of_a_listing_are_one_walk(server: HubServer, walks: list[Path]) -> None:
    commit = server.catalog.commit(REPO, "v1").id
    walks.clear()
    target = f"/api/kernels/{REPO}/tree/{commit}?recursive=true&limit=2"
    pages = 0
    while target:
        pages += 1
        _, headers, _ = get(server.port, target)
        target = headers.get("link", "").partition("<")[2].partition(">")[0].removeprefix(server.url)
    assert pages == 3
    assert len(walks) == 1


def test_a_file_that_was_changed_is_not_sent_as_what_its_commit_lists(server: HubServer, root: Path) -> None:
    commit = json.loads(get(server.port)[2])["sha"]
    (root / REPO / "v1" / SMALL).write_text("changed = True\n")
    status, headers, _ = get(server.port, f"/kernels/{REPO}/resolve/{commit}/{SMALL}")
    assert (status, headers["x-error-code"]) == (404, "RevisionNotFound")
    status, headers, body = get(server.port, FILE)
    assert (status, body) == (200, b"changed = True\n")
    assert headers["x-repo-commit"] != commit


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(server: HubServer, root: Path) -> None:
    commit = json.loads(get(server.port)[2])["sha"]
    extra = root / REPO / "v1" / "extra.py"
    extra.write_text("x = 1\n")
    head = server.catalog.commit(REPO, "v1").id
    extra.unlink()
    os.mkfifo(extra)
    assert get(server.port, f"/kernels/{REPO}/resolve/{head}/extra.py")[0] == 404
    assert get(server.port, f"/kernels/{REPO}/resolve/v1/extra.py")[0] == 404
    assert json.loads(get(server.port)[2])["sha"] == commit


def test_requests_that_wait_for_a_folder_share_one_look_at_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = Catalog(root)
    first, go_on, walked = threading.Event(), threading.Event(), []
    scan, locked = catalog_module.scan_folder, Listings.locked
    waiting: list[Path] = []

    def slow_scan(top: Path, root: Path, **options: Any) -> Any:
        walked.append(top)
        first.set()
        go_on.wait(20)
        return scan(top, root, **options)

    def noted(self: Listings, folder: Path) -> Any:
        waiting.append(folder)
        return locked(self, folder)

    monkeypatch.setattr(catalog_module, "scan_folder", slow_scan)
    monkeypatch.setattr(Listings, "locked", noted)
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(catalog.commit(REPO, "v1").id)) for _ in range(20)]
    threads[0].start()
    assert first.wait(20)
    for thread in threads[1:]:
        thread.start()
    _wait_until(lambda: len(waiting) == 20)
    # The first look began before this change, so it counts for none of those that came after it.
    (root / REPO / "v1" / "late.py").touch()
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert len(found) == 20
    assert len(walked) == 2
    assert "late.py" in catalog.commit(REPO, found[-1]).files


def test_what_is_remembered_is_bounded(root: Path) -> None:
    listings = Listings(max_files=20)
    catalog = Catalog(root)
    catalog._listings = listings
    for number in range(30):
        make_repo(root, f"acme/number-{number}")
        catalog.commit(f"acme/number-{number}", "v1")
        for absent in ("f" * 40, "v9", "refs/pr/7"):
            with suppress(Exception):
                catalog.commit(f"acme/number-{number}", absent)
    assert len(listings._listings) <= 6
    assert len(listings._folders) <= len(listings._listings)
    assert len(listings._locks) == 0


def test_changes_leave_nothing_behind_in_memory(root: Path) -> None:
    catalog = Catalog(root)
    writer = Writer(catalog)
    for number in range(20):
        writer.commit(REPO, "v1", RepositoryChange({"x.py": str(number).encode()}))
    assert len(catalog._listings._listings) == 1
    assert catalog._listings._files <= 10


def test_an_upload_is_bounded_in_number_and_by_the_disk(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"\x7fELF"
    wanted = {"operation": "upload", "objects": [{"oid": hashlib.sha256(data).hexdigest(), "size": len(data)}]}
    answer = send(server.port, written(_BATCH, json.dumps(wanted).encode()))
    href = json.loads(answer[2])["objects"][0]["actions"]["upload"]["href"].removeprefix(server.url)
    held = []
    for _ in range(64):
        held.append(socket.create_connection(("127.0.0.1", server.port), timeout=20))
        held[-1].sendall(request("PUT", href, data[:-1], Content_Length=str(len(data))))
    _wait_until(lambda: len(list((server.catalog.root / ".incoming").glob("part-*"))) == 64)
    assert send(server.port, request("PUT", href, data))[0] == 503
    for connection in held:
        connection.close()
    _wait_until(lambda: not list((server.catalog.root / ".incoming").glob("*")))
    monkeypatch.setattr("kernels.server.lfs_objects._LEFT_FREE", 2**62)
    assert send(server.port, request("PUT", href, data))[0] == 503


def test_uploads_that_begin_together_do_not_pass_the_limit_together(
    server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = b"\x7fELF"
    wanted = {"operation": "upload", "objects": [{"oid": hashlib.sha256(data).hexdigest(), "size": len(data)}]}
    answer = send(server.port, written(_BATCH, json.dumps(wanted).encode()))
    href = json.loads(answer[2])["objects"][0]["actions"]["upload"]["href"].removeprefix(server.url)
    both, usage = threading.Barrier(2), shutil.disk_usage

    def slowly(path: Path) -> Any:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.5)  # two that begin together meet here
        return usage(path)

    monkeypatch.setattr("kernels.server.lfs_objects.shutil.disk_usage", slowly)
    monkeypatch.setattr("kernels.server.lfs_objects._MAX_PARTS", 1)
    with connected(server.port) as one, connected(server.port) as other:
        for connection in (one, other):
            connection.sendall(request("PUT", href, data[:-1], Content_Length=str(len(data))))
        (refused,) = select.select([one, other], [], [], 20)[0]
        assert answer_to(refused)[0] == 503
        accepted = other if refused is one else one
        accepted.sendall(data[-1:])
        assert answer_to(accepted)[0] == 200


# ---------------------------------------------------------------------------------------------------------------------
# Who is told what
# ---------------------------------------------------------------------------------------------------------------------

_FORWARDED = {
    "Host": "evil.test",
    "X-Forwarded-Host": "evil.test",
    "X-Forwarded-Proto": "evil",
    "X-Forwarded-For": "evil.test",
    "X-Forwarded-Prefix": "/evil",
    "Forwarded": "host=evil.test;proto=evil",
}


@pytest.mark.parametrize(
    "sent",
    [
        ("GET", f"{_TREE}?limit=1&recursive=true&evil=evil", None),
        ("GET", f"/kernels/{REPO}/resolve/v1/{LFS}", None),
        ("GET", "/api/agent-harnesses/", None),
        ("GET", f"{INFO}/", None),
        ("GET", "//evil/..", None),
        ("POST", _BATCH, json.dumps({"operation": "upload", "objects": [{"oid": "0" * 64, "size": 1}]}).encode()),
        ("POST", COMMIT, _line(path="new.py", content="x = 1\n")),
        ("POST", "/api/repos/create", b'{"organization":"acme","name":"gelu","type":"kernel"}'),
    ],
    ids=lambda sent: sent[1][-30:],
)
def test_no_address_comes_from_the_request(root: Path, sent: tuple[str, str, bytes | None]) -> None:
    method, target, body = sent
    headers = {**_FORWARDED, "Authorization": f"Bearer {TOKEN}"}
    with HubServer(root, host="0.0.0.0", token=TOKEN, writable=True) as server:
        status, found, content = send(server.port, request(method, target, body, **headers))
    assert status != 421
    assert "evil" not in json.dumps(found)
    assert b"evil.test" not in content
    for value in (found.get("link"), content.decode()):
        assert value is None or "http" not in value or f"http://127.0.0.1:{server.port}" in value


@pytest.mark.parametrize("target", ["/", "/index.html", "/catalog/-/list.js", INFO, FILE, "/api/whoami-v2", "/absent"])
@pytest.mark.parametrize(
    ("host", "answered"),
    [
        ("localhost:{port}", True), ("127.0.0.1:{port}", True), ("LOCALHOST", True), ("localhost:9000", True),
        ("[::1]:9000", True), ("hub.example", True), ("Hub.Example:443", True), ("", True),
        ("evil.example:{port}", False), ("evil.example", False), ("localhost.evil.example", False),
        ("evil.hub.example", False), ("hub.example.evil", False), ("localhost@evil.example", False),
        ("evil.example:127.0.0.1", False), ("[::1].evil.example", False), ("[::2]", False),
        ("127.0.0.1.evil.example", False),
    ],
)  # fmt: skip
def test_no_website_reads_a_hub_of_this_machine_by_its_own_name(
    root: Path, target: str, host: str, answered: bool
) -> None:
    with HubServer(root, token=TOKEN, public_url="https://hub.example:8443/kernels") as server:
        status, _, body = get(server.port, target, Host=host.format(port=server.port), Accept="text/html")
    assert (status != 421) is answered
    assert answered or b"--public-url" in body
    assert answered or b"relu" not in body


def test_a_hub_on_every_network_is_used_by_any_name(root: Path) -> None:
    with HubServer(root, host="0.0.0.0") as server:
        assert get(server.port, FILE, Host="build-machine.example:9000")[0] == 200


@pytest.mark.parametrize(
    ("target", "headers", "status"),
    [
        (FILE, {}, 200), (FILE, {"Range": "bytes=0-3"}, 206), (FILE, {"Range": "bytes=99999-"}, 416),
        (f"/kernels/{REPO}/resolve/v1/{LFS}", {}, 302), ("lfs", {}, 200),
        (f"/kernels/{REPO}/resolve/v1/absent.html", {}, 404), (f"/kernels/{REPO}/resolve/v9/x", {}, 404),
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_browser_runs_nothing_that_a_repository_contains(
    shared_server: HubServer, target: str, headers: dict[str, str], status: int, method: str
) -> None:
    port = shared_server.port
    if target == "lfs":
        target = get(port, f"/kernels/{REPO}/resolve/v1/{LFS}")[1]["location"]
    code, found, _ = send(port, request(method, target, **headers), method)
    assert code == status
    assert found["x-content-type-options"] == "nosniff"
    assert found["content-security-policy"] == "sandbox"


def test_an_organization_counts_what_one_may_see(root: Path, server: HubServer) -> None:
    writer = Writer(server.catalog)
    writer.create_repository("acme/hidden", private=True)
    writer.create_repository("secret/hidden", private=True)
    (root / "acme" / "dangling").mkdir()
    (root / "acme" / "dangling" / ".private").symlink_to("nowhere")
    (root / "acme" / "outside").symlink_to(root.parent)
    (root / "acme" / "no--repository").mkdir()

    def overview(name: str, **headers: str) -> tuple[int, int | None]:
        status, _, body = get(server.port, f"/api/organizations/{name}/overview", **headers)
        return status, json.loads(body).get("numKernels")

    allowed = {"Authorization": f"Bearer {TOKEN}"}
    assert (overview("acme"), overview("acme", **allowed)) == ((200, 1), (200, 3))
    assert (overview("secret"), overview("secret", **allowed)) == ((404, None), (200, 1))
    assert get(server.port, "/api/organizations/secret/overview")[2] == get(
        server.port, "/api/organizations/absent/overview"
    )[2].replace(b"absent", b"secret")
    assert get(server.port, "/api/kernels/acme/dangling/refs")[0] == 404


def test_a_private_repository_looks_like_one_that_is_not_there(server: HubServer) -> None:
    Writer(server.catalog).create_repository("acme/hidden", private=True)
    for target in (
        "/api/kernels/acme/{}", "/api/models/acme/{}", "/api/datasets/acme/{}", "/api/kernels/acme/{}/refs",
        "/api/kernels/acme/{}/tree/main", "/api/kernels/acme/{}/revision/v9", "/kernels/acme/{}/resolve/main/x",
        "/acme/{}/resolve/main/x", "/lfs/kernels/acme/{}/main/0/x", "/api/kernels/acme/{}/commits/main",
    ):  # fmt: skip
        hidden, absent = (get(server.port, target.format(name)) for name in ("hidden", "absent"))
        assert hidden[0] == absent[0] == 404
        assert hidden[2].replace(b"hidden", b"absent") == absent[2]
        assert hidden[1].keys() == absent[1].keys()
    for headers in ({}, {"Authorization": "Bearer hf_other"}):
        hidden = send(server.port, request("POST", "/api/kernels/acme/hidden/paths-info/main", b"", **headers))
        assert hidden[0] == 404


def test_the_token_is_in_no_answer(server: HubServer) -> None:
    allowed = {"Authorization": f"Bearer {TOKEN}"}
    for target in ("/api/whoami-v2", INFO, "/nothing", f"/kernels/{REPO}/resolve/v1/{LFS}"):
        status, headers, body = get(server.port, target, **allowed)
        assert TOKEN not in f"{status}{headers}{body!r}"


# ---------------------------------------------------------------------------------------------------------------------


def _answers(port: int) -> bool:
    with suppress(OSError, http.client.HTTPException):
        return get(port, FILE)[0] == 200
    return False


def _wait_until(true: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def _open_times(name: str) -> int:
    """How often this process has a file of that name open."""
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile
            found += os.readlink(f"/proc/self/fd/{descriptor}").endswith(f"/{name}")
    return found


def _peak(pid: int) -> float:
    """The most memory that a process has had, in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1000
