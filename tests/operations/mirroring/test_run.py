"""A mirror is written from a Hub: what is in it, what a second run costs, and what it never loses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hub import TestHub

from kernels import download_kernels
from kernels.errors import RequestError, StoreError
from kernels.mirror.archive import unpack
from kernels.mirror.signing import MirrorSigner
from kernels.mirror.stores.folder import FolderStore
from kernels.mirror.stores.opening import open_store
from kernels.models.lockfile import Lock, Pin
from kernels.models.mirror import RepositoryIndex, commit_path, index_path
from kernels.models.mirror_document import MirrorDocument
from kernels.models.requirement import Requirement
from kernels.operations.mirroring.documents import MirrorDocuments
from kernels.operations.mirroring.request import MirrorRequest, MirrorResult, MirrorVersions
from kernels.operations.mirroring.run import mirror

HOPPER = "torch2.9-cu128-x86_64-linux+sm_90"
CPU = "torch2.9-cpu-x86_64-linux"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "mirror"


def run(place: Path, *repositories: str, **options: object) -> MirrorResult:
    return mirror(MirrorRequest(str(place), repositories=repositories, **options))  # type: ignore[arg-type]


def index(place: Path, repo_id: str, commit: str | None = None) -> RepositoryIndex:
    path = index_path(repo_id) if commit is None else commit_path(repo_id, commit)
    return MirrorDocument.parse((place / path).read_bytes(), path).repository(repo_id, path, commit)


def state(place: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(place)): (path.stat().st_mtime_ns, path.stat().st_ino)
        for path in place.rglob("*")
        if path.is_file()
    }


def test_the_mirror_has_every_build_as_it_was_published(hub: TestHub, place: Path) -> None:
    hub.make_repo("acme/relu", variants=["torch-cpu", "torch-cuda"], files={"README.md": "# Relu\n"}, digest=True)
    result = run(place, "acme/relu")
    assert (result.failures, [each.variant for each in result.builds]) == ((), ["torch-cpu", "torch-cuda"])
    found = index(place, "acme/relu")
    commit = hub.commit()
    assert (found.branches, list(found.commits), found.older) == ({"v1": commit}, [commit], ())
    assert (found.origin.url, found.publisher.name, found.publisher.trusted) == (hub.url, "acme", True)
    assert found.commits[commit].texts == {"README.md": "# Relu\n"}
    assert index(place, "acme/relu", commit).builds == found.builds
    for variant in ("torch-cpu", "torch-cuda"):
        build = found.build(commit, variant)
        assert build is not None
        folder = hub.root / "acme" / "relu" / "v1" / "build" / variant
        assert build.metadata == (folder / "metadata.json").read_text()
        unpack([(place / build.archive.name).read_bytes()], build, None, "the archive")
    top = MirrorDocument.parse((place / "mirror.json").read_bytes(), "mirror.json").mirror("mirror.json")
    assert {name: each.versions for name, each in top.repositories.items()} == {"acme/relu": (1,)}
    assert FolderStore(place).size("mirror.json") is not None


@pytest.mark.parametrize("keys", [False, True])
def test_a_run_without_the_key_of_a_signed_mirror_changes_nothing(
    hub: TestHub, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: bool
) -> None:
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key = tmp_path / "key.pem"
    key.write_bytes(ed25519.Ed25519PrivateKey.generate().private_bytes(*form))
    hub.make_repo("acme/relu")
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    monkeypatch.setenv("KERNELS_HUB", "hub")
    if keys:
        monkeypatch.setenv("KERNELS_MIRROR_KEYS", MirrorSigner(key).name)
    run(place, "acme/relu", sign_key=key)
    before = state(place)
    hub.make_repo("acme/gelu")
    hub.make_repo("acme/relu", variants={"torch-cpu": {"extra.py": "changed = True\n"}})
    for write in (
        lambda: run(place, "acme/relu", "acme/gelu"),
        lambda: run(place, "acme/relu", repair=True),
        lambda: download_kernels(["acme/gelu"], version=1, to=place),
    ):
        with pytest.raises(RequestError, match=r"name the key \(--sign-key FILE\). Nothing was changed"):
            write()
        assert state(place) == before
    assert run(place, "acme/gelu", dry_run=True).builds  # it writes nothing
    assert not run(place, "acme/relu", "acme/gelu", sign_key=key).failures


def test_a_second_run_asks_for_the_branches_alone_and_writes_nothing(hub: TestHub, place: Path) -> None:
    hub.make_repo("acme/gelu")
    hub.make_repo("acme/relu", variants=["torch-cpu", "torch-cuda"], depends=[("acme/gelu", 1)])
    run(place, "acme/relu")
    before = state(place)
    hub.clear()
    result = run(place, "acme/relu")
    assert state(place) == before
    assert [each for each in hub.asked() if "/organizations/" not in each] == [
        "GET /api/kernels/acme/relu/refs",
        "GET /api/kernels/acme/gelu/refs",
    ]
    assert [(each.repo_id, each.new) for each in result.builds] == [
        ("acme/gelu", False),
        ("acme/relu", False),
        ("acme/relu", False),
    ]


def test_a_new_commit_sends_only_the_builds_that_changed(hub: TestHub, place: Path) -> None:
    hub.make_repo("acme/relu", variants=["torch-cpu", "torch-cuda"])
    run(place, "acme/relu")
    old = hub.commit()
    hub.make_repo("acme/relu", variants={"torch-cpu": {"extra.py": "changed = True\n"}})
    new = hub.commit()
    hub.clear()
    result = run(place, "acme/relu")
    assert [(each.variant, each.new) for each in result.builds] == [("torch-cpu", True), ("torch-cuda", False)]
    assert hub.count("torch-cuda/__init__.py") == 0
    found = index(place, "acme/relu")
    assert (found.branches, found.older, found.number) == ({"v1": new}, (old,), 2)
    assert len(list((place / "archives").rglob("*.zst"))) == 3
    assert set(index(place, "acme/relu", old).commits) == {old}


@pytest.mark.parametrize(
    ("versions", "branches"),
    [("all", ["v1", "v2", "v3"]), ("newest:2", ["v2", "v3"]), ("1,3", ["v1", "v3"])],
)
def test_versions_are_chosen(hub: TestHub, place: Path, versions: str, branches: list[str]) -> None:
    for version in (1, 2, 3):
        hub.make_repo("acme/relu", version=version)
    result = run(place, "acme/relu", versions=MirrorVersions.parse(versions))
    assert result.failures == ()
    assert list(index(place, "acme/relu").branches) == branches


def failures(result: MirrorResult) -> list[str]:
    return [f"{each.kernel}: {each.error}" for each in result.failures]


def test_a_publishers_repositories_are_listed_and_taken(hub: TestHub, place: Path) -> None:
    for name in ("acme/relu", "acme/gelu", "other/relu"):
        hub.make_repo(name)
    result = mirror(MirrorRequest(str(place), publishers=["acme"]))
    assert ({each.repo_id for each in result.builds}, failures(result)) == ({"acme/relu", "acme/gelu"}, [])
    cache = Path(os.environ["KERNELS_CACHE"])
    # What is taken for a mirror alone does not stay in the cache.
    assert not any((cache / "kernels--acme--relu").rglob("__init__.py"))
    assert list((cache / ".locks" / "kernels-mirroring").iterdir()) == []


def test_everything_that_the_hub_lists_is_taken_and_what_has_no_build_is_left_out(hub: TestHub, place: Path) -> None:
    hub.make_repo("acme/relu")
    hub.make_repo("acme/sources", variants=(), files={"README.md": "no builds"})
    result = mirror(MirrorRequest(str(place), everything=True))
    assert [each.repo_id for each in result.builds] == ["acme/relu"]
    assert [(each.kernel, each.reason) for each in result.left_out] == [("acme/sources at v1", "it has no builds")]
    assert failures(result) == []


def test_an_untrusted_publisher_is_refused_unless_it_is_allowed(hub: TestHub, place: Path) -> None:
    hub.make_repo("eve/relu")
    hub.make_repo("acme/relu")
    result = run(place, "eve/relu", "acme/relu")
    assert [each.repo_id for each in result.builds] == ["acme/relu"]
    assert "is refused: its publisher 'eve'" in failures(result)[0]
    assert run(place, "eve/relu", trust_remote_code=True).failures == ()
    assert index(place, "eve/relu").publisher.trusted is False


def test_redirects_are_taken_with_where_they_lead(hub: TestHub, place: Path) -> None:
    hub.make_repo("acme/new")
    hub.make_repo("acme/old", redirect="acme/new", variants=())
    assert failures(run(place, "acme/old")) == []
    old = index(place, "acme/old")
    assert list(old.commits[old.branches["v1"]].texts) == ["kernel-status.toml"]
    assert list(index(place, "acme/new").branches) == ["v1"]
    before = state(place)
    assert len(run(place, "acme/old").builds) == 1
    assert state(place) == before


def test_a_renamed_repository_says_where_it_is(hub: TestHub, place: Path) -> None:
    hub.make_repo("acme/new")
    for path in ("refs", "tree"):
        moved = {"Location": f"{hub.url}/api/kernels/acme/new/{path}"}
        hub.fail(f"/api/kernels/acme/old/{path}", status=307, headers=moved)
    assert failures(run(place, "acme/old")) == []
    assert (index(place, "acme/old").moved_to, index(place, "acme/old").branches) == ("acme/new", {})
    assert list(index(place, "acme/new").branches) == ["v1"]


def test_a_lockfile_gives_the_commits_and_moves_no_branch(hub: TestHub, place: Path, tmp_path: Path) -> None:
    hub.make_repo("acme/gelu")
    hub.make_repo("acme/relu", depends=[("acme/gelu", 1)])
    old = hub.commit()
    lock = tmp_path / "kernels.lock"
    pins = [
        Pin(Requirement("acme/relu", version=1), old),
        Pin(Requirement("acme/gelu", version=1), hub.commit("acme/gelu")),
    ]
    lock.write_bytes(Lock(tuple(pins)).to_bytes())
    shutil.copytree(hub.root / "acme/relu/v1", hub.root / "acme/relu" / old)
    hub.make_repo("acme/relu", depends=[("acme/gelu", 1)], seed="newer")
    new = hub.commit()
    assert failures(mirror(MirrorRequest(str(place), lockfiles=[lock]))) == []
    assert index(place, "acme/relu").branches == {"v1": old}
    assert failures(run(place, "acme/relu")) == []
    assert (index(place, "acme/relu").branches, index(place, "acme/relu").older) == ({"v1": new}, (old,))
    assert failures(mirror(MirrorRequest(str(place), lockfiles=[lock]))) == []
    assert index(place, "acme/relu").branches == {"v1": new}


def test_targets_choose_builds_and_a_later_run_adds_others(hub: TestHub, place: Path) -> None:
    hub.make_repo("acme/relu", variants=["torch-cpu", "torch-cuda"])
    run(place, "acme/relu", targets=[HOPPER])
    commit = hub.commit()
    found = index(place, "acme/relu")
    assert (list(found.commits[commit].variants), found.commits[commit].absent) == (["torch-cuda"], ("torch-cpu",))
    before = state(place)
    run(place, "acme/relu", targets=[HOPPER])
    assert state(place) == before
    run(place, "acme/relu", targets=[CPU])
    found = index(place, "acme/relu")
    assert (list(found.commits[commit].variants), found.commits[commit].absent) == (["torch-cpu", "torch-cuda"], ())
    assert index(place, "acme/relu", commit).commits == found.commits


def test_commits_before_a_date_are_left_out(hub: TestHub, place: Path) -> None:
    hub.make_repo("acme/relu")
    result = run(place, "acme/relu", since=time.time() + 60)
    assert (result.builds, failures(result)) == ((), [])
    assert result.left_out[0].reason.startswith("its commit was made on ")
    assert not place.exists()


def test_a_dry_run_writes_nothing(hub: TestHub, place: Path) -> None:
    hub.make_repo("acme/relu", variants=["torch-cpu", "torch-cuda"])
    result = run(place, "acme/relu", dry_run=True)
    assert [(each.variant, each.new, each.archive) for each in result.builds] == [
        ("torch-cpu", True, None),
        ("torch-cuda", True, None),
    ]
    assert all(each.size > 0 for each in result.builds)
    assert not place.exists()


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [(b"{", "is not valid metadata: Input data was truncated"), (b'{"name": "\xff"}', ""), (b"[]", "")],
)
def test_a_build_whose_metadata_is_not_valid_is_left_out(
    hub: TestHub, place: Path, metadata: bytes, reason: str
) -> None:
    hub.make_repo("acme/relu", variants={"torch-cpu": None, "torch-cuda": {"metadata.json": metadata}})
    result = run(place, "acme/relu")
    assert failures(result) == []
    assert [each.kernel for each in result.left_out] == ["acme/relu torch-cuda"]
    assert reason in result.left_out[0].reason
    found = index(place, "acme/relu")
    assert found.commits[hub.commit()].absent == ("torch-cuda",)


def test_a_branch_does_not_move_to_a_commit_of_which_a_build_failed(hub: TestHub, place: Path) -> None:
    hub.make_repo("acme/relu", variants=["torch-cpu", "torch-cuda"])
    run(place, "acme/relu")
    old = hub.commit()
    hub.make_repo("acme/relu", variants=["torch-cpu", "torch-cuda"], seed="newer")
    new = hub.commit()
    hub.corrupt("torch-cuda/__init__.py")
    result = run(place, "acme/relu")
    assert "acme/relu torch-cuda" in failures(result)[0]
    found = index(place, "acme/relu")
    assert (found.branches, found.older) == ({"v1": old}, (new,))
    assert list(index(place, "acme/relu", new).commits[new].variants) == ["torch-cpu"]
    hub.heal()
    hub.clear()
    assert failures(run(place, "acme/relu")) == []
    assert index(place, "acme/relu").branches == {"v1": new}
    assert hub.count("torch-cpu/layers") == 0


def test_a_run_that_was_broken_off_sends_nothing_again(
    hub: TestHub, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo("acme/relu", variants=["torch-cpu", "torch-cuda"])
    with monkeypatch.context() as broken:
        broken.setattr(
            MirrorDocuments, "change_commit", lambda *_: os.kill(os.getpid(), signal.SIGINT) or time.sleep(9)
        )
        with pytest.raises(KeyboardInterrupt):
            mirror(MirrorRequest(str(place), publishers=["acme"]))
    archives = {path: facts for path, facts in state(place).items() if path.startswith("archives/")}
    assert len(archives) == 2
    hub.clear()
    result = mirror(MirrorRequest(str(place), publishers=["acme"]))
    assert (failures(result), result.sent, hub.count("/resolve/.*__init__")) == ([], 0, 0)
    assert {path: facts for path, facts in state(place).items() if path.startswith("archives/")} == archives
    assert len(index(place, "acme/relu").builds) == 2
    assert not any((Path(os.environ["KERNELS_CACHE"]) / ".locks" / "kernels-mirrors").rglob("*.json"))


def test_another_hubs_repository_is_not_replaced(
    hub: TestHub, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo("acme/relu")
    run(place, "acme/relu")
    before = state(place)
    with TestHub(tmp_path / "other") as other:
        other.make_repo("acme/relu", seed="other")
        monkeypatch.setenv("KERNELS_HUB", other.url)
        result = run(place, "acme/relu")
    assert f"comes from '{hub.url}', and this run takes it from {other.url}" in failures(result)[0]
    assert state(place) == before


def test_a_name_in_another_case_is_refused_where_the_mirror_has_one(hub: TestHub, place: Path) -> None:
    hub.make_repo("acme/relu")
    hub.make_repo("acme/ReLU")
    run(place, "acme/relu")
    assert failures(run(place, "acme/ReLU")) == [
        f"acme/ReLU: acme/ReLU is acme/relu in {place.as_uri()}: take it by that name."
    ]
    top = MirrorDocument.parse((place / "mirror.json").read_bytes(), "mirror.json").mirror("mirror.json")
    assert list(top.repositories) == ["acme/relu"]


def test_tags_are_recorded_where_they_are_names(hub: TestHub, place: Path) -> None:
    hub.make_repo("acme/relu")
    commit = hub.commit()
    refs = {
        "branches": [{"name": "v1", "ref": "refs/heads/v1", "targetCommit": commit}],
        "tags": [
            {"name": name, "ref": f"refs/tags/{name}", "targetCommit": commit} for name in ("v1.0.0", "../../up", "a b")
        ],
    }
    hub.replace("/acme/relu/refs", lambda _: json.dumps(refs).encode())
    assert failures(run(place, "acme/relu")) == []
    assert (index(place, "acme/relu").tags, index(place, "acme/relu").branches) == ({"v1.0.0": commit}, {"v1": commit})
    assert [each.names for each in run(place, "acme/relu", revision="v1.0.0").commits] == [("v1.0.0",)]


def test_a_mirror_of_a_mirror_names_the_hub_and_the_builds_that_neither_has(
    hub: TestHub, place: Path, tmp_path: Path, new_process: Callable[[], None]
) -> None:
    hub.make_repo("acme/relu", variants=["torch-cpu", "torch-cuda"])
    run(place, "acme/relu", targets=[CPU])
    hub.down()
    for name in ("second", "third"):  # the third is written with the cache that the second has filled
        new_process()
        assert run(tmp_path / name, "acme/relu", source=str(place)).failures == ()
        found = index(tmp_path / name, "acme/relu")
        assert (found.origin.url, found.publisher.trusted) == (hub.url, True)
        assert list(found.commits[hub.commit()].variants) == ["torch-cpu"]
    assert index(tmp_path / "second", "acme/relu").commits[hub.commit()].absent == ("torch-cuda",)


def test_a_place_with_other_files_is_refused(hub: TestHub, place: Path) -> None:
    hub.make_repo("acme/relu")
    place.mkdir()
    (place / "notes").write_text("mine")
    with pytest.raises(RequestError, match=r"is not empty, and has no mirror\.json: 'notes'"):
        run(place, "acme/relu")
    assert [path.name for path in place.iterdir()] == ["notes"]


def test_a_hub_that_is_away_is_an_error_also_where_the_cache_has_the_kernel(hub: TestHub, place: Path) -> None:
    hub.make_repo("acme/relu")
    run(place, "acme/relu")
    before = state(place)
    hub.down()
    result = run(place, "acme/relu")
    assert "did not answer" in failures(result)[0]
    assert state(place) == before


def test_a_mark_that_the_hub_withdraws_is_withdrawn_in_every_document(
    hub: TestHub, place: Path, new_process: Callable[[], None]
) -> None:
    hub.make_repo("acme/relu")
    old = hub.commit()
    run(place, "acme/relu")
    hub.make_repo("acme/relu", seed="newer")
    run(place, "acme/relu")
    hub.trusted.clear()
    shutil.rmtree(Path(os.environ["KERNELS_CACHE"]) / ".locks" / "kernels-verdicts")  # a day later
    new_process()
    assert "is refused" in failures(run(place, "acme/relu"))[0]
    for document in (
        index(place, "acme/relu"),
        index(place, "acme/relu", hub.commit()),
        index(place, "acme/relu", old),
    ):
        assert document.publisher.trusted is False


def test_a_run_that_was_killed_is_continued(hub: TestHub, place: Path) -> None:
    for number in range(3):
        hub.make_repo(f"acme/k{number}", variants=["torch-cpu", "torch-cuda"])
    hub.delay("/acme/k2/.*torch-cuda/__init__", 60)
    command = [sys.executable, "-m", "kernels", "mirror", str(place), "--publisher", "acme"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(list(place.glob("archives/*/*.zst"))) < 5 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()
    archives = {path: facts for path, facts in state(place).items() if path.startswith("archives/")}
    hub.heal()
    hub.clear()
    result = mirror(MirrorRequest(str(place), publishers=["acme"]))
    assert (failures(result), len(result.builds)) == ([], 6)
    assert archives.items() <= state(place).items()
    assert hub.count("/resolve/.*__init__") == 1


def test_a_run_that_ends_right_after_an_archive_was_sent_does_not_send_it_again(
    hub: TestHub, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo("acme/relu", variants=["torch-cpu"])
    write = FolderStore.write

    def write_and_end(self: FolderStore, path: str, *rest: Any, **options: Any) -> str:
        etag = write(self, path, *rest, **options)
        if path.startswith("archives/"):
            raise KeyboardInterrupt
        return etag

    with monkeypatch.context() as ending:
        ending.setattr(FolderStore, "write", write_and_end)
        with pytest.raises(KeyboardInterrupt):
            mirror(MirrorRequest(str(place), publishers=["acme"]))
    assert len(list(place.glob("archives/*/*.zst"))) == 1
    hub.clear()
    result = mirror(MirrorRequest(str(place), publishers=["acme"]))
    assert (failures(result), len(result.builds), result.sent) == ([], 1, 0)
    assert hub.count("/resolve/.*__init__") == 0


@pytest.mark.parametrize("fault", ["disk", "hub"])
def test_a_fault_on_the_way_is_said_and_the_next_run_takes_the_rest(
    hub: TestHub, place: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    hub.make_repo("acme/relu", variants=["torch-cpu", "torch-cuda"])
    if fault == "hub":
        hub.disconnect("/resolve/.*torch-cuda/__init__")
        assert "acme/relu torch-cuda: " in failures(run(place, "acme/relu"))[0]
        assert list(index(place, "acme/relu").commits[hub.commit()].variants) == ["torch-cpu"]
        hub.heal()
    else:
        full = StoreError("Cannot write s3://bucket/archives: No space left on device.")
        with monkeypatch.context() as broken:
            broken.setattr(FolderStore, "write", lambda self, path, *_, **__: (_ for _ in ()).throw(full))
            with pytest.raises(StoreError, match="No space left"):
                run(place, "acme/relu")
    assert failures(run(place, "acme/relu")) == []
    assert len(index(place, "acme/relu").commits[hub.commit()].variants) == 2


@pytest.fixture(params=["folder", "s3"])
def address(request: pytest.FixtureRequest, hub: TestHub, place: Path) -> str:
    if request.param == "folder":
        return str(place)
    return f"s3://{request.getfixturevalue('s3_environment').bucket()}/kernels"


def test_writers_at_once_lose_nothing(hub: TestHub, address: str) -> None:
    names = [f"acme/k{number}" for number in range(3)]
    for name in names:
        hub.make_repo(name, variants=["torch-cpu", "torch-cuda"])
        hub.make_repo(name, version=2, variants=["torch-cpu"])

    def write(options: dict[str, object]) -> MirrorResult:
        return mirror(MirrorRequest(address, repositories=names, **options))  # type: ignore[arg-type]

    shares: list[dict[str, object]] = [
        {"targets": [HOPPER], "versions": MirrorVersions.parse("1")},
        {"targets": [CPU], "versions": MirrorVersions.parse("1")},
        {"versions": MirrorVersions.parse("2")},
        {"versions": MirrorVersions.parse("newest:1")},
    ]
    with ThreadPoolExecutor(len(shares)) as pool:
        assert [failures(each) for each in pool.map(write, shares)] == [[]] * len(shares)
    store = open_store(address)
    documents = MirrorDocuments(store)
    for name in names:
        found = documents.repository(name)
        assert found is not None
        assert list(found.branches) == ["v1", "v2"]
        commit = found.branches["v1"]
        assert (list(found.commits[commit].variants), found.commits[commit].absent) == (["torch-cpu", "torch-cuda"], ())
        document = documents.commit(name, commit)
        assert document is not None
        assert document.commits[commit].variants == found.commits[commit].variants
        for build in found.builds.values():
            assert store.size(build.archive.name) == build.archive.size
    top = documents.mirror()
    assert top is not None
    assert {name: each.versions for name, each in top.repositories.items()} == dict.fromkeys(names, (2, 1))
