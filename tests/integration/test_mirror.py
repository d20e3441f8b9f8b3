"""Kernels from a mirror: how often it is asked, what is trusted, and what is said when something is wrong."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from logged import warned
from mirror_tree import MirrorTree, StaticServer
from nginx import Nginx, needs_nginx
from typer.testing import CliRunner

from kernels import get_kernel, has_kernel, install_kernel
from kernels.api import KernelRequest, get_kernels
from kernels.cli import app
from kernels.errors import (
    HubUnavailable,
    NoSuitableBuild,
    NotInCache,
    PublisherUnknown,
    RepositoryNotFound,
    RevisionNotFound,
    UntrustedPublisher,
)
from kernels.models.requirement import Requirement
from kernels.operations.open_sources import open_sources

MANY = {f"part{number}.py": f"value = {number}\n" for number in range(60)}


@pytest.fixture
def tree(tmp_path: Path) -> MirrorTree:
    return MirrorTree(tmp_path / "mirror")


@pytest.fixture
def server(tree: MirrorTree, isolated_env: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StaticServer]:
    """A plain web server over the mirror, that `KERNELS_HUB` names."""
    with StaticServer(tree.root) as running:
        monkeypatch.setenv("KERNELS_HUB", running.url)
        yield running


def kinds(server: StaticServer) -> list[str]:
    """The requests, as the kind of what was asked for and the status."""
    names = {"refs": "index", "tree": "commit", "archives": "archive"}
    return [
        f"{next((name for part, name in names.items() if part in each.path.split('/')), each.path)} {each.status}"
        for each in server.requests
    ]


# Requests


@pytest.mark.parametrize("etags", [True, False])
@pytest.mark.parametrize("ranges", [True, False])
def test_a_cold_kernel_of_63_files_takes_two_requests(
    server: StaticServer, tree: MirrorTree, etags: bool, ranges: bool
) -> None:
    server.etags, server.ranges = etags, ranges
    tree.add(variants={"torch-cpu": MANY})
    module = get_kernel("acme/relu", version=1)
    assert module.__file__ is not None
    assert len(list(Path(module.__file__).parent.iterdir())) >= 63
    assert kinds(server) == ["index 200", "archive 200"]


def test_a_warm_kernel_takes_one_request_answered_with_304(
    server: StaticServer, tree: MirrorTree, new_process: Callable[[], None]
) -> None:
    tree.add()
    get_kernel("acme/relu", version=1)
    new_process()
    server.clear()
    get_kernel("acme/relu", version=1)
    assert kinds(server) == ["index 304"]
    get_kernel("acme/relu", version=1)
    assert len(server.requests) == 1


def test_a_pinned_commit_takes_its_document_and_its_archive_and_nothing_once_it_is_here(
    server: StaticServer, tree: MirrorTree, new_process: Callable[[], None]
) -> None:
    old = tree.add()
    tree.add(seed="newer")
    for _ in range(2):
        get_kernel("acme/relu", revision=old)
        assert kinds(server) == ["commit 200", "archive 200"]
        new_process()
    server.clear()
    get_kernel("acme/relu", revision=old)
    assert server.requests == []


def test_within_the_refresh_time_and_offline_no_request_is_made(
    server: StaticServer, tree: MirrorTree, new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.add()
    get_kernel("acme/relu", version=1)
    server.clear()
    for name, value in (("KERNELS_REFRESH", "3600"), ("HF_HUB_OFFLINE", "1")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            new_process()
            get_kernel("acme/relu", version=1)
    assert server.requests == []


def test_dependencies_and_several_kernels_come_side_by_side(server: StaticServer, tree: MirrorTree) -> None:
    tree.add("acme/base")
    for number in range(3):
        tree.add(f"acme/k{number}", depends=[("acme/base", 1)])
    server.latency = 0.2
    modules = get_kernels([KernelRequest(f"acme/k{number}", version=1) for number in range(3)])
    assert [module.repo_id for module in modules] == ["acme/k0", "acme/k1", "acme/k2"]
    assert len(server.requests) == 8
    assert server.depth() <= 4, server.asked()


def test_a_new_commit_with_the_same_build_takes_no_archive(
    server: StaticServer, tree: MirrorTree, new_process: Callable[[], None]
) -> None:
    tree.add(files={"README.md": b"one"})
    get_kernel("acme/relu", version=1)
    tree.add(files={"README.md": b"two"})
    new_process()
    server.clear()
    get_kernel("acme/relu", version=1)
    assert kinds(server) == ["index 200"]


def test_a_url_with_a_path_is_the_root_of_a_mirror(
    server: StaticServer, tree: MirrorTree, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    MirrorTree(tree.root / "team" / "kernels").add()
    monkeypatch.setenv("KERNELS_HUB", f"{server.url}/team/kernels/")
    assert get_kernel("acme/relu", version=1).repo_id == "acme/relu"


def test_a_folder_that_is_a_mirror_needs_no_network(
    tree: MirrorTree, isolated_env: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.add()
    monkeypatch.setenv("KERNELS_HUB", str(tree.root))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert get_kernel("acme/relu", version=1).repo_id == "acme/relu"


# Trust


def test_the_origins_verdict_on_the_publisher_is_used(
    server: StaticServer, tree: MirrorTree, new_process: Callable[[], None]
) -> None:
    commit = tree.add(trusted=False)
    for asked in ({"version": 1}, {"revision": commit}):
        with pytest.raises(UntrustedPublisher, match=f"the mirror at {server.url} marks"):
            get_kernel("acme/relu", **asked)  # type: ignore[arg-type]
        new_process()
    assert "archive 200" not in kinds(server)
    assert get_kernel("acme/relu", version=1, trust_remote_code=True).repo_id == "acme/relu"


def test_a_publisher_that_the_origin_was_not_asked_about_is_refused(server: StaticServer, tree: MirrorTree) -> None:
    tree.add(trusted=None)
    with pytest.raises(PublisherUnknown, match="was written without asking a Hub about the publisher"):
        get_kernel("acme/relu", version=1)


def test_trust_that_is_withdrawn_counts_at_once(
    server: StaticServer, tree: MirrorTree, new_process: Callable[[], None]
) -> None:
    tree.add()
    get_kernel("acme/relu", version=1)
    tree.add(trusted=False)
    new_process()
    with pytest.raises(UntrustedPublisher):
        get_kernel("acme/relu", version=1)


# What is missing


def test_a_repository_that_the_mirror_has_not_is_said(server: StaticServer, tree: MirrorTree) -> None:
    tree.add()
    with pytest.raises(RepositoryNotFound, match=rf"{server.url} has no repository acme/none.*--repo ac"):
        get_kernel("acme/none", version=1)
    with pytest.raises(RevisionNotFound, match="has no version 3; it has 1"):
        get_kernel("acme/relu", version=3)
    with pytest.raises(RevisionNotFound, match="has no commit 1111"):
        get_kernel("acme/relu", revision="1" * 40)
    assert has_kernel("acme/relu", version=1)


def test_a_repository_that_has_moved_is_followed(server: StaticServer, tree: MirrorTree) -> None:
    tree.add("acme/relu")
    tree.add("acme/gelu")
    tree.move("acme/relu", "acme/gelu")
    assert get_kernel("acme/relu", version=1).repo_id == "acme/gelu"


def test_a_move_is_followed_again_when_the_index_is_answered_with_304(
    server: StaticServer, tree: MirrorTree, new_process: Callable[[], None]
) -> None:
    tree.add("acme/relu")
    tree.add("acme/gelu")
    tree.move("acme/relu", "acme/gelu")
    get_kernel("acme/relu", version=1)
    new_process()
    server.clear()
    assert get_kernel("acme/relu", version=1).repo_id == "acme/gelu"
    assert kinds(server) == ["index 304", "index 304"]


def test_metadata_and_signatures_are_read_without_a_request_of_their_own(
    server: StaticServer, tree: MirrorTree
) -> None:
    tree.add(variants={"torch-cpu": {"metadata.json.sigstore": "{}"}}, files={"kernel-status.toml": b"# none\n"})
    source = open_sources().of("acme/relu")
    snapshot = source.snapshot(Requirement("acme/relu", version=1), source.heads("acme/relu").branches["v1"])
    for path, content in (("build/torch-cpu/metadata.json.sigstore", b"{}"), ("kernel-status.toml", b"# none\n")):
        file = snapshot.file(path)
        assert file is not None
        assert source.read(snapshot, file, 1000) == content
    assert kinds(server) == ["index 200"]


# Faults


def test_a_file_that_was_changed_in_the_cache_comes_again(
    server: StaticServer, tree: MirrorTree, new_process: Callable[[], None], isolated_env: Path
) -> None:
    tree.add()
    folder = install_kernel("acme/relu", version=1)
    blob = (folder / "layers.py").resolve()
    content = blob.read_bytes()
    blob.write_bytes(b"#" * len(content))
    new_process()
    server.clear()
    assert (install_kernel("acme/relu", version=1) / "layers.py").read_bytes() == content
    assert kinds(server) == ["index 304", "commit 200", "archive 200"]


def test_a_mirror_that_is_away_is_answered_by_the_cache(
    server: StaticServer, tree: MirrorTree, new_process: Callable[[], None]
) -> None:
    tree.add()
    get_kernel("acme/relu", version=1)
    new_process()
    server.answer("", 503)
    assert get_kernel("acme/relu", version=1).repo_id == "acme/relu"
    with pytest.raises(HubUnavailable, match=server.url):
        get_kernel("acme/gelu", version=1)


def test_what_is_not_here_cannot_come_offline(
    server: StaticServer, tree: MirrorTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.add()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(NotInCache):
        get_kernel("acme/relu", version=1)
    assert server.requests == []


def test_an_archive_that_breaks_off_is_resumed(server: StaticServer, tree: MirrorTree) -> None:
    tree.add(variants={"torch-cpu": {"data.bin": bytes(range(256)) * 40}})
    server.cut("archives/", 700)
    install_kernel("acme/relu", version=1)
    assert kinds(server) == ["index 200", "archive 200", "archive 206"]


# Builds that the mirror does not have


def test_a_build_that_only_the_origin_has_is_named_with_the_command_that_adds_it(
    server: StaticServer, tree: MirrorTree
) -> None:
    tree.add(variants=["torch-cuda"], absent=["torch-cpu", "torch-xpu"])
    with pytest.raises(NoSuitableBuild) as caught:
        get_kernel("acme/relu", version=1)
    text = str(caught.value)
    assert f"torch-cpu: not in the mirror at {server.url}" in text
    assert "torch-xpu: for xpu, not cpu" in text
    assert "to the mirror, with the address where it is written: kernels mirror MIRROR --repo acme/relu -" in text


def test_a_build_that_the_mirror_got_later_is_found_by_a_pinned_load(
    server: StaticServer, tree: MirrorTree, new_process: Callable[[], None]
) -> None:
    commit = tree.add(variants=["torch-cuda"], absent=["torch-cpu"])
    with pytest.raises(NoSuitableBuild):
        get_kernel("acme/relu", revision=commit)
    tree.add(variants=["torch-cuda", "torch-cpu"], commit=commit)
    new_process()
    server.clear()
    assert get_kernel("acme/relu", revision=commit).repo_id == "acme/relu"
    assert kinds(server) == ["commit 200", "archive 200"]


# Other web servers


def test_pythons_own_web_server_is_enough(
    tree: MirrorTree, isolated_env: Path, monkeypatch: pytest.MonkeyPatch, new_process: Callable[[], None]
) -> None:
    tree.add(variants={"torch-cpu": MANY})

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(tree.root))

        def log_request(self, *args: object) -> None:
            answers.append(args[0])

    answers: list[object] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        monkeypatch.setenv("KERNELS_HUB", f"http://127.0.0.1:{running.server_address[1]}")

        for _ in range(2):
            assert get_kernel("acme/relu", version=1).repo_id == "acme/relu"
            new_process()
        assert [int(str(status)) for status in answers] == [200, 200, 200]  # it sends no ETags
        running.shutdown()


def image_with_fixed_times(root: Path, seed: str) -> bytes:
    """Write a mirror into a folder, as an image holds it that is built with fixed times; returns the index."""
    tree = MirrorTree(root)
    commit = tree.add(variants={"torch-cpu": {"seed.txt": seed}})
    for path in [root, *root.rglob("*")]:
        os.utime(path, (1_000_000_000, 1_000_000_000))
    index = (root / "api/kernels/acme/relu/refs").read_bytes()
    assert commit.encode() in index
    return index


def loaded_seed() -> str:
    """Load the kernel; returns what its image put into it."""
    return (install_kernel("acme/relu", version=1) / "seed.txt").read_text()


def check_seen_within_a_day(
    url: str, root: Path, monkeypatch: pytest.MonkeyPatch, new_process: Callable[[], None]
) -> None:
    """Load a kernel, put another image in the place of the served one, and load the kernel a day later."""
    monkeypatch.setenv("KERNELS_HUB", url)
    old = image_with_fixed_times(root / "served", "old")
    assert loaded_seed() == "old"
    (root / "served").rename(root / "before")
    assert len(image_with_fixed_times(root / "served", "new")) == len(old)
    now = time.time
    for hours in (10, 20, 30):  # a 304 does not begin the day again
        new_process()
        monkeypatch.setattr(time, "time", lambda hours=hours: now() + hours * 3600)
        found = loaded_seed()
    assert found == "new"


def test_two_images_with_one_etag_are_told_apart_within_a_day(
    tmp_path: Path, isolated_env: Path, monkeypatch: pytest.MonkeyPatch, new_process: Callable[[], None]
) -> None:
    with StaticServer(tmp_path / "served", etags_of_times=True) as server:
        check_seen_within_a_day(server.url, tmp_path, monkeypatch, new_process)
    assert kinds(server) == ["index 200", "archive 200", "index 304", "index 304", "index 200", "archive 200"]


@needs_nginx
def test_two_images_behind_nginx_are_told_apart_within_a_day(
    tmp_path: Path, isolated_env: Path, monkeypatch: pytest.MonkeyPatch, new_process: Callable[[], None]
) -> None:
    log = tmp_path / "access.log"
    (tmp_path / "served").mkdir()
    variables = {"MIRROR_ROOT": f"{tmp_path}/served", "MIRROR_RUN": f"{tmp_path}/run", "MIRROR_LOG": str(log)}
    script = Path(__file__).parents[2] / "examples" / "cluster" / "mirror" / "serve.sh"
    nginx = Nginx(script, tmp_path / "n", "MIRROR_LISTEN", variables)
    try:
        check_seen_within_a_day(nginx.url, tmp_path, monkeypatch, new_process)
    finally:
        nginx.stop()
    answers = [line for line in log.read_text().splitlines() if "/refs" in line]
    assert [" 304 " in line for line in answers] == [False, True, True, False]


@needs_nginx
def test_nginx_answers_two_requests_and_then_304(
    tree: MirrorTree,
    isolated_env: Path,
    monkeypatch: pytest.MonkeyPatch,
    new_process: Callable[[], None],
    tmp_path: Path,
) -> None:
    tree.add(variants={"torch-cpu": MANY})
    log = tmp_path / "access.log"
    variables = {"MIRROR_ROOT": str(tree.root), "MIRROR_RUN": str(tmp_path / "run"), "MIRROR_LOG": str(log)}
    script = Path(__file__).parents[2] / "examples" / "cluster" / "mirror" / "serve.sh"
    nginx = Nginx(script, tmp_path / "n", "MIRROR_LISTEN", variables)
    try:
        monkeypatch.setenv("KERNELS_HUB", nginx.url)
        for _ in range(2):
            assert get_kernel("acme/relu", version=1).repo_id == "acme/relu"
            new_process()
    finally:
        nginx.stop()
    lines = [line for line in log.read_text().splitlines() if "/health" not in line]
    assert len(lines) == 3, lines
    assert " 304 " in lines[2]


# Everything else that asks a Hub


def test_the_commands_work_with_a_mirror(
    server: StaticServer, tree: MirrorTree, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, list(arguments), prog_name="kernels")
        assert result.exit_code == 0, result.output
        return result.output

    tree.add(variants=["torch-cpu", "torch-cuda"], absent=["torch-xpu"], digest=True, depends=[("acme/base", 1)])
    tree.add("acme/base")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[tool.kernels.dependencies]\n"acme/relu" = 1\n')
    assert "torch-xpu" in run("explain", "acme/relu", "--version", "1")
    assert "torch-cuda" in run("info", "acme/relu", "--version", "1")
    assert "torch-cpu" in run("versions", "acme/relu")
    for name in ("verify", "info", "explain", "check"):
        refused = CliRunner().invoke(app, [name, str(tree.root)], prog_name="kernels")
        assert refused.exit_code != 0
        assert f"is a mirror: name a repository, and the mirror in KERNELS_HUB={tree.root}" in refused.output
        assert f"kernels mirror {tree.root} --verify" in refused.output
    with warned(r"the mirror at .* does not have every build of acme/relu.*: torch-xpu is not in it"):
        assert "Locked 2 kernels" in run("lock", ".", "--hashes")
    assert "Downloaded 1 build of 2" in run("download", ".")
    assert "nothing failed" in run("verify", "acme/relu", "--version", "1")
    assert kinds(server).count("archive 200") <= 3  # the hashes of a build without a digest need its files
    doctor = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).output)
    assert doctor["hub"]["answers"] is True


def test_a_model_is_kernelized_from_a_mirror(server: StaticServer, tree: MirrorTree) -> None:
    torch = pytest.importorskip("torch")
    from acme_model import Model

    from kernels import LayerRepository, Mode, kernelize, use_kernel_mapping

    layers = """
import torch

class SiluAndMul(torch.nn.Module):
    def forward(self, input):
        half = input.shape[-1] // 2
        return torch.sigmoid(input[..., :half]) * input[..., :half] * input[..., half:]
"""
    tree.add(variants={"torch-cpu": {"layers.py": layers}})
    mapping = {"SiluAndMul": {"cpu": LayerRepository("acme/relu", layer_name="SiluAndMul", version=1)}}
    model = Model()
    with use_kernel_mapping(mapping):
        report = kernelize(model, mode=Mode.INFERENCE, device="cpu", report=True)
    assert report.kernelized
    assert kinds(server) == ["index 200", "archive 200"]
    assert torch is not None
