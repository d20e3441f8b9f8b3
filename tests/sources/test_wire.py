"""One request: the limit on its headers, and what becomes of an answer that nobody waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from kernels.sources import wire
from kernels.sources.wire import Sending, send
from kernels.support.tasks import side_by_side


class _Server(ThreadingHTTPServer):
    """Answers `ok`; a request for `/late` waits until it is told to go on."""

    daemon_threads = True

    def __init__(self) -> None:
        self.go_on = threading.Event()
        super().__init__(("127.0.0.1", 0), _Answer)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        assert isinstance(self.server, _Server)
        if self.path == "/late":
            self.server.go_on.wait(30)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def running() -> Iterator[_Server]:
    with _Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def server(running: _Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Server]:
    running.go_on.clear()
    monkeypatch.setattr(wire, "time", time)
    yield running
    running.go_on.set()


def _body(url: str) -> bytes:
    response = send(url, {}, 10)
    try:
        return b"".join(response.iter_raw())
    finally:
        response.close()


def _wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_session_that_another_thread_closes_is_made_anew(server: _Server, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.utils import close_session

    new_session, asked = wire.new_session, []

    def closed_at_first() -> Any:
        session = new_session()
        asked.append(session)
        if len(asked) == 1:
            close_session()
        return session

    monkeypatch.setattr(wire, "new_session", closed_at_first)
    assert _body(server.url) == b"ok"
    assert len(asked) == 2


def test_a_late_answer_does_not_hold_up_the_next_request(server: _Server) -> None:
    late = Sending(f"{server.url}/late", {}, 10)
    late._deadline = time.monotonic()
    with pytest.raises(TimeoutError, match="no whole answer within 30 s"):
        late.response()
    assert _body(f"{server.url}/next") == b"ok"


def test_a_response_that_nobody_waits_for_is_closed(server: _Server, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Any] = []
    close = wire._close
    monkeypatch.setattr(wire, "_close", lambda found: (closed.append(found), close(found)))
    late = Sending(f"{server.url}/late", {}, 10)
    late.give_up()
    server.go_on.set()
    _wait_for(lambda: any(getattr(found, "is_closed", False) for found in closed))
    there = Sending(f"{server.url}/there", {}, 10)
    _wait_for(lambda: there._answer is not None)
    response = there._answer
    there.give_up()
    assert response.is_closed


def test_an_error_elsewhere_ends_the_wait_for_headers(server: _Server) -> None:
    def work(path: str) -> bytes:
        if path == "broken":
            raise ValueError(path)
        return _body(f"{server.url}/{path}")

    begun = time.monotonic()
    with pytest.raises(ValueError, match="broken"):
        side_by_side(work, ["late", "broken"], at_once=2, name="test")
    assert time.monotonic() - begun < 10
