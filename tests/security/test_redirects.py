"""Where a Hub sends a client: the token stays at its own Hub, redirects end, and no answer takes for ever to begin."""

from __future__ import annotations

import gzip
import http.server
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import pytest
from hub import TestHub

from kernels import get_kernel, install_kernel
from kernels.errors import HubUnavailable, InvalidRepository, KernelsError, StoreError
from kernels.sources import response, wire
from kernels.sources.http import MAX_FILE_REDIRECTS, MAX_HTTP_REDIRECTS

TOKEN = "hf_0123456789abcdef0123456789abcdef"


class Listener:
    """Another server, which notes what it was asked, and answers with one content."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None]] = []
        self.content = b""
        listener = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                listener.asked.append((self.path, self.headers.get("Authorization")))
                self.send_response(200)
                self.send_header("Content-Length", str(len(listener.content)))
                self.end_headers()
                self.wfile.write(listener.content)

            def log_message(self, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]


@pytest.fixture
def elsewhere() -> Iterator[Listener]:
    listener = Listener()
    thread = threading.Thread(target=listener.server.serve_forever, args=(0.05,))
    thread.start()
    yield listener
    listener.server.shutdown()
    thread.join()
    listener.server.server_close()


@pytest.fixture
def served(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> TestHub:
    monkeypatch.setenv("KERNELS_HUB_TOKEN", TOKEN)
    hub.make_repo("acme/relu")
    return hub


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1:{port}/api/kernels/acme/relu/tree/x",
        "//127.0.0.1:{port}/api/kernels/acme/relu/tree/x",
        "x:{port}/api/kernels/acme/relu/tree/x",
        "x:@127.0.0.1:{port}/api/kernels/acme/relu/tree/x",
        "x:.evil.example/api/kernels/acme/relu/tree/x",
        "x:1/api/kernels/acme/relu/tree/x",
        "http:@127.0.0.1:{port}/api/kernels/acme/relu/tree/x",
        "http://user@127.0.0.1:{port}/api/kernels/acme/relu/tree/x",
        "http:///127.0.0.1:{port}/api/kernels/acme/relu/tree/x",
        "\\\\127.0.0.1:{port}/api/kernels/acme/relu/tree/x",
        "http://127.0.0.1\\@127.0.0.1:{port}/api/kernels/acme/relu/tree/x",
    ],
)
@pytest.mark.parametrize("header", ["Link", "Location"])
def test_the_token_goes_to_no_other_host(served: TestHub, elsewhere: Listener, header: str, address: str) -> None:
    target = address.format(port=elsewhere.port)
    elsewhere.content = b"[]"
    for pattern in ("/tree/", "/refs$", "/overview$"):
        served.heal()
        if header == "Link":
            served.add_headers(pattern, {"Link": f'<{target}>; rel="next"'})
        else:
            served.send_raw(pattern, f"HTTP/1.1 302 Found\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n".encode())
        with suppress(KernelsError):
            get_kernel("acme/relu", version=1)
    assert elsewhere.asked == []
    assert all(asked.headers["host"] == served.host for asked in served.requests)


@pytest.mark.parametrize(
    "address",
    [
        "x:1/a",
        "x:.evil/a",
        "x:@evil/a",
        "ftp://hub.example/a",
        "/a" * 9000,
        "http://[::/a",
        "a b",
        "http:a",
        "http:///a",
    ],
)
@pytest.mark.parametrize("endpoint", ["https://hub.example", "https://hub.example:1", "https://hub.example/below"])
def test_an_address_stays_at_the_endpoint_or_is_none(endpoint: str, address: str) -> None:
    from urllib.parse import urlsplit

    try:
        found = response._on(endpoint, address)
    except ValueError:
        return
    assert urlsplit(found)[:2] == urlsplit(endpoint)[:2]


def test_a_files_content_may_come_from_elsewhere_and_the_token_does_not_go_there(
    served: TestHub, elsewhere: Listener
) -> None:
    elsewhere.content = (served.root / "acme/relu/v1/build/torch-cpu/layers.py").read_bytes()
    head = f"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{elsewhere.port}/cdn\r\nContent-Length: 0\r\n\r\n"
    served.send_raw("layers.py", head.encode())
    assert (install_kernel("acme/relu", version=1) / "layers.py").read_bytes() == elsewhere.content
    assert elsewhere.asked == [("/cdn", None)]


@pytest.mark.parametrize(
    "location", ["{url}{path}", "{path}?x", "", "http://a..b/", "http://./", "http://%/", "ftp://x/"]
)
def test_redirects_of_a_file_end(served: TestHub, location: str) -> None:
    def answer(asked: object) -> bytes:
        target = location.format(url=served.url, path=asked.path)  # type: ignore[attr-defined]
        return f"HTTP/1.1 302 Found\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n".encode()

    served.send_raw("layers.py", answer)
    with pytest.raises(HubUnavailable, match=r"layers\.py"):
        install_kernel("acme/relu", version=1)
    assert served.count("layers.py") <= MAX_FILE_REDIRECTS + 1 <= 6


@pytest.mark.parametrize("redirects", [MAX_HTTP_REDIRECTS, MAX_HTTP_REDIRECTS + 1])
def test_as_many_redirects_within_a_repository_are_followed_as_are_allowed(served: TestHub, redirects: int) -> None:
    with urlopen(f"{served.url}/api/kernels/acme/relu/refs") as opened:
        refs = opened.read()

    again = (
        f"HTTP/1.1 302 Found\r\nLocation: {served.url}/api/kernels/acme/relu/refs?again\r\nContent-Length: 0\r\n\r\n"
    )
    served.send_raw("/refs", again.encode(), times=redirects)
    served.send_raw("/refs", b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(refs), refs))
    if redirects <= MAX_HTTP_REDIRECTS:
        assert install_kernel("acme/relu", version=1).is_dir()
    else:
        with pytest.raises(HubUnavailable, match="too many redirects"):
            install_kernel("acme/relu", version=1)


def test_the_body_of_a_redirect_is_not_read(served: TestHub) -> None:
    import tracemalloc

    served.make_repo("acme/first")
    install_kernel("acme/first", version=1)  # what is imported is not what is measured
    body = gzip.compress(bytes(100_000_000), 9)
    head = "HTTP/1.1 302 Found\r\nLocation: /nowhere\r\nContent-Encoding: gzip\r\n"
    served.send_raw("layers.py", f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    tracemalloc.start()
    try:
        with pytest.raises(HubUnavailable):
            install_kernel("acme/relu", version=1)
        top = tracemalloc.get_traced_memory()
        assert top[1] < 30_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("pattern", ["/refs$", "layers.py"])
def test_an_answer_that_never_begins_ends(served: TestHub, monkeypatch: pytest.MonkeyPatch, pattern: str) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.2)
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    monkeypatch.setattr(wire, "_HEADER_SECONDS", 0.3)
    monkeypatch.setattr(wire, "time", time)
    # One interim answer after another (RFC 9110, 15.2): the library reads on for as long as they come.
    served.drip(pattern, b"HTTP/1.1 103 Early Hints\r\n\r\n", every=0.05)
    with pytest.raises(HubUnavailable, match="no whole answer"):
        install_kernel("acme/relu", version=1)


def test_sizes_that_no_file_has_are_refused(served: TestHub) -> None:
    for size in (-1, 2**50 + 1, 10**30, 10**400):
        served.heal()
        served.replace("/tree/", lambda body, size=size: body.replace(b'"size":', b'"size":%d,"was":' % size))
        with pytest.raises((InvalidRepository, HubUnavailable)):
            install_kernel("acme/relu", version=1)


def test_files_for_which_the_disk_has_no_room_are_not_downloaded(served: TestHub, isolated_env: Path) -> None:
    served.make_repo("acme/large", variants={"torch-cpu": {"a.bin": bytes(700_000)}})
    served.replace("/tree/", lambda body: body.replace(b'"size":700000', b'"size":%d' % 2**46))
    with pytest.raises(StoreError, match=r"No space left on device for files of 7036874.* KERNELS_CACHE"):
        install_kernel("acme/large", version=1)
    assert not [path for path in isolated_env.rglob("blobs/*") if path.stat().st_size > 100_000]


def test_a_listing_without_hashes_is_refused(served: TestHub) -> None:
    served.replace("/tree/", lambda body: body.replace(b'"oid":', b'"was":'))
    with pytest.raises(HubUnavailable, match="without a hash"):
        install_kernel("acme/relu", version=1)
    assert served.count("/resolve/") == 0


def test_a_file_of_one_repository_says_nothing_of_another_ones(
    served: TestHub, isolated_env: Path, monkeypatch: pytest.MonkeyPatch, new_process: Callable[[], None]
) -> None:
    """A Hub can give two repositories one commit id: what arrives for one does not count as checked for the other."""
    files = {"__init__.py": "value = 'listed'\n"}
    served.make_repo("acme/dep", variants={"torch-cpu": files})
    served.make_repo("acme/top", depends=[("acme/dep", 1)], variants={"torch-cpu": files})
    top, dep = served.commit("acme/top"), served.commit("acme/dep")
    served.replace("/acme/dep/refs$", lambda body: body.replace(dep.encode(), top.encode()))
    real = served.catalog.commit

    def same(repo_id: str, revision: str | None = None) -> object:
        return real(repo_id, dep if (repo_id, revision) == ("acme/dep", top) else revision)

    monkeypatch.setattr(served.catalog, "commit", same)
    folder = install_kernel("acme/top", version=1)
    shutil.rmtree(isolated_env / "kernels--acme--dep")
    (folder / "__init__.py").resolve().write_text("value = 'EVIL!!'\n")
    new_process()
    assert get_kernel("acme/top", version=1).value == "listed"
