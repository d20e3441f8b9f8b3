"""What a build's files are held against, and what is remembered of that: pins of a lock beside listing and digest."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hub import TestHub, make_repo
from msgspec.structs import replace
from opened_files import opened_below

from kernels.errors import DigestMismatch, InvalidRepository
from kernels.models.lockfile import GIT_LFS_CONCAT, SHA256SUM, ContentHash
from kernels.models.metadata import Metadata
from kernels.models.requirement import Requirement
from kernels.models.snapshot import Snapshot
from kernels.operations.install_check import CheckRecord, ExpectedContent, check_build
from kernels.operations.open_sources import open_sources
from kernels.resolver.content_hash import listed_hash
from kernels.sources.base import Source
from kernels.support.record_file import read_record
from kernels.trust.content import BuildContent

VARIANT = "torch-cpu"
FILES = ["__init__.py", "_relu.abi3.so", "layers.py", "metadata.json"]

needs_links = pytest.mark.skipif(os.name == "nt", reason="symbolic links need a privilege on Windows")


@pytest.fixture
def installed(hub: TestHub, new_process: Callable[[], None]) -> Callable[[], tuple[Source, Snapshot, Path]]:
    """Fetch acme/relu in what counts as a process of its own; the source, the snapshot and the build's folder."""
    hub.make_repo("acme/relu", digest=True, variants={VARIANT: {"_relu.abi3.so": b"x" * 2**18}})

    def fetch() -> tuple[Source, Snapshot, Path]:
        new_process()
        source = open_sources().of("acme/relu")
        snapshot = source.snapshot(Requirement("acme/relu", version=1), hub.commit("acme/relu"))
        return source, snapshot, source.fetch(snapshot, VARIANT)

    return fetch


def read_by_check(installed: Callable[[], tuple[Source, Snapshot, Path]], expected: ExpectedContent) -> list[str]:
    """The files that a check in a new process reads, each time it does."""
    source, snapshot, folder = installed()
    with opened_below(folder) as opened:
        check_build(source, snapshot, VARIANT, folder, expected)
    return sorted(opened)


@pytest.mark.parametrize("kind", [SHA256SUM, GIT_LFS_CONCAT])
@pytest.mark.parametrize("fresh", [True, False])
def test_a_build_is_read_once_for_its_listing_its_digest_and_a_lock(
    installed: Callable[[], tuple[Source, Snapshot, Path]], hub: TestHub, kind: str, fresh: bool
) -> None:
    source, snapshot, folder = installed()
    digest = Metadata.read_from_file(folder / "metadata.json").digest
    expected = ExpectedContent(digest, listed_hash(source, snapshot, VARIANT, kind), lock="kernels.lock")
    if fresh:
        with opened_below(folder) as opened:
            check_build(source, snapshot, VARIANT, folder, expected)
        assert sorted(opened) == FILES
    else:
        assert read_by_check(installed, expected) == FILES
    assert read_by_check(installed, expected) == []


def test_a_pin_that_is_new_is_checked_once_and_needs_no_check_where_nothing_is_pinned(
    installed: Callable[[], tuple[Source, Snapshot, Path]],
) -> None:
    source, snapshot, folder = installed()
    check_build(source, snapshot, VARIANT, folder, ExpectedContent())
    pinned = ExpectedContent(pinned=BuildContent(folder).pinned_hash(SHA256SUM), lock="kernels.lock")
    assert [read_by_check(installed, each) for each in (pinned, pinned, ExpectedContent())] == [FILES, [], []]


def test_content_that_is_not_what_is_pinned_is_refused_each_time_and_both_are_named(
    installed: Callable[[], tuple[Source, Snapshot, Path]],
) -> None:
    source, snapshot, folder = installed()
    found = BuildContent(folder).pinned_hash(SHA256SUM)
    pinned = ContentHash(SHA256SUM, f"sha256-{'0' * 64}")
    for _ in range(2):
        source, snapshot, folder = installed()
        with pytest.raises(DigestMismatch) as refused:
            check_build(source, snapshot, VARIANT, folder, ExpectedContent(pinned=pinned, lock="/project/kernels.lock"))
        for part in ("acme/relu", VARIANT, "/project/kernels.lock", pinned.value, found.value, "kernels lock --rehash"):
            assert part in str(refused.value)


