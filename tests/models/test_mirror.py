"""The documents of a mirror."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from mirror_tree import of_commit

from kernels.errors import InvalidRepository
from kernels.models.mirror import RepositoryIndex, archive_path
from kernels.models.mirror_document import MirrorDocument
from kernels.models.mirror_form import is_mirror_document

COMMIT, CONTENT, ARCHIVE = "1" * 40, "sha256-" + "2" * 64, "3" * 64
TIME = "2026-11-22T20:00:00Z"


def document(**changes: Any) -> dict[str, Any]:
    """A valid index of one commit with one build of one file; `changes` replaces what lies at `a.b.c`."""
    index: dict[str, Any] = {
        "repo-id": "org/relu",
        "number": 1,
        "time": TIME,
        "origin": {"url": "https://hub.example", "time": TIME},
        "publisher": {"name": "org", "trusted": True},
        "branches": {"v1": COMMIT},
        "commits": {COMMIT: {"variants": {"torch-cpu": CONTENT}, "taken": TIME}},
        "builds": {
            CONTENT: {
                "files": [{"path": "__init__.py", "size": 0, "oid": "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"}],
                "archive": {"name": archive_path(ARCHIVE), "size": 10, "sha256": ARCHIVE},
            }
        },
    }
    for path, value in changes.items():
        *steps, last = path.split(".")
        place = index
        for step in steps:
            place = place[step]
        place[last] = value
    return index


def parsed(index: dict[str, Any], **envelope: Any) -> RepositoryIndex:
    text = json.dumps({"mirror-format": 1, "content": index, "signatures": [], **envelope}, separators=(",", ":"))
    return MirrorDocument.parse(text.encode(), "https://mirror.example").repository(
        "org/relu", "https://mirror.example"
    )


def test_a_document_is_read_as_it_was_written() -> None:
    index = parsed(document())
    written = MirrorDocument.of(index).to_bytes()
    assert is_mirror_document(written)
    again = MirrorDocument.parse(written, "here")
    assert again.repository("org/relu", "here") == index
    assert again.content == msgspec.json.encode(index, order="sorted")
    snapshot = index.snapshot(COMMIT)
    assert snapshot is not None
    assert [file.path for file in snapshot.builds["torch-cpu"]] == ["build/torch-cpu/__init__.py"]


def test_the_document_of_a_commit_has_that_commit_alone() -> None:
    alone = of_commit(parsed(document(older=["4" * 40])), COMMIT)
    assert (alone.commit, alone.branches, alone.older, list(alone.commits)) == (COMMIT, {}, (), [COMMIT])
    written = MirrorDocument.of(alone)
    assert written.repository("org/relu", "here", COMMIT) == alone


@pytest.mark.parametrize(
    ("commit", "asked", "says"),
    [
        (COMMIT, None, f"it is the document of commit {COMMIT}, not of the repository"),
        (None, COMMIT, f"it is the document of the repository, not of commit {COMMIT}"),
        (COMMIT, "4" * 40, f"it is the document of commit {COMMIT}, not of commit {'4' * 40}"),
    ],
)
def test_a_document_is_not_taken_for_another_one_of_the_repository(
    commit: str | None, asked: str | None, says: str
) -> None:
    index = parsed(document())
    written = MirrorDocument.of(index if commit is None else of_commit(index, commit))
    with pytest.raises(InvalidRepository, match=says):
        written.repository("org/relu", "here", asked)


def test_the_document_of_a_commit_names_no_other_commit() -> None:
    wrong = msgspec.structs.replace(of_commit(parsed(document()), COMMIT), older=("4" * 40,))
    with pytest.raises(InvalidRepository, match="has more than that commit"):
        MirrorDocument.of(wrong).repository("org/relu", "here", COMMIT)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, None),
        ({"number": 0}, r"`int` >= 1 - at `\$\.number`"),
        ({"repositories": {"org/relu": {"number": -1, "time": TIME}}}, r"`int` >= 1 - at `\$\.repositories"),
        ({"repositories": {"org/relu": {"number": 1, "time": "now"}}}, "'now' is not a time"),
        ({"repositories": {"../relu": {"number": 1, "time": TIME}}}, "expected 'org/name'"),
        ({"repositories": {"org/\u212aelu": {"number": 1, "time": TIME}}}, "expected 'org/name'"),
        ({"repositories": {name: {"number": 1, "time": TIME} for name in ("org/relu", "org/Relu")}}, "only in case"),
        ({"repositories": {"org/relu": {"number": 1, "time": TIME, "versions": [-1]}}}, r"`int` >= 0"),
    ],
)
def test_an_invalid_index_of_a_mirror_is_refused(changes: dict[str, Any], says: str | None) -> None:
    index = {"number": 1, "time": TIME, "writer": "kernels", "repositories": {}, **changes}
    written = MirrorDocument(json.dumps(index).encode())
    if says is None:
        assert written.mirror("here").number == 1
        return
    with pytest.raises(InvalidRepository, match=says):
        written.mirror("here")


FILE = {"path": "__init__.py", "size": 0, "oid": "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"repo-id": "org/other"}, "it is the index of 'org/other', not of org/relu"),
        ({"branches": {"v1": "x"}}, r"matching regex .* - at `\$\.branches"),
        ({"branches": {"../v1": COMMIT}}, "expected a branch"),
        ({"branches": {"v1": COMMIT, "v2": "4" * 40}}, f"'v2' is at commit {'4' * 40}, which it does not list"),
        ({"tags": {"t": "4" * 40}}, "'t' is at commit"),
        ({"branches": {"v1": "4" * 40}, "older": ["4" * 40]}, "'v1' is at commit"),
        ({"moved-to": "../x"}, "expected 'org/name'"),
        ({"time": "yesterday"}, "'yesterday' is not a time"),
        ({"time": "2026-13-22T20:00:00Z"}, "is not a time"),
        ({"time": "2026-1-2T20:00:00Z"}, "is not a time"),
        ({"builds": {}}, "lists the build 'torch-cpu' without its files"),
        ({f"builds.{CONTENT}.archive": {"name": "../x", "size": 1, "sha256": ARCHIVE}}, "not the name of an archive"),
        ({f"builds.{CONTENT}.files": [{"path": "a.py", "size": 1}]}, "without a hash"),
        ({f"builds.{CONTENT}.files": [{**FILE, "path": "b"}, {**FILE, "path": "a"}]}, "not sorted"),
        ({f"builds.{CONTENT}.files": [{**FILE, "path": "../a"}]}, "could leave its folder"),
        ({f"builds.{CONTENT}.metadata": "{}"}, "which is not a file that it lists"),
        (
            {f"builds.{CONTENT}.files": [{**FILE, "path": "metadata.json"}], f"builds.{CONTENT}.metadata": "{}"},
            "is not",
        ),
        ({"number": "1"}, "Expected `int`"),
        ({"number": 0}, r"`int` >= 1 - at `\$\.number`"),
        ({"number": 2**53}, "`int` <= "),
        ({"number": 10**4000}, "not a valid document"),
        (
            {f"builds.{CONTENT}.archive": {"name": archive_path(ARCHIVE), "size": 2**51, "sha256": ARCHIVE}},
            r"`\$\.builds\[...\]\.archive\.size`",
        ),
        ({"repo-id": "org/re\u217bu"}, "not of org/relu"),
        ({f"commits.{COMMIT}.variants": {"a/b": CONTENT}}, "'a/b' is not the name of a build"),
        ({f"commits.{COMMIT}.variants": {"torch-cpu": CONTENT, "..": CONTENT}}, "could leave its folder"),
        ({f"commits.{COMMIT}.variants": {"torch-cpu": CONTENT, "": CONTENT}}, "could leave its folder"),
        ({f"commits.{COMMIT}.variants": {"a" * 256: CONTENT}}, "could leave its folder"),
        (
            {f"commits.{COMMIT}.files": [{"path": "build/torch-cpu/more.py", "size": 0, "oid": "0" * 40}]},
            "'build/torch-cpu/more.py' outside its builds",
        ),
        ({f"commits.{COMMIT}.texts": {"kernel-status.toml": "x"}}, "a text of 'kernel-status.toml', which is not a"),
        ({f"commits.{COMMIT}.files": [{"path": "README.md", "size": 1}]}, "lists 'README.md' without a hash"),
    ],
)
def test_an_invalid_index_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRepository, match=says):
        parsed(document(**changes))


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b"[" * 100_000, b'{"mirror-format":2,"content":{},"signatures":[]}', b"\xff\xfe"]
)
def test_what_is_not_a_document_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRepository, match=r"here is not a valid document of a mirror: .*[^.]\. Nothing"):
        MirrorDocument.parse(data, "here")


def test_thousands_of_commits_of_one_large_build_are_read_in_linear_time() -> None:
    files = [{"path": f"f{n:05}.py", "size": 0, "oid": "0" * 40} for n in range(5_000)]
    entry = {"variants": {"torch-cpu": CONTENT}, "taken": TIME}
    commits = {COMMIT: entry, **{f"{n:040x}": entry for n in range(5_000)}}
    index = parsed(document(commits=commits, **{f"builds.{CONTENT}.files": files}))
    assert len(index.commits) == 5_001
