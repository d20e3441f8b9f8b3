"""The embedded Hub under another name, on every network, behind a port mapping and behind a proxy with a path."""

from __future__ import annotations

import http.client
import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hub import make_repo
from huggingface_hub import CommitOperationAdd, HfApi, constants
from ports import free_port

from kernels import get_kernel
from kernels.errors import RequestError
from kernels.server import HubServer

REPO = "acme/relu"
TOKEN = "hf_secret"
LFS = "build/torch-cpu/_relu.abi3.so"
NATIVE = b"\x7fELF" * 1000


@pytest.fixture
def root(tmp_path: Path, isolated_env: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "REPO_TYPES", constants.REPO_TYPES_WITH_KERNEL)
    monkeypatch.setattr("kernels.server.app._PAGE", 2)  # so that there is a next one
    make_repo(tmp_path / "hub", REPO, variants={"torch-cpu": {"_relu.abi3.so": NATIVE}})
    return tmp_path / "hub"


@contextmanager
def proxy(behind: int, prefix: str = "") -> Iterator[int]:
    """What a reverse proxy does, as nginx by default: take a prefix away, and send the address that it connects to."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if not self.path.startswith(prefix + "/"):
                self.send_error(404, "not below the prefix")
                return
            upstream = http.client.HTTPConnection("127.0.0.1", behind, timeout=30)
            headers = {**dict(self.headers.items()), "Host": f"127.0.0.1:{behind}", "Connection": "close"}
            upstream.request(self.command, self.path.removeprefix(prefix), body or None, headers)
            answer = upstream.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("connection", "date", "server"):
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.read())
            upstream.close()

        do_GET = do_HEAD = do_POST = do_PUT = forward

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def _used(url: str, root: Path) -> None:
    """Everything that a client of huggingface_hub does with a Hub at a URL."""
    api = HfApi(endpoint=url, token=TOKEN)
    assert len(list(api.list_repo_tree(REPO, recursive=True, repo_type="kernel", revision="v1"))) == 6
    path = api.hf_hub_download(REPO, LFS, repo_type="kernel", revision="v1")
    assert Path(path).read_bytes() == NATIVE
    api.create_commit(
        REPO,
        [CommitOperationAdd("build/torch-cpu/_new.so", NATIVE[::-1]), CommitOperationAdd("new.py", b"x = 1\n")],
        commit_message="A build",
        repo_type="kernel",
        revision="v1",
    )
    path = api.hf_hub_download(REPO, "build/torch-cpu/_new.so", repo_type="kernel", revision="v1")
    assert Path(path).read_bytes() == NATIVE[::-1]
    assert (root / REPO / "v1" / "new.py").is_file()


def test_a_private_repository_is_used_by_another_name_of_the_machine(root: Path) -> None:
    (root / REPO / ".private").touch()
    with HubServer(root, token=TOKEN, writable=True) as server:
        _used(f"http://localhost:{server.port}", root)


def test_on_all_networks_an_address_is_the_one_that_was_reached(root: Path) -> None:
    with HubServer(root, host="0.0.0.0", token=TOKEN, writable=True) as server:
        _used(f"http://127.0.0.1:{server.port}", root)
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/api/kernels/{REPO}/tree/v1?recursive=1") as answer:
            assert answer.headers["Link"].startswith(f"<http://127.0.0.1:{server.port}/api/")


@pytest.mark.parametrize("prefix", ["", "/a/hub"])
def test_behind_a_proxy_every_client_works_at_the_public_url(
    root: Path, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / REPO / ".private").touch()
    behind = free_port()
    with proxy(behind, prefix) as port:
        url = f"http://127.0.0.1:{port}{prefix}"
        options = {"token": TOKEN, "writable": True, "public_url": f"{url}/"}
        with HubServer(root, trusted={"acme"}, port=behind, **options):
            _used(url, root)
            monkeypatch.setenv("KERNELS_HUB", url)
            monkeypatch.setenv("KERNELS_HUB_TOKEN", TOKEN)
            assert get_kernel(REPO, version=1).repo_id == REPO


def test_with_a_public_url_addresses_are_below_it(root: Path) -> None:
    with HubServer(root, public_url="https://hub.test/kernels/") as server:
        assert server.public_url == "https://hub.test/kernels"
        assert server.url == f"http://127.0.0.1:{server.port}"
        with urllib.request.urlopen(f"{server.url}/api/kernels/{REPO}/tree/v1?recursive=1&limit=1") as answer:
            assert answer.headers["Link"].startswith("<https://hub.test/kernels/api/kernels/acme/relu/tree/v1?")
            assert len(json.load(answer)) == 1


@pytest.mark.parametrize(
    "url",
    [
        "hub.test", "ftp://hub.test", "https://", "https://user:hunter2@hub.test", "https://hub.test/?x=1",
        "https://hub.test/#x", "https://hub.test/a b", "https://hüb.test", "https://hub.test/>;x",
        "https://hub.test\r\nX: y", "https://hub.test:0", "https://hub.test:x", "https://[::1", "",
    ],
)  # fmt: skip
def test_a_public_url_that_is_none_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(RequestError, match="`public_url`") as error:
        HubServer(tmp_path, public_url=url)
    assert "hunter2" not in str(error.value)
