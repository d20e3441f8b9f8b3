"""A requirement leads to a snapshot: by the lock, past every redirect, as far as publishers are trusted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, NamedTuple

from kernels.errors import (
    InvalidRepository,
    KernelsError,
    LockError,
    NotInCache,
    NotLocked,
    RevisionNotFound,
    UntrustedSignature,
)
from kernels.models import kernel_status
from kernels.models.lockfile import ContentHash, lock_again
from kernels.models.requirement import Requirement
from kernels.models.snapshot import STATUS_FILE, Snapshot
from kernels.resolver.commit import SettledCommit, settle_commit
from kernels.sources.base import Moved, Source
from kernels.support.concurrency import side_by_side
from kernels.support.warn import warn_once
from kernels.trust.publishers import Admission, admission, ask_trust

if TYPE_CHECKING:
    from kernels.resolver.context import ResolveContext
    from kernels.trust import Rule
    from kernels.trust.publishers import PublisherTrust

__all__ = [
    "FoundSnapshot",
    "OfSnapshot",
    "PinnedCommitGone",
    "Resolved",
    "SettleCommit",
    "SnapshotKey",
    "find_snapshot",
    "follow_redirects",
    "mention_unlocked",
    "resolve_snapshot",
    "source_of",
]


class PinnedCommitGone(LockError, RevisionNotFound):
    """A lock pins a commit that its source no longer has."""


class SnapshotKey(NamedTuple):
    """What identifies a snapshot: its source's name, its repository and its commit."""

    source: str
    repo_id: str
    commit: str


@dataclass(frozen=True)
class FoundSnapshot:
    """A snapshot that a requirement leads to.

    Attributes:
        asked: The requirement that this snapshot answers: the first one, or the one that a redirect names.
        requirement: The same, with its version or revision settled.
        source: Where it comes from.
        snapshot: The repository at a commit.
        lock: The lock that chose the commit, as a message calls it; None where no lock did.
        listed_as: The repository as that lock lists it: under its former name, where it was renamed since.
        version: The version that was first asked for, or settled; a redirect may name a revision instead.
        former: The requirements on the way that name the repository as it was called before it was renamed.
    """

    asked: Requirement
    requirement: Requirement
    source: Source
    snapshot: Snapshot
    lock: str | None = None
    listed_as: str = ""
    version: int | None = None
    former: tuple[Requirement, ...] = ()

    @property
    def key(self) -> SnapshotKey:
        """What identifies the snapshot."""
        return SnapshotKey(self.source.name, self.snapshot.repo_id, self.snapshot.commit)

    def pinned_content(self, context: ResolveContext, variant: str) -> ContentHash | None:
        """The content that the lock pins of a build; None where the lock pins no content of the commit.

        Raises:
            DigestMismatch: The lock pins the content of the commit's builds, and this build is not among them.
        """
        return None if self.lock is None else context.lock.content(self.listed_as, self.snapshot.commit, variant)

    def signing_rule(self, context: ResolveContext) -> Rule | None:
        """Who must have signed the snapshot's builds; None where no policy applies."""
        if context.signing is None or self.source.user_owned:
            return None
        return context.signing.rule(self.snapshot.repo_id)


class OfSnapshot:
    """A decision about a snapshot, with the snapshot's own attributes."""

    found: FoundSnapshot

    @property
    def requirement(self) -> Requirement:
        """The requirement, after redirects."""
        return self.found.requirement

    @property
    def source(self) -> Source:
        """Where the snapshot comes from."""
        return self.found.source

    @property
    def snapshot(self) -> Snapshot:
        """The repository at the commit chosen."""
        return self.found.snapshot

    @property
    def lock(self) -> str | None:
        """The lock that chose the commit, as a message calls it; None where no lock did."""
        return self.found.lock


@dataclass(frozen=True)
class Resolved:
    """Where a requirement leads, and what may be done with the snapshot there.

    Attributes:
        asked: The requirement.
        steps: Each snapshot on the way; all but the last redirect.
        admission: What may be done with the last one: the least that any step on the way allows.
    """

    asked: Requirement
    steps: tuple[FoundSnapshot, ...]
    admission: Admission

    @property
    def found(self) -> FoundSnapshot:
        """The snapshot that it leads to."""
        return self.steps[-1]


#: Chooses the commit of a requirement; the pin is that of the repository's former name, where it was just renamed.
SettleCommit = Callable[[Requirement, Source, SettledCommit | None], SettledCommit]


