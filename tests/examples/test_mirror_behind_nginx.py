"""`examples/cluster/mirror`: a mirror's folder behind this machine's nginx."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests
from mirror_tree import MirrorTree
from nginx import Nginx, needs_nginx

from kernels import get_kernel
from kernels.models.mirror import commit_path, index_path

SCRIPT = Path(__file__).parents[2] / "examples" / "cluster" / "mirror" / "serve.sh"

pytestmark = needs_nginx


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> MirrorTree:
    pytest.importorskip("zstandard")
    tree = MirrorTree(tmp_path_factory.mktemp("m") / "mirror")
    tree.add("acme/relu", variants=["torch-cpu", "torch-cuda"])
    (tree.root / "index.html").write_text("<!doctype html>")
    (tree.root / ".incoming").mkdir()
    (tree.root / ".incoming" / "half").write_text("half")
    (tree.root / "link").symlink_to("/etc/passwd")
    return tree


@pytest.fixture(scope="module")
def server(tree: MirrorTree, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    folder = tmp_path_factory.mktemp("n") / "s"
    variables = {"MIRROR_ROOT": tree.root, "MIRROR_RUN": folder / "run", "MIRROR_LOG": folder / "access.log"}
    nginx = Nginx(SCRIPT, folder, "MIRROR_LISTEN", {name: os.fspath(value) for name, value in variables.items()})
    yield nginx
    nginx.stop()


def ask(server: Nginx, path: str, method: str = "GET", **headers: str) -> requests.Response:
    return requests.request(method, f"{server.url}/{path}", headers=headers, timeout=30)


def test_documents_are_asked_for_each_time(server: Nginx, tree: MirrorTree) -> None:
    [commit] = tree.indexes["acme/relu"].commits
    for path in ("mirror.json", index_path("acme/relu"), commit_path("acme/relu", commit)):
        content = (tree.root / path).read_bytes()
        for accepted in ("identity", "gzip"):
            answer = ask(server, path, **{"Accept-Encoding": accepted})
            assert (answer.status_code, answer.content) == (200, content)
            assert answer.headers["Content-Type"] == "application/json"
            assert answer.headers["Cache-Control"] == "no-cache"
            assert answer.headers["Accept-Ranges"] == "bytes"
            compressed = accepted == "gzip" and len(content) >= 1024
            assert (answer.headers.get("Content-Encoding") == "gzip") == compressed
            again = ask(server, path, **{"Accept-Encoding": accepted, "If-None-Match": answer.headers["ETag"]})
            assert again.status_code == 304
    tree.add("acme/relu", seed="changed")
    answer = ask(server, index_path("acme/relu"), **{"If-None-Match": answer.headers["ETag"]})
    assert json.loads(answer.content)["content"]["number"] == 2


def test_archives_are_kept_for_ever_and_have_ranges(server: Nginx, tree: MirrorTree) -> None:
    archive = next(iter(tree.indexes["acme/relu"].builds.values())).archive
    answer = ask(server, archive.name)
    assert answer.content == (tree.root / archive.name).read_bytes()
    assert answer.headers["Cache-Control"] == "public, max-age=31536000, immutable"
    assert answer.headers["Content-Type"] == "application/zstd"
    assert "Content-Encoding" not in answer.headers
    part = ask(server, archive.name, Range="bytes=10-19")
    assert (part.status_code, part.content) == (206, answer.content[10:20])


def test_kernels_are_loaded_from_it(
    server: Nginx,
    tree: MirrorTree,
    isolated_env: Path,
    new_process: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    # An index of more than 1 kB is compressed, and its ETag is a weak one then.
    tree.add(
        "acme/loaded", variants={"torch-cpu": {"large.so": random.Random(1).randbytes(20 * 2**20), "empty.py": b""}}
    )
    assert (tree.root / index_path("acme/loaded")).stat().st_size > 1024
    monkeypatch.setenv("KERNELS_HUB", server.url)
    log = server.folder / "access.log"
    for statuses in (["200", "206", "206", "206"], ["304"]):
        new_process()
        before = log.read_text()
        assert (
            Path(str(get_kernel("acme/loaded", version=1).__file__)).with_name("large.so").stat().st_size == 20 * 2**20
        )
        asked = log.read_text().removeprefix(before).splitlines()
        assert [line.split('" ')[1].split()[0] for line in asked] == statuses


def test_nothing_else_is_served(server: Nginx) -> None:
    assert ask(server, "").headers["Content-Type"] == "text/html"
    for path in (".incoming/half", "link", "api/kernels/acme", "../errors.log", "nothing"):
        assert ask(server, path).status_code in (403, 404)
    for method in ("PUT", "DELETE", "POST"):
        assert ask(server, "mirror.json", method).status_code == 403
