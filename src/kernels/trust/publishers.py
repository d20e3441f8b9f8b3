"""Whose code may run here.

A kernel is third-party native code. It is loaded if the Hub marks its publisher as trusted, if
`KERNELS_TRUSTED_PUBLISHERS` lists the publisher, or if the caller allows the repository, or all of them. The Hub's
verdict is stored per Hub with its time.

Anyone may open a pull request, so trust in a publisher covers only the commits that a branch or tag leads to. A caller
who allows a repository allows any commit of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from kernels import settings
from kernels.errors import HubUnavailable, NotInCache, PublisherUnknown, StoreError, UntrustedPublisher
from kernels.models.cache_places import endpoint_key
from kernels.models.requested_names import allowed_repositories
from kernels.support.lock import WorkLock, exclusively
from kernels.support.logs import logger, warn_once
from kernels.support.record_file import StoredRecord, read_record, write_record

if TYPE_CHECKING:
    from kernels.models.snapshot import Snapshot

__all__ = [
    "Admission",
    "Publishers",
    "TrustPolicy",
    "Verdicts",
    "admission",
    "ask_trust",
    "is_refused",
    "unverified",
    "warn_unverified",
]

_log = logger(__name__)
_log_unverified = logger("kernels.hf_hub")

#: A verdict is used for a day: a mark changes rarely, and one that was withdrawn should not be used much longer.
VERDICT_SECONDS = 24 * 3600.0


class Admission(Enum):
    """What may be done with a repository, from the most to the least."""

    GRANTED = 0
    """It may be downloaded and loaded."""
    ON_DISK = 1
    """What is on disk may be loaded, with a warning; nothing is downloaded."""
    REFUSED = 2
    """Its publisher is not known: it may be neither downloaded nor loaded."""


class Publishers(Protocol):
    """Says whether the publishers of a source's repositories are trusted."""

    @property
    def authority(self) -> str:
        """Its name in messages."""
        ...

    def trusts(self, repo_id: str) -> bool | None:
        """Whether a repository's publisher is trusted; None if nobody ever answered.

        Of an unknown one nothing is downloaded, and `admission` decides what may be loaded.
        """
        ...

    def problem(self, repo_id: str) -> str | None:
        """Why nothing is known, a sentence; None if something is known."""
        ...

    def publishes(self, repo_id: str, commit: str) -> bool:
        """Whether a branch or tag of a repository leads to a commit.

        Raises:
            HubUnavailable, NotInCache: It is not known, and nobody can be asked.
        """
        ...

    def may_use_cached(self, snapshot: Snapshot) -> bool:
        """Whether the files of a snapshot on disk may be loaded although nothing is known of its publisher."""
        ...

    def remember_allowed(self, snapshot: Snapshot) -> None:
        """Record that the caller allowed a snapshot."""
        ...


class TrustPolicy(msgspec.Struct, frozen=True):
    """The repositories that the caller allows, beside those of trusted publishers.

    Args:
        allowed: True for any repository, False for none, or those (`org/name`) that are allowed.

    Example:
        >>> TrustPolicy.of(["org/relu"]).allows("org/relu")
        True
    """

    allowed: bool | frozenset[str] = False

    @staticmethod
    def of(trust_remote_code: bool | Sequence[str] | None) -> TrustPolicy:
        """Read the `trust_remote_code` argument, as `allowed_repositories` does.

        Raises:
            TypeError: It is neither None, a bool nor a list of strings.
            RequestError: A listed name is not a repository.
        """
        return TrustPolicy(allowed_repositories(trust_remote_code))

    def allows(self, repo_id: str) -> bool:
        """Whether a repository may be loaded even if its publisher is not trusted."""
        return self.allows_any_commit(repo_id) or repo_id.partition("/")[0] in settings.trusted_publishers()

    def allows_any_commit(self, repo_id: str) -> bool:
        """Whether also commits may be loaded that the publisher need not have made, as those of a pull request."""
        return self.allowed if isinstance(self.allowed, bool) else repo_id in self.allowed


