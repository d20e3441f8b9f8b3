"""What a run takes: the requirements of a request, and the commits and builds that they lead to.

A commit that the mirror has whole costs one request for the branches and one read of the repository's index: what it
depends on is read from the index too. Any other is planned as a download is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from kernels.errors import InvalidMetadata, KernelsError, NoSuitableBuild, RequestError
from kernels.models import kernel_status
from kernels.models.lockfile import Lock
from kernels.models.metadata import Metadata
from kernels.models.mirror import MirrorCommit, RepositoryIndex
from kernels.models.requirement import Requirement, is_revision
from kernels.models.snapshot import STATUS_FILE, Heads, Snapshot
from kernels.operations.download_plan import (
    PROBLEMS,
    DownloadFailure,
    KernelPlan,
    WantedBuild,
    deduplicate_builds,
    is_dependency_only,
    plan_download,
)
from kernels.operations.mirroring.request import LeftOut, MirrorRequest, parse_date
from kernels.resolver.commit import fresh_heads
from kernels.resolver.context import ResolveContext
from kernels.resolver.find import check_move
from kernels.resolver.metadata_of import read_metadata
from kernels.resolver.target import Target
from kernels.sources.base import Moved, Source
from kernels.support.formatting import format_text
from kernels.trust.publishers import Admission, admission, ask_trust

__all__ = [
    "Examined",
    "MirrorChoice",
    "UnchangedCommit",
    "WantedRepository",
    "examine",
    "expand",
    "gather",
    "verdict",
]

_NO_VERSION = "it has no versions, and no branch main"


@dataclass(frozen=True)
class MirrorChoice:
    """A requirement to take.

    Attributes:
        requirement: The requirement.
        context: What it is resolved with; its lock chooses the commit.
        named: Whether the user named it. Of a repository that a listing named, no build to take is no failure.
    """

    requirement: Requirement
    context: ResolveContext
    named: bool

    @property
    def key(self) -> tuple[str, str | None, str | None]:
        """What identifies it."""
        lock = self.context.lock.lock
        return self.requirement.repo_id, self.requirement.branch, None if lock is None else lock.where


@dataclass(frozen=True)
class UnchangedCommit:
    """A commit that the mirror has whole.

    Attributes:
        index: The repository's index, or the commit's document.
        commit: The commit.
        names: Its branches and tags.
    """

    index: RepositoryIndex
    commit: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Examined:
    """What a choice leads to.

    Attributes:
        unchanged: The commit, if the mirror has it whole.
        plans: The plans otherwise.
        following: More choices: dependencies and redirects of an unchanged commit.
        failures: Why it cannot be taken.
        left_out: What is not taken, which is no failure.
    """

    unchanged: UnchangedCommit | None = None
    plans: tuple[KernelPlan, ...] = ()
    following: tuple[MirrorChoice, ...] = ()
    failures: tuple[DownloadFailure, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


@dataclass
class WantedRepository:
    """What is taken of one repository.

    Attributes:
        repo_id: The repository.
        source: Where it comes from.
        branches, tags: Those to set.
        pinned: Branches whose commits a lockfile chose.
        moved_to: Its new name, if it was renamed.
        snapshots: The commits to take.
        builds: The builds to take, by commit and name.
    """

    repo_id: str
    source: Source
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    pinned: dict[str, str] = field(default_factory=dict)
    moved_to: str | None = None
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    builds: dict[tuple[str, str], WantedBuild] = field(default_factory=dict)


# From a request to choices


def expand(
    request: MirrorRequest,
    context: ResolveContext,
    repo_id: str,
    started: float,
    *,
    named: bool,
    former: tuple[Requirement, ...] = (),
) -> tuple[list[MirrorChoice], list[LeftOut]]:
    """The versions of a repository to take.

    Args:
        request: The request.
        context: What they are resolved with.
        repo_id: The repository.
        started: When the run began, in seconds since 1970.
        named: As in `MirrorChoice`.
        former: The names that led to this one.

    Raises:
        KernelsError: The repository cannot be read, or has moved in a circle.
    """
    source = context.sources.default
    heads: Heads | None = None
    try:
        heads = _heads(source, repo_id, started)
    except Moved as moved:
        # The plan of the old name records where it has moved; each of its versions is one of the new name.
        visited = (*former, Requirement(repo_id))
        check_move(visited, Requirement(moved.destination))
        new, left_out = expand(request, context, moved.destination, started, named=named, former=visited)
        old = [Requirement(repo_id, each.requirement.version, each.requirement.revision) for each in new[:1]]
        return [*(MirrorChoice(each, context, named) for each in old), *new], left_out
    if request.revision is not None:
        requirements = [Requirement(repo_id, revision=request.revision)]
    else:
        requirements = [Requirement(repo_id, revision=f"v{version}") for version in request.versions.of(heads)]
    if not requirements and "main" in heads.branches:
        requirements = [Requirement(repo_id, revision="main")]
    if not requirements:
        if not named:
            return [], [LeftOut(repo_id, _NO_VERSION)]
        raise RequestError(f"{repo_id}: {_NO_VERSION}.")
    choices: list[MirrorChoice] = []
    left_out = []
    for each in requirements:
        reason = None if request.since is None else _older(source, heads, each, request.since)
        if reason is None:
            choices.append(MirrorChoice(each, context, named))
        else:
            left_out.append(LeftOut(str(each), reason))
    return choices, left_out


def _heads(source: Source, repo_id: str, started: float) -> Heads:
    return source.heads(repo_id) if source.offline else fresh_heads(source, repo_id, started)


def _older(source: Source, heads: Heads, requirement: Requirement, since: float) -> str | None:
    """Why a commit is not taken, if it was made before a time; None if it is to be taken."""
    commit = requirement.commit or heads.commit(requirement.branch or "")
    date = None if commit is None else source.commit_date(requirement.repo_id, commit)
    made = None if date is None else parse_date(date)
    if made is None or made >= since:
        return None
    return f"its commit was made on {format_text(date, 40)}"


# From a choice to plans


def examine(
    choice: MirrorChoice,
    machines: Sequence[Target | None],
    known: Callable[[str, str | None], RepositoryIndex | None],
    pins: Lock | None,
    started: float,
) -> Examined:
    """What a choice leads to.

    Args:
        choice: The choice.
        machines: The machines to choose builds for; None for all builds.
        known: The index of a repository in the mirror, or the document of one of its commits.
        pins: The lockfile that the choice is from.
        started: When the run began, in seconds since 1970.
    """
    context, requirement = choice.context, choice.requirement
    try:
        if list(machines) == [None] and pins is None:
            unchanged = _unchanged(choice, known, started)
            if unchanged is not None:
                return unchanged
    except Moved:
        pass  # the plan follows it
    except PROBLEMS as error:
        return Examined(failures=(DownloadFailure(str(requirement), None, error, requirement),))
    plans, failures, left_out = [], [], []
    for machine in machines:
        planned = plan_download(context, requirement, machine)
        if isinstance(planned, KernelPlan):
            plans.append(planned)
        elif pins is not None and is_dependency_only(planned, context, pins):
            continue
        elif not choice.named and isinstance(planned.error, NoSuitableBuild):
            reason = "it has no builds" if machine is None else f"it has no build for {machine}"
            left_out.append(LeftOut(planned.kernel, reason))
        else:
            failures.append(planned)
    for plan in plans:
        left_out += _invalid_builds(context, plan)
    return Examined(plans=tuple(plans), failures=tuple(failures), left_out=tuple(dict.fromkeys(left_out)))


def _unchanged(
    choice: MirrorChoice, known: Callable[[str, str | None], RepositoryIndex | None], started: float
) -> Examined | None:
    """The choice, if the mirror has its commit whole, with the names and the publisher that the origin has now."""
    context, requirement = choice.context, choice.requirement
    repo_id, source = requirement.repo_id, context.sources.default
    if context.signing is not None and context.signing.required_rule(repo_id):
        return None  # the policy may be newer than the mirror
    heads = None if requirement.commit is not None else _heads(source, repo_id, started)
    index = known(repo_id, None)
    if index is None or index.moved_to is not None or index.origin.url != source.origin(repo_id):
        return None
    commit = requirement.commit if heads is None else _commit_of(heads, requirement)
    if commit is None or (commit not in index.commits and commit not in index.older):
        return None
    document = index if commit in index.commits else known(repo_id, commit)
    entry = None if document is None else document.commits.get(commit)
    if document is None or entry is None or entry.absent:
        return None
    names = _names(heads, requirement, commit)
    if any((index.branches if kind == "branch" else index.tags).get(name) != commit for name, kind in names.items()):
        return None
    trust = ask_trust(repo_id, source.publishers, context.trust)
    if admission(repo_id, trust, source.publishers, context.trust) is not Admission.GRANTED:
        return None
    trusted = verdict(source, repo_id)
    if trusted is not None and trusted != index.publisher.trusted:
        return None
    following = [MirrorChoice(each, context, choice.named) for each in _leads_to(document, entry, requirement)]
    return Examined(UnchangedCommit(document, commit, tuple(names)), following=tuple(following))


def _commit_of(heads: Heads, requirement: Requirement) -> str | None:
    if requirement.branch is not None:
        return heads.commit(requirement.branch)
    newest = next(iter(heads.versions.values()), "main")
    return heads.branches.get(newest)


def _names(heads: Heads | None, requirement: Requirement, commit: str) -> dict[str, str]:
    """The names of a commit to record: the branch that was asked for, and all tags; the values are their kinds."""
    if heads is None:
        return {}
    names = {name: "tag" for name, at in heads.tags.items() if at == commit and is_revision(name)}
    branch = (requirement.branch or next(iter(heads.versions.values()), "main")).removeprefix("refs/heads/")
    if heads.branches.get(branch) == commit and not (requirement.branch or "").startswith("refs/tags/"):
        names[branch] = "branch"
    return names


def _leads_to(document: RepositoryIndex, entry: MirrorCommit, requirement: Requirement) -> Iterable[Requirement]:
    """What a commit in the mirror depends on, and where it redirects to."""
    for content in entry.variants.values():
        text = document.builds[content].metadata
        if text is not None:
            try:
                yield from Metadata.from_bytes(text.encode()).kernel_depends
            except InvalidMetadata:
                continue  # a build that this version cannot read, and no reader of it loads
    status = entry.texts.get(STATUS_FILE)
    if status is not None:
        yield kernel_status.destination(status.encode(), requirement)


def _invalid_builds(context: ResolveContext, plan: KernelPlan) -> list[LeftOut]:
    """The builds that a plan of every build does not have, and why."""
    if plan.target is not None:
        return []
    found = {planned.found.key: planned.found for planned in plan.tree.builds}
    planned = {(each.found.key, each.variant) for each in plan.tree.builds}
    left_out = []
    for key, each in found.items():
        for variant in each.snapshot.builds:
            if (key, variant) not in planned:
                try:
                    read_metadata(each.source, each.snapshot, variant)
                    reason = "its metadata is not valid"
                except KernelsError as error:
                    reason = format_text(error)
                left_out.append(LeftOut(f"{each.snapshot.repo_id} {variant}", reason))
    return left_out


# From plans to repositories


def gather(plans: Iterable[KernelPlan]) -> dict[str, WantedRepository]:
    """What plans take of each repository."""
    plans = list(plans)
    wanted: dict[str, WantedRepository] = {}

    def of(repo_id: str, source: Source) -> WantedRepository:
        return wanted.setdefault(repo_id, WantedRepository(repo_id, source))

    for plan in plans:
        for found in plan.tree.found:
            for step in found.steps:
                names = [*(each.repo_id for each in step.former), step.snapshot.repo_id]
                for old, new in pairwise(names):
                    if old.lower() != new.lower():  # a Hub ignores case, and a mirror has one spelling
                        of(old, step.source).moved_to = new
                each = of(step.snapshot.repo_id, step.source)
                each.snapshots[step.snapshot.commit] = step.snapshot
                _add_names(each, step.requirement, step.snapshot.commit, step.lock is not None)
    for build in deduplicate_builds(plans):
        planned = build.planned
        each = of(planned.snapshot.repo_id, planned.source)
        each.snapshots[planned.snapshot.commit] = planned.snapshot
        each.builds[planned.snapshot.commit, planned.variant] = build
    return wanted


def _add_names(wanted: WantedRepository, requirement: Requirement, commit: str, locked: bool) -> None:
    if locked:
        name = (requirement.branch or "").removeprefix("refs/heads/")
        if name and requirement.commit is None and not commit.startswith(name):
            wanted.pinned[name] = commit
        return
    if requirement.commit is None:
        heads = wanted.source.heads(wanted.repo_id)
        for name, kind in _names(heads, requirement, commit).items():
            (wanted.branches if kind == "branch" else wanted.tags)[name] = commit


def verdict(source: Source, repo_id: str) -> bool | None:
    """Whether the origin marks the publisher of a repository as trusted; None if it is not known."""
    return None if source.publishers is None else source.publishers.trusts(repo_id)
