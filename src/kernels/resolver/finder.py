"""A requirement leads to a snapshot: by the lock, past every redirect, as far as publishers are trusted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, cast

from kernels.errors import (
    InvalidRepository,
    KernelsError,
    LockError,
    NotInCache,
    NotLocked,
    RevisionNotFound,
    UntrustedSignature,
)
from kernels.models import redirect
from kernels.models.lockfile import lock_again
from kernels.models.requirement import Requirement
from kernels.models.snapshot import STATUS_FILE, Snapshot
from kernels.resolver.commit import Pin, pin
from kernels.resolver.lock_scope import NO_LOCK, LockInForce
from kernels.sources.base import Moved, Source
from kernels.support.concurrency import side_by_side
from kernels.support.warn import warn_once
from kernels.trust.publishers import Admission, admission, ask_trust

if TYPE_CHECKING:
    from kernels.sources import Sources
    from kernels.trust import Policy
    from kernels.trust.publishers import PublisherTrust, TrustPolicy

__all__ = ["Finder", "Found", "Route"]


@dataclass(frozen=True)
class Found:
    """A snapshot that a requirement leads to.

    Attributes:
        requirement: What was asked for, or what a redirect asks for instead.
        source: Where it comes from.
        snapshot: The repository at a commit.
        lock: The lock that chose the commit, as a message calls it; None where no lock did.
        listed_as: The repository as that lock lists it: under its former name, where it was renamed since.
        version: The version that was first asked for, or settled; a redirect may name a revision instead.
    """

    requirement: Requirement
    source: Source
    snapshot: Snapshot
    lock: str | None = None
    listed_as: str = ""
    version: int | None = None


@dataclass(frozen=True)
class Route:
    """How something asked for led to a snapshot.

    Attributes:
        asked: What was asked for.
        steps: Each snapshot on the way; all but the last redirect.
    """

    asked: Requirement
    steps: tuple[Found, ...]

    @property
    def found(self) -> Found:
        """What it led to."""
        return self.steps[-1]


@dataclass(frozen=True)
class Finder:
    """Finds snapshots.

    Args:
        sources: Where kernels are found.
        policy: What may be loaded beside what trusted publishers offer.
        lock: The lock in force.
        signed: What must be signed, and by whom; None for nothing.
    """

    sources: Sources
    policy: TrustPolicy
    lock: LockInForce = NO_LOCK
    signed: Policy | None = None

    def source(self, requirement: Requirement) -> Source:
        """The source of a repository. A folder that stands in for it is the user's choice, but not where all is locked.

        Raises:
            NotLocked: `LOCAL_KERNELS` names a folder for it, and only locked kernels may be loaded.
        """
        repo_id = requirement.repo_id
        source = self.sources.of(repo_id)
        if repo_id in self.sources.overrides:
            if self.lock.required is not None:
                raise NotLocked(
                    f"{requirement} was not loaded: `LOCAL_KERNELS` puts {source.name} in its place, and "
                    f"{self.lock.required}. Take it out of LOCAL_KERNELS."
                )
            if self.lock.lists(repo_id):
                where = self.lock.where
                warn_once(f"{repo_id} is {source.name}, as LOCAL_KERNELS says, and not the commit that {where} pins.")
        return source

    def find(self, requirement: Requirement, source: Source) -> tuple[list[Found], Admission]:
        """The steps to the snapshot that a requirement leads to, the last, and what may be done with it.

        Each step of a redirect is trusted or refused on its own. The Hub is asked about the publisher while it is asked
        about the repository: neither waits for the other.

        Raises:
            UntrustedPublisher: A publisher on the way is not trusted.
            KernelsError: As for `follow`.
        """
        if not source.user_owned:
            self.lock.find(requirement)  # what it refuses is refused before anybody is asked
        steps = self.follow(requirement, source)
        standings: dict[str, PublisherTrust] = {}
        first = requirement.repo_id

        def look(what: str) -> object:
            return ask_trust(first, source.publishers, self.policy) if what == "publisher" else next(steps)

        standing, begun = side_by_side(look, ["publisher", "repository"], at_once=2, name="find")
        standings[first] = cast("PublisherTrust", standing)
        found: Found | None = cast("Found", begun)
        taken: list[Found] = []
        worst = Admission.GRANTED
        while found is not None:
            taken.append(found)
            repo_id, publishers = found.requirement.repo_id, found.source.publishers
            if repo_id not in standings:
                standings[repo_id] = ask_trust(repo_id, publishers, self.policy)
            admitted = admission(repo_id, standings[repo_id], publishers, self.policy, found.snapshot)
            worst = max(worst, admitted, key=lambda each: each.value)
            found = next(steps, None)
        return taken, worst

    def follow(self, requirement: Requirement, source: Source) -> Iterator[Found]:
        """The snapshot asked for, and each one that a redirect leads to, whoever publishes it.

        Raises:
            InvalidRepository: A redirect leads in a circle, too far, or nowhere.
            RevisionNotFound: There is no such version or revision, or no longer the commit that a lock pins.
            LockError: The lock lists the repository, but not what is asked for; or its content is pinned, and it leads
                out of the lock.
            NotLocked: Only locked kernels may be loaded, and this one is not.
        """
        visited = [requirement]
        renamed: Pin | None = None
        version = requirement.named_version
        while True:
            asked = visited[-1]
            meant: Pin | None = None
            try:
                if renamed is not None and not self.lock.lists(asked.repo_id):
                    meant = renamed._replace(requirement=asked)
                else:
                    meant = pin(asked, source, self.lock)
                snapshot = source.snapshot(meant.requirement, meant.commit)
                version = meant.requirement.named_version if version is None else version
                found = Found(meant.requirement, source, snapshot, meant.lock, meant.listed_as, version)
            except Moved as moved:
                following = Requirement(moved.destination, version=asked.version, revision=asked.revision)
                # A repository under a new name has the commits it had.
                renamed = meant if meant is not None and meant.lock is not None else None
            except (NotInCache, RevisionNotFound) as error:
                if meant is None or meant.lock is None:
                    raise
                raise _of_lock(error, meant) from error
            else:
                yield found
                # Said now, when the one who asked has admitted the destination.
                for old, new in pairwise(each.repo_id for each in visited):
                    warn_once(f"{old} has moved to {new}; ask for it there.")
                status = None if source.user_owned else found.snapshot.file(STATUS_FILE)
                if status is None:
                    return
                following = redirect.destination(source.read(found.snapshot, status, redirect.MAX_STATUS_BYTES), asked)
                renamed = None
                if following.repo_id.lower() == asked.repo_id.lower() and following not in visited:
                    raise InvalidRepository(
                        f"{asked} has moved to {following}, the same repository. Ask for that revision, or for another "
                        "version."
                    )
                self._check_pinned_redirect(found, following)
                self.mention_unlocked(found, following)
            route = " -> ".join(str(each) for each in [*visited, following])
            if following in visited:
                raise InvalidRepository(f"{visited[0]} moved in a circle: {route}.")
            if len(visited) > redirect.MAX_REDIRECTS:
                raise InvalidRepository(f"{visited[0]} moved more than {redirect.MAX_REDIRECTS} times: {route}.")
            visited.append(following)
            source = self.source(following)
            self._check_demand(asked.repo_id, following.repo_id, source)

    def _check_demand(self, old: str, new: str, source: Source) -> None:
        """Refuse a way out of having to be signed: what says where a repository has moved to is signed by nobody."""
        signed = self.signed
        if signed is None or source.user_owned or not signed.rule(old).required or signed.rule(new).required:
            return
        raise UntrustedSignature(
            f"{old} must be signed, as {signed.where} says, and has moved to {new}, which need not be. Require a "
            f"signature of {new} as well, or ask for it by its own name."
        )

    def _check_pinned_redirect(self, found: Found, following: Requirement) -> None:
        """Refuse a way out of pinned content: a commit never changes, so what was a kernel does not lead elsewhere.

        Of a commit that led elsewhere when it was locked, no build is pinned.
        """
        if found.lock is None or not self.lock.pins_content(found.listed_as, found.snapshot.commit):
            return
        listed = self.lock.lists(following.repo_id)
        if not listed or self.lock.pins_builds(found.listed_as, found.snapshot.commit):
            unlisted = "" if listed else f", which {found.lock} does not list"
            raise LockError(
                f"{found.requirement} is locked with its content, and now leads to {following.repo_id}{unlisted}: "
                f"{found.source.name} gives something else than when it was locked. Is that meant? "
                f"{lock_again(found.lock or '', 'kernels lock --rehash')}"
            )

    def mention_unlocked(self, found: Found, following: Requirement) -> None:
        """Warn, once, of what a locked kernel leads to and the lock does not list: it is whatever its branch holds."""
        if found.lock is not None and self.lock.required is None and not self.lock.lists(following.repo_id):
            warn_once(
                f"{found.requirement} is locked, and {following.repo_id}, which it leads to, is not: {found.lock} does "
                f"not list it. {lock_again(found.lock, 'kernels lock')}"
            )


def _of_lock(error: KernelsError, meant: Pin) -> KernelsError:
    """The error about a commit that a lock chose."""
    repo_id = meant.requirement.repo_id
    again = f" {lock_again(meant.lock or '', f'kernels lock --upgrade-repo {repo_id}')}"
    gone = isinstance(error, RevisionNotFound)
    return type(error)(f"{error} {meant.lock} pins {repo_id} to commit {meant.commit[:12]}.{again * gone}")