class _Verdict(StoredRecord):
    publisher: str
    trusted: bool
    time: float

    @property
    def age(self) -> float:
        """Seconds since the Hub said it."""
        return time.time() - self.time

    @property
    def holds(self) -> bool:
        """Whether it is used without asking again."""
        return self.trusted and 0 <= self.age < VERDICT_SECONDS


class Verdicts:
    """The verdicts of one Hub, kept on disk.

    Args:
        cache: The cache's folder.
        endpoint: The Hub's URL.
        ask: Asks the Hub whether a publisher is trusted; the second argument is whether no stored answer can be used
            instead. Raises `HubUnavailable` or `NotInCache` without an answer.
    """

    def __init__(self, cache: Path, endpoint: str, ask: Callable[[str, bool], bool]) -> None:
        self._folder = cache / ".locks" / "kernels-verdicts" / endpoint_key(endpoint)
        self._ask = ask
        self._memory: dict[str, _Verdict] = {}

    def trusts(self, publisher: str) -> bool:
        """Whether the Hub trusts a publisher; it is asked if its last answer is older than a day, or was a no.

        Raises:
            HubUnavailable, NotInCache: It never answered, and does not now.
        """
        verdict = self._stored(publisher)
        if verdict is None or not verdict.holds:
            try:
                verdict = self._ask_once(publisher, urgent=verdict is None)
            except (HubUnavailable, NotInCache):
                if verdict is None:
                    raise
        said = "a" if verdict.trusted else "no"
        _log.debug("%s is %s trusted publisher, as the Hub said %.0f s ago", publisher, said, verdict.age)
        return verdict.trusted

    def _ask_once(self, publisher: str, *, urgent: bool) -> _Verdict:
        # Of several processes that start together, one asks.
        try:
            with exclusively(WorkLock(self._folder / f"{publisher}.lock", seconds=60)):
                stored = self._stored(publisher)
                return stored if stored is not None and stored.holds else self._asked(publisher, urgent)
        except StoreError:
            return self._asked(publisher, urgent)  # although the cache cannot be written

    def _asked(self, publisher: str, urgent: bool) -> _Verdict:
        verdict = _Verdict(publisher, self._ask(publisher, urgent), time.time())
        self._memory[publisher] = verdict
        write_record(self._folder / f"{publisher}.json", verdict)
        return verdict

    def _stored(self, publisher: str) -> _Verdict | None:
        known = self._memory.get(publisher) or read_record(self._folder / f"{publisher}.json", _Verdict)
        # On some file systems, names that differ only in case are the same file.
        return known if known is not None and known.publisher == publisher else None


def ask_trust(repo_id: str, publishers: Publishers | None, policy: TrustPolicy) -> bool | None:
    """Whether a publisher is trusted, None if it is not known; nobody is asked about what the caller allows.

    Args:
        repo_id: The repository.
        publishers: The publishers of the source; None for a folder of the user.
        policy: What the caller allows.
    """
    if publishers is None:
        return True
    if policy.allows(repo_id):
        _log.debug("%s is allowed by trust_remote_code or KERNELS_TRUSTED_PUBLISHERS", repo_id)
        return True
    return publishers.trusts(repo_id)


def admission(
    repo_id: str,
    trusted: bool | None,
    publishers: Publishers | None,
    policy: TrustPolicy,
    snapshot: Snapshot | None = None,
    *,
    remember: bool = True,
    lock: str | None = None,
) -> Admission:
    """What may be done with a repository. Publishers, and commits, are admitted here and nowhere else.

    Args:
        repo_id: The repository.
        trusted: The answer of `ask_trust`.
        publishers: The publishers of the source; None for a folder of the user.
        policy: What the caller allows.
        snapshot: The snapshot that was found; None to judge the publisher alone.
        remember: Whether to record that the caller allows the snapshot.
        lock: The lock that chose the commit, for the error.

    Raises:
        UntrustedPublisher: The publisher is not trusted, or no branch or tag leads to the commit.
    """
    if publishers is None:
        return Admission.GRANTED
    named = policy.allows(repo_id)
    if trusted is False and not named:
        raise _untrusted(repo_id, publishers.authority)
    trusted = named or trusted
    if snapshot is None:
        return Admission.GRANTED if trusted else Admission.REFUSED
    admitted = Admission.GRANTED
    if not policy.allows_any_commit(repo_id):
        published: bool | None = None  # not known, or not that of a trusted publisher
        if trusted:
            with suppress(HubUnavailable, NotInCache):
                published = publishers.publishes(repo_id, snapshot.commit)
        if not published and publishers.may_use_cached(snapshot):
            admitted = Admission.ON_DISK
        elif published is False:
            raise _unpublished(snapshot, publishers.authority, lock)
        elif published is None:
            return Admission.REFUSED
    if named:
        if remember:
            publishers.remember_allowed(snapshot)
        return Admission.GRANTED
    # One that this Hub never listed may be another Hub's, to which its verdict on the publisher does not apply.
    return admitted if snapshot.listed else Admission.ON_DISK


