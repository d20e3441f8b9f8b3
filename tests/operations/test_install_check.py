"""What a build's files are held against, and what is remembered of that: pins of a lock beside listing and digest."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub import TestHub, make_repo
from msgspec.structs import replace

import kernels.operations.install_check
import kernels.resolver.content_hash
import kernels.trust.digest
from kernels.errors import DigestMismatch
from kernels.models.lockfile import GIT_LFS_CONCAT, SHA256SUM, ContentHash
from kernels.models.metadata import Metadata
from kernels.models.requirement import Requirement
from kernels.models.snapshot import Snapshot
from kernels.operations.install_check import CheckRecord, ExpectedContent, check_build, file_identities
from kernels.operations.open_sources import open_sources
from kernels.resolver.content_hash import build_hash, folder_hash, listed_hash
from kernels.sources.base import Source
from kernels.support.hashing import feed_file
from kernels.support.record_file import read_record

VARIANT = "torch-cpu"


@pytest.fixture
def installed(hub: TestHub, new_process: Callable[[], None]) -> Callable[[], tuple[Source, Snapshot, Path]]:
    """Fetch acme/relu in what counts as a process of its own; the source, the snapshot and the build's folder."""
    hub.make_repo("acme/relu", digest=True)

    def fetch() -> tuple[Source, Snapshot, Path]:
        new_process()
        source = open_sources().of("acme/relu")
        snapshot = source.snapshot(Requirement("acme/relu", version=1), hub.commit("acme/relu"))
        return source, snapshot, source.fetch(snapshot, VARIANT)

    return fetch


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kind of each content hash that is made."""
    kinds: list[str] = []

    def made(folder: Path, snapshot: Snapshot, variant: str, kind: str) -> ContentHash:
        kinds.append(kind)
        return build_hash(folder, snapshot, variant, kind)

    monkeypatch.setattr(kernels.resolver.content_hash, "build_hash", made)
    return kinds


@pytest.mark.parametrize("kind", [SHA256SUM, GIT_LFS_CONCAT])
def test_what_a_lock_pins_is_checked_once(
    installed: Callable[[], tuple[Source, Snapshot, Path]], hashed: list[str], kind: str
) -> None:
    source, snapshot, folder = installed()
    expected = ExpectedContent(pinned=listed_hash(source, snapshot, VARIANT, kind), lock="kernels.lock")
    for _ in range(3):
        source, snapshot, folder = installed()
        check_build(source, snapshot, VARIANT, folder, expected)
    assert hashed == [kind]


def test_a_pin_that_is_new_is_checked_and_the_others_still_hold(
    installed: Callable[[], tuple[Source, Snapshot, Path]], hashed: list[str]
) -> None:
    source, snapshot, folder = installed()
    check_build(source, snapshot, VARIANT, folder, ExpectedContent())
    for kind in (SHA256SUM, GIT_LFS_CONCAT, SHA256SUM, GIT_LFS_CONCAT):
        source, snapshot, folder = installed()
        check_build(
            source, snapshot, VARIANT, folder, ExpectedContent(pinned=folder_hash(folder, kind), lock="kernels.lock")
        )
    assert hashed == [SHA256SUM, GIT_LFS_CONCAT]


def test_content_that_is_not_what_is_pinned_is_refused_each_time_and_both_are_named(
    installed: Callable[[], tuple[Source, Snapshot, Path]],
) -> None:
    source, snapshot, folder = installed()
    found = folder_hash(folder)
    pinned = ContentHash(SHA256SUM, f"sha256-{'0' * 64}")
    for _ in range(2):
        source, snapshot, folder = installed()
        with pytest.raises(DigestMismatch) as refused:
            check_build(source, snapshot, VARIANT, folder, ExpectedContent(pinned=pinned, lock="/project/kernels.lock"))
        for part in ("acme/relu", VARIANT, "/project/kernels.lock", pinned.value, found.value, "kernels lock --rehash"):
            assert part in str(refused.value)


def test_a_pin_is_checked_again_when_a_file_changed_and_what_was_changed_is_fetched_first(
    installed: Callable[[], tuple[Source, Snapshot, Path]], hashed: list[str]
) -> None:
    source, snapshot, folder = installed()
    expected = ExpectedContent(pinned=folder_hash(folder), lock="kernels.lock")
    check_build(source, snapshot, VARIANT, folder, expected)
    blob = (folder / "layers.py").resolve()
    blob.write_bytes(b"#" + blob.read_bytes()[1:])
    os.utime(blob, ns=(1, 1))
    source, snapshot, folder = installed()
    check_build(source, snapshot, VARIANT, folder, expected)
    assert hashed == [SHA256SUM] * 2


def test_when_nothing_else_is_checked_a_pin_is_checked_once(
    installed: Callable[[], tuple[Source, Snapshot, Path]], hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELS_VERIFY", "off")
    for _ in range(2):  # what was refused once is not loaded the next time
        source, snapshot, folder = installed()
        wrong = ExpectedContent(pinned=ContentHash(SHA256SUM, "sha256-x"), lock="kernels.lock")
        with pytest.raises(DigestMismatch, match=r"is not what kernels\.lock pins"):
            check_build(source, snapshot, VARIANT, folder, wrong)
    right = ExpectedContent(pinned=folder_hash(folder), lock="kernels.lock")
    hashed.clear()
    for _ in range(2):
        source, snapshot, folder = installed()
        check_build(source, snapshot, VARIANT, folder, right)
        change = (folder / "layers.py").resolve()
        change.write_bytes(b"#" + change.read_bytes()[1:])
    assert hashed == [SHA256SUM]
    monkeypatch.setenv("KERNELS_VERIFY", "install")
    source, snapshot, folder = installed()
    check_build(source, snapshot, VARIANT, folder, right)
    assert hashed == [SHA256SUM] * 2
    assert not (folder / "layers.py").read_bytes().startswith(b"#")


def test_with_off_another_pin_of_files_that_changed_meanwhile_says_nothing_about_the_first(
    installed: Callable[[], tuple[Source, Snapshot, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELS_VERIFY", "off")
    source, snapshot, folder = installed()
    first = ExpectedContent(pinned=folder_hash(folder, GIT_LFS_CONCAT), lock="kernels.lock")
    check_build(source, snapshot, VARIANT, folder, first)
    (folder / "more.py").write_text("")
    source, snapshot, folder = installed()
    check_build(source, snapshot, VARIANT, folder, ExpectedContent(pinned=folder_hash(folder), lock="kernels.lock"))
    path = source.check_record(snapshot, VARIANT)
    assert path is not None
    record = read_record(path, CheckRecord)
    assert record is not None
    assert [name for name in record.facts if name.startswith("pinned")] == [f"pinned {SHA256SUM}"]


def test_a_folder_of_repositories_is_held_against_the_pin_too(
    isolated_env: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_repo(tmp_path / "mirror", "acme/relu")
    monkeypatch.setenv("KERNELS_HUB", str(tmp_path / "mirror"))
    source = open_sources().of("acme/relu")
    snapshot = source.snapshot(Requirement("acme/relu", version=1), "v1")
    folder = source.fetch(snapshot, VARIANT)
    expected = ExpectedContent(pinned=folder_hash(folder), lock="kernels.lock")
    check_build(source, snapshot, VARIANT, folder, expected)
    (folder / "more.py").write_text("")
    with pytest.raises(DigestMismatch, match=r"not what kernels\.lock pins"):
        check_build(source, replace(snapshot), VARIANT, folder, expected)


@pytest.mark.skipif(os.name == "nt", reason="Windows keeps no time of an inode")
def test_a_file_whose_time_was_set_back_is_another_one(installed: Callable[[], tuple[Source, Snapshot, Path]]) -> None:
    source, snapshot, folder = installed()
    check_build(source, snapshot, VARIANT, folder, ExpectedContent())
    blob = (folder / "layers.py").resolve()
    whole, facts = blob.read_bytes(), blob.stat()
    blob.write_bytes(b"#" + whole[1:])
    while blob.stat().st_ctime_ns == facts.st_ctime_ns or blob.stat().st_mtime_ns != facts.st_mtime_ns:
        os.utime(blob, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    source, snapshot, folder = installed()
    check_build(source, snapshot, VARIANT, folder, ExpectedContent())
    assert blob.read_bytes() == whole


def test_a_file_that_changes_while_it_is_checked_is_not_remembered_as_checked(
    installed: Callable[[], tuple[Source, Snapshot, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, snapshot, folder = installed()
    blob = (folder / "layers.py").resolve()
    whole = blob.read_bytes()
    compare = type(source).repair

    def repair(source: Source, snapshot: Snapshot, variant: str) -> Any:
        same = compare(source, snapshot, variant)
        blob.write_bytes(b"#" + whole[1:])
        os.utime(blob, ns=(1, 1))
        return same

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(type(source), "repair", repair)
        check_build(source, snapshot, VARIANT, folder, ExpectedContent())
    assert blob.read_bytes() != whole
    source, snapshot, folder = installed()
    check_build(source, snapshot, VARIANT, folder, ExpectedContent())
    assert blob.read_bytes() == whole


def test_a_load_that_checks_nothing_says_when_the_build_was_used(
    installed: Callable[[], tuple[Source, Snapshot, Path]],
) -> None:
    source, snapshot, folder = installed()
    check_build(source, snapshot, VARIANT, folder, ExpectedContent())
    place = source.check_record(snapshot, VARIANT)
    assert place is not None
    content = place.read_bytes()
    os.utime(place, (1, 1))
    source, snapshot, folder = installed()
    check_build(source, snapshot, VARIANT, folder, ExpectedContent())
    assert place.stat().st_mtime > 1
    assert place.read_bytes() == content
    assert read_record(place, CheckRecord) is not None


def test_identities_leave_out_bytecode_follow_links_and_survive_what_cannot_be_looked_at(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"abc")
    folder = tmp_path / "build"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "__pycache__" / "a.pyc").write_bytes(b"")
    (folder / "b.pyc").write_bytes(b"")
    (folder / "sub").mkdir()
    (folder / "sub" / "link.py").symlink_to(tmp_path / "target")
    (folder / "gone.py").symlink_to(tmp_path / "nowhere")
    found = file_identities(folder)
    facts = (tmp_path / "target").stat()
    assert found == {
        "sub/link.py": (3, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino),
        "gone.py": (0, 0, 0, 0),
    }
    assert file_identities(tmp_path / "none") == {}


def test_a_file_that_was_compared_with_its_sha256_is_not_read_again_for_the_digest(
    hub: TestHub, new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo("acme/relu", digest=True, variants={VARIANT: {"_relu.abi3.so": b"x" * 2**18}})
    read: list[str] = []

    def feed(path: os.PathLike[str] | str, start: Any) -> Any:
        read.append(os.path.basename(path))
        return feed_file(path, start)

    monkeypatch.setattr(kernels.trust.digest, "feed_file", feed)
    monkeypatch.setenv("KERNELS_VERIFY", "load")
    counts = []
    for _ in range(2):
        new_process()
        source = open_sources().of("acme/relu")
        snapshot = source.snapshot(Requirement("acme/relu", version=1), hub.commit("acme/relu"))
        folder = source.fetch(snapshot, VARIANT)
        digest = Metadata.read_from_file(folder / "metadata.json").digest
        read.clear()
        check_build(source, snapshot, VARIANT, folder, ExpectedContent(digest))
        counts.append(read.count("_relu.abi3.so"))
    assert counts == [1, 1]
    library = (folder / "_relu.abi3.so").resolve()
    library.write_bytes(b"y" * 2**18)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    new_process()
    with pytest.raises(DigestMismatch, match=r"_relu\.abi3\.so"):
        check_build(open_sources().of("acme/relu"), snapshot, VARIANT, folder, ExpectedContent(digest))
