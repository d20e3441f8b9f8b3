"""A requirement leads to a snapshot: by the lock, past every redirect, as far as publishers are trusted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING

from kernels.errors import HubUnavailable, PublisherUnknown
from kernels.models.lockfile import lock_again
from kernels.models.requirement import Requirement
from kernels.models.snapshot import Snapshot
from kernels.resolver.likely_repository import likely_names
from kernels.resolver.redirects import FoundSnapshot, SettleCommit, follow_redirects, source_of
from kernels.sources.base import Source
from kernels.sources.hub_errors import of_hub
from kernels.support.concurrency import side_by_side
from kernels.support.logs import logger
from kernels.support.warn import warn_once
from kernels.trust.publishers import Admission, admission, ask_trust

if TYPE_CHECKING:
    from kernels.resolver.context import ResolveContext
    from kernels.trust.publishers import PublisherTrust

__all__ = ["OfSnapshot", "Resolved", "find_snapshot", "mention_unlocked", "resolve_snapshot"]

_log = logger(__name__)
_log_moved = logger("kernels.status")


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


def resolve_snapshot(
    context: ResolveContext,
    requirement: Requirement,
    source: Source | None = None,
    *,
    settle: SettleCommit | None = None,
    remember_allowed: bool = True,
) -> Resolved:
    """The snapshot that a requirement leads to, of publishers that are trusted.

    Each step of a redirect is trusted or refused on its own. The Hub is asked about the publisher and the repository
    at the same time.

    Args:
        context: What the call resolves with.
        requirement: The requirement.
        source: Its source; the default is the one that the context's sources name.
        settle: Chooses commits; the default asks the context's lock, then the source.
        remember_allowed: Whether a repository that the caller allows may be loaded later without a Hub's answer.

    Raises:
        UntrustedPublisher: A publisher on the way is not trusted.
        KernelsError: As for `follow_redirects`.
    """
    with likely_names(requirement.repo_id, context.lock):
        return _resolve(context, requirement, source, settle, remember_allowed)


def _resolve(
    context: ResolveContext,
    requirement: Requirement,
    source: Source | None,
    settle: SettleCommit | None,
    remember_allowed: bool,
) -> Resolved:
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
    try:
        side_by_side(lambda task: task(), tasks, at_once=2, name="find")
    except HubUnavailable as error:
        if source.publishers is None or context.trust.allows(requirement.repo_id):
            raise
        # The existing client asks about the publisher first, and raises a `ValueError` without an answer.
        unknown = PublisherUnknown(str(error))
        raise of_hub(unknown, "HfHubHTTPError", response=getattr(error, "response", None)) from error
    taken: list[FoundSnapshot] = []
    least = Admission.GRANTED
    for found in chain(begun, steps):
        taken.append(found)
        repo_id, publishers = found.requirement.repo_id, found.source.publishers
        if repo_id not in standings:
            standings[repo_id] = ask_trust(repo_id, publishers, context.trust)
        trust = standings[repo_id]
        admitted = admission(repo_id, trust, publishers, context.trust, found.snapshot, remember=remember_allowed)
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
    with likely_names(requirement.repo_id, context.lock):
        steps = list(follow_redirects(context, requirement, source or source_of(context, requirement)))
    _warn_of_moves(context, steps)
    return steps[-1]


def _warn_of_moves(context: ResolveContext, steps: list[FoundSnapshot]) -> None:
    asked = [each for step in steps for each in (*step.former, step.asked)]
    for old, new in pairwise(each.repo_id for each in asked):
        warn_once(_log_moved, f"{old} has moved to {new}; ask for it there.")
    for step, following in pairwise(steps):
        mention_unlocked(context, step, following.former[0] if following.former else following.asked)


def mention_unlocked(context: ResolveContext, found: FoundSnapshot, following: Requirement) -> None:
    """Warn, once, of a redirect or dependency of a locked kernel that the lock does not list."""
    lock = context.lock
    if found.lock is not None and lock.required is None and not lock.lists(following.repo_id):
        warn_once(
            _log,
            f"{found.requirement} is locked, and {following.repo_id}, which it leads to, is not: {found.lock} does "
            f"not list it. {lock_again(found.lock, 'kernels lock')}",
        )
