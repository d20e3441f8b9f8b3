"""A requirement leads to a snapshot: of the first source that has it, past moves, as far as publishers are trusted.

Only absence leads to the next source. An untrusted publisher, a wrong signature, content that differs, an invalid
document or a refused token is an error at once: another source must not hide it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

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
from kernels.resolver.found import FoundSnapshot, Passed, leads_on, why_passed, with_passed
from kernels.sources.base import Moved, Source
from kernels.support import distributed
from kernels.support.logs import logger, warn_once
from kernels.support.tasks import side_by_side
from kernels.trust.publishers import Admission, admission, ask_trust

if TYPE_CHECKING:
    from kernels.resolver.context import ResolveContext

__all__ = ["PickCommit", "check_move", "find", "mention_unlocked"]

_T = TypeVar("_T")

_log = logger(__name__)
_log_moved = logger("kernels.status")

#: The most moves from one repository to the next.
MAX_MOVES = 5

#: Picks the commit of a requirement, as `pick_commit`.
PickCommit = Callable[[Requirement, Source, "PickedCommit | None"], PickedCommit]


class _Way(NamedTuple):
    """How far a requirement was followed.

    Attributes:
        asked: The requirement, and each one that it led to; the last is to be looked for.
        former: Those since the last redirect under which the repository is called otherwise now.
        redirects: The snapshots that redirect.
        pinned: The commit that a lock pins under the repository's former name.
    """

    asked: tuple[Requirement, ...]
    former: tuple[Requirement, ...] = ()
    redirects: tuple[FoundSnapshot, ...] = ()
    pinned: PickedCommit | None = None


def find(
    context: ResolveContext,
    requirement: Requirement,
    use: Callable[[FoundSnapshot], _T],
    source: Source | None = None,
    *,
    pick: PickCommit | None = None,
    admit: bool = True,
    remember_allowed: bool = True,
) -> _T:
    """Find the snapshot that a requirement leads to, and use it.

    Of several sources the first one is taken that has it, and a snapshot that can be used; all ranks of a distributed
    job take the same one. If none can be, the error is that of the first one that has it, with what the others said.

    Args:
        context: What the call resolves with.
        requirement: The requirement.
        use: Uses a snapshot. Its error says what is wrong with it; one for which `leads_on` is true leads to the next
            source.
        source: The source; the default are those that the context's sources name.
        pick: Picks commits; the default asks the context's lock, then the source.
        admit: Whether publishers must be trusted; each step of a move is trusted or refused on its own. If not, none
            of the snapshot's code may run.
        remember_allowed: Whether a repository that the caller allows may be loaded later without a Hub's answer.

    Raises:
        UntrustedPublisher: A publisher on the way is not trusted.
        InvalidRepository: A redirect leads in a circle, too far, or nowhere.
        RevisionNotFound: There is no such version or revision.
        PinnedCommitGone: The source no longer has the commit that a lock pins.
        LockError: The lock lists the repository in another version only; or its content is pinned, and it leads out of
            the lock.
        NotLocked: Only locked kernels may be loaded, and this one is not locked.
        KernelsError: A source's, or that of `use`.
    """
    search = _Search(context, use, pick or partial(pick_commit, lock=context.lock), admit, remember_allowed)
    way = _Way((requirement,))
    sources = _sources_of(context, requirement) if source is None else (source,)
    moves: list[_Way] = []
    while True:
        outcome = search.in_first(sources, way)
        if not isinstance(outcome, _Way):
            for move in moves:
                _mention_move(context, move)
            result: _T = outcome
            return result
        *visited, old, new = outcome.asked
        check_move([*visited, old], new)
        way, sources = outcome, _sources_of(context, new)
        _check_signing_kept(context, old.repo_id, new.repo_id, sources[0])
        moves.append(way)


def _mention_move(context: ResolveContext, move: _Way) -> None:
    """Say, once, that a repository has moved: only where the destination is trusted and used."""
    *_, old, new = move.asked
    warn_once(_log_moved, f"{old.repo_id} has moved to {new.repo_id}; ask for it there.")
    if move.redirects and not move.former:
        mention_unlocked(context, move.redirects[-1], new)


class _Search(NamedTuple):
    """The arguments of `find`, and what it does between two moves."""

    context: ResolveContext
    use: Callable[[FoundSnapshot], Any]
    pick: PickCommit
    admit: bool
    remember_allowed: bool

    def in_first(self, sources: Sequence[Source], way: _Way) -> Any:
        """What `use` makes of the first source that has it; or the way, where that has moved."""
        if len(sources) == 1:
            return self.go_on(self.look(sources[0], way), way)
        asked, lock = way.asked[-1], self.context.lock
        if asked.commit is not None or way.pinned is not None or lock.lists(asked.repo_id):
            return self.in_first_of_several(sources, way)[1]
        # All ranks of a job use one commit, so a branch has to be that of one source.
        names = [each.endpoint or each.name for each in sources]
        place = self.context.backend, self.context.device, self.admit
        key = json.dumps(["source", *names, asked.repo_id, asked.branch, *place])
        own: dict[int, Any] = {}

        def ask() -> str:
            index, result = self.in_first_of_several(sources, way)
            own[index] = result
            return str(index)

        index = int(distributed.agree(key, ask))
        if index in own:
            return own[index]
        try:
            return self.go_on(self.look(sources[index], way), way)
        except KernelsError as error:  # from another source, the ranks would load different builds
            raise error.reworded(f"{error}\nAnother process of this job took it from {sources[index].name}.") from None

    def in_first_of_several(self, sources: Sequence[Source], way: _Way) -> tuple[int, Any]:
        """The same, and which source it is."""
        passed: list[Passed] = []
        having: list[Source] = []
        for index, source in enumerate(sources):
            try:
                step = self.look(source, way, passed, final=False)
                if isinstance(step, FoundSnapshot):
                    having.append(source)
                    if not step.snapshot.listed:  # perhaps another source has listed it
                        raise NotInCache("Only another tool's download of it is in the cache.")
                result = self.go_on(step, way)
            except KernelsError as error:
                if not leads_on(error):
                    raise
                passed.append((source, error))
                continue
            _mention_passed(way.asked[-1], source, passed)
            return index, result
        if not having:
            raise with_passed(passed[-1][1], passed[:-1]) from passed[-1][1]
        others = [each for each in passed if each[0] is not having[0]]
        try:
            return sources.index(having[0]), self.go_on(self.look(having[0], way, others), way)
        except KernelsError as error:
            raise with_passed(error, others) from error

    def look(
        self, source: Source, way: _Way, passed: Sequence[Passed] = (), *, final: bool = True
    ) -> FoundSnapshot | _Way:
        """The snapshot that a source has; or the way, where the repository was renamed."""
        asked = way.asked[-1]
        undelivered = self.context.undelivered.get((source.name, asked.repo_id))
        if undelivered is not None:
            raise undelivered
        picked: PickedCommit | None = None
        try:
            picked = self.pick(asked, source, way.pinned)
            snapshot, trust = self.listed(source, picked)
        except Moved as moved:
            following = Requirement(moved.destination, version=asked.version, revision=asked.revision)
            # A repository under a new name has the commits it had.
            pinned = picked if picked is not None and picked.lock is not None else None
            return _Way((*way.asked, following), (*way.former, asked), way.redirects, pinned)
        except (NotInCache, RevisionNotFound) as error:
            if picked is None or picked.lock is None:
                raise
            raise _error_of_lock(error, picked) from error
        return FoundSnapshot(
            asked,
            picked.requirement,
            source,
            snapshot,
            picked.lock,
            picked.listed_as,
            admission=self.admitted(way, source, snapshot, trust, picked.lock),
            former=way.former,
            redirects=way.redirects,
            passed=tuple(passed),
            final=final,
        )

    def go_on(self, step: FoundSnapshot | _Way, way: _Way) -> Any:
        """What `use` makes of a snapshot; or the way, where it has moved."""
        if isinstance(step, _Way):
            return step
        following = _redirect(self.context, step, way.asked)
        return self.use(step) if following is None else _Way((*way.asked, following), redirects=step.steps)

    def listed(self, source: Source, picked: PickedCommit) -> tuple[Snapshot, bool | None]:
        """The files of a commit; at the same time it is asked whether the publisher is trusted, and published it."""
        repo_id, publishers, trust = picked.requirement.repo_id, source.publishers, self.context.trust
        if publishers is None or not self.admit:
            return source.snapshot(picked.requirement, picked.commit), True

        def ask_commit() -> None:
            if not trust.allows_any_commit(repo_id):
                with suppress(KernelsError):  # `admission` asks it again, and judges
                    publishers.publishes(repo_id, picked.commit)

        files: Callable[[], Any] = partial(source.snapshot, picked.requirement, picked.commit)
        questions: list[Callable[[], Any]] = [partial(ask_trust, repo_id, publishers, trust), ask_commit]
        if source.asks_publishers:
            snapshot, answer, _ = side_by_side(_call, [files, *questions], at_once=3, name="find")
        else:  # a mirror says it with the repository; and of some addresses, the first answer tells what they are
            snapshot = files()
            answer, _ = side_by_side(_call, questions, at_once=2, name="find")
        return snapshot, answer

    def admitted(
        self, way: _Way, source: Source, snapshot: Snapshot, trusted: bool | None, lock: str | None
    ) -> Admission:
        """The least that a snapshot, and each redirect that led to it, allows."""
        if not self.admit:
            return Admission.GRANTED
        remember, policy = self.remember_allowed, self.context.trust
        own = admission(snapshot.repo_id, trusted, source.publishers, policy, snapshot, remember=remember, lock=lock)
        return max([own, *(each.admission for each in way.redirects)], key=lambda each: each.value)


def _call(function: Callable[[], Any]) -> Any:
    return function()


def _sources_of(context: ResolveContext, requirement: Requirement) -> tuple[Source, ...]:
    """The sources of a repository, in the order in which they are asked.

    It is only a folder that `LOCAL_KERNELS` names, unless everything must be locked.
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


