"""Several addresses in `KERNELS_HUB`, over a real mirror and real Hubs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hub import TestHub
from logged import logged, warned
from mirror_tree import MirrorTree, StaticServer

from kernels import download_kernels, get_kernel
from kernels.errors import DigestMismatch, HubUnavailable, KernelsError, RepositoryNotFound
from kernels.operations.explain import repository_versions

CPU = "torch2.9-cpu-x86_64-linux"


def test_a_mirror_answers_before_the_hub_and_the_hub_for_the_rest(
    hub: TestHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_process: Callable[[], None]
) -> None:
    hub.make_repo("acme/dep")
    hub.make_repo("acme/relu", depends=[("acme/dep", 1)])
    hub.make_repo("acme/gelu", depends=[("acme/dep", 1)])
    download_kernels(["acme/relu"], version=1, to=tmp_path / "mirror")
    new_process()
    monkeypatch.setenv("KERNELS_HUB", f"{tmp_path / 'mirror'},{hub.url}")
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path / "another cache"))
    hub.clear()
    with logged() as said:
        assert get_kernel("acme/relu", version=1)
    assert (hub.asked(), said) == ([], [])
    with warned(r"acme/gelu version 1 is not in the mirror at .*\. It is taken from the Hub"):
        assert get_kernel("acme/gelu", version=1)
    assert hub.count("acme/gelu") > 0
    assert hub.count("acme/dep") == 0  # a dependency is looked for from the first address again
    hub.make_repo("acme/relu", version=2)
    assert {each.version: (each.source or "")[:8] for each in repository_versions("acme/relu")} == {
        2: "the Hub ",
        1: "the mirr",
    }

    hub.down()
    new_process()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert get_kernel("acme/relu", version=1)
    assert get_kernel("acme/gelu", version=1)


def test_of_two_hubs_the_second_has_what_the_first_has_not_or_does_not_answer(
    hub: TestHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_process: Callable[[], None]
) -> None:
    hub.make_repo("acme/relu", variants=["torch-cuda"])
    with TestHub(tmp_path / "second") as second:
        second.make_repo("acme/relu")
        second.make_repo("eve/relu")
        monkeypatch.setenv("KERNELS_HUB", f"{hub.url},{second.url}")
        [build] = download_kernels(["acme/relu"], version=1, targets=[CPU])
        assert (build.variant, build.commit) == ("torch-cpu", second.commit())
        with pytest.raises(KernelsError, match="eve/relu is refused"):
            get_kernel("eve/relu", version=1)
        with pytest.raises(RepositoryNotFound, match=rf"(?s){second.url} has no .*\n  the .* at {hub.url}: "):
            get_kernel("acme/nothing", version=1)


@pytest.mark.parametrize("by", ["get_kernel", "download_kernels"])
@pytest.mark.parametrize("kernel", ["acme/relu", "acme/gelu"])
def test_a_build_that_the_mirror_lists_and_does_not_give_is_taken_from_the_hub(
    hub: TestHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    new_process: Callable[[], None],
    by: str,
    kernel: str,
) -> None:
    def take() -> None:
        new_process()
        if by == "get_kernel":
            assert get_kernel(kernel, version=1)
        else:
            assert "acme/relu" in [each.repo_id for each in download_kernels([kernel], version=1) if each.new]

    tree = MirrorTree(tmp_path / "mirror")
    for name, depends in {"acme/relu": [], "acme/gelu": [("acme/relu", 1)]}.items():
        tree.add(name, depends=depends)
        hub.make_repo(name, depends=depends)
    build = next(iter(tree.indexes["acme/relu"].builds.values()))
    archive = tree.root / build.archive.name
    whole = archive.read_bytes()
    with StaticServer(tree.root) as server:
        monkeypatch.setenv("KERNELS_HUB", f"{server.url},{hub.url}")
        archive.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(DigestMismatch):
            take()
        archive.unlink()
        with warned(r"the mirror at .* did not give acme/relu.* is listed but not available.*taken from the Hub"):
            take()
        assert hub.count("acme/gelu") == 0
        monkeypatch.setenv("KERNELS_CACHE", str(tmp_path / "another"))
        monkeypatch.setenv("KERNELS_HUB", server.url)
        with pytest.raises(HubUnavailable, match=r"is listed but not available"):
            take()
        monkeypatch.setenv("KERNELS_HUB", f"{server.url},{tmp_path}")
        with pytest.raises(RepositoryNotFound, match=r"(?s)no acme/relu|acme/relu.*is listed but not available"):
            take()