def resolve_snapshot(
    context: ResolveContext,
    requirement: Requirement,
    source: Source | None = None,
    *,
    settle: SettleCommit | None = None,
) -> Resolved:
    """The snapshot that a requirement leads to, of publishers that are trusted.

    Each step of a redirect is trusted or refused on its own. The Hub is asked about the publisher and the repository
    at the same time.

    Args:
        context: What the call resolves with.
        requirement: The requirement.
        source: Its source; the default is the one that the context's sources name.
        settle: Chooses commits; the default asks the context's lock, then the source.

    Raises:
        UntrustedPublisher: A publisher on the way is not trusted.
        KernelsError: As for `follow_redirects`.
    """
    source = source or source_of(context, requirement)
    if not source.user_owned and settle is None:
        context.lock.find(requirement)  # what the lock refuses is refused before any request
    steps = follow_redirects(context, requirement, source, settle)
    standings: dict[str, PublisherTrust] = {}
    begun: list[FoundSnapshot] = []

    def ask_publisher() -> None:
        standings[requirement.repo_id] = ask_trust(requirement.repo_id, source.publishers, context.trust)

    def take_first_step() -> None:
        begun.append(next(steps))

    tasks: list[Callable[[], None]] = [ask_publisher, take_first_step]
    side_by_side(lambda task: task(), tasks, at_once=2, name="find")
    taken: list[FoundSnapshot] = []
    least = Admission.GRANTED
    for found in chain(begun, steps):
        taken.append(found)
        repo_id, publishers = found.requirement.repo_id, found.source.publishers
        if repo_id not in standings:
            standings[repo_id] = ask_trust(repo_id, publishers, context.trust)
        admitted = admission(repo_id, standings[repo_id], publishers, context.trust, found.snapshot)
        least = max(least, admitted, key=lambda each: each.value)
    _warn_of_moves(context, taken)
    return Resolved(requirement, tuple(taken), least)


def find_snapshot(context: ResolveContext, requirement: Requirement, source: Source | None = None) -> FoundSnapshot:
    """The snapshot that a requirement leads to, whether or not its publisher is trusted. None of its code may run.

    Args:
        context: What the call resolves with.
        requirement: The requirement.
        source: Its source; the default is the one that the context's sources name.

    Raises:
        KernelsError: As for `follow_redirects`.
    """
    steps = list(follow_redirects(context, requirement, source or source_of(context, requirement)))
    _warn_of_moves(context, steps)
    return steps[-1]


def source_of(context: ResolveContext, requirement: Requirement) -> Source:
    """The source of a repository: a folder that `LOCAL_KERNELS` names, unless everything must be locked.

    Raises:
        NotLocked: `LOCAL_KERNELS` names a folder for it, and only locked kernels may be loaded.
    """
    repo_id, lock = requirement.repo_id, context.lock
    source = context.sources.of(repo_id)
    if repo_id in context.sources.overrides:
        if lock.required is not None:
            raise NotLocked(
                f"{requirement} was not loaded: `LOCAL_KERNELS` puts {source.name} in its place, and "
                f"{lock.required}. Take it out of LOCAL_KERNELS."
            )
        if lock.lists(repo_id):
            warn_once(f"{repo_id} is {source.name}, as LOCAL_KERNELS says, and not the commit that {lock.where} pins.")
    return source


