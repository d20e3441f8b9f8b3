"""What a requirement leads to, and the sources that were passed over on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from kernels.errors import (
    BackendUnavailable,
    HubUnavailable,
    KernelsError,
    NoSuitableBuild,
    NotInCache,
    PublisherUnknown,
    RepositoryNotFound,
    RevisionNotFound,
    UnsupportedSpecifier,
)
from kernels.models.requirement import Requirement
from kernels.models.snapshot import Snapshot
from kernels.sources.base import Source
from kernels.support.text import indented
from kernels.trust.publishers import Admission

if TYPE_CHECKING:
    from kernels.models.lockfile import ContentHash
    from kernels.resolver.context import ResolveContext
    from kernels.trust.policy import Rule

__all__ = ["FoundSnapshot", "Passed", "SnapshotKey", "leads_on", "why_passed", "with_passed"]

_Error = TypeVar("_Error", bound=KernelsError)

#: A source after which the next one was asked, and what it does not have.
Passed = tuple[Source, KernelsError]


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
        admission: What may be done with it: the least that any step on the way allows.
        former: The requirements on the way that name the repository as it was called before it was renamed.
        redirects: The snapshots before this one, each of which redirects to the next.
        passed: The sources that were asked before, and what they do not have.
        final: Whether no other source is asked, whatever is wrong with this one: an error says all there is to say.
    """

    asked: Requirement
    requirement: Requirement
    source: Source
    snapshot: Snapshot
    lock: str | None = None
    listed_as: str = ""
    admission: Admission = Admission.GRANTED
    former: tuple[Requirement, ...] = ()
    redirects: tuple[FoundSnapshot, ...] = ()
    passed: tuple[Passed, ...] = ()
    final: bool = True

    @property
    def version(self) -> int | None:
        """The version that was first asked for, or picked; a redirect may name a revision instead."""
        first = self.steps[0]
        asked = [*first.former, first.asked][0]
        versions = [asked.named_version, *(each.requirement.named_version for each in self.steps)]
        return next((each for each in versions if each is not None), None)

    @property
    def key(self) -> SnapshotKey:
        """What identifies the snapshot."""
        return SnapshotKey(self.source.endpoint or self.source.name, self.snapshot.repo_id, self.snapshot.commit)

    @property
    def at(self) -> str:
        """Its commit, and what pins it, as a message has them behind a name: ` (commit 0123456789ab)`."""
        pinned = "" if self.lock is None else f", pinned by {self.lock}"
        return f" (commit {self.snapshot.commit[:12]}{pinned})" if self.snapshot.commit else ""

    @property
    def steps(self) -> tuple[FoundSnapshot, ...]:
        """Each snapshot on the way; all but the last one redirect."""
        return (*self.redirects, self)

    def pinned_content(self, context: ResolveContext, variant: str) -> ContentHash | None:
        """The content that the lock pins of a build; None where the lock pins no content of the commit.

        Raises:
            DigestMismatch: The lock pins the content of the commit's builds, and this build is not among them.
        """
        return None if self.lock is None else context.lock.content(self.listed_as, self.snapshot.commit, variant)

    def signing_rule(self, context: ResolveContext) -> Rule | None:
        """Who must have signed the snapshot's builds; None where they need no signature."""
        if context.signing is None or self.source.user_owned:
            return None
        return context.signing.required_rule(self.snapshot.repo_id)


def leads_on(error: BaseException) -> bool:
    """Whether an error of a source says that it does not have something, so that the next source is asked.

    Example:
        >>> from kernels.errors import UntrustedPublisher
        >>> leads_on(RevisionNotFound("no version 2")), leads_on(UntrustedPublisher("not trusted"))
        (True, False)
    """
    absent = (RepositoryNotFound, RevisionNotFound, NotInCache, NoSuitableBuild)
    if isinstance(error, HubUnavailable):
        return not error.refused
    return isinstance(error, absent) and not isinstance(error, (BackendUnavailable, UnsupportedSpecifier))


def why_passed(asked: object, source: Source, error: KernelsError) -> str:
    """Why the source after this one was asked, as the beginning of a sentence.

    Args:
        asked: What was asked for.
        source: The source.
        error: What it does not have.
    """
    if isinstance(error, NoSuitableBuild):
        return f"{source.name} has no suitable build of {asked}"
    if isinstance(error, PublisherUnknown):
        return f"{source.name} does not know whether the publisher of {asked} is trusted"
    if isinstance(error, HubUnavailable):
        return f"{source.name} did not give {asked} ({str(error).partition(chr(10))[0].rstrip('.')})"
    return f"{asked} is not in {source.name}"


def with_passed(error: _Error, passed: Sequence[Passed]) -> _Error:
    """An error, with what the other sources said."""
    if not passed:
        return error
    said = [f"  {source.name}: {indented(str(each))}" for source, each in passed]
    return error.reworded("\n".join([f"{error}", "Other addresses in KERNELS_HUB were asked too:", *said]))
