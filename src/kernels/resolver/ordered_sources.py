"""Several sources, asked in order: what one does not have is taken from the next one.

Only absence leads to the next source. An untrusted publisher, a wrong signature, content that differs, an invalid
document or a refused token is an error at once: another source must not hide it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

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
from kernels.models.snapshot import Snapshot
from kernels.sources.base import Source
from kernels.support import distributed
from kernels.support.formatting import format_names
from kernels.support.logs import logger
from kernels.support.text import indented
from kernels.support.warn import warn_once

__all__ = [
    "PassedOver",
    "SourcesExhausted",
    "ask_in_order",
    "leads_on",
    "mention_absent",
    "mention_passed",
    "with_passed",
]

_log = logger(__name__)

_Error = TypeVar("_Error", bound=KernelsError)
_Answer = TypeVar("_Answer")


class PassedOver(msgspec.Struct, frozen=True):
    """A source after which the next one was asked.

    Attributes:
        source: The source.
        error: What it does not have.
        listed: Whether it lists a build that could not be downloaded.
    """

    source: Source
    error: KernelsError
    listed: bool = False

    def reason(self, asked: object) -> str:
        """Why the next one was asked, as the beginning of a sentence."""
        if self.listed:
            return f"{self.source.name} lists a build of {asked} that is not available ({_first_line(self.error)})"
        if isinstance(self.error, NoSuitableBuild):
            return f"{self.source.name} has no suitable build of {asked}"
        if isinstance(self.error, PublisherUnknown):
            return f"{self.source.name} does not know whether the publisher of {asked} is trusted"
        if isinstance(self.error, HubUnavailable):
            return f"{self.source.name} could not be asked for {asked} ({_first_line(self.error)})"
        return f"{asked} is not in {self.source.name}"


class SourcesExhausted(Exception):
    """No source has what was requested.

    Args:
        passed: Every source, with its error.
    """

    def __init__(self, passed: Sequence[PassedOver]) -> None:
        super().__init__(passed)
        self.passed = tuple(passed)

    @property
    def error(self) -> KernelsError:
        """The error of the last source, with what the others said."""
        return with_passed(self.passed[-1].error, self.passed[:-1])


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


def ask_in_order(
    sources: Sequence[Source],
    ask: Callable[[Source], _Answer],
    *,
    question: Sequence[str] | None,
    passed: Sequence[PassedOver] = (),
    preliminary: Callable[[_Answer], bool] = lambda answer: False,
) -> tuple[_Answer, tuple[PassedOver, ...]]:
    """The answer of the first source that has one, and the sources before it.

    Args:
        sources: The sources.
        ask: Asks one of them.
        question: What is asked, if all ranks of a distributed job must use the same source; None otherwise.
        passed: Sources that are not asked again: the first ones.
        preliminary: Whether an answer is used only if no later source has another.

    Raises:
        SourcesExhausted: None has an answer.
        KernelsError: The only source has none, or a source has an error that does not lead to the next one.
    """
    if len(sources) == 1:
        return ask(sources[0]), ()
    known: dict[int, tuple[_Answer, tuple[PassedOver, ...]]] = {}

    def first(before: Sequence[PassedOver]) -> int:
        said = list(before)
        spare: int | None = None
        for index in range(len(said), len(sources)):
            try:
                answer = ask(sources[index])
            except KernelsError as error:
                if not leads_on(error):
                    raise
                said.append(PassedOver(sources[index], error))
                continue
            known[index] = answer, tuple(said)
            if not preliminary(answer):
                return index
            spare = index if spare is None else spare
            said.append(PassedOver(sources[index], NotInCache("Only another tool's download of it is in the cache.")))
        if spare is None:
            raise SourcesExhausted(said)
        return spare

    if question is None:
        return known[first(passed)]
    key = json.dumps(["source", *(each.endpoint or each.name for each in sources), len(passed), *question])
    chosen = int(distributed.agree(key, lambda: str(first(passed))))
    if chosen not in known:
        other = KernelsError("Another process of this job took it from a later source.")
        try:
            known[chosen] = ask(sources[chosen]), tuple(PassedOver(each, other) for each in sources[:chosen])
        except KernelsError as error:  # from another source, the processes would load different builds
            raise error.reworded(f"{error}\nAnother process of this job took it from {sources[chosen].name}.") from None
    return known[chosen]


def with_passed(error: _Error, passed: Sequence[PassedOver]) -> _Error:
    """An error, with what the sources said that were asked before."""
    if not passed:
        return error
    said = [f"  {each.source.name}: {indented(str(each.error))}" for each in passed]
    return error.reworded("\n".join([f"{error}", "Other addresses in KERNELS_HUB were asked too:", *said]))


def mention_passed(asked: object, source: Source, passed: Iterable[PassedOver]) -> None:
    """Say, once, that something was not taken from the first source."""
    passed = list(passed)
    reasons = [each.reason(asked) for each in passed]
    if all(each.source.name == source.name for each in passed):  # offline, each is the cache
        for reason in reasons:
            _log.debug("%s", reason)
        return
    warn_once(_log, f"{'; '.join(reasons)}. It is taken from {source.name}.")


def mention_absent(asked: object, source: Source, snapshot: Snapshot) -> None:
    """Say, once, which builds a mirror does not have, where all are taken."""
    if snapshot.absent:
        warn_once(
            _log,
            f"{source.name} does not have every build of {asked}: {format_names(snapshot.absent)} "
            f"{'is' if len(snapshot.absent) == 1 else 'are'} not in it. For all builds, name the Hub alone: "
            "KERNELS_HUB=hub.",
        )


def _first_line(error: Any) -> str:
    return str(error).partition("\n")[0].rstrip(".")
