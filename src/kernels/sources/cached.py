"""A Hub or a mirror as a source: its answers are stored in the cache, and used again as long as they hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kernels import settings
from kernels.cache.repo_store import CLEARING, RepoStore
from kernels.errors import (
    DigestMismatch,
    HubUnavailable,
    InvalidRepository,
    NotInCache,
    RepositoryNotFound,
    RevisionNotFound,
    StoreError,
)
from kernels.models.requirement import Requirement, is_commit
from kernels.models.snapshot import BUILD_FOLDER, Heads, RepoFile, Snapshot
from kernels.settings import Verify
from kernels.sources.base import Source
from kernels.sources.cached_heads import CachedHeads, not_in_cache
from kernels.sources.http import BRIEF, Patience
from kernels.sources.hub_responses import CommitInfo
from kernels.sources.remote import Remote
from kernels.sources.session_cache import memory_of
from kernels.support.formatting import format_names
from kernels.support.lock import exclusively
from kernels.support.logs import logger
from kernels.support.tasks import side_by_side
from kernels.trust.publishers import Publishers

if TYPE_CHECKING:
    from kernels.sources.speculative_fetch import SpeculativeFetch
    from kernels.trust.content import BuildContent

__all__ = ["CachedSource"]

_log = logger(__name__)

#: How often a build is completed again if `prune` removed its contents meanwhile.
_CLEARED_TRIES = 3


class CachedSource(Source):
    """The kernels of a Hub or a mirror, through the cache.

    Args:
        remote: Sends the requests.
        cache: The cache's folder.
        verify: When the content of builds is checked, the default as `KERNELS_VERIFY` says.
    """

    def __init__(self, remote: Remote, cache: Path, *, verify: Verify | None = None) -> None:
        self.endpoint: str = remote.endpoint
        self.publishers: Publishers = remote.publishers
        self.verify = settings.verify_when(verify)
        self.cache = cache
        self._remote = remote
        self._key = remote.key
        self._memory = memory_of(remote.key, cache)
        self._heads = CachedHeads(remote, cache, self._memory)
        # Repositories, commits and files that were checked as they arrived: a Hub may give two repositories one commit.
        self._fresh: set[tuple[Path, str, str]] = set()
        # What is requested before its build is chosen, by repository, commit and build.
        self._ahead: dict[tuple[Path, str, str], SpeculativeFetch] = {}
        # The same, by the file whose request precedes theirs.
        self._following: dict[tuple[Path, str, str], SpeculativeFetch] = {}

    @property
    def name(self) -> str:
        """`the Hub at https://…`, or `the cache at /path` while offline."""
        return f"the cache at {self.cache}" if self.offline else self._remote.name

    def origin(self, repo_id: str) -> str:
        """The Hub's URL; of a mirror that of the Hub that it was taken from."""
        return self._remote.origin(repo_id)

    @property
    def offline(self) -> bool:
        """Whether this source answers from the cache alone."""
        return self._remote.offline

    @property
    def connects(self) -> bool:
        """Whether the answers come over a network."""
        return self._remote.connects

    def forget_snapshots(self) -> None:
        """Forget the listings that are in memory, and which files were checked: the cache has them."""
        self._memory.snapshots.clear()
        self._fresh.clear()

    def with_cache(self, cache: Path) -> CachedSource:
        """The same source with another cache."""
        return CachedSource(self._remote, cache, verify=self.verify)

    def repositories(self, publisher: str | None = None) -> Iterable[str]:
        """The repositories of a publisher, or all; the cache does not know them."""
        if self.offline:
            raise NotInCache("Repositories cannot be listed: HF_HUB_OFFLINE is set.")
        return self._remote.repositories(publisher)

    # Heads

    def heads(self, repo_id: str) -> Heads:
        """The branches and tags of a repository: requested once per process, or from the cache without an answer.

        Raises:
            RepositoryNotFound: The Hub has no such repository.
            NotInCache: Offline, and not in the cache.
            HubUnavailable: The Hub did not answer, and it is not in the cache.
        """
        return self._heads.get(repo_id)

    def find_commit(self, repo_id: str, revision: str) -> str | None:
        """The commit of a pull request's branch (`refs/pr/1`) or of a shortened commit."""
        answer = None if self.offline else self._revision(repo_id, revision)
        commit = None if answer is None else answer.sha
        return commit if commit is not None and is_commit(commit) else None

    def commit_date(self, repo_id: str, commit: str) -> str | None:
        """When a commit was made, in ISO 8601; None if the Hub cannot be asked."""
        try:
            answer = None if self.offline or self._memory.resting() else self._revision(repo_id, commit)
        except HubUnavailable as error:
            self._memory.rest(error)
            return None
        return None if answer is None else answer.last_modified

    def _revision(self, repo_id: str, revision: str) -> CommitInfo | None:
        return self._remote.revision(repo_id, revision)

    # Snapshots

    def snapshot(self, requirement: Requirement, commit: str) -> Snapshot:
        """The repository at a commit: from the index, else from the Hub, else from the files in the cache."""
        repo_id = requirement.repo_id
        key = (repo_id, commit)
        with self._memory.lock(f"{repo_id}@{commit}"):
            known = self._memory.snapshots.get(key)
            if known is None:
                known = self._answered(repo_id, commit) or self._indexed(repo_id, commit)
                known = known or self._listed(requirement, commit)
                self._memory.snapshots[key] = known
            return known

    def _answered(self, repo_id: str, commit: str) -> Snapshot | None:
        """A listing that came with another answer; it replaces a stored one, which may lack builds."""
        snapshot = self._remote.known_snapshot(repo_id, commit)
        if snapshot is not None:
            store = self._store(repo_id)
            if store.index(self._key, commit) != snapshot.files:
                store.keep_index(self._key, commit, snapshot.files)
        return snapshot

    def listed_again(self, snapshot: Snapshot) -> Snapshot | None:
        """The snapshot as a mirror lists it now, if its stored listing may lack builds; None if it was not asked."""
        repo_id, commit = snapshot.repo_id, snapshot.commit
        if self.offline or not self._remote.may_grow(snapshot) or self._memory.resting():
            return None
        with self._memory.lock(f"{repo_id}@{commit}"):
            try:
                found = self._remote.snapshot(repo_id, commit, BRIEF)
            except HubUnavailable as error:
                self._memory.rest(error)
                return None  # the stored listing stays
            except (RepositoryNotFound, RevisionNotFound):
                return None
            self._memory.snapshots[repo_id, commit] = found
            self._store(repo_id).keep_index(self._key, commit, found.files)
            return found

    @property
    def asks_publishers(self) -> bool:
        """Whether it is known that a Hub is asked."""
        return self._remote.asks_publishers

    def _indexed(self, repo_id: str, commit: str) -> Snapshot | None:
        files = self._store(repo_id).index(self._key, commit)
        if files is not None:
            with suppress(InvalidRepository):  # a damaged index is not used
                snapshot = Snapshot(repo_id, commit, files)
                _log.debug("%s: the files of commit %s are known", repo_id, commit[:12])
                return snapshot
        return None

    def _listed(self, requirement: Requirement, commit: str) -> Snapshot:
        repo_id = requirement.repo_id
        store = self._store(repo_id)
        cached = store.snapshot(commit).is_dir()
        if self.offline:
            if not cached:
                raise not_in_cache(str(requirement), self.cache)
            return self._found(repo_id, commit)
        try:
            try:
                with exclusively(store.lock(f"{commit}-index")):  # of several processes, one sends the request
                    return self._indexed(repo_id, commit) or self._ask_files(requirement, commit, cached)
            except StoreError:  # the Hub is asked although the cache cannot be written
                return self._ask_files(requirement, commit, cached)
        except HubUnavailable as error:
            if not cached:
                raise
            self._heads.aged(repo_id, Heads({}), str(error))
            return self._found(repo_id, commit)

    def _found(self, repo_id: str, commit: str) -> Snapshot:
        """The files in the cache of a commit that this Hub never listed."""
        return Snapshot(repo_id, commit, self._store(repo_id).listing(commit), listed=False)

    def _ask_files(self, requirement: Requirement, commit: str, cached: bool) -> Snapshot:
        repo_id = requirement.repo_id
        # What is in the cache does not wait for a Hub that did not answer recently.
        if cached and self._memory.resting():
            raise HubUnavailable(self._memory.failure)
        try:
            brief = cached or self._memory.resting()
            snapshot = self._remote.snapshot(repo_id, commit, BRIEF if brief else Patience())
        except HubUnavailable as error:
            self._memory.rest(error)
            raise
        self._store(repo_id).keep_index(self._key, commit, snapshot.files)
        return snapshot

    # Files

    def read(self, snapshot: Snapshot, file: RepoFile, limit: int) -> bytes:
        """The content of a small file, from the snapshot, or from the Hub and then stored in the snapshot.

        Raises:
            InvalidRepository: The file is larger than `limit` bytes.
        """
        if file.size > limit:
            raise InvalidRepository(
                f"{snapshot.repo_id}: {file.path} has {file.size} bytes; more than {limit} are not read."
            )
        store = self._store(snapshot.repo_id)
        content = store.read(snapshot.commit, file)
        if content is not None:
            return content
        if self.offline and store.exists(snapshot.commit, file):
            raise self._mismatch(snapshot, [file])
        if self.offline:
            raise not_in_cache(f"{file.path} of {snapshot.repo_id}", self.cache)
        with exclusively(store.reading_lock(snapshot.commit, file.path)):
            content = store.read(snapshot.commit, file)
            if content is None:
                with self._before_others(store, snapshot, file):
                    content = self._remote.content(snapshot, file)
                if content is not None:
                    store.mark_fetched(snapshot.commit)
                    store.writer(snapshot.commit).put(content, file)
        if content is None:
            self._fetch(store, snapshot, file.path.split("/")[1])
            content = store.read(snapshot.commit, file)
        if content is None:
            raise self._mismatch(snapshot, [file])
        return content

    def on_disk(self, snapshot: Snapshot, variant: str) -> Path | None:
        """The folder of a build that is complete in the snapshot; None where files have to be downloaded."""
        store, files = self._store(snapshot.repo_id), snapshot.builds[variant]
        if store.missing(snapshot.commit, files):
            damaged = store.damaged(snapshot.commit, files) if self.offline else []
            if damaged:
                raise self._mismatch(snapshot, damaged)
            return None
        _log.debug("%s: build %s of commit %s is in the cache", snapshot.repo_id, variant, snapshot.commit[:12])
        return _checked_folder(store, snapshot, variant)

    def advice(self, repo_id: str, target: str) -> str:
        """How to download a build that may not be downloaded now."""
        return (
            "Nothing may be downloaded (HF_HUB_OFFLINE, or local_files_only): while online, "
            f"install_kernel({repo_id!r}, …, target={target!r})."
        )

    def fetch(self, snapshot: Snapshot, variant: str) -> Path:
        """The folder of a build in the snapshot; files that are missing or have another size are downloaded."""
        return self._fetch(self._store(snapshot.repo_id), snapshot, variant)

    def fetch_speculatively(self, snapshot: Snapshot, variant: str, read: Collection[str]) -> SpeculativeFetch | None:
        """Request files of a build that will probably be fetched, once the first of those to `read` is requested."""
        store, commit = self._store(snapshot.repo_id), snapshot.commit
        decisive = [file for file in map(snapshot.file, read) if file is not None]
        if self.offline or self._memory.resting() or len(decisive) < len(read):
            return None
        awaited = store.missing(commit, decisive)
        if not awaited:
            return None  # what decides is here already: nothing is waited for
        from kernels.sources.speculative_fetch import speculative_fetch

        others = [file for file in snapshot.builds[variant] if file.path not in read]
        ahead = speculative_fetch(self._remote, store, snapshot, variant, others)
        if ahead is None:
            return None
        self._ahead[store.folder, commit, variant] = ahead
        self._following[store.folder, commit, awaited[0].path] = ahead
        return ahead

    @contextmanager
    def _before_others(self, store: RepoStore, snapshot: Snapshot, file: RepoFile) -> Iterator[None]:
        """Send the request for a file before those of its build that are requested ahead."""
        ahead = self._following.pop((store.folder, snapshot.commit, file.path), None)
        sent = None if ahead is None else self._remote.send_early(snapshot, [file])
        try:
            if ahead is not None:
                ahead.begin()
            yield
        finally:
            if sent is not None:
                sent.close()

    def link_boundary(self, snapshot: Snapshot) -> Path | None:
        """The cache: huggingface_hub may share contents between its repositories."""
        return self.cache

    def check_record(self, snapshot: Snapshot, variant: str) -> Path | None:
        """A file in the repository's folder, for this Hub; None for a snapshot that it never listed."""
        if not snapshot.listed:
            return None
        store = self._store(snapshot.repo_id)
        return store.check_record(self._key, snapshot.commit, variant)

    def repair(self, snapshot: Snapshot, variant: str, content: BuildContent) -> None:
        """Compare the content of a build's files with the listing, and download those that differ again.

        Files that were compared while they arrived are not read.

        Raises:
            DigestMismatch: Files differ, and nothing may be downloaded.
            HubUnavailable, StoreError: They cannot be downloaded, or not be written.
        """
        store = self._store(snapshot.repo_id)
        commit, files = snapshot.commit, snapshot.builds[variant]
        altered = content.changed(file for file in files if (store.folder, commit, file.path) not in self._fresh)
        if not altered:
            return
        if self.offline:
            raise self._mismatch(snapshot, altered)
        from kernels.trust.file_hashes import changed_files

        with exclusively(store.lock(f"{commit}-{variant}")):
            store.mark_fetched(commit)
            altered, writer = changed_files(store.snapshot(commit), altered), store.writer(commit)
            for file in altered:
                writer.remove(file)
            if altered:  # else another process has done it
                self._download_files(store, snapshot, variant, altered)
        content.look_again()

    def _fetch(self, store: RepoStore, snapshot: Snapshot, variant: str) -> Path:
        return self.on_disk(snapshot, variant) or self._download(store, snapshot, variant)

    def _download(self, store: RepoStore, snapshot: Snapshot, variant: str) -> Path:
        files = snapshot.builds[variant]
        if self.offline:
            raise not_in_cache(f"build {variant} of {snapshot.repo_id}", self.cache)
        with self._alone_at(store, snapshot, variant) as ahead:
            store.sweep()
            store.mark_fetched(snapshot.commit)
            writer, begun, size = store.writer(snapshot.commit), time.monotonic(), 0
            for _ in range(_CLEARED_TRIES):
                fresh = store.missing(snapshot.commit, files)
                if not fresh:
                    break
                requested = set() if ahead is None else ahead.among(fresh)
                rest = [file for file in fresh if file not in requested]
                missing = [file for file in rest if not writer.reuse(file)]
                steps: list[Callable[[], None]] = []
                if missing:
                    steps.append(partial(self._download_files, store, snapshot, variant, missing))
                if ahead is not None and requested:
                    steps.append(partial(ahead.put_into, store, snapshot.commit, requested))
                if len(steps) > 1:
                    side_by_side(lambda step: step(), steps, at_once=len(steps), name="fetch")
                elif steps:
                    steps[0]()
                ahead = None
                size += sum(file.size for file in (*requested, *missing))
                self._fresh.update((store.folder, snapshot.commit, file.path) for file in fresh)
                # A `prune` that runs now may not have seen the new links, and removes their contents.
                with exclusively(store.lock(CLEARING)):
                    pass
            gone = store.missing(snapshot.commit, files)
            if gone:
                raise StoreError(
                    f"{store.snapshot(snapshot.commit) / gone[0].path} was removed by another process each time it was "
                    f"downloaded ({_CLEARED_TRIES} times). Try again when no `kernels cache prune` runs."
                )
            _log.info(
                "%s: build %s of commit %s was fetched from %s: %d bytes in %.1f s",
                *(snapshot.repo_id, variant, snapshot.commit[:12], self.endpoint),
                *(size, time.monotonic() - begun),
            )
        return _checked_folder(store, snapshot, variant)

    def _download_files(self, store: RepoStore, snapshot: Snapshot, variant: str, files: list[RepoFile]) -> None:
        store.check_room(files)
        self._remote.download(store, snapshot, variant, files)

    @contextmanager
    def _alone_at(self, store: RepoStore, snapshot: Snapshot, variant: str) -> Iterator[SpeculativeFetch | None]:
        """Hold the lock of a build; gives its files that were requested ahead."""
        ahead = self._ahead.pop((store.folder, snapshot.commit, variant), None)
        if ahead is None or not ahead.take():
            with exclusively(store.lock(f"{snapshot.commit}-{variant}")):
                yield None
            return
        try:
            yield ahead
        finally:
            ahead.end()

    def _store(self, repo_id: str) -> RepoStore:
        return RepoStore(self.cache, repo_id)

    def _mismatch(self, snapshot: Snapshot, files: Iterable[RepoFile]) -> DigestMismatch:
        root = self._store(snapshot.repo_id).snapshot(snapshot.commit)
        named = [file.path if (root / file.path).is_file() else f"{file.path} (missing)" for file in files]
        return DigestMismatch(
            f"{snapshot.repo_id} has files that are not what the Hub listed: {format_names(named, limit=5)}, in {root}."
            " Go online to download them again, or delete the repository's folder in the cache."
        )


def _checked_folder(store: RepoStore, snapshot: Snapshot, variant: str) -> Path:
    """The folder of a build, none of whose links leads out of the repository's folder."""
    store.check_links(snapshot.commit, snapshot.builds[variant])
    return store.snapshot(snapshot.commit) / BUILD_FOLDER / variant
