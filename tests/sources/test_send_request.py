"""One request: the limit on its headers, and the threads that send requests."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from kernels.sources import send_request
from kernels.sources.send_request import Sending, connection_errors, send
from kernels.support.concurrency import side_by_side


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
    monkeypatch.setattr(send_request, "_senders", send_request._Senders())
    monkeypatch.setattr(send_request, "time", time)
    yield running
    running.go_on.set()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    threads: list[threading.Thread] = []
    start = threading.Thread.start

    def counted(thread: threading.Thread) -> None:
        if thread.name == "kernels-request":
            threads.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", counted)
    return threads


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


def test_requests_in_a_row_are_sent_by_one_thread(server: _Server, started: list[threading.Thread]) -> None:
    assert [_body(f"{server.url}/{number}") for number in range(20)] == [b"ok"] * 20
    assert len(started) == 1


def test_requests_at_once_have_a_thread_each_and_no_more(server: _Server, started: list[threading.Thread]) -> None:
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(_body, [f"{server.url}/{number}" for number in range(40)])) == [b"ok"] * 40
    assert len(started) <= 4


def test_a_session_that_another_thread_closes_is_made_anew(server: _Server, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.utils import close_session

    new_session, asked = send_request.new_session, []

    def closed_at_first() -> Any:
        session = new_session()
        asked.append(session)
        if len(asked) == 1:
            close_session()
        return session

    monkeypatch.setattr(send_request, "new_session", closed_at_first)
    assert _body(server.url) == b"ok"
    assert len(asked) == 2


def test_a_request_is_known_to_have_left_before_its_answer_is_there(server: _Server) -> None:
    late = Sending(f"{server.url}/late", {}, 10, noted=True)
    assert late.wait_written(10)
    assert not late.wait(0)
    server.go_on.set()
    late.response().close()


def test_a_request_that_fails_is_not_waited_for_as_if_it_were_to_leave(server: _Server) -> None:
    refused = Sending("http://127.0.0.1:9/", {}, 10, noted=True)
    assert refused.wait_written(10)
    with pytest.raises(connection_errors()):
        refused.response()


def test_a_late_answer_does_not_hold_up_the_next_request(server: _Server) -> None:
    late = Sending(f"{server.url}/late", {}, 10)
    late._deadline = time.monotonic()
    with pytest.raises(TimeoutError, match="no whole answer within 30 s"):
        late.response()
    assert _body(f"{server.url}/next") == b"ok"


def test_a_response_that_nobody_waits_for_is_closed(server: _Server, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Any] = []
    close = send_request._close
    monkeypatch.setattr(send_request, "_close", lambda found: (closed.append(found), close(found)))
    late = Sending(f"{server.url}/late", {}, 10)
    late.give_up()
    server.go_on.set()
    _wait_for(lambda: any(getattr(found, "is_closed", False) for found in closed))
    there = Sending(f"{server.url}/there", {}, 10)
    _wait_for(lambda: there._outcome is not None)
    response = there._outcome
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


def test_a_thread_without_requests_ends(
    server: _Server, started: list[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_request, "_IDLE_SECONDS", 0.01)
    _body(server.url)
    _wait_for(lambda: not started[0].is_alive())
    assert _body(server.url) == b"ok"
    assert len(started) == 2


def test_the_end_of_the_interpreter_ends_threads_without_requests(
    server: _Server, started: list[threading.Thread]
) -> None:
    late = Sending(f"{server.url}/late", {}, 10)
    _body(server.url)
    begun = time.monotonic()
    send_request._senders.end()
    assert [thread.is_alive() for thread in started] == [True, False]
    assert time.monotonic() - begun < 10
    server.go_on.set()
    assert late.response().status_code == 200
    assert _body(server.url) == b"ok"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_sends_with_threads_of_its_own(server: _Server) -> None:
    _body(server.url)  # leaves an idle thread, which the fork does not have
    child = os.fork()
    if not child:
        try:
            os._exit(0 if _body(server.url) == b"ok" else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_response_that_cannot_be_closed_takes_no_thread_away(
    server: _Server, started: list[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub.utils import get_session

    closed = threading.Event()

    class Broken:
        def close(self) -> None:
            closed.set()
            raise OSError(9, "Bad file descriptor")

    with monkeypatch.context() as patched:
        patched.setattr(get_session(), "send", lambda *given, **others: server.go_on.wait(30) and Broken())
        late = Sending(server.url, {}, 10)
        late.give_up()
        server.go_on.set()
        assert closed.wait(30)
    _wait_for(lambda: send_request._senders._idle == 1)
    assert _body(server.url) == b"ok"
    assert len(started) == 1


def test_a_program_that_replaces_threads_gets_other_senders(server: _Server, monkeypatch: pytest.MonkeyPatch) -> None:
    _body(server.url)  # leaves an idle thread
    before = send_request._senders
    _wait_for(lambda: before._idle == 1)
    lock = threading.Lock
    monkeypatch.setattr(threading, "Lock", lambda: lock())  # as gevent's `monkey.patch_all()` does
    assert _body(server.url) == b"ok"
    assert send_request._senders is not before
    assert before._idle == 1