# Moves


def _redirect(context: ResolveContext, found: FoundSnapshot, visited: Sequence[Requirement]) -> Requirement | None:
    """Where a snapshot redirects to, if it does."""
    status = None if found.source.user_owned else found.snapshot.file(STATUS_FILE)
    if status is None:
        return None
    from kernels.models import kernel_status

    asked = found.asked
    content = found.source.read(found.snapshot, status, kernel_status.MAX_STATUS_BYTES)
    following = kernel_status.destination(content, asked)
    if following.repo_id.lower() == asked.repo_id.lower() and following not in visited:
        raise InvalidRepository(
            f"{asked} has moved to {following}, the same repository. Ask for that revision, or for another version."
        )
    _check_pinned_redirect(context, found, following)
    return following


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
    if len(visited) > MAX_MOVES:
        raise InvalidRepository(f"{visited[0]} moved more than {MAX_MOVES} times: {route}.")


def _check_signing_kept(context: ResolveContext, old: str, new: str, source: Source) -> None:
    """Refuse a move out of a required signature: the file that redirects is not signed."""
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
    pinned = lock.hashes(found.listed_as, found.snapshot.commit)
    if found.lock is None or pinned is None:
        return
    listed = lock.lists(following.repo_id)
    if not listed or pinned:
        from kernels.models.lockfile import lock_again

        unlisted = "" if listed else f", which {found.lock} does not list"
        raise LockError(
            f"{found.requirement} is locked with its content, and now leads to {following.repo_id}{unlisted}: "
            f"{found.source.name} has changed since it was locked. If that is intended: "
            f"{lock_again(found.lock, 'kernels lock --rehash')}"
        )


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


def _error_of_lock(error: KernelsError, picked: PickedCommit) -> KernelsError:
    """The error about a commit that a lock chose."""
    repo_id, lock = picked.requirement.repo_id, picked.lock or ""
    message = f"{error} {lock} pins {repo_id} to commit {picked.commit[:12]}."
    if not isinstance(error, RevisionNotFound):
        return error.reworded(message)
    from kernels.models.lockfile import lock_again

    return PinnedCommitGone(f"{message} {lock_again(lock, f'kernels lock --upgrade-repo {repo_id}')}")


def _mention_passed(asked: object, source: Source, passed: Sequence[Passed]) -> None:
    """Say, once, that something was not taken from the first source."""
    reasons = [why_passed(asked, *each) for each in passed]
    if all(each.name == source.name for each, _ in passed):  # offline, each is the cache
        for reason in reasons:
            _log.debug("%s", reason)
        return
    warn_once(_log, f"{'; '.join(reasons)}. It is taken from {source.name}.")
