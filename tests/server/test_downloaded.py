"""A folder that `kernels download --to` wrote, served: as it was on the Hub, and nothing that was not carried."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from carried_folder import carry_folder
from hub import TestHub

from kernels import download_kernels
from kernels.errors import InvalidRepository, RevisionNotFound
from kernels.server import Catalog, HubServer
from kernels.server.changes import Conflict, RepositoryChange, Writer

REPO = "acme/relu"


@pytest.fixture
def folder(hub: TestHub, tmp_path: Path) -> Path:
    """Two builds of `acme/relu`, with a native file, which Hubs keep in LFS; a third was not carried."""
    hub.make_repo(REPO, variants={"torch-cpu": {"native.so": b"\0" * 5000}, "torch-cuda": None, "torch-xpu": None})
    hub.make_repo(REPO, version=2)
    targets = ["torch2.9-cpu-x86_64-linux", "torch2.9-cu128-x86_64-linux"]
    carry_folder([REPO], version=1, targets=targets, to=tmp_path / "to")
    return tmp_path / "to"


def change_record(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / REPO / ".kernels.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


def test_branches_are_at_the_commits_of_the_hub_it_came_from(hub: TestHub, folder: Path) -> None:
    catalog = Catalog(folder)
    assert catalog.branches(REPO) == {"v1": hub.commit()}
    for revision in (None, "v1", "refs/heads/v1", hub.commit()):
        assert catalog.commit(REPO, revision).id == hub.commit()
    with pytest.raises(RevisionNotFound, match="it has: v1"):
        catalog.commit(REPO, "v2")


def test_files_have_the_hashes_that_the_hub_listed(hub: TestHub, folder: Path) -> None:
    there, here = hub.catalog.commit(REPO, "v1"), Catalog(folder).commit(REPO, "v1")
    assert sorted({path.split("/")[1] for path in here.files}) == ["torch-cpu", "torch-cuda"]
    for path, file in here.files.items():
        original = there.files[path]
        assert (file.size, file.oid, file.sha256) == (original.size, original.oid, original.sha256)
    assert here.files["build/torch-cpu/native.so"].sha256


def test_a_file_that_was_kept_in_lfs_for_its_attributes_is_still(hub: TestHub, folder: Path) -> None:
    import hashlib

    def large(record: dict[str, Any]) -> None:
        for file in record["files"][hub.commit()]:
            if file["path"] == "build/torch-cpu/layers.py":
                content = (folder / REPO / hub.commit() / file["path"]).read_bytes()
                file["sha256"] = hashlib.sha256(content).hexdigest()

    change_record(folder, large)
    assert Catalog(folder).commit(REPO, "v1").files["build/torch-cpu/layers.py"].sha256


@pytest.mark.parametrize(("trusted", "expected"), [(True, True), (False, False), (None, False)])
def test_the_publisher_is_as_trusted_as_the_hub_said(folder: Path, trusted: bool | None, expected: bool) -> None:
    change_record(folder, lambda record: record.update(trusted=trusted))
    publisher = Catalog(folder).publisher("acme")
    assert publisher is not None
    assert publisher.trusted is expected
    (folder / "acme" / "other" / "v1").mkdir(parents=True)
    beside = Catalog(folder).publisher("acme")
    assert beside is not None
    assert not beside.trusted  # no Hub vouched for what lies beside
    named = Catalog(folder, trusted={"acme"}).publisher("acme")
    assert named is not None
    assert named.trusted


def test_what_was_not_carried_is_not_served(hub: TestHub, folder: Path, tmp_path: Path) -> None:
    commit = folder / REPO / hub.commit()
    before = list(Catalog(folder).commit(REPO, "v1").files)
    (commit / "build" / "torch-cpu" / "planted.py").write_text("")
    shutil.copytree(commit / "build" / "torch-cpu", commit / "build" / "torch-metal")
    (folder / REPO / "v7").mkdir()
    catalog = Catalog(folder)
    assert list(catalog.commit(REPO, "v1").files) == before
    assert list(catalog.branches(REPO)) == ["v1"]


def test_a_build_that_is_not_whole_is_not_served(hub: TestHub, folder: Path) -> None:
    (folder / REPO / hub.commit() / "build" / "torch-cpu" / "layers.py").unlink()
    served = Catalog(folder).commit(REPO, "v1")
    assert {path.split("/")[1] for path in served.files} == {"torch-cuda"}
    shutil.rmtree(folder / REPO / hub.commit())
    assert Catalog(folder).branches(REPO) == {}
    with pytest.raises(RevisionNotFound):
        Catalog(folder).commit(REPO, hub.commit())


def test_a_file_that_was_changed_is_not_served(hub: TestHub, folder: Path) -> None:
    layers = folder / REPO / hub.commit() / "build" / "torch-cpu" / "layers.py"
    layers.write_bytes(b"#" * layers.stat().st_size)
    with pytest.raises(InvalidRepository, match="not the file that its Hub listed"):
        Catalog(folder).commit(REPO, "v1")


@pytest.mark.parametrize("content", ["garbage", '{"form": 9, "endpoint": "", "time": 0, "trusted": true}'])
def test_a_record_that_cannot_be_used_serves_nothing(folder: Path, content: str) -> None:
    (folder / REPO / ".kernels.json").write_text(content)
    catalog = Catalog(folder)
    with pytest.raises(InvalidRepository, match="not a valid record"):
        catalog.branches(REPO)
    publisher = catalog.publisher("acme")
    assert publisher is not None
    assert not publisher.trusted


def test_links_out_of_the_folder_are_not_followed(hub: TestHub, folder: Path, tmp_path: Path) -> None:
    layers = folder / REPO / hub.commit() / "build" / "torch-cpu" / "layers.py"
    layers.rename(tmp_path / "layers.py")
    layers.symlink_to(tmp_path / "layers.py")
    assert "build/torch-cpu/layers.py" not in Catalog(folder).commit(REPO, "v1").files


def test_it_cannot_be_written_to(hub: TestHub, folder: Path) -> None:
    writer = Writer(Catalog(folder))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(Conflict, match="downloaded from another Hub"):
        writer.commit(REPO, "v1", RepositoryChange({"new.txt": b""}))
    with pytest.raises(Conflict, match="downloaded from another Hub"):
        writer.create_branch(REPO, "v3")
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_lock_that_was_made_against_the_hub_holds_against_the_folder(
    hub: TestHub, folder: Path, tmp_path: Path, new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernels.models.lockfile import Lock, Pin
    from kernels.models.requirement import Requirement

    lock = tmp_path / "kernels.lock"
    lock.write_bytes(Lock((Pin(Requirement(REPO, version=1), hub.commit()),)).to_bytes())
    hub.down()
    new_process()
    monkeypatch.setenv("KERNELS_CACHE", os.fspath(tmp_path / "another cache"))
    with HubServer(folder) as server:
        monkeypatch.setenv("KERNELS_HUB", server.url)
        [build] = download_kernels(lock=lock, targets=["torch2.9-cu128-x86_64-linux"])
    assert (build.commit, build.variant) == (hub.commit(), "torch-cuda")
