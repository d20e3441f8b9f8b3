"""Whether a Hub trusts the publishers of its repositories."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from kernels.cache.repo_store import RepoStore
from kernels.errors import HubUnavailable, NotInCache, RepositoryNotFound, StoreError
from kernels.models.snapshot import Heads, Snapshot
from kernels.sources.base import Moved
from kernels.sources.cached_heads import CachedHeads
from kernels.sources.http import BRIEF, VERDICT, Http, MirrorAnswer
from kernels.sources.hub_errors import HubRefused, no_answer
from kernels.sources.hub_responses import PUBLISHER
from kernels.sources.session_cache import memory_of
from kernels.support.lock import exclusively
from kernels.trust.publishers import PublisherTrust, Verdicts

if TYPE_CHECKING:
    from kernels.sources.hub_remote import HubRemote

__all__ = ["HubPublishers"]

#: Branches and tags in whose history a commit is looked for, and the pages that are read beside the first one of each.
_MAX_REFS, _MAX_FURTHER_PAGES = 100, 10


class HubPublishers:
    """The publishers of one Hub.

    Args:
        remote: Asks the Hub about branches and their history.
        client: Asks the Hub about publishers.
        cache: The cache's folder.
    """

    def __init__(self, remote: HubRemote, client: Http, cache: Path) -> None:
        self._remote = remote
        self._client = client
        self._cache = cache
        self._memory = memory_of(client.endpoint, cache)
        self._heads = CachedHeads(remote, cache, self._memory)
        self._verdicts = Verdicts(cache, client.endpoint, self._ask)
        self._unasked: dict[str, str] = {}

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
        return self._verdicts.problem(repo_id.partition("/")[0]) or self._unasked.get(repo_id)

    def publishes(self, repo_id: str, commit: str) -> bool:
        """Whether a branch or tag leads to a commit: by what is stored, else by the branches, else by their history.

        A yes is stored for ever, as a commit never changes. A no is known to this process only.

        Raises:
            HubUnavailable, NotInCache: Nothing that is stored tells it, and the Hub cannot be asked.
        """
        with self._memory.lock(f"{repo_id}@{commit} published"):
            known = self._memory.published.get((repo_id, commit))
            if known is None:
                try:
                    known = self._is_stored(repo_id, commit) or self._ask_once(repo_id, commit)
                except (HubUnavailable, NotInCache, RepositoryNotFound, Moved, MirrorAnswer) as error:
                    self._unasked[repo_id] = str(error)
                    if isinstance(error, HubUnavailable):
                        self._memory.rest(error)  # it is not asked a second time by the same call
                    raise HubUnavailable(str(error)) from error
                self._memory.published[repo_id, commit] = known
        return known

    def _is_stored(self, repo_id: str, commit: str) -> bool:
        endpoint = self._client.endpoint
        store = self._store(repo_id)
        if store.published(endpoint, commit):
            return True
        heads = store.heads(endpoint)
        if heads is None or commit not in _commits(heads):
            return False
        store.keep_published(endpoint, commit)  # the branch may move on
        return True

    def _ask_once(self, repo_id: str, commit: str) -> bool:
        if self._client.offline:
            raise NotInCache("No request may be sent (HF_HUB_OFFLINE, or local_files_only).")
        try:
            store = self._store(repo_id)
            with exclusively(store.lock(f"{commit}-published")):  # of several processes, one asks
                if self._is_stored(repo_id, commit):
                    return True
                known = self._leads_to(repo_id, commit)
                if known:
                    store.keep_published(self._client.endpoint, commit)
                return known
        except StoreError:  # the Hub is asked although the cache cannot be written
            return self._leads_to(repo_id, commit)

    def _leads_to(self, repo_id: str, commit: str) -> bool:
        heads = self._heads.get(repo_id)
        if not heads.time:  # those of a cache that another tool filled: what it calls a branch may be a pull request
            raise HubUnavailable(self._memory.failure)
        if commit in _commits(heads):
            return True
        if self._memory.resting():
            raise HubUnavailable(self._memory.failure)
        return any(commit in page for page in self._history(repo_id, heads))

    def _history(self, repo_id: str, heads: Heads) -> Iterator[list[str]]:
        """The history of branches and tags, the versions' first, up to a number of pages."""
        branches = dict.fromkeys([*heads.versions.values(), *heads.branches])
        refs = [*((each, heads.branches[each]) for each in branches), *heads.tags.items()]
        seen: set[str] = set()
        further = _MAX_FURTHER_PAGES
        for name, head in refs[:_MAX_REFS]:
            if head in seen:
                continue
            for number, page in enumerate(self._remote.history(repo_id, name)):
                seen.update(page)
                yield page
                further -= number > 0
                if not further:
                    break

    def may_use_cached(self, snapshot: Snapshot) -> bool:
        """Whether the cached files of a snapshot may be loaded although this Hub says nothing about its publisher.

        Not while the Hub answers other questions: else suppressing one answer would be enough to load a kernel of an
        untrusted publisher. A snapshot that was listed here was downloaded by a call that admitted it, or by a command
        that runs no code and admits any publisher: the record of what a caller allowed tells the two apart. What
        another tool downloaded counts as admitted by the user who ran it.
        """
        if self._memory.answered and not self._client.offline:
            return False
        store = self._store(snapshot.repo_id)
        return store.allowed(self._client.endpoint, snapshot.commit) or not store.was_fetched(snapshot.commit)

    def remember_allowed(self, snapshot: Snapshot) -> None:
        """Record beside the list of the commit's files that a caller allowed the snapshot."""
        if snapshot.listed:
            self._store(snapshot.repo_id).keep_allowed(self._client.endpoint, snapshot.commit)

    def _store(self, repo_id: str) -> RepoStore:
        return RepoStore(self._cache, repo_id)

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


def _commits(heads: Heads) -> set[str]:
    return {*heads.branches.values(), *heads.tags.values()}
