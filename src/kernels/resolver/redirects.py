"""A requirement is followed to its snapshot, past every redirect.

Redirects are limited in number. None leads in a circle, or out of a required signature or pinned content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from kernels.errors import (
    InvalidRepository,
    KernelsError,
    LockError,
    NotInCache,
    NotLocked,
    PinnedCommitGone,
    RevisionNotFound,
    UntrustedSignature,
)
from kernels.models.requirement import Requirement
from kernels.models.snapshot import STATUS_FILE, Snapshot
from kernels.resolver.commit import PickedCommit, pick_commit
from kernels.resolver.ordered_sources import PassedOver, ask_in_order
from kernels.sources.base import Moved, Source
from kernels.support.logs import logger
from kernels.support.warn import warn_once

if TYPE_CHECKING:
    from kernels.models.lockfile import ContentHash
    from kernels.resolver.context import ResolveContext
    from kernels.trust.policy import Rule

__all__ = ["FoundSnapshot", "PickCommit", "SnapshotKey", "check_move", "follow_redirects", "sources_of"]

_log = logger(__name__)


#: The most moves from one repository to the next.
MAX_REDIRECTS = 5


class SnapshotKey(NamedTuple):
    """What identifies a snapshot: its source's URL or name, its repository and its commit."""

    source: str
    repo_id: str
    commit: str


class FoundSnapshot(msgspec.Struct, frozen=True):
    """A snapshot that a requirement leads to.

    Attributes:
        asked: The requirement that this snapshot answers: the first one, or the one that a redirect names.
        requirement: The same, with the version or revision that was picked.
        source: Where it comes from.
        snapshot: The repository at a commit.
        lock: The lock that chose the commit, as a message calls it; None where no lock did.
        listed_as: The repository as that lock lists it: under its former name, where it was renamed since.
        version: The version that was first asked for, or picked; a redirect may name a revision instead.
        former: The requirements on the way that name the repository as it was called before it was renamed.
        passed: The sources that were asked before, and why they were passed over.
        more: Whether there is a source that was not asked.
    """

    asked: Requirement
    requirement: Requirement
    source: Source
    snapshot: Snapshot
    lock: str | None = None
    listed_as: str = ""
    version: int | None = None
    former: tuple[Requirement, ...] = ()
    passed: tuple[PassedOver, ...] = ()
    more: bool = False

    @property
    def key(self) -> SnapshotKey:
        """What identifies the snapshot."""
        return SnapshotKey(self.source.endpoint or self.source.name, self.snapshot.repo_id, self.snapshot.commit)

    def pinned_content(self, context: ResolveContext, variant: str) -> ContentHash | None:
        """The content that the lock pins of a build; None where the lock pins no content of the commit.

        Raises:
            DigestMismatch: The lock pins the content of the commit's builds, and this build is not among them.
        """
        return None if self.lock is None else context.lock.content(self.listed_as, self.snapshot.commit, variant)

    def signing_rule(self, context: ResolveContext) -> Rule | None:
        """Who must have signed the snapshot's builds; None where they need not be signed."""
        if context.signing is None or self.source.user_owned:
            return None
        return context.signing.required_rule(self.snapshot.repo_id)


#: Chooses the commit of a requirement; the pin is that of the repository's former name, where it was just renamed.
PickCommit = Callable[[Requirement, Source, PickedCommit | None], PickedCommit]


class _Answer(NamedTuple):
    """What a source says of a requirement: its snapshot, or that the repository was renamed."""

    source: Source
    chosen: PickedCommit | None
    snapshot: Snapshot | None
    destination: str = ""


def follow_redirects(
    context: ResolveContext,
    requirement: Requirement,
    sources: Sequence[Source],
    pick: PickCommit | None = None,
    unsuitable: Mapping[Requirement, Sequence[PassedOver]] | None = None,
) -> Iterator[FoundSnapshot]:
    """The snapshot of a requirement, and each one that a redirect leads to, whether or not the publisher is trusted.

    Args:
        context: What the call resolves with.
        requirement: The requirement.
        sources: Its sources, in the order in which they are asked.
        pick: Chooses commits; the default asks the context's lock, then the source.
        unsuitable: By requirement, the sources that are not asked again: the first ones.

    Raises:
        SourcesExhausted: None of several sources has it.
        InvalidRepository: A redirect leads in a circle, too far, or nowhere.
        RevisionNotFound: There is no such version or revision.
        PinnedCommitGone: The source no longer has the commit that a lock pins.
        LockError: The lock lists the repository in another version only; or its content is pinned, and it leads out of
            the lock.
        NotLocked: Only locked kernels may be loaded, and this one is not locked.
    """
    pick = pick or _pick_with(context)
    visited = [requirement]
    former: tuple[Requirement, ...] = ()
    renamed: PickedCommit | None = None
    version = requirement.named_version
    while True:
        asked = visited[-1]
        answer, passed = _ask(context, asked, sources, pick, renamed, (unsuitable or {}).get(asked, ()))
        source, chosen, snapshot = answer.source, answer.chosen, answer.snapshot
        if chosen is None or snapshot is None:
            following = Requirement(answer.destination, version=asked.version, revision=asked.revision)
            # A repository under a new name has the commits it had.
            renamed = chosen if chosen is not None and chosen.lock is not None else None
            former = (*former, asked)
        else:
            version = chosen.requirement.named_version if version is None else version
            found = FoundSnapshot(
                asked,
                chosen.requirement,
                source,
                snapshot,
                chosen.lock,
                chosen.listed_as,
                version,
                former,
                passed,
                more=len(passed) + 1 < len(sources),
            )
            yield found
            status = None if source.user_owned else snapshot.file(STATUS_FILE)
            if status is None:
                return
            from kernels.models import kernel_status

            following = kernel_status.destination(source.read(snapshot, status, kernel_status.MAX_STATUS_BYTES), asked)
            former, renamed = (), None
            if following.repo_id.lower() == asked.repo_id.lower() and following not in visited:
                raise InvalidRepository(
                    f"{asked} has moved to {following}, the same repository. Ask for that revision, or for another "
                    "version."
                )
            _check_pinned_redirect(context, found, following)
        check_move(visited, following)
        visited.append(following)
        sources = sources_of(context, following)
        _check_signing_kept(context, asked.repo_id, following.repo_id, sources[0])


