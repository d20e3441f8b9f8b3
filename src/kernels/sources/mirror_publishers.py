"""Whether the origin of a mirror trusts the publishers of its repositories: the repositories' documents say it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kernels.cache.repo_records import MirrorRecord
from kernels.cache.repo_store import RepoStore
from kernels.errors import HubUnavailable, RepositoryNotFound
from kernels.models.snapshot import Snapshot
from kernels.sources.base import Moved
from kernels.sources.http import BRIEF, Patience
from kernels.sources.session_cache import memory_of
from kernels.trust.publishers import VERDICT_SECONDS, PublisherTrust

if TYPE_CHECKING:
    from kernels.models.snapshot import Heads

__all__ = ["MirrorPublishers"]


class _Documents(Protocol):
    """What of a mirror's wire is needed here."""

    endpoint: str
    key: str

    @property
    def offline(self) -> bool: ...

    def record(self, repo_id: str) -> MirrorRecord | None: ...

    def heads(self, repo_id: str, stored: Heads | None, patience: Patience) -> Heads: ...


class MirrorPublishers:
    """The publishers of one mirror.

    Args:
        documents: Reads and stores what the mirror says.
        cache: The cache's folder.
    """

    def __init__(self, documents: _Documents, cache: Path) -> None:
        self._documents = documents
        self._cache = cache
        self._memory = memory_of(documents.key, cache)
        self._problems: dict[str, str] = {}

    @property
    def authority(self) -> str:
        """`the mirror at https://…`."""
        return f"the mirror at {self._documents.endpoint}"

    def trust(self, repo_id: str) -> PublisherTrust:
        """What the origin said of a repository's publisher when the mirror was written."""
        known = [index for (name, _), index in list(self._memory.commits.items()) if name == repo_id]
        known += [index] if (index := self._memory.indexes.get(repo_id)) is not None else []
        if known:
            newest = max(known, key=lambda each: each.number)
            return self._verdict(repo_id, newest.publisher.name, newest.publisher.trusted)
        record = self._documents.record(repo_id)
        if record is not None and record.trusted and 0 <= time.time() - record.asked < VERDICT_SECONDS:
            return self._verdict(repo_id, record.publisher, record.trusted)
        try:
            record = self._ask(repo_id, record)
        except (HubUnavailable, RepositoryNotFound, Moved) as error:
            if record is None:
                self._problems[repo_id] = str(error)
        if record is None:
            self._problems.setdefault(repo_id, "No request may be sent (HF_HUB_OFFLINE, or local_files_only).")
            return PublisherTrust.UNKNOWN
        return self._verdict(repo_id, record.publisher, record.trusted)

    def problem(self, repo_id: str) -> str | None:
        """Why nothing is known of a repository's publisher, a sentence; None where something is."""
        return self._problems.get(repo_id)

    def publishes(self, repo_id: str, commit: str) -> bool:
        """Always, if the mirror lists the commit: its writer took it by the same rule.

        Raises:
            HubUnavailable: The mirror has listed no such commit.
        """
        known = self._memory.snapshots.get((repo_id, commit))
        if known is None or not known.listed:
            self._problems[repo_id] = f"{self._documents.endpoint} did not list commit {commit}."
            raise HubUnavailable(self._problems[repo_id])
        return True

    def may_use_cached(self, snapshot: Snapshot) -> bool:
        """Whether the cached files of a snapshot may be loaded although the mirror says nothing about its publisher."""
        if self._memory.answered and not self._documents.offline:
            return False
        store = self._store(snapshot)
        return store.allowed(self._documents.key, snapshot.commit) or not store.was_fetched(snapshot.commit)

    def remember_allowed(self, snapshot: Snapshot) -> None:
        """Record beside the list of the commit's files that a caller allowed the snapshot."""
        if snapshot.listed:
            self._store(snapshot).keep_allowed(self._documents.key, snapshot.commit)

    def _ask(self, repo_id: str, record: MirrorRecord | None) -> MirrorRecord | None:
        if self._documents.offline:
            return record
        if self._memory.resting():
            raise HubUnavailable(self._memory.failure)
        with self._memory.lock(repo_id):
            self._documents.heads(repo_id, None, Patience() if record is None else BRIEF)
        return self._documents.record(repo_id) or record

    def _verdict(self, repo_id: str, publisher: str, trusted: bool | None) -> PublisherTrust:
        if publisher.lower() != repo_id.partition("/")[0].lower():
            return PublisherTrust.UNTRUSTED  # a verdict on another publisher
        if trusted is None:
            self._problems[repo_id] = (
                f"The mirror at {self._documents.endpoint} was written without asking a Hub about the publisher."
            )
            return PublisherTrust.UNKNOWN
        return PublisherTrust.TRUSTED if trusted else PublisherTrust.UNTRUSTED

    def _store(self, snapshot: Snapshot) -> RepoStore:
        return RepoStore(self._cache, snapshot.repo_id)
