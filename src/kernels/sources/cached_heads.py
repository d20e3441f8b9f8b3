"""The branches of a Hub's or a mirror's repositories: as it answers, or as the cache has them without an answer."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from kernels import settings
from kernels.cache.repo_store import RepoStore
from kernels.errors import HubUnavailable, InvalidMetadata, NotInCache
from kernels.models.metadata import Metadata
from kernels.models.snapshot import METADATA_FILE, Heads
from kernels.sources.http import BRIEF, Patience
from kernels.sources.hub_errors import of_hub
from kernels.support.formatting import plural
from kernels.support.logs import logger
from kernels.support.warn import warn_once

if TYPE_CHECKING:
    from kernels.sources.remote import Remote
    from kernels.sources.session_cache import HubMemory

__all__ = ["CachedHeads", "not_in_cache"]

_log = logger(__name__)


class CachedHeads:
    """The branches and tags of a Hub's repositories, in the memory of this process and in the cache.

    Args:
        remote: Sends the requests.
        cache: The cache's folder.
        memory: The answers of this process.
    """

    def __init__(self, remote: Remote, cache: Path, memory: HubMemory) -> None:
        self._remote = remote
        self._cache = cache
        self._memory = memory

    def get(self, repo_id: str) -> Heads:
        """The branches and tags of a repository: requested once per process, or from the cache without an answer.

        Raises:
            RepositoryNotFound: The Hub has no such repository.
            NotInCache: Offline, and not in the cache.
            HubUnavailable: The Hub did not answer, and it is not in the cache.
        """
        with self._memory.lock(repo_id):
            known = self._memory.heads.get(repo_id)
            if known is not None:
                return known
            stored = self.stored(repo_id)
            if self._remote.offline:
                if stored is None:
                    raise not_in_cache(repo_id, self._cache)
                return stored
            heads = self._asked(repo_id, stored)
            self._memory.heads[repo_id] = heads
            return heads

    def _asked(self, repo_id: str, stored: Heads | None) -> Heads:
        if stored is not None and 0 <= time.time() - stored.time < settings.refresh_seconds():
            _log.debug("%s: the branches are those of %s ago", repo_id, _age(time.time() - stored.time))
            return stored
        # For what the cache can answer, the wait is short; a Hub that did not answer recently is not asked.
        if stored is not None and self._memory.resting():
            return self.aged(repo_id, stored, self._memory.failure)
        try:
            # Several kernels do not each wait for a Hub that did not answer recently.
            brief = stored is not None or self._memory.resting()
            heads = self._remote.heads(repo_id, stored, BRIEF if brief else Patience())
        except HubUnavailable as error:
            self._memory.rest(error)
            if stored is None:
                raise
            return self.aged(repo_id, stored, str(error))
        self._store(repo_id).keep_heads(self._remote.key, heads)
        return heads

    def stored(self, repo_id: str) -> Heads | None:
        """The branches of a repository as the cache has them; None if it has none."""
        store = self._store(repo_id)
        stored = store.heads(self._remote.key)
        if stored is not None:
            return stored
        found = _heads_of_snapshots(store)
        return found if found.branches or store.commits() else None

    def aged(self, repo_id: str, heads: Heads, problem: str) -> Heads:
        """The stored branches, with a warning that the Hub did not answer, and why."""
        if not self._memory.warned:  # one warning for a Hub that does not answer, for any number of kernels
            self._memory.warned = True
            age = f" as it was {_age(time.time() - heads.time)} ago" if heads.time else ""
            warn_once(_log, f"The cache is used in place of an answer, such as for {repo_id}{age}. {problem}")
        return heads

    def _store(self, repo_id: str) -> RepoStore:
        return RepoStore(self._cache, repo_id)


def not_in_cache(what: str, cache: Path) -> NotInCache:
    """The error for what is not in the cache while nothing may be downloaded.

    Args:
        what: The subject of the message.
        cache: The cache's folder.
    """
    hub = ", not from KERNELS_HUB either" if settings.environment().get("KERNELS_HUB") else ""
    error = NotInCache(
        f"{what} is not in the cache at {cache}, and nothing may be downloaded (HF_HUB_OFFLINE, or "
        f"local_files_only){hub}. Download it while online, or set KERNELS_CACHE to the folder that has it."
    )
    return of_hub(error)


def _heads_of_snapshots(store: RepoStore) -> Heads:
    """The branches of a cache that another tool filled: those it recorded, and the versions in the builds' metadata."""
    heads = store.foreign_heads()
    branches: dict[str, str] = {}
    for commit in store.commits():  # the newest commit of a version first
        version = _stated_version(store.snapshot(commit))
        if version is not None:
            branches.setdefault(f"v{version}", commit)
    return replace(heads, branches={**branches, **heads.branches})


def _stated_version(snapshot: Path) -> int | None:
    for path in sorted(snapshot.glob(f"build/*/{METADATA_FILE}")):
        with suppress(InvalidMetadata):
            return Metadata.read_from_file(path).version
    return None


def _age(seconds: float) -> str:
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1)):
        if seconds >= size:
            return plural(int(seconds // size), unit)
    return "0 seconds"
