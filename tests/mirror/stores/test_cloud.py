"""A mirror in an object store: its requests, and what a store answers when something is wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from s3_server import S3Server

from kernels.errors import HubUnavailable, KernelsError, NotInCache, StoreError
from kernels.mirror.ranges import archive_chunks
from kernels.mirror.stores import cloud, clouds
from kernels.mirror.stores.base import EntryNotFound, StoreChanged, WriteStore
from kernels.mirror.stores.opening import open_store
from kernels.models.mirror import MirrorArchive
from kernels.support.tasks import side_by_side

pytestmark = pytest.mark.usefixtures("isolated_env")


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits between tries, which take no time."""
    seconds: list[float] = []
    monkeypatch.setattr(cloud, "pause", seconds.append)
    return seconds


class Bucket:
    """A server that answers as its paths say: `/bucket/503`, `/bucket/cut`; each answer once, if it is in `once`.

    It knows no ranges and no conditions.
    """

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.once: list[int] = []
        self.code = "Secret"
        self.content = b"hello"
        bucket = self

        class Answers(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                bucket.seen.append(f"{self.command} {self.path} {self.headers.get('If-Match', '')}".strip())
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                name = self.path.rpartition("/")[2]
                status = bucket.once.pop(0) if bucket.once else int(name) if name.isdigit() else 200
                if name == "slow":
                    bucket.stopped.wait()
                error = f"<Error><Code>{bucket.code}</Code><HostId>inner-host</HostId></Error>".encode()
                body = bucket.content if status < 300 else error
                self.send_response(status)
                self.send_header("Content-Length", str(len(body) + 1000 * (name == "cut")))
                self.send_header("ETag", '"0"')
                # Announced: on a connection that closes without notice, the next request is sometimes never seen.
                self.send_header("Connection", "close")
                self.end_headers()
                if self.command != "HEAD":
                    with suppress(OSError):  # the client is gone
                        self.wfile.write(body)

            do_GET = do_PUT = do_HEAD = do_POST = answer

            def log_message(self, *arguments: object) -> None: ...

        self.stopped = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def stop(self) -> None:
        self.stopped.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def bucket(s3_environment: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    served = Bucket()
    monkeypatch.setenv("AWS_ENDPOINT_URL", served.url)
    monkeypatch.setattr(clouds, "_WAIT_SECONDS", 0.001)
    yield served
    served.stop()


@pytest.fixture
def wrong(bucket: Bucket) -> WriteStore:
    return open_store("s3://bucket")


def test_reading_is_one_request_each(s3_environment: S3Server) -> None:
    store = open_store(f"s3://{s3_environment.bucket()}")
    etag = store.write("mirror.json", b"{}")
    with s3_environment.requests() as sent:
        store.read("mirror.json", 10)
        assert store.read("mirror.json", 10, etag=etag) is None
        with store.stream("mirror.json", 2) as pieces:
            list(pieces)
        with store.stream("mirror.json", 2, 1) as pieces:
            list(pieces)
        store.size("mirror.json")
    path = f"{store.url.removeprefix('s3:/')}/mirror.json"
    assert sent == [f"GET {path} 200", f"GET {path} 304", f"GET {path} 200", f"GET {path} 206", f"HEAD {path} 200"]


def test_entries_say_what_they_are_and_for_how_long(s3_environment: S3Server) -> None:
    store = open_store(f"s3://{s3_environment.bucket()}/p")
    store.write("api/kernels/org/relu/refs", b"{}", expect="new")
    store.write("archives/0a/0a.tar.zst", b"x", immutable=True)
    store.write("index.html", b"x")
    name = store.url.split("/")[2]
    heads = [
        s3_environment.headers(name, f"p/{path}")
        for path in ("api/kernels/org/relu/refs", "archives/0a/0a.tar.zst", "index.html")
    ]
    assert [(head["Content-Type"], head["Cache-Control"]) for head in heads] == [
        ("application/json", "no-cache"),
        ("application/zstd", "public, max-age=31536000, immutable"),
        ("text/html; charset=utf-8", "no-cache"),
    ]


def test_a_large_archive_is_sent_in_parts(s3_environment: S3Server, tmp_path: Path) -> None:
    store = open_store(f"s3://{s3_environment.bucket()}")
    data = os.urandom(cloud._PART + 5)
    (tmp_path / "archive").write_bytes(data)
    with s3_environment.requests() as sent:
        store.write("archives/x", tmp_path / "archive", immutable=True)
    assert [line.split()[0] for line in sent] == ["POST", "PUT", "PUT", "POST"]
    with store.stream("archives/x", len(data)) as pieces:
        assert b"".join(pieces) == data


def test_many_threads_use_one_store(s3_environment: S3Server) -> None:
    store = open_store(f"s3://{s3_environment.bucket()}")
    side_by_side(lambda number: store.write(f"a/{number}", b"%d" % number), range(16), at_once=8, name="writer")
    found = side_by_side(lambda number: store.read(f"a/{number}", 10), range(16), at_once=8, name="reader")
    assert [each.content for each in found if each] == [b"%d" % number for number in range(16)]


@pytest.mark.parametrize("status", [429, 503, 500, 408])
def test_a_busy_store_is_asked_again(wrong: WriteStore, bucket: Bucket, waited: list[float], status: int) -> None:
    bucket.once = [status, status]
    found = wrong.read("x", 10)
    assert found is not None
    assert found.content == b"hello"
    assert len(bucket.seen) == 3
    assert 0.5 <= waited[0] < waited[1] <= 1.25


def test_a_store_that_stays_busy_is_given_up(wrong: WriteStore, bucket: Bucket, waited: list[float]) -> None:
    with pytest.raises(HubUnavailable, match=r"^s3://bucket answered 503 \(Secret\) for 503\.$"):
        wrong.read("503", 10)
    assert len(bucket.seen) == cloud._TRIES
    assert sum(waited) < 30


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        (404, EntryNotFound, "s3://bucket has no 404"),
        (401, HubUnavailable, "answered 401"),
        (403, HubUnavailable, "Check the credentials and their rights"),
        (301, HubUnavailable, "set AWS_REGION"),
        (400, HubUnavailable, "answered 400"),
    ],
)
def test_a_refusal_is_final_and_short(
    wrong: WriteStore, bucket: Bucket, status: int, error: type[KernelsError], message: str
) -> None:
    with pytest.raises(error, match=message) as raised:
        wrong.read(str(status), 10)
    assert len(bucket.seen) == 1
    text = str(raised.value)
    assert len(text) < 300
    assert not any(word in text for word in ("Debug", "xml", "Error>", "inner-host", "test-secret"))
    assert raised.value.__cause__ is None


