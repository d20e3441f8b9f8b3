"""What a run adds to documents that another writer changes meanwhile."""

from __future__ import annotations

from dataclasses import replace

from kernels.models.mirror import (
    MirrorArchive,
    MirrorBuild,
    MirroredRepository,
    MirrorFile,
    MirrorOrigin,
    RepositoryIndex,
    archive_path,
)
from kernels.models.mirror_document import MirrorDocument
from kernels.operations.mirroring.merging import (
    TakenCommit,
    TakenRepository,
    merge_commit,
    merge_mirror,
    merge_repository,
)

FIRST, SECOND, THIRD = (digit * 40 for digit in "123")
NOON, ONE = "2026-01-01T12:00:00Z", "2026-01-01T13:00:00Z"


def build(digit: str) -> tuple[str, MirrorBuild]:
    sha256 = digit * 64
    files = (MirrorFile("__init__.py", 0, "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"),)
    return f"sha256-{sha256}", MirrorBuild(files, MirrorArchive(archive_path(sha256), 10, sha256))


CPU, CUDA = build("a"), build("b")


def taken(commit: str, variants: dict[str, tuple[str, MirrorBuild]], time: str = NOON) -> TakenRepository:
    contents = {variant: each[0] for variant, each in variants.items()}
    return TakenRepository(
        "acme/relu",
        MirrorOrigin("https://hub.example", time),
        True,
        branches={"v1": commit},
        commits={commit: TakenCommit(contents, ("torch-cpu", "torch-cuda"))},
        builds=dict(variants.values()),
    )


def write(
    before: RepositoryIndex | None,
    what: TakenRepository,
    documents: dict[str, RepositoryIndex],
    base: RepositoryIndex | None = None,
) -> RepositoryIndex:
    """One run: the commit's documents, then the index; each is valid."""
    for commit in what.commits:
        documents[commit] = merge_commit(documents.get(commit), what, commit, 0, NOON)
    mine = {commit: documents[commit] for commit in what.commits}
    after = merge_repository(before, base, what, mine, NOON)
    MirrorDocument.of(after).repository("acme/relu", "the index")
    for commit, document in mine.items():
        MirrorDocument.of(document).repository("acme/relu", "the commit", commit)
    return after


def test_the_same_again_is_the_same_object() -> None:
    documents: dict[str, RepositoryIndex] = {}
    first = write(None, taken(FIRST, {"torch-cpu": CPU}), documents)
    commit = documents[FIRST]
    again = write(first, taken(FIRST, {"torch-cpu": CPU}, ONE), documents)
    assert (again is first, documents[FIRST] is commit) == (True, True)


def test_builds_of_two_writers_are_joined_whichever_document_is_older() -> None:
    one, two = taken(FIRST, {"torch-cpu": CPU}), taken(FIRST, {"torch-cuda": CUDA})
    alone = merge_commit(None, one, FIRST, 0, NOON)
    both = merge_commit(alone, two, FIRST, 0, NOON)
    index = merge_repository(None, None, two, {FIRST: both}, NOON)
    # The first writer writes its index last, from the document as it was before the second.
    late = merge_repository(index, None, one, {FIRST: alone}, NOON)
    assert late.commits[FIRST].variants == {"torch-cpu": CPU[0], "torch-cuda": CUDA[0]}
    assert late.commits[FIRST].absent == ()
    assert set(late.builds) == {CPU[0], CUDA[0]}


def test_an_old_head_is_listed_as_older_and_may_come_back() -> None:
    documents: dict[str, RepositoryIndex] = {}
    index = write(None, taken(FIRST, {"torch-cpu": CPU}), documents)
    index = write(index, taken(SECOND, {"torch-cpu": CUDA}), documents, index)
    assert (list(index.commits), index.older, index.number) == ([SECOND], (FIRST,), 2)
    index = write(index, taken(FIRST, {"torch-cpu": CPU}), documents, index)
    assert (list(index.commits), index.older, index.number) == ([FIRST], (SECOND,), 3)


def test_a_branch_stays_where_a_run_put_it_that_asked_the_hub_later() -> None:
    documents: dict[str, RepositoryIndex] = {}
    base = write(None, taken(FIRST, {"torch-cpu": CPU}), documents)
    moved = write(base, taken(THIRD, {"torch-cpu": CPU}, ONE), documents, base)
    assert write(moved, taken(SECOND, {"torch-cpu": CPU}, NOON), documents, base).branches == {"v1": THIRD}
    assert write(moved, taken(SECOND, {"torch-cpu": CPU}, ONE), documents, base).branches == {"v1": SECOND}
    # Without a move meanwhile the branch follows, whatever the clocks of two machines say.
    late = replace(taken(SECOND, {"torch-cpu": CPU}), origin=MirrorOrigin("https://hub.example", NOON))
    assert write(moved, late, documents, moved).branches == {"v1": SECOND}


def test_a_commit_that_a_lockfile_chose_moves_no_branch() -> None:
    documents: dict[str, RepositoryIndex] = {}
    index = write(None, taken(FIRST, {"torch-cpu": CPU}), documents)
    pinned = replace(taken(SECOND, {"torch-cpu": CPU}), branches={}, pinned={"v1": SECOND, "v2": SECOND})
    index = write(index, pinned, documents, index)
    assert index.branches == {"v1": FIRST, "v2": SECOND}


def test_the_mirror_lists_the_newer_of_two_entries() -> None:
    newer, older = MirroredRepository(5, ONE, (2, 1)), MirroredRepository(4, NOON, (1,))
    before = merge_mirror(None, {"acme/relu": newer}, "kernels", NOON)
    assert merge_mirror(before, {"acme/relu": older}, "kernels", ONE) is before
    after = merge_mirror(before, {"acme/gelu": older}, "kernels", ONE)
    assert (after.number, after.repositories) == (2, {"acme/gelu": older, "acme/relu": newer})
