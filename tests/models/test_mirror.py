"""The documents of a mirror."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from kernels.errors import InvalidRepository
from kernels.models.mirror import MirrorDocument, RepositoryIndex, archive_path, is_mirror_document

COMMIT, CONTENT, ARCHIVE = "1" * 40, "sha256-" + "2" * 64, "3" * 64


def document(**changes: Any) -> dict[str, Any]:
    """A valid index of one commit with one build of one file; `changes` replaces what lies at `a.b.c`."""
    index: dict[str, Any] = {
        "repo-id": "org/relu",
        "number": 1,
        "time": "2026-11-22T20:00:00Z",
        "origin": {"url": "https://hub.example", "time": "2026-11-22T20:00:00Z"},
        "publisher": {"name": "org", "trusted": True},
        "branches": {"v1": COMMIT},
        "commits": {COMMIT: {"variants": {"torch-cpu": CONTENT}, "taken": "2026-11-22T20:00:00Z"}},
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
    alone = parsed(document(older=["4" * 40])).of_commit(COMMIT)
    assert (alone.branches, alone.older, list(alone.commits)) == ({}, (), [COMMIT])


FILE = {"path": "__init__.py", "size": 0, "oid": "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"repo-id": "org/other"}, "it is the index of 'org/other', not of org/relu"),
        ({"repo-type": "space"}, "expected the type kernel or model"),
        ({"branches": {"v1": "x"}}, "'x' is not a commit"),
        ({"branches": {"../v1": COMMIT}}, "expected a branch"),
        ({"moved-to": "../x"}, "expected 'org/name'"),
        ({"time": "yesterday"}, "'yesterday' is not a time"),
        ({"time": "2026-13-22T20:00:00Z"}, "is not a time"),
        ({"builds": {}}, "lists the build 'torch-cpu' without its files"),
        ({f"builds.{CONTENT}.archive": {"name": "../x", "size": 1, "sha256": ARCHIVE}}, "not the name of an archive"),
        ({f"builds.{CONTENT}.files": [{"path": "a.py", "size": 1}]}, "without a hash"),
        ({f"builds.{CONTENT}.files": [{**FILE, "path": "b"}, {**FILE, "path": "a"}]}, "not sorted"),
        ({f"builds.{CONTENT}.files": [{**FILE, "path": "../a"}]}, "could leave its folder"),
        ({f"builds.{CONTENT}.metadata": "{}"}, "which is not a file of the build"),
        (
            {f"builds.{CONTENT}.files": [{**FILE, "path": "metadata.json"}], f"builds.{CONTENT}.metadata": "{}"},
            "is not",
        ),
        ({"number": "1"}, "Expected `int`"),
    ],
)
def test_an_invalid_index_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRepository, match=says):
        parsed(document(**changes))


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b"[" * 100_000, b'{"mirror-format":2,"content":{},"signatures":[]}', b"\xff\xfe"]
)
def test_what_is_not_a_document_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRepository, match="here is not a valid document of a mirror"):
        MirrorDocument.parse(data, "here")
