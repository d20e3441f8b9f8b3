"""What a run adds to a repository's documents, joined with what they have. Pure: no store, no clock.

The same inputs give the same documents, and a run that adds nothing gives the documents that were there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from kernels.models.mirror import (
    MirrorBuild,
    MirrorCommit,
    MirroredRepository,
    MirrorFile,
    MirrorIndex,
    MirrorOrigin,
    MirrorPublisher,
    RepositoryIndex,
)
from kernels.models.snapshot import Heads

__all__ = [
    "TakenCommit",
    "TakenRepository",
    "listed_repository",
    "merge_commit",
    "merge_mirror",
    "merge_repository",
    "merge_verdict",
]


@dataclass(frozen=True)
class TakenCommit:
    """What a run took of a commit.

    Attributes:
        variants: The builds, by the name of their folder; the values are their contents.
        all_variants: The builds that the origin has.
        date: When the commit was made, in ISO 8601; empty if the origin did not say.
        files: Files outside `build/`.
        texts: Their texts.
    """

    variants: Mapping[str, str] = field(default_factory=dict)
    all_variants: tuple[str, ...] = ()
    date: str = ""
    files: tuple[MirrorFile, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TakenRepository:
    """What a run took of a repository.

    Attributes:
        repo_id: The repository.
        origin: The URL of the origin, and when it was asked.
        trusted: Whether the origin marks the publisher as trusted; None if it is not known.
        branches: The branches to set.
        tags: The tags to set.
        pinned: Branches that are set only if the mirror does not have them: a lockfile chose their commits.
        moved_to: The repository's new name, if it was renamed.
        commits: The commits.
        builds: The builds of the commits, by content.
    """

    repo_id: str
    origin: MirrorOrigin
    trusted: bool | None
    branches: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    pinned: Mapping[str, str] = field(default_factory=dict)
    moved_to: str | None = None
    commits: Mapping[str, TakenCommit] = field(default_factory=dict)
    builds: Mapping[str, MirrorBuild] = field(default_factory=dict)


def merge_commit(
    before: RepositoryIndex | None, taken: TakenRepository, commit: str, number: int, time: str
) -> RepositoryIndex:
    """The document of a commit, with what a run took of it.

    Args:
        before: The document that is there.
        taken: What the run took of the repository.
        commit: The commit.
        number: The number of the repository's index: that of the document is larger.
        time: Now.

    Returns:
        The document; `before` itself if it has all that already.
    """
    old = None if before is None else before.commits.get(commit)
    entry = _merge_entry(old, taken.commits[commit], time)
    builds = {**taken.builds, **(before.builds if before is not None else {})}
    after = RepositoryIndex(
        repo_id=taken.repo_id if before is None else before.repo_id,
        number=max(number, 0 if before is None else before.number) + 1,
        time=time,
        commit=commit,
        origin=taken.origin,
        publisher=_publisher(before, taken),
        commits={commit: entry},
        builds={content: builds[content] for content in sorted(set(entry.variants.values()))},
    )
    return before if before is not None and _same(before, after) else after


def merge_repository(
    before: RepositoryIndex | None,
    base: RepositoryIndex | None,
    taken: TakenRepository,
    documents: Mapping[str, RepositoryIndex],
    time: str,
    number: int = 0,
) -> RepositoryIndex:
    """The index of a repository, with what a run took of it.

    Args:
        before: The index that is there now.
        base: The index that was there when the run began: a branch that another run moved since stays where that run
            put it, if that one asked the origin later.
        taken: What the run took.
        documents: The documents of the commits that were taken, as they are in the mirror now; of an index that was
            lost, those of all commits.
        time: Now.
        number: The highest number of the index that is known: readers refuse a lower one than they have read.

    Returns:
        The index; `before` itself if it has all that already.
    """
    old = before
    later = old is not None and old.origin.time > taken.origin.time
    branches = _merge_heads(
        {} if old is None else old.branches, {} if base is None else base.branches, taken.branches, later
    )
    for name, commit in taken.pinned.items():
        branches.setdefault(name, commit)
    tags = _merge_heads({} if old is None else old.tags, {} if base is None else base.tags, taken.tags, later)
    known: dict[str, MirrorCommit] = {} if old is None else dict(old.commits)
    builds: dict[str, MirrorBuild] = {} if old is None else dict(old.builds)
    for commit, document in documents.items():
        known[commit] = _join_entries(known.get(commit), document.commits[commit])
        builds = {**document.builds, **builds}
    heads = sorted({*branches.values(), *tags.values()})
    commits = {commit: known[commit] for commit in heads}
    left = [*(() if old is None else (*old.older, *old.commits)), *documents]
    contents = sorted({content for entry in commits.values() for content in entry.variants.values()})
    after = RepositoryIndex(
        repo_id=taken.repo_id if old is None else old.repo_id,
        number=max(number, 0 if old is None else old.number) + 1,
        time=time,
        origin=taken.origin,
        publisher=_publisher(old, taken),
        branches=branches,
        tags=tags,
        moved_to=taken.moved_to,
        commits=commits,
        older=tuple(commit for commit in dict.fromkeys(left) if commit not in commits),
        builds={content: builds[content] for content in contents},
    )
    return old if old is not None and _same(old, after) else after


def merge_verdict(before: RepositoryIndex, trusted: bool, time: str) -> RepositoryIndex:
    """A document with what the origin says of the publisher now; `before` itself if it says so already."""
    publisher = MirrorPublisher(before.publisher.name, trusted)
    if publisher == before.publisher:
        return before
    return replace(before, number=before.number + 1, time=time, publisher=publisher)


def listed_repository(index: RepositoryIndex) -> MirroredRepository:
    """What the mirror's index says of a repository."""
    return MirroredRepository(index.number, index.time, tuple(Heads(index.branches).versions))


