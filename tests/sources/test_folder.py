"""Folders as sources: what they list, and what they refuse."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from carried_folder import carry_folder
from hub import TestHub, make_repo
from logged import warned

from kernels import get_kernel, get_kernel_variants, install_kernel
from kernels.errors import DigestMismatch, InvalidRepository, KernelsError, NotInCache
from kernels.sources.folder import FolderSource, PathSource, files_below
from kernels.trust.publishers import PublisherTrust


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "build").mkdir(parents=True)
    (folder / "build" / "kernel.py").write_text("x = 1")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "__init__.py").write_text("x = 2")
    return folder


@pytest.mark.parametrize(
    ("name", "to"),
    [
        ("build/evil", "outside"),
        ("build/__pycache__", "outside"),
        ("build/evil.py", "outside/__init__.py"),
        ("build/evil.pyc", "outside/__init__.py"),
        ("build/evil", "not there yet"),
        ("build/evil", ""),
    ],
)
def test_a_link_out_of_the_folder_is_refused_whatever_it_leads_to(
    root: Path, tmp_path: Path, name: str, to: str
) -> None:
    (root / name).symlink_to(tmp_path / to)
    with pytest.raises(InvalidRepository, match="outside"):
        files_below(root, contained=True)
    assert "build/kernel.py" in [file.path for file in files_below(root, contained=False)]


def test_links_within_the_folder_are_fine(root: Path, tmp_path: Path) -> None:
    (root / "build" / "same.py").symlink_to("kernel.py")
    (root / "again").symlink_to("build")
    (root / "loop").symlink_to("loop")
    (tmp_path / "link to root").symlink_to(root)
    listed = files_below(tmp_path / "link to root", contained=True)
    assert [(file.path, file.size) for file in listed] == [("build/kernel.py", 5), ("build/same.py", 5)]


def test_a_folder_of_repositories_refuses_code_from_outside(
    tmp_path: Path, isolated_env: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_repo(tmp_path / "hub", "acme/relu")
    (tmp_path / "outside").mkdir()
    (folder / "build" / "torch-cpu" / "evil").symlink_to(tmp_path / "outside")
    monkeypatch.setenv("KERNELS_HUB", str(tmp_path / "hub"))
    with pytest.raises(InvalidRepository, match="evil is a link to"):
        get_kernel("acme/relu", version=1, trust_remote_code=True)


def test_the_sub_folders_of_a_repository_are_its_heads(tmp_path: Path) -> None:
    for version in (1, 2):
        make_repo(tmp_path, "acme/relu", version=version)
    assert FolderSource(tmp_path).heads("acme/relu").branches == {"v1": "v1", "v2": "v2"}


@pytest.mark.parametrize(
    ("name", "repo_id"),
    [
        ("a" * 95 + "-b", "local/" + "a" * 95),
        ("a" * 200, "local/" + "a" * 96),
        ("--", "local/kernel"),
        ("my kernel_1.0-", "local/my-kernel-1-0"),
    ],
)
def test_a_folder_of_any_name_has_a_name_as_a_repository(tmp_path: Path, name: str, repo_id: str) -> None:
    folder = make_repo(tmp_path, "acme/relu").rename(tmp_path / name)
    assert PathSource(folder).requirement.repo_id == repo_id


# Folders that `kernels download --to` wrote

SHA = "1" * 40


@pytest.fixture
def carried(hub: TestHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_process: Callable[[], None]) -> Path:
    """The repository `acme/relu` in a folder that was carried, and that `KERNELS_HUB` names."""
    hub.make_repo("acme/relu")
    carry_folder(["acme/relu"], version=1, to=tmp_path / "to")
    monkeypatch.setenv("KERNELS_HUB", str(tmp_path / "to"))
    new_process()
    return tmp_path / "to" / "acme" / "relu"


def build_of(carried: Path) -> Path:
    [build] = carried.glob("*/build/torch-cpu")
    return build


def change_record(carried: Path, change: Callable[[dict[str, Any]], object]) -> None:
    record = json.loads((carried / ".kernels.json").read_text())
    change(record)
    (carried / ".kernels.json").write_text(json.dumps(record))


def each_file(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], object]:
    return lambda record: [change(file) for files in record["files"].values() for file in files]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"form": 2, "endpoint": "", "time": 0, "trusted": null}',
        b'{"form": 1, "endpoint": "", "time": 0, "trusted": "yes"}',
        b" " * (64 * 1024 * 1024 + 1),
    ],
    ids=["empty", "no text", "list", "no fields", "deep", "newer", "wrong type", "large"],
)
def test_a_record_that_is_none_is_one_clear_error(carried: Path, content: bytes) -> None:
    (carried / ".kernels.json").write_bytes(content)
    with pytest.raises(InvalidRepository, match=r"\.kernels\.json is not a valid record of `kernels download --to`"):
        get_kernel("acme/relu", version=1)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (each_file(lambda file: file.update(path="../../../evil.py")), "could leave its folder"),
        (each_file(lambda file: file.update(path="/etc/passwd")), "could leave its folder"),
        (each_file(lambda file: file.update(path="build/torch-cpu/a\x1b[2J.py")), "could leave its folder"),
        (each_file(lambda file: file.update(path="build/torch-cpu/same.py")), "twice"),
        (each_file(lambda file: file.update(oid="../blob")), "object id"),
        (each_file(lambda file: file.update(oid="")), "without a hash"),
        (each_file(lambda file: file.update(size=-1)), "could leave its folder"),
        (lambda record: record.update(branches={"v1": "../.."}), "is not a commit"),
        (lambda record: record.update(branches={"v1\n": SHA}), "expected a branch"),
        (lambda record: record["files"].update({"../evil": []}), "is not a commit"),
        (lambda record: record.update({"moved-to": "../evil"}), "org/name"),
        (lambda record: record.update(branches={"v1": SHA}), f"has no commit {SHA}"),
        (lambda record: record.update({"moved-to": "acme/relu"}), "in a circle"),
    ],
    ids=lambda value: value if isinstance(value, str) else "change",
)
def test_what_a_record_may_not_say_is_refused(
    carried: Path, change: Callable[[dict[str, Any]], object], says: str
) -> None:
    change_record(carried, change)
    with pytest.raises(KernelsError, match=re.escape(says)) as caught:
        get_kernel("acme/relu", version=1)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("place", ["commit", "build", "variant", "file", "extra", "record"])
def test_a_link_in_a_carried_folder_is_refused(carried: Path, tmp_path: Path, place: str) -> None:
    build = build_of(carried)
    path = {
        "commit": build.parents[1],
        "build": build.parent,
        "variant": build,
        "file": build / "layers.py",
        "extra": build / "extra.py",
        "record": carried / ".kernels.json",
    }[place]
    if path.exists():
        path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidRepository, match=r"is a link|not a regular file"):
        get_kernel("acme/relu", version=1)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no such files")
def test_a_record_that_is_a_pipe_is_not_waited_for(carried: Path) -> None:
    (carried / ".kernels.json").unlink()
    os.mkfifo(carried / ".kernels.json")
    with pytest.raises(InvalidRepository, match="not a regular file"):
        get_kernel("acme/relu", version=1)


def test_content_is_compared_with_the_listing(carried: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = build_of(carried) / "layers.py"
    good = layers.read_bytes()
    assert install_kernel("acme/relu", version=1) == layers.parent
    layers.write_bytes(b"#" * len(good))
    with pytest.raises(DigestMismatch, match=r"not what the Hub listed.*layers\.py"):
        install_kernel("acme/relu", version=1)
    monkeypatch.setenv("KERNELS_VERIFY", "load")
    with pytest.raises(DigestMismatch, match=r"not what the Hub listed.*layers\.py"):
        install_kernel("acme/relu", version=1)
    layers.write_bytes(good)
    assert install_kernel("acme/relu", version=1) == layers.parent
    (layers.parent / "planted.py").write_text("")
    with pytest.raises(DigestMismatch, match=r"planted\.py"):
        install_kernel("acme/relu", version=1)
    monkeypatch.setenv("KERNELS_VERIFY", "off")
    assert install_kernel("acme/relu", version=1) == layers.parent


def test_metadata_is_always_compared_with_the_listing(carried: Path) -> None:
    path = build_of(carried) / "metadata.json"
    path.write_bytes(path.read_bytes().replace(b"Apache-2.0", b"Apache-9.9"))
    with pytest.raises(DigestMismatch, match=r"metadata\.json"):
        get_kernel("acme/relu", version=1)


def test_a_build_that_is_not_there_is_not_offered_and_said_how_to_put_it_there(carried: Path) -> None:
    shutil.rmtree(build_of(carried))
    assert [type(each).__name__ for each in get_kernel_variants("acme/relu", version=1)] == ["VariantRejected"]
    says = r"complete in the folder .*to\. It has none; .*kernels download acme/relu --target torch\S+ --to DIR$"
    with pytest.raises(NotInCache, match=says):
        get_kernel("acme/relu", version=1)


@pytest.mark.parametrize("file", ["layers.py", "metadata.json"])
@pytest.mark.parametrize("damage", ["lost", "longer"])
@pytest.mark.parametrize("verify", ["install", "off"])
def test_no_other_build_takes_the_place_of_one_that_was_damaged_on_the_way(
    hub: TestHub, carried: Path, monkeypatch: pytest.MonkeyPatch, file: str, damage: str, verify: str
) -> None:
    monkeypatch.setenv("KERNELS_HUB", hub.url)
    hub.make_repo("acme/relu", variants=["torch-universal"])
    carry_folder(["acme/relu"], version=1, all_variants=True, to=carried.parents[1])
    monkeypatch.setenv("KERNELS_HUB", str(carried.parents[1]))
    monkeypatch.setenv("KERNELS_VERIFY", verify)
    build = carried / hub.commit("acme/relu") / "build" / "torch-cpu"
    assert install_kernel("acme/relu", version=1) == build
    if damage == "lost":
        (build / file).unlink()
    else:
        with (build / file).open("ab") as damaged:
            damaged.write(b"\n")
    lost = r" \(missing\)" if damage == "lost" else ""
    with pytest.raises(DigestMismatch, match=rf"torch-cpu/{re.escape(file)}{lost}, in .*\. Copy the folder here"):
        get_kernel("acme/relu", version=1)
    shutil.rmtree(build)  # as a whole it was not carried
    assert install_kernel("acme/relu", version=1) == build.with_name("torch-universal")


def test_only_what_was_carried_of_a_commit_is_offered(carried: Path) -> None:
    shutil.copytree(build_of(carried), build_of(carried).with_name("torch-cuda"))
    assert [each.variant.name for each in get_kernel_variants("acme/relu", version=1)] == ["torch-cpu"]


@pytest.mark.parametrize(
    ("trusted", "expected"),
    [(True, PublisherTrust.TRUSTED), (False, PublisherTrust.UNTRUSTED), (None, PublisherTrust.UNKNOWN)],
)
def test_trust_in_a_publisher_is_as_recorded(carried: Path, trusted: bool | None, expected: PublisherTrust) -> None:
    change_record(carried, lambda record: record.update(trusted=trusted))
    assert FolderSource(carried.parents[1]).publishers.trust("acme/relu") is expected
    if trusted is None:
        with warned("without a Hub's word on its publisher"):
            get_kernel("acme/relu", version=1)
