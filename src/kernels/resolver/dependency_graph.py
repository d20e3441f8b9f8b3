"""All that kernels depend on, over all of their builds, each at one commit.

Breadth first, each level side by side. Listings and metadata are read, and no build is downloaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from kernels.errors import (
    DependencyCycle,
    InvalidMetadata,
    InvalidRepository,
    LockError,
    NotInCache,
    RepositoryNotFound,
    RequestError,
    RevisionNotFound,
)
from kernels.models import redirect
from kernels.models.lockfile import Lock
from kernels.models.metadata import MAX_KERNEL_DEPENDS, Metadata
from kernels.models.requirement import Requirement, is_commit
from kernels.models.snapshot import STATUS_FILE, Snapshot
from kernels.resolver.commit import pin
from kernels.resolver.planner import MAX_DEPTH, check_metadata_size, read_metadata
from kernels.sources import Source, Sources
from kernels.sources.base import Moved
from kernels.support.concurrency import side_by_side
from kernels.support.formatting import format_error
from kernels.support.warn import warn_once
from kernels.trust import publishers
from kernels.trust.publishers import TrustPolicy

__all__ = ["Tree"]

#: Repositories, and builds of one, that are looked at side by side.
AT_ONCE = 8

#: Builds of one repository; published ones have at most some 60.
MAX_BUILDS = 1024


@dataclass
class Tree:
    """What kernels depend on, all builds considered.

    Args:
        sources: Where kernels are found.
        policy: What may be locked beside what trusted publishers offer.
        kept: The pins that hold, where the tree needs them.
        upgrade: Repositories whose pins do not.
        places: Where the project asks for what, to be named where that is not found.

    Attributes:
        commits: The commit of everything that is asked for: by the project, by kernels, and by repositories that have
            moved. Each step of a move is in it.
        snapshots: What is there, by repository and commit.
    """

    sources: Sources
    policy: TrustPolicy
    kept: Lock = field(default_factory=Lock)
    upgrade: frozenset[str] = frozenset()
    places: Mapping[Requirement, str] = field(default_factory=dict)
    commits: dict[Requirement, str] = field(default_factory=dict)
    snapshots: dict[tuple[str, str], tuple[Source, Snapshot]] = field(default_factory=dict)
    _roots: dict[str, Requirement] = field(default_factory=dict)
    _kept: dict[Requirement, str | None] = field(default_factory=dict)
    _edges: dict[Requirement, dict[Requirement, bool]] = field(default_factory=dict)

    def grow(self, roots: tuple[Requirement, ...]) -> None:
        """Find everything, from what is asked for on.

        Args:
            roots: What is asked for.

        Raises:
            LockError: A pin's commit is gone.
            DependencyCycle: Dependencies lead in a circle, nest too deep, or are too many.
            InvalidRepository: Repositories moved in a circle, or too often; or one is hostile.
            UntrustedPublisher: A publisher is not trusted.
        """
        self._roots = {each.repo_id: each for each in roots}
        most = len(roots) + MAX_KERNEL_DEPENDS * len(roots)
        level = [_Step(each) for each in sorted(roots, key=str)]
        while level:
            for step in level:
                self._kept.setdefault(step.requirement, self._keep(step.requirement))
                self._edges[step.requirement] = {}
            found = side_by_side(lambda step: self._found(step.requirement), level, at_once=AT_ONCE, name="lock")
            following: dict[Requirement, _Step] = {}
            for step, each in zip(level, found, strict=True):
                for further in self._note(step, each):
                    if further.requirement not in self._edges:
                        following.setdefault(further.requirement, further)
            if len(self._edges) + len(following) > most:
                raise DependencyCycle(
                    f"{len(roots)} kernels that the project asks for depend on more than {most - len(roots)} others."
                )
            level = list(following.values())
        self._settle()

    def _keep(self, requirement: Requirement) -> str | None:
        """The commit that something stays at, or None where its head is asked for."""
        repo_id = requirement.repo_id
        if repo_id in self.upgrade or requirement.commit is not None:
            return None
        unnamed = Requirement(repo_id)
        for each in self.kept.of(repo_id):
            if each.requirement == requirement:
                return each.commit
            # The older format says no version: it stands for the one that the project asks for, else the first.
            meant = self._roots.get(repo_id, requirement) == requirement and unnamed not in self._kept
            if each.requirement == unnamed and meant:
                self._kept[unnamed] = each.commit
                return each.commit
        return None

    def _found(self, requirement: Requirement) -> _Found:
        try:
            return self._look(requirement)
        except (RepositoryNotFound, RevisionNotFound) as error:
            if requirement not in self.places:
                raise
            raise type(error)(f"{self.places[requirement]}: {error}") from error

    def _look(self, requirement: Requirement) -> _Found:
        repo_id, kept = requirement.repo_id, self._kept[requirement]
        source = self.sources.of(repo_id)
        self._admit(repo_id, source)
        try:
            commit = kept if kept is not None else pin(requirement, source)[1]
            snapshot = _snapshot(source, requirement, commit)
        except Moved as moved:
            following = Requirement(moved.destination, version=requirement.version, revision=requirement.revision)
            return _Found(kept, source, None, following, ())
        except RevisionNotFound as error:
            if kept is None:
                raise
            raise LockError(
                f"{self.kept.where} pins {requirement} to the commit {kept}, which is gone from {source.name}. Pin "
                f"another: kernels lock --upgrade-repo {repo_id}"
            ) from error
        status = snapshot.file(STATUS_FILE)
        if status is not None:
            content = source.read(snapshot, status, redirect.MAX_STATUS_BYTES)
            return _Found(commit, source, snapshot, redirect.destination(content, requirement), ())
        described = _described(requirement, source, snapshot)
        versions = {each.version for each in described} - {None}
        if kept is not None and self.kept.older and versions and requirement.version not in (None, *versions):
            # The older format does not say which version it pinned: the builds do, and it is another one.
            self._kept[requirement] = None
            return self._look(requirement)
        depends = {depend for each in described for depend in each.kernel_depends}
        return _Found(commit, source, snapshot, None, tuple(sorted(depends, key=str)))

    def _admit(self, repo_id: str, source: Source) -> None:
        asked = source.publishers
        standing = publishers.ask_trust(repo_id, asked, self.policy)
        if publishers.admission(repo_id, standing, asked, self.policy) is not publishers.Admission.GRANTED:
            raise publishers.unverified(repo_id, asked)

    def _note(self, step: _Step, found: _Found) -> Iterable[_Step]:
        if found.commit is not None:
            self.commits[step.requirement] = found.commit
        if found.snapshot is not None and found.commit is not None:
            self.snapshots[found.snapshot.repo_id, found.commit] = found.source, found.snapshot
        renamed = found.following if found.snapshot is None else None
        if renamed is not None and renamed.repo_id not in self.upgrade and found.commit is not None:
            # With its history: what was locked stays under the new name.
            self._kept.setdefault(renamed, self._keep(renamed) or found.commit)
        wanted = [(each, False) for each in found.depends]
        wanted += [(found.following, True)] if found.following is not None else []
        for requirement, moved in wanted:
            self._edges[step.requirement][requirement] = moved
            further = step.to(requirement, moved)
            if further.moves > redirect.MAX_REDIRECTS:
                raise InvalidRepository(
                    f"{step.requirement} has moved more than {redirect.MAX_REDIRECTS} times: {further.route}."
                )
            if further.depth > MAX_DEPTH:
                raise DependencyCycle(f"Kernel dependencies nest more than {MAX_DEPTH} deep: {further.route}.")
            yield further

    def _settle(self) -> None:
        """Check the tree as a whole, and give a repository that was renamed the commit of the one that answers."""
        try:
            order = list(TopologicalSorter(self._edges).static_order())
        except CycleError as error:
            circle: list[Requirement] = error.args[1][::-1]  # each before what it leads to
            route = " -> ".join(map(str, circle))
            if all(self._edges[one][other] for one, other in pairwise(circle)):
                raise InvalidRepository(f"{circle[0]} moved in a circle: {route}.") from None
            raise DependencyCycle(f"Kernel dependencies lead in a circle: {route}.") from None
        depth: dict[Requirement, int] = {}
        for requirement in order:
            further = self._edges[requirement]
            depth[requirement] = max((depth[each] + (not moved) for each, moved in further.items()), default=1)
            if depth[requirement] > MAX_DEPTH:
                raise DependencyCycle(f"Kernel dependencies nest more than {MAX_DEPTH} deep, from {requirement} on.")
            if requirement not in self.commits:
                self.commits[requirement] = self.commits[next(iter(further))]


@dataclass(frozen=True)
class _Step:
    """Something to look at, and how it was reached."""

    requirement: Requirement
    before: _Step | None = None
    moved: bool = False
    depth: int = 1
    moves: int = 0

    def to(self, requirement: Requirement, moved: bool) -> _Step:
        if moved:
            return _Step(requirement, self, True, self.depth, self.moves + 1)
        return _Step(requirement, self, False, self.depth + 1)

    @property
    def route(self) -> str:
        step: _Step | None = self
        names: list[str] = []
        while step is not None:
            names.insert(0, str(step.requirement))
            step = step.before
        return " -> ".join(names if len(names) <= 8 else [*names[:5], "…", names[-1]])


@dataclass(frozen=True)
class _Found:
    """What something asked for led to."""

    commit: str | None  # None where another repository answers under that name
    source: Source
    snapshot: Snapshot | None
    following: Requirement | None  # where it has moved to
    depends: tuple[Requirement, ...]


def _snapshot(source: Source, requirement: Requirement, commit: str) -> Snapshot:
    if not is_commit(commit):
        raise RequestError(
            f"{requirement} cannot be locked: {source.name} has no commits. Lock against a Hub (KERNELS_HUB)."
        )
    snapshot = source.snapshot(requirement, commit)
    if not snapshot.listed:
        raise NotInCache(
            f"{requirement} cannot be locked: {source.name} has files of the commit {commit[:12]}, but not the list of "
            "all of them. Lock it while online."
        )
    if len(snapshot.builds) > MAX_BUILDS:
        raise InvalidRepository(
            f"{requirement} has {len(snapshot.builds)} builds; more than {MAX_BUILDS} are not read."
        )
    check_metadata_size(requirement, snapshot)
    return snapshot


def _described(requirement: Requirement, source: Source, snapshot: Snapshot) -> list[Metadata]:
    """What the builds say of themselves, those that can be loaded."""

    def read(name: str) -> Metadata | InvalidMetadata:
        try:
            return read_metadata(source, snapshot, name)
        except InvalidMetadata as error:
            if isinstance(error.__cause__, NotInCache):  # it may be valid, and name others
                raise error.__cause__ from None
            return error

    names = list(snapshot.builds)
    found = side_by_side(read, names, at_once=AT_ONCE, name="lock-read")
    bad = [(name, each) for name, each in zip(names, found, strict=True) if isinstance(each, InvalidMetadata)]
    if bad or not names:
        what = (
            f"{len(bad)} of its {len(names)} builds cannot be loaded: {bad[0][0]}: {format_error(bad[0][1])}"
            if bad
            else ""
        )
        warn_once(f"{requirement} is locked, but {what or 'it has no builds'}.")
    return [each for each in found if isinstance(each, Metadata)]