def merge_mirror(
    before: MirrorIndex | None, repositories: Mapping[str, MirroredRepository], writer: str, time: str, number: int = 0
) -> MirrorIndex:
    """The mirror's index, with repositories that a run wrote or saw.

    Args:
        before: The index that is there.
        repositories: The repositories; of two entries the one with the larger number is used.
        writer: The program that writes.
        time: Now.
        number: A number that the index had, if it was lost.

    Returns:
        The index; `before` itself if it has all that already.
    """
    known = {} if before is None else dict(before.repositories)
    spellings = {repo_id.lower(): repo_id for repo_id in known}
    for repo_id, entry in repositories.items():
        if spellings.setdefault(repo_id.lower(), repo_id) != repo_id:
            continue  # readers refuse an index with names that differ only in case
        if repo_id not in known or known[repo_id].number < entry.number:
            known[repo_id] = entry
    if before is not None and known == before.repositories:
        return before
    return MirrorIndex(
        number=max(number, 0 if before is None else before.number) + 1,
        time=time,
        writer=writer,
        repositories=dict(sorted(known.items())),
    )


def _merge_entry(before: MirrorCommit | None, taken: TakenCommit, time: str) -> MirrorCommit:
    old = before or MirrorCommit(variants={}, taken=time)
    # A commit never changes: what the mirror has of it stays.
    variants = {**taken.variants, **old.variants}
    files = {file.path: file for file in (*taken.files, *old.files)}
    merged = MirrorCommit(
        variants=dict(sorted(variants.items())),
        taken=time,
        date=old.date or taken.date,
        absent=tuple(sorted({*taken.all_variants, *old.absent} - set(variants))),
        files=tuple(files[path] for path in sorted(files)),
        texts=dict(sorted({**taken.texts, **old.texts}.items())),
    )
    return before if before is not None and replace(merged, taken=before.taken) == before else merged


def _join_entries(before: MirrorCommit | None, other: MirrorCommit) -> MirrorCommit:
    """A commit with what two documents have of it: another writer may have changed either since the other was read."""
    if before is None:
        return other
    taken = TakenCommit(other.variants, other.absent, other.date, other.files, other.texts)
    return replace(_merge_entry(before, taken, other.taken), taken=max(before.taken, other.taken))


def _merge_heads(
    before: Mapping[str, str], base: Mapping[str, str], taken: Mapping[str, str], asked_later: bool
) -> dict[str, str]:
    merged = dict(before)
    for name, commit in taken.items():
        moved_meanwhile = name in before and before[name] != base.get(name)
        if not (moved_meanwhile and asked_later):
            merged[name] = commit
    return dict(sorted(merged.items()))


def _publisher(before: RepositoryIndex | None, taken: TakenRepository) -> MirrorPublisher:
    known = None if before is None else before.publisher.trusted
    return MirrorPublisher(taken.repo_id.partition("/")[0], known if taken.trusted is None else taken.trusted)


def _same(before: RepositoryIndex, after: RepositoryIndex) -> bool:
    """Whether nothing has changed but the time."""
    if before.origin.url != after.origin.url:
        return False
    return replace(after, number=before.number, time=before.time, origin=before.origin) == before
