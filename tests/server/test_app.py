"""What the embedded Hub answers, byte for byte, and what no URL gets from it."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub import TestHub

REPO = "acme/relu"
LFS = "build/torch-cpu/_relu.abi3.so"
DATA = bytes(range(256)) * 8


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestHub]:
    """One Hub for all tests of this module; they change nothing."""
    with TestHub(tmp_path_factory.mktemp("served") / "hub") as hub:
        files = {"data.bin": DATA, "_relu.abi3.so": DATA, "ä b#?.txt": "x"}
        hub.make_repo(REPO, version=1, variants={"torch-cpu": files})
        (hub.root.parent / "secret").write_text("SECRET")
        yield hub


def ask(hub: TestHub, target: str, *, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Send exactly this request line: a client library would tidy a hostile path up before it left."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {hub.host}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    with socket.create_connection(("127.0.0.1", int(hub.host.partition(":")[2])), timeout=30) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *fields = head.decode("latin-1").split("\r\n")
    parsed = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
    return int(status.split()[1]), parsed, body


def test_a_small_file_is_sent_at_once(served: TestHub) -> None:
    status, headers, body = ask(served, f"/kernels/{REPO}/resolve/v1/build/torch-cpu/data.bin")
    entry = served.catalog.commit(REPO, "v1").files["build/torch-cpu/data.bin"]
    assert (status, body) == (200, DATA)
    assert headers["etag"] == f'"{entry.oid}"'
    assert headers["x-repo-commit"] == served.commit(REPO, "v1")
    assert headers["content-length"] == str(len(DATA))
    assert "x-linked-etag" not in headers


def test_a_file_in_lfs_is_a_redirect_that_says_what_it_leads_to(served: TestHub) -> None:
    status, headers, _ = ask(served, f"/kernels/{REPO}/resolve/v1/{LFS}", method="HEAD")
    sha256 = served.catalog.commit(REPO, "v1").files[LFS].sha256
    assert status == 302
    assert headers["x-linked-etag"] == f'"{sha256}"'
    assert headers["x-linked-size"] == str(len(DATA))
    assert headers["location"].startswith(f"/lfs/kernels/{REPO}/")  # on the host that was asked
    status, headers, body = ask(served, headers["location"])
    assert (status, body, headers["etag"]) == (200, DATA, f'"{sha256}"')


def test_a_file_in_lfs_has_its_pointer_listed(served: TestHub) -> None:
    _, _, body = ask(served, f"/api/kernels/{REPO}/tree/v1/build%2Ftorch-cpu")
    (entry,) = [entry for entry in json.loads(body) if entry["path"] == LFS]
    assert entry["lfs"]["size"] == entry["size"] == len(DATA)
    assert entry["lfs"]["pointerSize"] == 129  # 128 bytes with a size of three digits (git-lfs specification)
    assert entry["oid"] != entry["lfs"]["oid"]
    assert "xetHash" not in entry


@pytest.mark.parametrize(
    ("asked", "status", "sent"),
    [
        ("bytes=0-9", 206, DATA[:10]),
        ("bytes=2000-", 206, DATA[2000:]),
        ("bytes=-5", 206, DATA[-5:]),
        ("bytes=0-999999", 206, DATA),
        ("bytes=5000-", 416, None),
    ],
)
@pytest.mark.parametrize("path", ["build/torch-cpu/data.bin", LFS])
def test_a_range_of_a_file_is_sent(served: TestHub, path: str, asked: str, status: int, sent: bytes | None) -> None:
    target = f"/kernels/{REPO}/resolve/v1/{path}"
    if path == LFS:
        target = ask(served, target)[1]["location"]
    answer, headers, body = ask(served, target, Range=asked)
    assert answer == status
    if sent is not None:
        assert body == sent
        assert headers["content-length"] == str(len(sent))
        assert headers["content-range"].endswith(f"/{len(DATA)}")


def test_names_with_spaces_and_accents_are_quoted_and_found(served: TestHub) -> None:
    assert ask(served, f"/kernels/{REPO}/resolve/v1/build/torch-cpu/%C3%A4%20b%23%3F.txt")[2] == b"x"


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("/api/kernels/acme/absent/refs", "RepoNotFound"),
        ("/api/kernels/acme/absent/tree/v1", "RepoNotFound"),
        ("/api/models/acme/relu", "RepoNotFound"),
        ("/api/datasets/acme/relu", "RepoNotFound"),
        ("/acme/relu/resolve/v1/README.md", "RepoNotFound"),
        ("/datasets/acme/relu/resolve/v1/README.md", "RepoNotFound"),
        ("/api/kernels/acme/relu/revision/v9", "RevisionNotFound"),
        ("/api/kernels/acme/relu/revision/v1/more", "RevisionNotFound"),
        ("/api/kernels/acme/relu/tree/refs%2Fpr%2F3", "RevisionNotFound"),
        ("/kernels/acme/relu/resolve/main/README.md", "RevisionNotFound"),
        ("/kernels/acme/relu/resolve/v1/README.md", "EntryNotFound"),
        ("/kernels/acme/relu/resolve/v1/build", "EntryNotFound"),
        ("/api/kernels/acme/relu/tree/v1/build/torch-cpu/data.bin", "EntryNotFound"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_an_error_has_its_code_and_says_what_is_missing(served: TestHub, target: str, code: str, method: str) -> None:
    status, headers, body = ask(served, target, method=method)
    assert (status, headers["x-error-code"]) == (404, code)
    assert headers["x-error-message"]
    if method == "GET":
        assert json.loads(body)["error"] == headers["x-error-message"]


@pytest.mark.parametrize(
    "target", ["/", "/api", "/api/datasets", "/api/organizations/absent/overview", "/nothing/here"]
)
def test_what_is_no_part_of_the_api_is_not_found(served: TestHub, target: str) -> None:
    status, headers, body = ask(served, target)
    assert status == 404
    assert "x-error-code" not in headers
    assert json.loads(body)["error"]


def test_only_reading_is_served(served: TestHub) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        status, headers, _ = ask(served, f"/kernels/{REPO}/resolve/v1/README.md", method=method)
        assert status == 405
        assert "GET" in headers["allow"]


@pytest.mark.parametrize("query", ["limit=0", "limit=-1", "limit=many", "cursor=%FF", "cursor=a"])
def test_a_bad_page_is_a_bad_request(served: TestHub, query: str) -> None:
    status, _, body = ask(served, f"/api/kernels/{REPO}/tree/v1?{query}")
    assert status == 400
    assert "limit" in json.loads(body)["error"]


def test_pages_are_as_small_as_asked_for_and_lead_to_the_next(served: TestHub) -> None:
    target, paths = f"/api/kernels/{REPO}/tree/v1?recursive=true&limit=2", []
    while target:
        _, headers, body = ask(served, target)
        page = json.loads(body)
        assert 1 <= len(page) <= 2
        paths += [entry["path"] for entry in page]
        target = headers.get("link", "").partition("<")[2].partition(">")[0].removeprefix(served.url)
    assert paths == served.catalog.commit(REPO, "v1").paths(recursive=True)


def test_repositories_are_listed_in_pages_and_private_ones_only_to_those_with_the_token(tmp_path: Path) -> None:
    with TestHub(tmp_path / "hub") as hub:
        for name in ("acme/relu", "acme/gelu", "acme/hidden", "other/relu"):
            hub.make_repo(name)
        (hub.root / "acme" / "hidden" / ".private").touch()
        target, names = "/api/kernels?author=acme&limit=1", []
        while target:
            _, headers, body = ask(hub, target)
            names += [entry["id"] for entry in json.loads(body)]
            target = headers.get("link", "").partition("<")[2].partition(">")[0].removeprefix(hub.url)
        assert names == ["acme/gelu", "acme/relu"]
        assert ask(hub, "/api/models")[0] == 404
        assert len(json.loads(ask(hub, "/api/kernels")[2])) == 3
        assert ask(hub, "/api/kernels?limit=0")[0] == 400
        assert ask(hub, "/api/spaces")[0] == 404


SECRET = "secret"
UP = ("..", "%2e%2e", "%2E.", "..%5c..", "..%00", "....//..", "%252e%252e")


@pytest.mark.parametrize("up", UP)
@pytest.mark.parametrize(
    "target",
    [
        "/kernels/acme/relu/resolve/v1/{ups}/secret",
        "/kernels/acme/relu/resolve/{ups}/secret",
        "/kernels/acme/relu/resolve/v1/build%2F{ups}%2Fsecret",
        "/kernels/{up}/{up}/resolve/v1/secret",
        "/kernels/acme/{up}/resolve/v1/secret",
        "/{up}/{up}/resolve/v1/secret",
        "/api/kernels/acme/{up}/tree/relu",
        "/api/kernels/{up}/{up}/refs",
        "/api/kernels/acme/relu/tree/v1/{ups}",
        "/api/kernels/acme/relu/revision/{ups}",
        "/api/organizations/{up}/overview",
        "/lfs/kernels/acme/relu/v1/0000/{ups}/secret",
        "/{ups}/secret",
    ],
)
def test_no_path_leaves_the_root(served: TestHub, target: str, up: str) -> None:
    status, _, body = ask(served, target.format(up=up, ups="/".join([up] * 4)))
    assert status in (400, 404)
    assert b"SECRET" not in body


def test_a_file_behind_a_wrong_hash_is_not_found(served: TestHub) -> None:
    commit = served.commit(REPO, "v1")
    status, _, _ = ask(served, f"/lfs/kernels/{REPO}/{commit}/{'0' * 64}/{LFS}")
    assert status == 404


def test_a_failure_inside_is_an_answer_too(served: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise PermissionError("no")

    monkeypatch.setattr(served.catalog, "commit", fail)
    status, _, body = ask(served, f"/api/kernels/{REPO}/revision/v1")
    assert status == 500
    assert json.loads(body) == {"error": "The server failed; its log has the error."}


def test_a_file_that_vanishes_under_the_answer_is_a_moved_revision(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo(REPO)
    commit = hub.catalog.commit(REPO, "v1")
    monkeypatch.setattr(hub.catalog, "commit", lambda *arguments, **options: commit)
    Path(commit.files["build/torch-cpu/layers.py"].source).unlink()
    status, headers, _ = ask(hub, f"/kernels/{REPO}/resolve/v1/build/torch-cpu/layers.py")
    assert (status, headers["x-error-code"]) == (404, "RevisionNotFound")