@pytest.mark.parametrize("status", [403, 400, 404])
def test_a_refused_write_is_an_error_of_the_store(wrong: WriteStore, status: int) -> None:
    with pytest.raises(StoreError, match=f"Cannot write s3://bucket/{status}: the store answered {status}"):
        wrong.write(str(status), b"x")


@pytest.mark.parametrize(
    ("status", "code"), [(501, "NotImplemented"), (400, "NotImplemented"), (400, "ConditionHeadersNotSupported")]
)
def test_a_store_without_conditional_writes_is_refused(
    wrong: WriteStore, bucket: Bucket, status: int, code: str
) -> None:
    bucket.code = code
    with pytest.raises(StoreError, match="does not support conditional writes"):
        wrong.write(str(status), b"x", expect="new")


@pytest.mark.parametrize(
    ("code", "error", "advice"),
    [
        ("ExpiredToken", StoreError, "The credentials have expired; renew them."),
        ("InvalidToken", StoreError, "The session token is not valid."),
        ("AuthorizationHeaderMalformed", StoreError, "set AWS_REGION to the region of the bucket."),
        ("RequestTimeout", HubUnavailable, "The store waited too long for the request"),
        ("InvalidArgument", StoreError, ""),
    ],
)
@pytest.mark.parametrize("expect", [None, "new", '"0"'])
def test_a_write_that_was_refused_for_another_reason_says_that_reason(
    wrong: WriteStore, bucket: Bucket, code: str, error: type[KernelsError], advice: str, expect: Any
) -> None:
    bucket.code = code
    with pytest.raises(error, match=rf"answered 400 \({code}\)") as raised:
        wrong.write("400", b"x", expect=expect)
    assert advice in str(raised.value)
    assert "conditional" not in str(raised.value)