def follow_redirects(
    context: ResolveContext, requirement: Requirement, source: Source, settle: SettleCommit | None = None
) -> Iterator[FoundSnapshot]:
    """The snapshot of a requirement, and each one that a redirect leads to, whether or not the publisher is trusted.

    Raises:
        InvalidRepository: A redirect leads in a circle, too far, or nowhere.
        RevisionNotFound: There is no such version or revision, or no longer the commit that a lock pins.
        LockError: The lock lists the repository in another version only; or its content is pinned, and it leads out of
            the lock.
        NotLocked: Only locked kernels may be loaded, and this one is not locked.
    """
    settle = settle or _settle_with(context)
    visited = [requirement]
    former: tuple[Requirement, ...] = ()
    renamed: SettledCommit | None = None
    version = requirement.named_version
    while True:
        asked = visited[-1]
        chosen: SettledCommit | None = None
        try:
            chosen = settle(asked, source, renamed)
            snapshot = source.snapshot(chosen.requirement, chosen.commit)
        except Moved as moved:
            following = Requirement(moved.destination, version=asked.version, revision=asked.revision)
            # A repository under a new name has the commits it had.
            renamed = chosen if chosen is not None and chosen.lock is not None else None
            former = (*former, asked)
        except (NotInCache, RevisionNotFound) as error:
            if chosen is None or chosen.lock is None:
                raise
            raise _error_of_lock(error, chosen) from error
        else:
            version = chosen.requirement.named_version if version is None else version
            found = FoundSnapshot(
                asked, chosen.requirement, source, snapshot, chosen.lock, chosen.listed_as, version, former
            )
            yield found
            status = None if source.user_owned else snapshot.file(STATUS_FILE)
            if status is None:
                return
            following = kernel_status.destination(source.read(snapshot, status, kernel_status.MAX_STATUS_BYTES), asked)
            former, renamed = (), None
            if following.repo_id.lower() == asked.repo_id.lower() and following not in visited:
                raise InvalidRepository(
                    f"{asked} has moved to {following}, the same repository. Ask for that revision, or for another "
                    "version."
                )
            _check_pinned_redirect(context, found, following)
        route = " -> ".join(str(each) for each in [*visited, following])
        if following in visited:
            raise InvalidRepository(f"{visited[0]} moved in a circle: {route}.")
        if len(visited) > kernel_status.MAX_REDIRECTS:
            raise InvalidRepository(f"{visited[0]} moved more than {kernel_status.MAX_REDIRECTS} times: {route}.")
        visited.append(following)
        source = source_of(context, following)
        _check_signing_kept(context, asked.repo_id, following.repo_id, source)


def mention_unlocked(context: ResolveContext, found: FoundSnapshot, following: Requirement) -> None:
    """Warn, once, of a redirect or dependency of a locked kernel that the lock does not list."""
    lock = context.lock
    if found.lock is not None and lock.required is None and not lock.lists(following.repo_id):
        warn_once(
            f"{found.requirement} is locked, and {following.repo_id}, which it leads to, is not: {found.lock} does "
            f"not list it. {lock_again(found.lock, 'kernels lock')}"
        )


def _settle_with(context: ResolveContext) -> SettleCommit:
    def settle(asked: Requirement, source: Source, renamed: SettledCommit | None) -> SettledCommit:
        if renamed is not None and not context.lock.lists(asked.repo_id):
            return renamed._replace(requirement=asked)
        return settle_commit(asked, source, context.lock)

    return settle


def _warn_of_moves(context: ResolveContext, steps: list[FoundSnapshot]) -> None:
    asked = [each for step in steps for each in (*step.former, step.asked)]
    for old, new in pairwise(each.repo_id for each in asked):
        warn_once(f"{old} has moved to {new}; ask for it there.")
    for step, following in pairwise(steps):
        mention_unlocked(context, step, following.former[0] if following.former else following.asked)


def _check_signing_kept(context: ResolveContext, old: str, new: str, source: Source) -> None:
    """Refuse a redirect out of a required signature: the file that redirects is not signed."""
    signing = context.signing
    if signing is None or source.user_owned or not signing.rule(old).required or signing.rule(new).required:
        return
    raise UntrustedSignature(
        f"{old} must be signed, as {signing.where} says, and has moved to {new}, which need not be. Require a "
        f"signature of {new} as well, or ask for it by its own name."
    )


def _check_pinned_redirect(context: ResolveContext, found: FoundSnapshot, following: Requirement) -> None:
    """Refuse a redirect out of pinned content: a commit never changes, so a kernel's commit cannot become a redirect.

    Of a commit that was a redirect when it was locked, no build is pinned.
    """
    lock = context.lock
    if found.lock is None or not lock.pins_content(found.listed_as, found.snapshot.commit):
        return
    listed = lock.lists(following.repo_id)
    if not listed or lock.pins_builds(found.listed_as, found.snapshot.commit):
        unlisted = "" if listed else f", which {found.lock} does not list"
        raise LockError(
            f"{found.requirement} is locked with its content, and now leads to {following.repo_id}{unlisted}: "
            f"{found.source.name} has changed since it was locked. If that is intended: "
            f"{lock_again(found.lock, 'kernels lock --rehash')}"
        )


def _error_of_lock(error: KernelsError, chosen: SettledCommit) -> KernelsError:
    """The error about a commit that a lock chose."""
    repo_id, lock = chosen.requirement.repo_id, chosen.lock or ""
    message = f"{error} {lock} pins {repo_id} to commit {chosen.commit[:12]}."
    if not isinstance(error, RevisionNotFound):
        return type(error)(message)
    return PinnedCommitGone(f"{message} {lock_again(lock, f'kernels lock --upgrade-repo {repo_id}')}")
