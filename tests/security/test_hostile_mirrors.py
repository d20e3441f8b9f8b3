"""Mirrors that answer with something else than they should: an error that names the mirror, and nothing written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mirror_tree import MirrorTree, StaticServer

from kernels import get_kernel, install_kernel
from kernels.errors import HubUnavailable, InvalidRepository, KernelsError, UntrustedPublisher, UntrustedSignature
from kernels.models.mirror import commit_path, index_path

PAGE = b"<html><body>Please log in</body></html>"


@pytest.fixture
def tree(tmp_path: Path) -> MirrorTree:
    return MirrorTree(tmp_path / "mirror")


@pytest.fixture
def server(tree: MirrorTree, isolated_env: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StaticServer]:
    with StaticServer(tree.root) as running:
        monkeypatch.setenv("KERNELS_HUB", running.url)
        yield running


def builds_in(cache: Path) -> list[Path]:
    """What of a build is in the cache, complete or not."""
    return [path for path in cache.rglob("*") if path.is_file() and {"snapshots", "blobs"} & set(path.parts)]


def rewrite(tree: MirrorTree, path: str, change: Callable[[bytes], bytes]) -> None:
    place = tree.root / path
    place.write_bytes(change(place.read_bytes()))


@pytest.mark.parametrize("body", [PAGE, b"", b"[]", b'{"mirror-format":1,"content":{"repo-id', b"\xff" * 100])
def test_a_page_in_the_place_of_an_index_is_retried_and_then_refused(
    server: StaticServer, tree: MirrorTree, isolated_env: Path, body: bytes
) -> None:
    tree.add()
    server.answer("/refs", 200, body)
    with pytest.raises((HubUnavailable, InvalidRepository), match=server.url):
        get_kernel("acme/relu", version=1)
    assert not builds_in(isolated_env)


@pytest.mark.parametrize("body", [PAGE, b'{"mirror-format":1,"content":{"repo-id'])
def test_a_page_for_a_moment_is_no_harm(
    server: StaticServer, tree: MirrorTree, new_process: Callable[[], None], body: bytes
) -> None:
    tree.add()
    server.answer("/refs", 200, body, times=1)
    assert get_kernel("acme/relu", version=1).repo_id == "acme/relu"
    new_process()
    server.answer("/refs", 200, body, times=1)
    assert get_kernel("acme/relu", version=1).repo_id == "acme/relu"


def test_the_index_of_another_repository_is_refused(server: StaticServer, tree: MirrorTree, isolated_env: Path) -> None:
    tree.add("acme/relu")
    tree.add("acme/gelu")
    (tree.root / index_path("acme/relu")).write_bytes((tree.root / index_path("acme/gelu")).read_bytes())
    with pytest.raises(InvalidRepository, match=f"{server.url}/api/kernels/acme/relu/refs.*it is the index of"):
        get_kernel("acme/relu", version=1)
    assert not builds_in(isolated_env)


def test_the_document_of_another_commit_is_refused(server: StaticServer, tree: MirrorTree, isolated_env: Path) -> None:
    one, two = tree.add(), tree.add(version=2)
    (tree.root / commit_path("acme/relu", one)).write_bytes((tree.root / commit_path("acme/relu", two)).read_bytes())
    with pytest.raises(InvalidRepository, match=server.url):
        get_kernel("acme/relu", revision=one)
    assert not builds_in(isolated_env)


def test_a_newer_format_is_refused_with_advice(server: StaticServer, tree: MirrorTree) -> None:
    tree.add()
    rewrite(tree, index_path("acme/relu"), lambda data: data.replace(b'"mirror-format":1', b'"mirror-format":2'))
    with pytest.raises(InvalidRepository, match="expected the format 1, got 2; update kernels"):
        get_kernel("acme/relu", version=1)


@pytest.mark.parametrize("path", ["../../../evil.py", "/etc/evil", "a/../../evil", "a\\b", "a\n"])
def test_a_file_name_that_leaves_its_folder_is_refused(
    server: StaticServer, tree: MirrorTree, isolated_env: Path, path: str
) -> None:
    tree.add()
    rewrite(
        tree,
        index_path("acme/relu"),
        lambda data: data.replace(b'"path":"__init__.py"', b'"path":' + json.dumps(path).encode()),
    )
    with pytest.raises(InvalidRepository, match="acme/relu"):
        get_kernel("acme/relu", version=1)
    assert not builds_in(isolated_env)


def test_an_archive_with_other_content_is_refused_and_nothing_of_it_kept(
    server: StaticServer, tree: MirrorTree, isolated_env: Path
) -> None:
    tree.add()
    for archive in (tree.root / "archives").rglob("*.zst"):
        data = bytearray(archive.read_bytes())
        data[len(data) // 2] ^= 1
        archive.write_bytes(data)
    with pytest.raises(KernelsError, match=server.url) as caught:
        install_kernel("acme/relu", version=1)
    assert "Nothing was kept" in str(caught.value)
    left = [path.name for path in builds_in(isolated_env) if "metadata" not in path.name]
    assert [name for name in left if len(name) != 40] == []


def test_an_archive_that_was_damaged_on_the_way_is_requested_again(server: StaticServer, tree: MirrorTree) -> None:
    tree.add()
    [archive] = (tree.root / "archives").rglob("*.zst")
    data = bytearray(archive.read_bytes())
    data[-1] ^= 1
    server.answer("archives/", 200, bytes(data), times=1)
    install_kernel("acme/relu", version=1)


def test_an_archive_that_is_listed_and_missing_is_said(server: StaticServer, tree: MirrorTree) -> None:
    tree.add()
    for archive in (tree.root / "archives").rglob("*.zst"):
        archive.unlink()
    with pytest.raises(HubUnavailable, match=f"{server.url}/archives/.*is listed but not available.*Nothing was kept"):
        install_kernel("acme/relu", version=1)


def test_a_commit_that_changes_its_content_is_refused(
    server: StaticServer, tree: MirrorTree, new_process: Callable[[], None]
) -> None:
    variants = ["torch-cpu", "torch-cuda"]
    commit = tree.add(variants=variants)
    get_kernel("acme/relu", revision=commit)
    tree.add(variants={"torch-cpu": {"__init__.py": "evil = True"}, "torch-cuda": None}, commit=commit)
    new_process()
    assert not hasattr(get_kernel("acme/relu", revision=commit), "evil")


def test_a_verdict_on_another_publisher_is_none(server: StaticServer, tree: MirrorTree) -> None:
    tree.add()
    rewrite(
        tree,
        index_path("acme/relu"),
        lambda data: data.replace(b'"publisher":{"name":"acme"', b'"publisher":{"name":"big"'),
    )
    with pytest.raises((UntrustedPublisher, InvalidRepository)):
        get_kernel("acme/relu", version=1)


def test_a_hub_cannot_answer_where_a_signed_mirror_is_required(
    server: StaticServer, tree: MirrorTree, monkeypatch: pytest.MonkeyPatch, new_process: Callable[[], None]
) -> None:
    tree.add()
    monkeypatch.setenv("KERNELS_MIRROR_KEYS", "ed25519:" + "A" * 43 + "=")
    with pytest.raises(UntrustedSignature, match=server.url):
        get_kernel("acme/relu", version=1)
    new_process()
    server.answer("/refs", 200, json.dumps({"branches": [], "tags": []}).encode())
    with pytest.raises(UntrustedSignature, match="answers as a Hub, and KERNELS_MIRROR_KEYS requires"):
        get_kernel("acme/relu", version=1)


def test_a_token_is_in_no_message(server: StaticServer, tree: MirrorTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_HUB_TOKEN", "very-secret-token")
    tree.add()
    server.answer("/refs", 302, headers={"Location": "/login?token=very-secret-token"})
    with pytest.raises(KernelsError) as caught:
        get_kernel("acme/relu", version=1)
    assert "very-secret" not in str(caught.value)
