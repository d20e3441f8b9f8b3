"""The store: huggingface_hub's layout, written whole or not at all."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cache.records import Answer
from kernels.cache.store import RepoStore
from kernels.errors import InvalidRepository
from kernels.models.cache_places import endpoint_key
from kernels.models.snapshot import RepoFile
from kernels.support.record_file import StoredRecord, read_record, write_record
from kernels.trust.file_hashes import changed_files

COMMIT = "c" * 40


def described(path: str, content: bytes, *, large: bool = False) -> RepoFile:
    oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    return RepoFile(path, len(content), oid, hashlib.sha256(content).hexdigest() if large else None)


@pytest.fixture
def repository(tmp_path: Path) -> RepoStore:
    return RepoStore(tmp_path / "cache", "org/relu")


@pytest.mark.parametrize("large", [False, True])
def test_a_placed_file_is_a_link_to_a_content_named_by_its_hash(repository: RepoStore, large: bool) -> None:
    file = described("build/torch-cpu/a.py", b"a = 1\n", large=large)
    repository.writer(COMMIT).put(b"a = 1\n", file)
    path = repository.snapshot(COMMIT) / file.path
    assert path.read_bytes() == b"a = 1\n"
    assert os.readlink(path) == f"../../../../blobs/{file.blob}"
    assert repository.has(COMMIT, file)
    assert repository.read(COMMIT, file) == b"a = 1\n"
    assert repository.missing(COMMIT, [file]) == []
    assert changed_files(repository.snapshot(COMMIT), [file]) == []


def test_a_file_of_another_size_or_content_is_not_the_one_listed(repository: RepoStore) -> None:
    file = described("a.py", b"a = 1\n")
    assert not repository.has(COMMIT, file)
    assert repository.read(COMMIT, file) is None
    repository.writer(COMMIT).put(b"a = 1\n", file)
    blob = repository.folder / "blobs" / file.blob
    blob.write_bytes(b"a = 2\n")
    assert changed_files(repository.snapshot(COMMIT), [file]) == [file]
    assert repository.read(COMMIT, file) is None
    blob.write_bytes(b"a = 1")
    assert repository.missing(COMMIT, [file]) == [file]
    repository.writer(COMMIT).remove(file)
    assert not blob.exists()
    repository.writer(COMMIT).remove(file)


def test_a_content_that_another_commit_brought_is_adopted(repository: RepoStore) -> None:
    file = described("a.py", b"a = 1\n")
    other = "d" * 40
    assert not repository.writer(other).reuse(file)
    repository.writer(COMMIT).put(b"a = 1\n", file)
    assert repository.writer(other).reuse(file)
    assert repository.has(other, file)
    (repository.folder / "blobs" / file.blob).write_bytes(b"a = 9\n")
    assert not repository.writer("e" * 40).reuse(file)


def test_where_there_are_no_links_files_are_copied(repository: RepoStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(os, "symlink", refuse)
    file = described("a.py", b"a = 1\n")
    repository.writer(COMMIT).put(b"a = 1\n", file)
    assert not (repository.snapshot(COMMIT) / "a.py").is_symlink()
    assert repository.has(COMMIT, file)


def test_heads_are_kept_for_each_hub(repository: RepoStore) -> None:
    said = Answer("hub", "http://one", 12.5, {"v1": COMMIT, "main": COMMIT}, {"release": COMMIT})
    repository.keep_answer("http://one", said)
    assert repository.answer("http://one") == said
    assert repository.answer("http://two") is None
    assert endpoint_key("http://one") != endpoint_key("http://two")


@settings(max_examples=25)
@given(
    st.lists(
        st.builds(
            RepoFile,
            path=st.from_regex(r"[a-z]{1,8}(/[a-z]{1,8}){0,3}", fullmatch=True),
            size=st.integers(0, 2**40),
            oid=st.from_regex(r"[0-9a-f]{40}", fullmatch=True),
            sha256=st.none() | st.from_regex(r"[0-9a-f]{64}", fullmatch=True),
            xet_hash=st.just("") | st.text("0123456789abcdef", min_size=64, max_size=64),
        ),
        max_size=5,
    )
)
def test_an_index_is_read_as_it_was_written(files: list[RepoFile]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        repository = RepoStore(Path(folder), "org/relu")
        repository.keep_listed("http://one", COMMIT, files)
        assert repository.listed("http://one", COMMIT) == tuple(files)
        assert repository.listed("http://two", COMMIT) is None


@pytest.mark.parametrize("content", [b"", b"[]", b"[2,[]]", b"{", b"\xff", b"[" * 50_000])
def test_an_index_that_is_damaged_or_of_another_form_is_none(repository: RepoStore, content: bytes) -> None:
    repository.keep_listed("http://one", COMMIT, [])
    next((repository.folder / "index").glob(f"{COMMIT}-*")).write_bytes(content)
    assert repository.listed("http://one", COMMIT) is None
    repository.keep_answer("http://one", Answer("hub", "http://one", 0.0, {}))
    next((repository.folder / "index").glob("heads-*")).write_bytes(content)
    assert repository.answer("http://one") is None


def test_a_record_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    write_record(tmp_path / "file" / "record.json", StoredRecord())
    assert read_record(tmp_path / "file" / "record.json", StoredRecord) is None


def test_what_other_tools_recorded_is_read(repository: RepoStore) -> None:
    refs = repository.folder / "refs"
    (refs / "refs" / "pr").mkdir(parents=True)
    (refs / "v1").write_text(COMMIT)
    (refs / "refs" / "pr" / "1").write_text("d" * 40 + "\n")
    (refs / "broken").write_text("not a commit")
    (refs / "binary").write_bytes(b"\xff\xfe")
    assert repository.foreign_branches() == {"v1": COMMIT, "refs/pr/1": "d" * 40}


def test_commits_are_listed_the_newest_first(repository: RepoStore) -> None:
    assert repository.commits() == []
    for age, commit in enumerate(["a" * 40, "b" * 40]):
        repository.snapshot(commit).mkdir(parents=True)
        os.utime(repository.snapshot(commit), (1000 - age, 1000 - age))
    (repository.folder / "snapshots" / "not-a-commit").mkdir()
    assert repository.commits() == ["a" * 40, "b" * 40]


def test_a_listing_of_what_is_here_knows_contents_by_their_names(repository: RepoStore) -> None:
    files = [described("a.py", b"1"), described("build/b.so", b"22", large=True)]
    for file, content in zip(files, (b"1", b"22"), strict=True):
        repository.writer(COMMIT).put(content, file)
    (repository.snapshot(COMMIT) / "c.py").write_text("333")
    listed = {file.path: file for file in repository.files(COMMIT)}
    assert listed["a.py"].blob == files[0].blob
    assert listed["build/b.so"].blob == files[1].blob
    assert listed["c.py"] == RepoFile("c.py", 3)


def test_contents_that_huggingface_hub_shares_between_repositories_are_inside(
    repository: RepoStore, tmp_path: Path
) -> None:
    file = described("a.py", b"a = 1\n")
    repository.writer(COMMIT).put(b"a = 1\n", file)
    blob = repository.folder / "blobs" / file.blob
    shared = tmp_path / "cache" / "blobs" / file.blob
    shared.parent.mkdir()
    blob.rename(shared)
    blob.symlink_to(shared)
    repository.check_links(COMMIT, [file])
    shared.rename(tmp_path / "elsewhere")
    blob.unlink()
    blob.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidRepository, match="outside"):
        repository.check_links(COMMIT, [file])


def test_temporary_files_of_processes_long_gone_are_removed(repository: RepoStore) -> None:
    blobs = repository.folder / "blobs"
    blobs.mkdir(parents=True)
    for name, age in (("old.incomplete", 3 * 24 * 3600), ("new.incomplete", 0), ("content", 3 * 24 * 3600)):
        (blobs / name).write_text("x")
        os.utime(blobs / name, (time.time() - age, time.time() - age))
    repository.sweep()
    assert sorted(path.name for path in blobs.iterdir()) == ["content", "new.incomplete"]


@pytest.mark.parametrize(
    ("end", "age", "size", "goes_on"),
    [
        (".left.incomplete", 0, 2, True),
        (".incomplete", 0, 2, False),  # its process may run on another machine
        (".incomplete", 61, 2, True),
        (".left.incomplete", 0, 0, False),
        (".left.incomplete", 0, 3, False),
    ],
)
def test_a_download_goes_on_with_a_part_that_nobody_writes(
    repository: RepoStore, end: str, age: int, size: int, goes_on: bool
) -> None:
    file = RepoFile("a.so", 3, "1" * 40)
    part = repository.folder / "blobs" / f"{file.blob}.01234567{end}"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * size)
    os.utime(part, (time.time() - age, time.time() - age))
    assert repository.begun(file) == (part if goes_on else None)
