"""`kernels mirror` where something is wrong: what it takes all the same, what it says, and how that is put right."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hub import TestHub
from mirror_tree import MirrorTree

from kernels import download_kernels, settings
from kernels.errors import StoreError
from kernels.mirror.signing import MirrorSigner
from kernels.mirror.stores.base import StoredEntry
from kernels.mirror.stores.folder import FolderStore
from kernels.models.mirror import commit_path, index_path
from kernels.models.mirror_document import MirrorDocument
from kernels.operations.mirroring.request import MirrorRequest
from kernels.operations.mirroring.run import mirror
from kernels.resolver.target import Target

pytestmark = pytest.mark.skipif(find_spec("zstandard") is None, reason="zstandard is not installed")

Run = Callable[..., Any]


@pytest.mark.parametrize(
    ("moves", "says"),
    [
        ({"acme/a": "acme/b", "acme/b": "acme/a"}, "acme/a moved in a circle: acme/a -> acme/b -> acme/a."),
        ({"acme/a": "acme/a"}, "acme/a moved in a circle: acme/a -> acme/a."),
        ({"acme/a": "acme/A", "acme/A": "acme/a"}, "acme/a moved in a circle: acme/a -> acme/A -> acme/a."),
        (
            {f"acme/a{'' if each == 0 else each}": f"acme/a{each + 1}" for each in range(1000)},
            "acme/a moved more than 5 times: acme/a -> acme/a1 -> acme/a2 -> acme/a3 -> acme/a4 -> acme/a5 -> acme/a6.",
        ),
    ],
    ids=["circle", "itself", "case", "chain"],
)
@pytest.mark.parametrize("by", ["--repo", "--publisher", "all"])
def test_a_repository_that_moved_in_a_circle_is_an_error_and_the_rest_is_taken(
    kernels: Run, isolated_env: Path, tmp_path: Path, moves: dict[str, str], says: str, by: str
) -> None:
    tree = MirrorTree(tmp_path / "old")
    tree.add("acme/relu")
    tree.add("acme/a")
    for name, destination in moves.items():  # the mirror's own index lists the first one only
        index = msgspec.structs.replace(tree.indexes["acme/a"], repo_id=name, moved_to=destination)
        path = tree.root / index_path(name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(MirrorDocument.of(index).to_bytes())
    what = {"--repo": ["--repo", "acme/a", "--repo", "acme/relu"], "--publisher": ["--publisher", "acme"], "all": []}
    done = kernels("mirror", tmp_path / "new", "--from", tree.root, *what[by])
    assert done.exit_code == 1
    assert (says in done.stderr.splitlines()[0], len(done.stderr.splitlines())) == (True, 1), done.stderr
    assert "acme/relu" in done.stdout
    assert kernels("mirror", tmp_path / "new", "--verify").exit_code == 0


def test_a_branch_at_a_commit_that_is_not_listed_is_an_error_of_that_repository(
    kernels: Run, hub: TestHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo("acme/relu")
    hub.make_repo("acme/gelu")
    place = tmp_path / "mirror"
    assert kernels("mirror", place, "--repo", "acme/relu").exit_code == 0
    path = place / index_path("acme/relu")
    index = MirrorDocument.parse(path.read_bytes(), "").repository("acme/relu", "")
    branches = {**index.branches, "v3": "9" * 40}
    path.write_bytes(MirrorDocument.of(msgspec.structs.replace(index, branches=branches)).to_bytes())
    says = f"'v3' is at commit {'9' * 40}, which it does not list"
    hub.make_repo("acme/relu", version=2)
    done = kernels("mirror", place, "--repo", "acme/relu", "--repo", "acme/gelu")
    assert (done.exit_code, says in done.stderr, "acme/gelu" in done.stdout) == (1, True, True), done.output
    assert says in kernels("mirror", place, "--verify").stderr
    monkeypatch.setenv("KERNELS_HUB", str(place))
    assert says in kernels("info", "acme/relu", "--version", "1").stderr


def whole(kernels: Run, place: Path) -> bool:
    done = kernels("mirror", place, "--verify")
    return bool(done.exit_code == 0 and "that nothing names" not in done.stderr)


def test_an_archive_whose_document_could_not_be_written_is_not_sent_again(
    kernels: Run, hub: TestHub, tmp_path: Path
) -> None:
    hub.make_repo("acme/relu", variants=["torch-cpu", "torch-cuda"])
    place = tmp_path / "mirror"
    obstacle = place / commit_path("acme/relu", hub.commit())
    obstacle.parent.mkdir(parents=True)
    obstacle.write_bytes(b"{")
    done = kernels("mirror", place, "--publisher", "acme", "--json")
    assert (done.exit_code, json.loads(done.stdout)["sent"] > 0) == (1, True), done.output
    obstacle.unlink()
    hub.clear()
    done = kernels("mirror", place, "--publisher", "acme", "--json")
    assert (done.exit_code, json.loads(done.stdout)["sent"], hub.count("/resolve/.*__init__")) == (0, 0, 0)
    assert whole(kernels, place)


def test_files_of_a_build_that_was_packed_before_do_not_stay_until_the_end(hub: TestHub, tmp_path: Path) -> None:
    shared = {"shared.py": "x = 1\n" * 999}
    hub.make_repo("acme/relu", variants={"torch-cpu": shared, "torch-cuda": shared})
    place = tmp_path / "mirror"
    obstacle = place / commit_path("acme/relu", hub.commit())
    obstacle.parent.mkdir(parents=True)
    obstacle.write_bytes(b"{")
    packed = MirrorRequest(str(place), publishers=["acme"], targets=["torch2.9-cpu-x86_64-linux"])
    assert mirror(packed).failures
    obstacle.unlink()
    hub.make_repo("acme/zeta")
    going_on = threading.Event()
    hub.hold("/acme/zeta/.*/__init__", going_on)
    with ThreadPoolExecutor() as pool:
        running = pool.submit(mirror, MirrorRequest(str(place), publishers=["acme"]))
        try:
            deadline = time.monotonic() + 60
            while len(list(place.glob("archives/*/*.zst"))) < 2 and time.monotonic() < deadline:
                time.sleep(0.02)
            work = settings.cache_dir() / ".locks" / "kernels-mirroring"
            while list(work.glob("*/cache/*relu/blobs/*")) and time.monotonic() < deadline:
                time.sleep(0.02)
            assert list(work.glob("*/cache/*relu/blobs/*")) == []
        finally:
            going_on.set()
        assert running.result().failures == ()


@pytest.mark.parametrize("what", ["archives", "api"])
def test_a_store_that_is_full_gets_the_documents_of_what_arrived(
    kernels: Run, hub: TestHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    zstandard = pytest.importorskip("zstandard")
    hub.make_repo("acme/relu")
    hub.make_repo("acme/gelu", variants={"torch-cpu": {"big.py": "x = 1\n"}})
    place, write = tmp_path / "mirror", FolderStore.write

    def full(self: FolderStore, path: str, content: bytes | Path, **options: Any) -> str:
        data = content if isinstance(content, bytes) else content.read_bytes()
        if path.startswith("archives/"):
            data = zstandard.ZstdDecompressor().decompressobj().decompress(data)
        if path.startswith(what) and b"big.py" in data:
            raise StoreError("Cannot write: No space left on device.")
        return write(self, path, content, **options)

    monkeypatch.setattr(FolderStore, "write", full)
    done = kernels("mirror", place, "--publisher", "acme")
    assert (done.exit_code, done.stderr) == (1, "Error: Cannot write: No space left on device.\n")
    done = kernels("mirror", place, "--verify")
    assert (done.exit_code, "1 repository, 1 commit, 1 archive (" in done.stdout) == (0, True), done.output


def test_two_first_runs_into_one_place_both_succeed(
    kernels: Run, hub: TestHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo("acme/relu")
    hub.make_repo("acme/gelu")
    place, entries, others = tmp_path / "mirror", FolderStore.entries, ["acme/gelu"]

    def later(self: FolderStore, prefix: str = "") -> Iterator[StoredEntry]:
        while others:  # another first run, since this one found no mirror
            assert kernels("mirror", place, "--repo", others.pop()).exit_code == 0
        return entries(self, prefix)

    monkeypatch.setattr(FolderStore, "entries", later)
    done = kernels("mirror", place, "--repo", "acme/relu")
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    assert "2 repositories, 2 commits" in kernels("mirror", place, "--verify").stdout


def test_without_a_library_for_archives_nothing_is_fetched_or_written(
    kernels: Run, hub: TestHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sys.version_info >= (3, 14):
        pytest.skip("this Python has its own")
    hub.make_repo("acme/relu")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    done = kernels("mirror", tmp_path / "mirror", "--repo", "acme/relu")
    assert (done.exit_code, "pip install zstandard" in done.stderr) == (1, True)
    assert not (tmp_path / "mirror").exists()
    done = kernels("download", "acme/relu", "--version", 1, "--all-variants", "--to", tmp_path / "carried")
    assert (done.exit_code, "pip install zstandard" in done.stderr) == (1, True)
    assert hub.count("/resolve/") == 0


def test_machines_that_read_alike_are_not_taken_for_one(hub: TestHub, tmp_path: Path) -> None:
    builds = {"torch29-cxx11-cpu-x86_64-linux", "torch-cpu"}
    hub.make_repo("acme/relu", variants=sorted(builds))
    machine = Target.parse("torch2.9-cpu-x86_64-linux")
    targets = [msgspec.structs.replace(machine, cxx11_abi=each) for each in (True, None)]
    assert str(targets[0]) == str(targets[1])
    result = mirror(MirrorRequest(str(tmp_path / "mirror"), repositories=["acme/relu"], targets=targets))
    assert {each.variant for each in result.builds} == builds
    assert {each.variant for each in download_kernels(["acme/relu"], version=1, targets=targets)} == builds


def test_the_summary_says_what_became_of_a_run(kernels: Run, hub: TestHub, tmp_path: Path) -> None:
    hub.make_repo("acme/relu")
    place = tmp_path / "mirror"
    kernels("mirror", place, "--repo", "acme/relu")

    def summary(repo_id: str) -> str:
        return str(kernels("mirror", place, "--repo", repo_id).stdout.splitlines()[-1])

    assert summary("acme/relu") == f"Nothing to do: 1 build in {place}."
    assert summary("acme/absent") == f"{place}: nothing changed; 1 failed."
    # The mirror's own index lost the repository, as after another writer without conditions.
    own = MirrorDocument.parse((place / "mirror.json").read_bytes(), "").mirror("")
    lost = msgspec.structs.replace(own, number=own.number + 1, repositories={})
    (place / "mirror.json").write_bytes(MirrorDocument.of(lost).to_bytes())
    assert summary("acme/relu") == f"{place}: 0 new builds, 1 document written."
    assert whole(kernels, place)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    pytest.importorskip("cryptography")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    path = tmp_path / "key.pem"
    path.write_bytes(Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return path


@pytest.mark.parametrize(
    ("which", "damage", "signed"),
    [
        ("index", "cut", False),
        ("index", "changed", True),
        ("index", "missing", True),
        ("commit", "cut", False),
        ("older", "changed", True),
        ("mirror.json", "cut", False),
        ("mirror.json", "missing", True),
    ],
)
def test_a_document_that_cannot_be_used_is_written_anew(
    kernels: Run,
    hub: TestHub,
    tmp_path: Path,
    key: Path,
    monkeypatch: pytest.MonkeyPatch,
    which: str,
    damage: str,
    signed: bool,
) -> None:
    place, signing = tmp_path / "mirror", []
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    monkeypatch.setenv("KERNELS_HUB", "hub")
    if signed:
        signing = ["--sign-key", key]
        monkeypatch.setenv("KERNELS_MIRROR_KEYS", MirrorSigner(key).name)
    hub.make_repo("acme/gelu")
    commits = []
    for seed in ("first", "second", "third"):
        hub.make_repo("acme/relu", seed=seed)
        commits.append(hub.commit())
        assert kernels("mirror", place, "--repo", "acme/relu", "--repo", "acme/gelu", *signing).exit_code == 0
    assert whole(kernels, place)
    paths = {
        "index": index_path("acme/relu"),
        "commit": commit_path("acme/relu", commits[-1]),
        "older": commit_path("acme/relu", commits[0]),
        "mirror.json": "mirror.json",
    }
    path = place / paths[which]
    before = path.read_bytes()
    number = json.loads(before)["content"]["number"]
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(before[:100] if damage == "cut" else before.replace(b'"number":', b'"numbr":'))
    done = kernels("mirror", place, "--verify")
    assert done.exit_code == 1
    if which != "mirror.json":
        assert f"kernels mirror {place} --repo REPO --repair" in done.stderr
    assert "that nothing names" not in done.stdout + done.stderr
    options = ["--repo", "acme/relu", *signing]
    if damage != "missing" and which != "older":
        done = kernels("mirror", place, *options)
        assert (done.exit_code, "--repair" in done.stderr) == (1, True) if which != "commit" else (0, False)
    if which == "older":
        options += ["--revision", commits[0]]
    if signed:  # who has no key cannot replace it
        monkeypatch.delenv("KERNELS_MIRROR_KEYS")
        assert kernels("mirror", place, "--repo", "acme/relu", "--repair").exit_code == 1
        monkeypatch.setenv("KERNELS_MIRROR_KEYS", MirrorSigner(key).name)
    done = kernels("mirror", place, *options, "--repair", "--json")
    assert done.exit_code == 0, done.output
    assert which == "older" or json.loads(done.stdout)["sent"] == 0  # what else would say that the archive is right
    done = kernels("mirror", place, "--verify")
    assert done.exit_code == 0, done.output
    assert "2 repositories, 4 commits, 4 archives" in done.stdout
    after = json.loads(path.read_bytes())["content"]["number"]
    assert after > number if which == "index" else after >= 1