def _unpublished(snapshot: Snapshot, where: str, lock: str | None) -> UntrustedPublisher:
    """The error for a commit that no branch or tag leads to."""
    repo_id = snapshot.repo_id
    pinned = ""
    if lock is not None:
        from kernels.models.lockfile import lock_again

        again = lock_again(lock, f"kernels lock --upgrade-repo {repo_id}")
        pinned = f" {lock} pins it: check where that lockfile comes from. If it is yours: {again}"
    return UntrustedPublisher(
        f"{repo_id} at commit {snapshot.commit} is refused: {where} has it in the history of no branch or tag, as far "
        "as that was read. It may be of a pull request, which anyone can open, and a kernel is code that runs with "
        "your rights. Request a version, a branch or a tag; or, if you have read the code of this commit, pass "
        f"trust_remote_code=[{repo_id!r}] (in a command: --trust-remote-code).{pinned}"
    )


def is_refused(snapshot: Snapshot, publishers: Publishers | None) -> bool:
    """Whether `admission` refuses a snapshot where the caller allows nothing; False if nobody can be asked.

    Args:
        snapshot: The snapshot.
        publishers: The publishers of its source; None for a folder of the user.
    """
    repo_id, policy = snapshot.repo_id, TrustPolicy()
    try:
        admission(repo_id, ask_trust(repo_id, publishers, policy), publishers, policy, snapshot, remember=False)
    except UntrustedPublisher:
        return True
    return False


def _untrusted(repo_id: str, where: str) -> UntrustedPublisher:
    """The error for a repository whose publisher is not trusted."""
    publisher = repo_id.partition("/")[0]
    return UntrustedPublisher(
        f"{repo_id} is refused: its publisher {publisher!r} is not one that {where} marks as a trusted publisher "
        f"of kernels, and a kernel is code that runs with your rights. If you trust it, pass "
        f"trust_remote_code=[{repo_id!r}] (in a command: --trust-remote-code), or add {publisher!r} to "
        "KERNELS_TRUSTED_PUBLISHERS."
    )


def unverified(repo_id: str, publishers: Publishers | None) -> PublisherUnknown:
    """The error for a repository whose publisher could not be checked: why that is comes first."""
    where = "a Hub" if publishers is None else publishers.authority
    why = None if publishers is None else publishers.problem(repo_id)
    return PublisherUnknown(
        f"{f'{why} ' if why else ''}{repo_id} is refused: {where} could not be asked whether its publisher is trusted "
        "and published this commit, and no earlier answer that counts is stored. Load it when it can be asked; or, if "
        f"you trust it, pass trust_remote_code=[{repo_id!r}] (in a command: --trust-remote-code)."
    )


def warn_unverified(repo_id: str, publishers: Publishers | None) -> None:
    """Warn, once, that something on disk is used whose publisher no Hub was ever asked about here."""
    where = "a Hub" if publishers is None else publishers.authority
    warn_once(
        _log_unverified,
        f"{repo_id} is loaded from what is on disk without a Hub's word on its publisher: {where} was never asked "
        f"about it, or cannot be asked. To say that you trust it, add "
        f"{repo_id.partition('/')[0]!r} to KERNELS_TRUSTED_PUBLISHERS.",
    )
