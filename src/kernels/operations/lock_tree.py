"""The commit of everything that a project's kernels need, over all of their builds.

Listings and metadata are read, and no build is downloaded.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kernels.errors import InvalidMetadata, NotInCache, RepositoryNotFound, RequestError, RevisionNotFound
from kernels.models.lockfile import Lock
from kernels.models.metadata import Metadata
from kernels.models.requirement import Requirement, is_commit
from kernels.resolver.commit import PickedCommit, fresh_heads, pick_commit
from kernels.resolver.context import ResolveContext
from kernels.resolver.find import FoundSnapshot, find
from kernels.resolver.metadata_of import MetadataNotInCache, every_metadata_of
from kernels.resolver.plan import Visited, walk
from kernels.sources.base import Source
from kernels.support.formatting import as_clause, format_error
from kernels.support.logs import logger
from kernels.support.warn import warn_once
from kernels.trust.publishers import Admission, admission, ask_trust, unverified

__all__ = ["LockedTree", "lock_tree"]

_log = logger(__name__)


@dataclass(frozen=True)
class LockedTree:
    """What a lock has to list.

    Attributes:
        commits: The commit of every requirement: of the project, of kernels, and of repositories that have moved, each
            step of a move.
        snapshots: Each snapshot, by repository and commit.
    """

    commits: Mapping[Requirement, str]
    snapshots: Mapping[tuple[str, str], FoundSnapshot]


def lock_tree(
    context: ResolveContext,
    roots: Sequence[Requirement],
    kept: Lock,
    upgrade: bool | Collection[str],
    file: Path,
) -> LockedTree:
    """Find the commit of everything that requirements need.

    Args:
        context: What the call resolves with; without a lock.
        roots: The project's requirements.
        kept: The pins that stay, where the tree needs them.
        upgrade: Whether no pin stays, or of which repositories none stays: their heads are asked for.
        file: The project's file, to be named where a requirement of it is not found.

    Raises:
        LockError: A pin's commit is gone.
        DependencyCycle: Dependencies lead in a circle, nest too deep, or are too many.
        InvalidRepository: Repositories moved in a circle, or too often; or one is hostile.
        UntrustedPublisher: A publisher is not trusted.
        HubUnavailable: The Hub gave no answer.
    """
    pins = _KeptPins(kept, upgrade, {each.repo_id: each for each in roots})

    def visit(requirement: Requirement) -> Visited[None]:
        try:
            # Nothing that is allowed here is loaded: a later call decides about that on its own.
            found = find(context, requirement, partial(_lockable, context), pick=pins.pick, remember_allowed=False)
            if kept.older and _pins_another_version(context, found):
                found = find(context, requirement, partial(_lockable, context), remember_allowed=False)
        except (RepositoryNotFound, RevisionNotFound) as error:
            if requirement not in roots:
                raise
            raise error.reworded(f"{file}: {error}") from error
        return _edges_of(context, found)

    nodes = walk(sorted(roots, key=str), visit)
    steps = [step for node in nodes.values() for step in node.found.steps]
    return LockedTree(
        {each: step.snapshot.commit for step in steps for each in (*step.former, step.asked)},
        {(step.snapshot.repo_id, step.snapshot.commit): step for step in steps},
    )


class _KeptPins:
    """The commits of a lock that stay where they are."""

    def __init__(self, kept: Lock, upgrade: bool | Collection[str], roots: Mapping[str, Requirement]) -> None:
        self._kept = kept
        self._upgrade = upgrade
        self._started = time.time()
        self._roots = roots
        self._unversioned: dict[str, Requirement] = {}
        self._guard = threading.Lock()

    def pick(self, asked: Requirement, source: Source, renamed: PickedCommit | None) -> PickedCommit:
        """The commit that a requirement stays at; else that of its former name, else its head."""
        upgraded = self._upgrade if isinstance(self._upgrade, bool) else asked.repo_id in self._upgrade
        if upgraded and asked.commit is None:
            fresh_heads(source, asked.repo_id, self._started)  # what is new is asked for
        if upgraded or asked.commit is not None:
            return pick_commit(asked, source)
        commit = self._commit(asked)
        if commit is not None:
            return PickedCommit(asked, commit, self._kept.where, asked.repo_id)
        return pick_commit(asked, source) if renamed is None else renamed._replace(requirement=asked)

    def _commit(self, asked: Requirement) -> str | None:
        for each in self._kept.of(asked.repo_id):
            if each.requirement == asked:
                return each.commit
            # A pin of the older format has no version. It is the one that the project requires, else the first one.
            if each.requirement.branch is None and self._roots.get(asked.repo_id, asked) == asked:
                with self._guard:
                    first = self._unversioned.setdefault(asked.repo_id, asked)
                if first == asked:
                    return each.commit
        return None


def _lockable(context: ResolveContext, found: FoundSnapshot) -> FoundSnapshot:
    """A snapshot, if it can be locked: all of it is of trusted publishers, under its former names too."""
    for step in found.steps:
        asked, source, snapshot = step.asked, step.source, step.snapshot
        if not is_commit(snapshot.commit):
            raise RequestError(
                f"{asked} cannot be locked: {source.name} has no commits. Lock against a Hub (KERNELS_HUB)."
            )
        if not snapshot.listed:
            raise NotInCache(
                f"{asked} cannot be locked: {source.name} has files of the commit {snapshot.commit[:12]}, but not the "
                "list of all of them. Lock it while online."
            )
        for former in step.former:
            trust = ask_trust(former.repo_id, source.publishers, context.trust)
            if admission(former.repo_id, trust, source.publishers, context.trust) is not Admission.GRANTED:
                raise unverified(former.repo_id, source.publishers)
    if found.admission is not Admission.GRANTED:
        raise unverified(found.snapshot.repo_id, found.source.publishers)
    return found


def _pins_another_version(context: ResolveContext, found: FoundSnapshot) -> bool:
    """Whether the builds of a snapshot that a lock of the older format chose are of another version than required."""
    if found.lock is None or found.asked.version is None:
        return False
    read = every_metadata_of(context, found).values()
    versions = {each.version for each in read if isinstance(each, Metadata)} - {None}
    return bool(versions) and found.asked.version not in versions


def _edges_of(context: ResolveContext, found: FoundSnapshot) -> Visited[None]:
    """What any build of a snapshot depends on."""
    read = every_metadata_of(context, found)
    invalid = {name: each for name, each in read.items() if isinstance(each, InvalidMetadata)}
    for each in invalid.values():
        if isinstance(each, MetadataNotInCache):  # it may be valid, and name others
            raise each.error
    if not read:
        warn_once(_log, f"{found.asked} is locked, but it has no builds.")
    for name, each in list(invalid.items())[:1]:
        warn_once(
            _log,
            f"{found.asked} is locked, but {len(invalid)} of its {len(read)} builds cannot be loaded: {name}: "
            f"{as_clause(format_error(each))}.",
        )
    depends = {depend for each in read.values() if isinstance(each, Metadata) for depend in each.kernel_depends}
    return Visited(found, None, tuple(sorted(depends, key=str)))
