"""Whether a Hub trusts the publishers of its repositories."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from kernels.cache.repo_store import RepoStore
from kernels.errors import HubUnavailable, NotInCache
from kernels.models.snapshot import Snapshot
from kernels.sources.http_client import BRIEF, VERDICT
from kernels.sources.hub_client import HubClient
from kernels.sources.hub_errors import HubRefused, no_answer
from kernels.sources.hub_responses import PUBLISHER
from kernels.sources.session_cache import memory_of
from kernels.trust.publishers import PublisherTrust, Verdicts

__all__ = ["HubPublishers"]


class HubPublishers:
    """The publishers of one Hub.

    Args:
        client: Asks the Hub.
        cache: The cache's folder.
    """

    def __init__(self, client: HubClient, cache: Path) -> None:
        self._client = client
        self._cache = cache
        self._memory = memory_of(client.endpoint, cache)
        self._verdicts = Verdicts(cache, client.endpoint, self._ask)

    @property
    def authority(self) -> str:
        """`the Hub at https://…`."""
        return f"the Hub at {self._client.endpoint}"

    def trust(self, repo_id: str) -> PublisherTrust:
        """What this Hub says of a repository's publisher."""
        return self._verdicts.trust(repo_id.partition("/")[0])

    def knows(self, repo_id: str) -> bool:
        """Whether this Hub has ever answered about a repository's publisher."""
        return self._verdicts.knows(repo_id.partition("/")[0])

    def problem(self, repo_id: str) -> str | None:
        """Why this Hub could not be asked about a repository's publisher, a sentence; None where it could."""
        problem = self._verdicts.problem(repo_id.partition("/")[0])
        if problem is None:
            return None
        from kernels.cache.stored_answers import with_unused_answers

        return with_unused_answers(problem, self._cache, repo_id, self._client.endpoint)

    def may_use_cached(self, snapshot: Snapshot) -> bool:
        """Whether the cached files of a snapshot may be loaded although this Hub says nothing about its publisher.

        Not while the Hub answers other questions: else suppressing one answer would be enough to load a kernel of an
        untrusted publisher. A snapshot that was listed here was downloaded by a call that admitted it, or by a command
        that runs no code and admits any publisher: the record of what a caller allowed tells the two apart. What
        another tool downloaded counts as admitted by the user who ran it.
        """
        if self._memory.answered and not self._client.offline:
            return False
        store = self._store(snapshot)
        return store.allowed(self._client.endpoint, snapshot.commit) or not store.was_fetched(snapshot.commit)

    def remember_allowed(self, snapshot: Snapshot) -> None:
        """Record beside the list of the commit's files that a caller allowed the snapshot."""
        if snapshot.listed:
            self._store(snapshot).keep_allowed(self._client.endpoint, snapshot.commit)

    def _store(self, snapshot: Snapshot) -> RepoStore:
        return RepoStore(self._cache, snapshot.repo_type, snapshot.repo_id)

    def _ask(self, publisher: str, urgent: bool) -> bool:
        endpoint = self._client.endpoint
        if self._client.offline:
            raise NotInCache("No request may be sent (HF_HUB_OFFLINE, or local_files_only).")
        if self._memory.resting():
            raise HubUnavailable(self._memory.failure)
        try:
            patience = VERDICT if urgent else BRIEF
            answer = self._client.json(f"/api/organizations/{quote(publisher)}/overview", patience, PUBLISHER)
        except HubRefused as error:
            if error.status == 404:
                return False  # a user's account, or none
            raise no_answer(endpoint, publisher, error) from error
        except HubUnavailable as error:
            self._memory.rest(error)
            raise
        if (answer.name or publisher).lower() != publisher.lower():
            return False  # an answer about another publisher
        return answer.trusted_kernel_publisher is True
