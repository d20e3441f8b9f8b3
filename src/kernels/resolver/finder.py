"""A requirement leads to a snapshot: by the lock, past every redirect, as far as publishers are trusted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, pairwise
from threading import Event
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from kernels.errors import KernelsError
from kernels.models.requirement import Requirement
from kernels.models.snapshot import Snapshot
from kernels.resolver.ordered_sources import PassedOver, SourcesExhausted, leads_on, mention_passed
from kernels.resolver.redirects import FoundSnapshot, PickCommit, follow_redirects, sources_of
from kernels.sources.base import Source
from kernels.support.logs import logger
from kernels.support.tasks import check_cancelled, side_by_side
from kernels.support.warn import warn_once
from kernels.trust.publishers import Admission, admission, ask_trust

if TYPE_CHECKING:
    from kernels.resolver.context import ResolveContext
    from kernels.trust.publishers import PublisherTrust

__all__ = ["Misfit", "OfSnapshot", "Resolved", "find_snapshot", "mention_unlocked", "resolve_snapshot"]

_log = logger(__name__)
_log_moved = logger("kernels.status")

#: How often work that waits looks whether it was cancelled.
_POLL_SECONDS = 0.2


#: Says why a snapshot, with what may be done with it, is not what is needed; None if it is. It is asked only if there
#: are several sources.
Misfit = Callable[[FoundSnapshot, Admission], "KernelsError | None"]


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


class Resolved(msgspec.Struct, frozen=True):
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

    def with_passed(self, passed: Iterable[PassedOver]) -> Resolved:
        """The same, with what other sources said."""
        found = replace(self.found, passed=(*self.found.passed, *passed))
        return replace(self, steps=(*self.steps[:-1], found))


def resolve_snapshot(
    context: ResolveContext,
    requirement: Requirement,
    source: Source | None = None,
    *,
    pick: PickCommit | None = None,
    remember_allowed: bool = True,
    misfit: Misfit | None = None,
) -> Resolved:
    """The snapshot that a requirement leads to, of publishers that are trusted.

    Each step of a redirect is trusted or refused on its own. The Hub is asked about the publisher and the repository
    at the same time. Of several sources the first one that has it is used.

    Args:
        context: What the call resolves with.
        requirement: The requirement.
        source: Its source; the default are those that the context's sources name.
        pick: Chooses commits; the default asks the context's lock, then the source.
        remember_allowed: Whether a repository that the caller allows may be loaded later without a Hub's answer.
        misfit: Says why the next source is asked; without it, a source that has the snapshot is used.

    Raises:
        UntrustedPublisher: A publisher on the way is not trusted.
        KernelsError: As for `follow_redirects`.
    """
    sources = sources_of(context, requirement) if source is None else (source,)

    def resolve(unsuitable: _Unsuitable) -> Resolved:
        return _resolve(context, requirement, sources, pick, remember_allowed, unsuitable)

    def judge(resolved: Resolved) -> KernelsError | None:
        return None if misfit is None else misfit(resolved.found, resolved.admission)

    resolved, fits = _first_that_fits(context, requirement, resolve, judge)
    _mention(context, resolved.steps, fits)
    return resolved


_Unsuitable = Mapping[Requirement, tuple[PassedOver, ...]]


def _first_that_fits(
    context: ResolveContext,
    requirement: Requirement,
    resolve: Callable[[_Unsuitable], Resolved],
    judge: Callable[[Resolved], KernelsError | None],
) -> tuple[Resolved, bool]:
    """What the first source has that fits, and True; if none does, what was found, with what the others said."""
    unsuitable: dict[Requirement, tuple[PassedOver, ...]] = dict(context.undelivered)
    found_first: Resolved | None = None
    while True:
        try:
            resolved = resolve(unsuitable)
        except SourcesExhausted as exhausted:
            if found_first is None:
                raise exhausted.error from exhausted.passed[-1].error
            lacking = exhausted.passed[len(found_first.found.passed) + 1 :]
            return found_first.with_passed(lacking), False
        except KernelsError as error:
            if found_first is None or not leads_on(error):
                raise
            return found_first, False
        found = resolved.found
        problem = judge(resolved) if found.more or found.passed else None
        if problem is None or not found.more:
            return resolved, problem is None
        found_first = found_first or resolved
        unsuitable[found.asked] = (*found.passed, PassedOver(found.source, problem))


def _resolve(
    context: ResolveContext,
    requirement: Requirement,
    sources: Sequence[Source],
    pick: PickCommit | None,
    remember_allowed: bool,
    unsuitable: _Unsuitable,
) -> Resolved:
    source = sources[min(len(unsuitable.get(requirement, ())), len(sources) - 1)]
    commit = requirement.commit
    if not source.user_owned and pick is None:
        pin = context.lock.find(requirement)  # what the lock refuses is refused before any request
        commit = commit if pin is None else pin.commit
    steps = follow_redirects(context, requirement, sources, pick, unsuitable)
    standings: dict[tuple[str, int], PublisherTrust] = {}
    begun: list[FoundSnapshot] = []
    failed: list[bool] = []
    may_ask = Event()

    def ask_publisher() -> None:
        while not may_ask.wait(_POLL_SECONDS):
            check_cancelled()
        elsewhere = bool(begun) and begun[0].source is not source
        if not failed and not elsewhere:
            standings[requirement.repo_id, id(source)] = ask_trust(
                requirement.repo_id, source.publishers, context.trust
            )

    def ask_commit() -> None:
        # Only to ask beside the listing what `admission` would ask after it: that judges.
        while not may_ask.wait(_POLL_SECONDS):
            check_cancelled()
        elsewhere = bool(begun) and begun[0].source is not source
        if commit is not None and source.publishers is not None and not failed and not elsewhere:
            with suppress(KernelsError):
                source.publishers.publishes(requirement.repo_id, commit)

    def take_first_step() -> None:
        # A mirror says with the repository what it knows of the publisher: then nothing is asked beside this.
        try:
            with source.when_publishers_are_separate(may_ask.set):
                begun.append(next(steps))
        except BaseException:
            failed.append(True)
            raise
        finally:
            may_ask.set()

    tasks: list[Callable[[], None]] = [ask_publisher, take_first_step]
    if commit is not None and not context.trust.allows_any_commit(requirement.repo_id):
        tasks.append(ask_commit)
    side_by_side(lambda task: task(), tasks, at_once=len(tasks), name="find")
    taken: list[FoundSnapshot] = []
    least = Admission.GRANTED
    for found in chain(begun, steps):
        taken.append(found)
        repo_id, publishers = found.requirement.repo_id, found.source.publishers
        key = repo_id, id(found.source)
        if key not in standings:
            standings[key] = ask_trust(repo_id, publishers, context.trust)
        trust = standings[key]
        admitted = admission(
            repo_id, trust, publishers, context.trust, found.snapshot, remember=remember_allowed, lock=found.lock
        )
        least = max(least, admitted, key=lambda each: each.value)
    return Resolved(requirement, tuple(taken), least)


def find_snapshot(
    context: ResolveContext, requirement: Requirement, source: Source | None = None, *, misfit: Misfit | None = None
) -> FoundSnapshot:
    """The snapshot that a requirement leads to, whether or not its publisher is trusted. None of its code may run.

    Args:
        context: What the call resolves with.
        requirement: The requirement.
        source: Its source; the default are those that the context's sources name.
        misfit: As for `resolve_snapshot`.

    Raises:
        KernelsError: As for `follow_redirects`.
    """
    sources = sources_of(context, requirement) if source is None else (source,)

    def resolve(unsuitable: _Unsuitable) -> Resolved:
        steps = follow_redirects(context, requirement, sources, unsuitable=unsuitable)
        return Resolved(requirement, tuple(steps), Admission.GRANTED)

    def judge(resolved: Resolved) -> KernelsError | None:
        return None if misfit is None else misfit(resolved.found, resolved.admission)

    resolved, fits = _first_that_fits(context, requirement, resolve, judge)
    _mention(context, resolved.steps, fits)
    return resolved.found


def _mention(context: ResolveContext, steps: Sequence[FoundSnapshot], fits: bool) -> None:
    for step in steps:
        if step.passed and fits:
            mention_passed(step.asked, step.source, step.passed)
    _warn_of_moves(context, steps)


def _warn_of_moves(context: ResolveContext, steps: Sequence[FoundSnapshot]) -> None:
    asked = [each for step in steps for each in (*step.former, step.asked)]
    for old, new in pairwise(each.repo_id for each in asked):
        warn_once(_log_moved, f"{old} has moved to {new}; ask for it there.")
    for step, following in pairwise(steps):
        mention_unlocked(context, step, following.former[0] if following.former else following.asked)


def mention_unlocked(context: ResolveContext, found: FoundSnapshot, following: Requirement) -> None:
    """Warn, once, of a redirect or dependency of a locked kernel that the lock does not list."""
    lock = context.lock
    if found.lock is not None and lock.required is None and not lock.lists(following.repo_id):
        from kernels.models.lockfile import lock_again

        warn_once(
            _log,
            f"{found.requirement} is locked, and {following.repo_id}, which it leads to, is not: {found.lock} does "
            f"not list it. {lock_again(found.lock, 'kernels lock')}",
        )
