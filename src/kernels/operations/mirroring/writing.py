"""The documents of a repository, written after its archives: those of its commits first, and then its index."""

from __future__ import annotations

import time
from functools import partial

from kernels.models.mirror import RepositoryIndex, format_time
from kernels.operations.mirroring.merging import merge_commit, merge_repository, merge_verdict
from kernels.operations.mirroring.outcome import MirrorOutcome
from kernels.operations.mirroring.request import MirroredCommit
from kernels.operations.mirroring.state import MirrorState
from kernels.operations.mirroring.taking import Taking

__all__ = ["write_documents", "write_verdict"]


def write_documents(taking: Taking, state: MirrorState, started: float, outcome: MirrorOutcome) -> None:
    """Write the documents of a repository, after all of its archives.

    Args:
        taking: What was taken of it.
        state: The mirror.
        started: When the run began, in seconds since 1970.
        outcome: Receives the commits that the mirror has now.

    Raises:
        KernelsError: A text beside the builds cannot be read, or a document is not valid.
        StoreError: A document cannot be written.
    """
    repo_id, documents = taking.wanted.repo_id, state.documents
    taken = taking.result(state, started)
    number, rest = (taking.base.number, {}) if taking.base is not None else state.remains(repo_id)
    now = format_time(time.time())
    unsigned = documents.lacks_signature(repo_id)
    written = {}
    for commit in taken.commits:
        written[commit] = documents.change_commit(
            repo_id, commit, partial(merge_commit, taken=taken, commit=commit, number=number, time=now)
        )
        state.remember(repo_id, commit, written[commit])
    if not written and taken.moved_to is None:
        return  # nothing of it could be taken
    index = documents.change_repository(
        repo_id,
        partial(
            merge_repository, base=taking.base, taken=taken, documents={**rest, **written}, number=number, time=now
        ),
    )
    for commit in (*index.commits, *index.older) if unsigned else ():
        documents.sign_commit(repo_id, commit)
    state.remember(repo_id, None, index)
    state.list_repository(index)
    changed = taking.base is None or unsigned or index.number != taking.base.number
    for commit, document in written.items():
        names = tuple(name for name, at in {**index.tags, **index.branches}.items() if at == commit)
        absent = document.commits[commit].absent
        outcome.add(MirroredCommit(repo_id, commit, names, taking.rows(commit), changed, absent))


def write_verdict(index: RepositoryIndex, trusted: bool, state: MirrorState) -> None:
    """Write what the origin says of a publisher into all documents of a repository; the index is the last.

    Args:
        index: The repository's index.
        trusted: Whether the origin marks the publisher as trusted.
        state: The mirror.

    Raises:
        StoreError: A document cannot be written.
    """
    now, documents = format_time(time.time()), state.documents

    def say(before: RepositoryIndex | None) -> RepositoryIndex:
        assert before is not None
        return merge_verdict(before, trusted, now)

    for commit in (*index.commits, *index.older):
        if documents.commit(index.repo_id, commit) is not None:
            documents.change_commit(index.repo_id, commit, say)
    changed = documents.change_repository(index.repo_id, say)
    state.remember(index.repo_id, None, changed)
    state.list_repository(changed)
