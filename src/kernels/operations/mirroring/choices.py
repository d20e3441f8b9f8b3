"""What a request chooses: the versions of named and listed repositories, what lockfiles pin, and what these lead to."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from kernels.operations.download_plan import PROBLEMS, DownloadFailure
from kernels.operations.install import AT_ONCE
from kernels.operations.mirroring.outcome import MirrorOutcome
from kernels.operations.mirroring.request import LeftOut, MirrorRequest
from kernels.operations.mirroring.wanted import MirrorChoice, expand
from kernels.resolver.context import ResolveContext
from kernels.resolver.locks import active_lock
from kernels.support.tasks import side_by_side

__all__ = ["RequestedChoices"]

#: Repositories that are looked at together, before the builds of all of them are taken.
_BATCH = 16


class RequestedChoices:
    """The choices of a request, each once.

    Args:
        request: The request.
        context: What they are resolved with.
        started: When the run began, in seconds since 1970.
        outcome: Receives the repositories that cannot be read, and the versions that are left out.
    """

    def __init__(self, request: MirrorRequest, context: ResolveContext, started: float, outcome: MirrorOutcome) -> None:
        self._request = request
        self._context = context
        self._started = started
        self._outcome = outcome
        self._repositories = deque(self._requested())
        self._choices = deque(self._pinned())
        self._seen: set[tuple[str, str | None, str | None]] = set()

    def batches(self) -> Iterator[list[MirrorChoice]]:
        """The choices; those that `follow` adds meanwhile, too. The versions of a repository are read when it comes."""
        while self._choices or self._repositories:
            if not self._choices:
                next_ones = [self._repositories.popleft() for _ in range(min(_BATCH, len(self._repositories)))]
                self._choices.extend(self._versions(next_ones))
            batch: list[MirrorChoice] = []
            while self._choices and len(batch) < _BATCH:
                choice = self._choices.popleft()
                if choice.key not in self._seen:
                    self._seen.add(choice.key)
                    batch.append(choice)
            yield batch

    def follow(self, choices: Iterable[MirrorChoice]) -> None:
        """Add what a choice leads to."""
        self._choices.extend(choices)

    def _requested(self) -> Iterable[tuple[str, bool]]:
        """The repositories to take, and whether the user named each, or its publisher."""
        source = self._context.sources.default
        found = dict.fromkeys(self._request.repositories, True)
        for publisher in self._request.publishers:
            try:
                found.update(dict.fromkeys(source.repositories(publisher), True))
            except PROBLEMS as error:
                self._outcome.failures.append(DownloadFailure(publisher, None, error))
        if self._request.takes_everything:
            found.update(dict.fromkeys(source.repositories(), False))
        return found.items()

    def _pinned(self) -> Iterator[MirrorChoice]:
        for path in self._request.lockfiles:
            locked = active_lock(file=path)
            assert locked.lock is not None
            context = replace(self._context, lock=locked)
            for pin in locked.lock.pins:
                yield MirrorChoice(pin.asked, context, True)

    def _versions(self, repositories: list[tuple[str, bool]]) -> Iterator[MirrorChoice]:
        def versions(item: tuple[str, bool]) -> tuple[list[MirrorChoice], list[LeftOut]] | DownloadFailure:
            repo_id, named = item
            try:
                return expand(self._request, self._context, repo_id, self._started, named=named)
            except PROBLEMS as error:
                return DownloadFailure(repo_id, None, error)

        for found in side_by_side(versions, repositories, at_once=AT_ONCE, name="versions"):
            if isinstance(found, DownloadFailure):
                self._outcome.failures.append(found)
            else:
                self._outcome.left_out += found[1]
                yield from found[0]