def test_a_pin_is_checked_again_when_a_file_changed_and_what_was_changed_is_fetched_first(
    installed: Callable[[], tuple[Source, Snapshot, Path]],
) -> None:
    source, snapshot, folder = installed()
    expected = ExpectedContent(pinned=BuildContent(folder).pinned_hash(SHA256SUM), lock="kernels.lock")
    check_build(source, snapshot, VARIANT, folder, expected)
    blob = (folder / "layers.py").resolve()
    whole = blob.read_bytes()
    blob.write_bytes(b"#" + whole[1:])
    os.utime(blob, ns=(1, 1))
    assert set(read_by_check(installed, expected)) == set(FILES)
    assert (folder / "layers.py").read_bytes() == whole


def test_when_nothing_else_is_checked_a_pin_is_checked_once(
    installed: Callable[[], tuple[Source, Snapshot, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELS_VERIFY", "off")
    for _ in range(2):  # what was refused once is not loaded the next time
        source, snapshot, folder = installed()
        wrong = ExpectedContent(pinned=ContentHash(SHA256SUM, "sha256-x"), lock="kernels.lock")
        with pytest.raises(DigestMismatch, match=r"is not what kernels\.lock pins"):
            check_build(source, snapshot, VARIANT, folder, wrong)
    right = ExpectedContent(pinned=BuildContent(folder).pinned_hash(SHA256SUM), lock="kernels.lock")
    reads = []
    for _ in range(2):
        reads.append(read_by_check(installed, right))
        change = (folder / "layers.py").resolve()
        change.write_bytes(b"#" + change.read_bytes()[1:])
    assert reads == [FILES, []]
    monkeypatch.setenv("KERNELS_VERIFY", "install")
    assert set(read_by_check(installed, right)) == set(FILES)
    assert not (folder / "layers.py").read_bytes().startswith(b"#")


def test_a_folder_of_repositories_is_held_against_the_pin_too(
    isolated_env: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_repo(tmp_path / "mirror", "acme/relu")
    monkeypatch.setenv("KERNELS_HUB", str(tmp_path / "mirror"))
    source = open_sources().of("acme/relu")
    snapshot = source.snapshot(Requirement("acme/relu", version=1), "v1")
    folder = source.fetch(snapshot, VARIANT)
    expected = ExpectedContent(pinned=BuildContent(folder).pinned_hash(SHA256SUM), lock="kernels.lock")
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

    def repair(source: Source, snapshot: Snapshot, variant: str, content: BuildContent) -> None:
        compare(source, snapshot, variant, content)
        blob.write_bytes(b"#" + whole[1:])
        os.utime(blob, ns=(1, 1))

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
    facts = (tmp_path / "target").stat()
    assert BuildContent(folder).identities() == {
        "sub/link.py": (3, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino),
        "gone.py": (0, 0, 0, 0),
    }


@needs_links
@pytest.mark.parametrize("where", ["data.bin", "inner/deep/data.bin", "inner", "__pycache__"])
@pytest.mark.parametrize("target", ["/", "../../../../../../outside", "loop/../../../../../../../.."])
@pytest.mark.parametrize("verify", ["install", "off"])
def test_a_link_out_of_the_cache_is_refused_whatever_else_is_checked(
    installed: Callable[[], tuple[Source, Snapshot, Path]],
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    target: str,
    verify: str,
) -> None:
    monkeypatch.setenv("KERNELS_VERIFY", verify)
    source, snapshot, folder = installed()
    check_build(source, snapshot, VARIANT, folder, ExpectedContent())
    (folder / where).parent.mkdir(parents=True, exist_ok=True)
    (folder / where).symlink_to("../" * where.count("/") * (target != "/") + target)
    source, *_ = installed()
    with pytest.raises(InvalidRepository, match=f"{where} leads to .*, outside of"):
        check_build(source, snapshot, VARIANT, folder, ExpectedContent())


@needs_links
def test_a_build_that_is_itself_a_link_out_is_refused(
    installed: Callable[[], tuple[Source, Snapshot, Path]], tmp_path: Path
) -> None:
    source, snapshot, folder = installed()
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidRepository, match="torch-cpu leads to"):
        check_build(source, snapshot, VARIANT, folder, ExpectedContent())
