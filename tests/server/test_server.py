"""The embedded Hub's life: it is up when `start` returns, gone when `stop` does, and says why it cannot start."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from hub import make_repo
from ports import free_port

from kernels.errors import KernelsError, RequestError
from kernels.server import Catalog, HubServer

REPO = "acme/relu"


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_it_answers_as_soon_as_it_is_entered_and_is_gone_once_left(tmp_path: Path) -> None:
    make_repo(tmp_path, REPO)
    with HubServer(tmp_path) as hub:
        assert status(f"{hub.url}/api/kernels/{REPO}/refs") == 200
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", hub.port), timeout=30)
    assert not [thread for thread in threading.enumerate() if thread.name == f"kernels serve {hub.port}"]


def test_two_run_side_by_side(tmp_path: Path) -> None:
    make_repo(tmp_path / "one", "acme/one")
    (tmp_path / "two").mkdir()
    with HubServer(tmp_path / "one") as one, HubServer(tmp_path / "two") as two:
        assert one.port != two.port
        assert status(f"{one.url}/api/kernels/acme/one") == 200
        assert status(f"{two.url}/api/kernels/acme/one") == 404


def test_it_starts_again_at_the_same_address(tmp_path: Path) -> None:
    hub = HubServer(tmp_path, port=free_port())
    hub.start()
    url = hub.start().url
    hub.stop()
    hub.stop()
    hub.start()
    try:
        assert hub.url == url
        assert status(url) == 404
    finally:
        hub.stop(grace=1)


def test_a_catalog_can_be_given_in_place_of_a_folder(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path, trusted={"acme"})
    with HubServer(catalog) as hub:
        assert hub.catalog is catalog


def test_a_taken_port_is_said_to_be_taken(tmp_path: Path) -> None:
    with HubServer(tmp_path) as hub, pytest.raises(RequestError, match=f"127.0.0.1.*{hub.port}") as caught:
        HubServer(tmp_path, port=hub.port).start()
    assert str(caught.value).endswith(f": {os.strerror(errno.EADDRINUSE)}. Choose another port; 0 takes a free one.")


def test_an_address_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"Cannot listen on .*192\.0\.2\.1"):
        HubServer(tmp_path, host="192.0.2.1").start()


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_is_none_is_refused(tmp_path: Path, port: int) -> None:
    with pytest.raises(RequestError, match=f"`port` is {port}"):
        HubServer(tmp_path, port=port)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
def test_an_ipv6_host_is_bracketed_in_the_url(tmp_path: Path) -> None:
    assert HubServer(tmp_path, host="::1", port=8000).url == "http://[::1]:8000"


def test_a_server_that_dies_at_start_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import uvicorn

    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: None)
    with pytest.raises(KernelsError, match="did not start"):
        HubServer(tmp_path).start()


@pytest.mark.parametrize("missing", ["starlette", "uvicorn", "markdown_it"])
def test_without_the_extra_the_error_names_it(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None\nimport kernels.server"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("kernels.errors.MissingPythonDependency")
    assert missing.replace("_", "-") in last
    assert "pip install jinja2 markdown-it-py starlette uvicorn (extra `serve`)" in last