def test_a_store_that_waited_too_long_for_a_request_is_asked_again(
    wrong: WriteStore, bucket: Bucket, waited: list[float]
) -> None:
    bucket.code, bucket.once = "RequestTimeout", [400]
    assert wrong.read("x", 10) is not None


@pytest.mark.parametrize("status", [400, 403])
def test_a_refusal_of_an_unsigned_request_says_that_no_credentials_were_found(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    uses: list[Callable[[WriteStore], object]] = [
        lambda store: store.read(str(status), 10),
        lambda store: store.write(str(status), b"x"),
        lambda store: store.write(str(status), b"x", expect="new"),
    ]
    expected = "Requests are not signed, because no credentials were found. Looked at: AWS_ACCESS_KEY_ID"
    for use in uses:
        with pytest.raises(KernelsError, match=rf"answered {status} .*{expected}"):
            use(open_store("s3://bucket"))
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    for use in uses:
        with pytest.raises(KernelsError, match=r"Requests are not signed: `AWS_SKIP_SIGNATURE` is set\."):
            use(open_store("s3://bucket"))


def test_only_a_reader_of_an_entry_is_told_that_it_may_be_missing(wrong: WriteStore, bucket: Bucket) -> None:
    sentence = "may not list the bucket"
    with pytest.raises(HubUnavailable, match=sentence):
        wrong.read("403", 10)
    with pytest.raises(StoreError) as raised:
        wrong.write("403", b"x")
    assert sentence not in str(raised.value)
    bucket.once = [403]
    with pytest.raises(HubUnavailable, match="answered 403") as listed:
        list(wrong.entries())
    assert sentence not in str(listed.value)


def test_an_archive_is_read_from_a_store_that_sends_no_ranges(wrong: WriteStore, bucket: Bucket) -> None:
    bucket.content = bytes(range(256)) * (68 * 1024)  # 17 MiB: an archive of this size is requested in parts
    archive = MirrorArchive("archives/x", len(bucket.content), "0" * 64)
    with archive_chunks(wrong, archive) as pieces:
        assert b"".join(pieces) == bucket.content
    assert len(bucket.seen) <= 4
    with wrong.stream("x", len(bucket.content), 5, 2_000_000) as pieces:
        assert b"".join(pieces) == bucket.content[5:2_000_000]


def test_a_store_that_ignores_conditions_is_warned_about_once(
    wrong: WriteStore, bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    wrong.write("a", b"x", expect="new")
    wrong.write("b", b"x", expect="new")
    assert [record.message for record in caplog.records if "ignores the conditions" in record.message] == [
        "s3://bucket ignores the conditions of writes, so a writer may undo the change of another one. Let only one "
        "process write to it at a time."
    ]
    probe = "/bucket/conditions-probe"
    assert [line.split()[:2] for line in bucket.seen] == [
        ["PUT", "/bucket/a"], ["PUT", probe], ["POST", "/bucket?delete"], ["PUT", "/bucket/b"],
    ]  # fmt: skip


def test_an_etag_is_sent_without_quotes_where_the_store_knows_none(wrong: WriteStore, bucket: Bucket) -> None:
    bucket.once = [412, 200, 200]
    wrong.write("a", b"x", expect='"0"')
    wrong.write("a", b"x", expect='"0"')
    sent = [line for line in bucket.seen if line.startswith("PUT /bucket/a")]
    assert sent == ['PUT /bucket/a "0"', "PUT /bucket/a 0", "PUT /bucket/a 0"]


def test_a_conflict_after_a_retry_may_be_ones_own_write(wrong: WriteStore, bucket: Bucket) -> None:
    bucket.once = [500, 412]
    assert wrong.write("a", b"hello", expect="new") == '"0"'
    bucket.once = [500, 412]
    with pytest.raises(StoreChanged):
        wrong.write("a", b"other", expect="new")


def test_an_answer_that_is_cut_short_is_noticed(wrong: WriteStore, waited: list[float]) -> None:
    with pytest.raises(HubUnavailable, match="s3://bucket"):
        wrong.read("cut", 2000)
    with pytest.raises(HubUnavailable, match="s3://bucket"), wrong.stream("cut", 1005) as pieces:
        list(pieces)


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:1", "http://no-such-host.invalid"])
def test_no_answer_is_said_shortly(
    s3_environment: S3Server, monkeypatch: pytest.MonkeyPatch, waited: list[float], endpoint: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(HubUnavailable, match=r"s3://bucket did not answer( \([^)]*\))? for x\. Check the network"):
        open_store("s3://bucket").read("x", 10)
    assert len(waited) == cloud._CONNECTION_TRIES - 1


def test_offline_nothing_is_requested(wrong: WriteStore, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for use in (lambda: wrong.read("x", 10), lambda: list(wrong.entries()), lambda: wrong.write("x", b"")):
        with pytest.raises(NotInCache, match="HF_HUB_OFFLINE is set"):
            use()
    assert bucket.seen == []


def test_a_missing_bucket_is_not_a_missing_entry(s3_environment: S3Server) -> None:
    store = open_store("s3://no-such-bucket")
    with pytest.raises(HubUnavailable, match=r"NoSuchBucket.*There is no such bucket"):
        store.read("mirror.json", 10)
    with pytest.raises(HubUnavailable, match="There is no such bucket"):
        list(store.entries())
    with pytest.raises(StoreError, match="There is no such bucket"):
        store.write("mirror.json", b"{}")
    with pytest.raises(StoreError, match="There is no such bucket"):
        store.write("mirror.json", b"{}", expect="new")


WAITING = """
import sys, threading
from kernels.mirror.stores.opening import open_store
store = open_store("s3://bucket")
threading.Timer(0.3, lambda: print("waiting", flush=True)).start()
try:
    store.read("slow", 10)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


FORKED_EARLY = """
import os, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from kernels.mirror.stores.opening import open_store

asked, go_on = threading.Event(), threading.Event()

class Metadata(BaseHTTPRequestHandler):
    def do_PUT(self):
        asked.set()
        go_on.wait()
        self.send_error(404)
    def log_message(self, *arguments): ...

service = ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
service.daemon_threads = True
threading.Thread(target=service.serve_forever, daemon=True).start()
os.environ["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = f"http://127.0.0.1:{service.server_port}"
for name in ("AWS_EC2_METADATA_DISABLED", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
    del os.environ[name]
store = open_store("s3://bucket")
threading.Thread(target=store.read, args=("x", 10), daemon=True).start()
asked.wait()
child = os.fork()
if not child:
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    os._exit(0 if store.read("x", 10).content == b"hello" else 1)
go_on.set()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_while_another_thread_connects_leaves_a_store_that_can_be_read(bucket: Bucket) -> None:
    subprocess.run([sys.executable, "-c", FORKED_EARLY], timeout=60, check=True)


def test_ctrl_c_ends_a_wait(bucket: Bucket) -> None:
    process = subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=5)
    assert (out, process.returncode) == ("interrupted\n", 0)


def test_an_error_in_another_thread_ends_a_wait(wrong: WriteStore) -> None:
    def work(name: str) -> object:
        if name == "slow":
            return wrong.read("slow", 10)
        raise OSError("another piece failed")

    with pytest.raises(OSError, match="another piece failed"):
        side_by_side(work, ["slow", "other"], at_once=2, name="reader")


FORKED = """
import os
from kernels.errors import HubUnavailable
from kernels.mirror.stores.opening import open_store
store = open_store("s3://bucket")
store.read("x", 10)
child = os.fork()
try:
    store.read("x", 10)
except HubUnavailable as error:
    print(error, flush=True)
if child:
    os.waitpid(child, 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_is_told_why_it_cannot_read(bucket: Bucket) -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.startswith("This process was forked from one that has used an object store, and cannot use it.")
    assert done.stdout.count("\n") == 1