def check_move(visited: Sequence[Requirement], following: Requirement) -> None:
    """Check one more move of a repository.

    Args:
        visited: The requirements on the way, the first one first.
        following: Where the last of them leads.

    Raises:
        InvalidRepository: It leads back to one of them, or there are too many.
    """
    route = " -> ".join(str(each) for each in [*visited, following])
    if following in visited:
        raise InvalidRepository(f"{visited[0]} moved in a circle: {route}.")
    if len(visited) > MAX_REDIRECTS:
        raise InvalidRepository(f"{visited[0]} moved more than {MAX_REDIRECTS} times: {route}.")


def _ask(
    context: ResolveContext,
    asked: Requirement,
    sources: Sequence[Source],
    pick: PickCommit,
    renamed: PickedCommit | None,
    passed: Sequence[PassedOver],
) -> tuple[_Answer, tuple[PassedOver, ...]]:
    """The snapshot of a requirement in the first source that has it."""

    def ask(source: Source) -> _Answer:
        chosen: PickedCommit | None = None
        try:
            chosen = pick(asked, source, renamed)
            return _Answer(source, chosen, source.snapshot(chosen.requirement, chosen.commit))
        except Moved as moved:
            return _Answer(source, chosen, None, moved.destination)
        except (NotInCache, RevisionNotFound) as error:
            if chosen is None or chosen.lock is None:
                raise
            raise _error_of_lock(error, chosen) from error

    # All ranks of a job use one commit, so a branch has to be that of one source.
    alone = asked.commit is not None or renamed is not None or context.lock.lists(asked.repo_id)
    question = None if alone else (asked.repo_id, asked.branch or "")
    return ask_in_order(sources, ask, question=question, passed=passed, preliminary=_is_of_another_tool)


def _is_of_another_tool(answer: _Answer) -> bool:
    """Whether the files are in the cache, and the source never listed them: another source may have done so."""
    return answer.snapshot is not None and not answer.snapshot.listed


def sources_of(context: ResolveContext, requirement: Requirement) -> tuple[Source, ...]:
    """The sources of a repository, in the order in which they are asked.

    It is only a folder that `LOCAL_KERNELS` names, unless everything must be locked.

    Raises:
        NotLocked: `LOCAL_KERNELS` names a folder for it, and only locked kernels may be loaded.
    """
    repo_id, lock = requirement.repo_id, context.lock
    sources = context.sources.all_of(repo_id)
    if repo_id in context.sources.overrides:
        name = sources[0].name
        if lock.required is not None:
            raise NotLocked(
                f"{requirement} was not loaded: `LOCAL_KERNELS` puts {name} in its place, and {lock.required}. Take it "
                "out of LOCAL_KERNELS."
            )
        if lock.lists(repo_id):
            warn_once(_log, f"{repo_id} is {name}, as LOCAL_KERNELS says, and not the commit that {lock.where} pins.")
    return sources


def _pick_with(context: ResolveContext) -> PickCommit:
    def pick(asked: Requirement, source: Source, renamed: PickedCommit | None) -> PickedCommit:
        if renamed is not None and not context.lock.lists(asked.repo_id):
            return renamed._replace(requirement=asked)
        return pick_commit(asked, source, context.lock)

    return pick


def _check_signing_kept(context: ResolveContext, old: str, new: str, source: Source) -> None:
    """Refuse a redirect out of a required signature: the file that redirects is not signed."""
    signing = context.signing
    if signing is None or source.user_owned or not signing.required_rule(old) or signing.required_rule(new):
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
        from kernels.models.lockfile import lock_again

        unlisted = "" if listed else f", which {found.lock} does not list"
        raise LockError(
            f"{found.requirement} is locked with its content, and now leads to {following.repo_id}{unlisted}: "
            f"{found.source.name} has changed since it was locked. If that is intended: "
            f"{lock_again(found.lock, 'kernels lock --rehash')}"
        )


def _error_of_lock(error: KernelsError, chosen: PickedCommit) -> KernelsError:
    """The error about a commit that a lock chose."""
    repo_id, lock = chosen.requirement.repo_id, chosen.lock or ""
    message = f"{error} {lock} pins {repo_id} to commit {chosen.commit[:12]}."
    if not isinstance(error, RevisionNotFound):
        return error.reworded(message)
    from kernels.models.lockfile import lock_again

    return PinnedCommitGone(f"{message} {lock_again(lock, f'kernels lock --upgrade-repo {repo_id}')}")
