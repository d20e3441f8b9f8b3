"""The builds of a Hub or a mirror on disk: downloaded into the cache, each file checked, and repaired."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kernels import settings
from kernels.cache.store import CLEARING
from kernels.errors import DigestMismatch, InvalidRepository, StoreError
from kernels.models.snapshot import BUILD_FOLDER, RepoFile, Snapshot
from kernels.settings import Verify
from kernels.sources.api import Api
from kernels.sources.asked import AskedSource, not_in_cache
from kernels.sources.publishers import AskedPublishers
from kernels.support.formatting import format_names
from kernels.support.lock import exclusively
from kernels.support.logs import logger

if TYPE_CHECKING:
    from kernels.sources.ahead import Ahead
    from kernels.sources.download import Gate
    from kernels.trust.content import BuildContent

__all__ = ["CachedSource"]

_log = logger(__name__)

#: How often a build is completed again if `prune` removed its contents meanwhile.
_CLEARED_TRIES = 3


class CachedSource(AskedSource):
    """The kernels of a Hub or a mirror, through the cache.

    Args:
        api: What is asked.
        cache: The cache's folder.
        mirror: Makes what is asked where a mirror answers in the place of a Hub; None where that cannot be.
        verify: When the content of builds is checked, the default as `KERNELS_VERIFY` says.
    """

    def __init__(
        self, api: Api, cache: Path, mirror: Callable[[], Api] | None = None, *, verify: Verify | None = None
    ) -> None:
        super().__init__(api, cache, mirror)
        self.publishers = AskedPublishers(self)
        self.verify = settings.verify_when(verify)
        # Repositories, commits and files that were checked as they arrived: a Hub may give two repositories one commit.
        self._just_checked: set[tuple[str, str, str]] = set()
        # Builds that are downloaded before they are chosen, by repository, commit and build.
        self._ahead: dict[tuple[str, str, str], Ahead] = {}

    def forget_snapshots(self) -> None:
        """Forget the listings that are in memory, and which files were checked: the cache has them."""
        self.memory.snapshots.clear()
        self._just_checked.clear()

    def with_cache(self, cache: Path) -> CachedSource:
        """The same source with another cache for files."""
        other = CachedSource(self._api, cache, self._make_mirror, verify=self.verify)
        other.memory, other.publishers = self.memory, self.publishers
        return other

    def read(self, snapshot: Snapshot, file: RepoFile, limit: int) -> bytes:
        """The content of a small file, from the snapshot, or from the Hub and then stored in the snapshot.

        Raises:
            InvalidRepository: The file is larger than `limit` bytes.
        """
        repo_id, commit = snapshot.repo_id, snapshot.commit
        if file.size > limit:
            raise InvalidRepository(f"{repo_id}: {file.path} has {file.size} bytes; more than {limit} are not read.")
        store = self.store(repo_id)
        content = store.read(commit, file)
        if content is not None:
            return content
        if self.offline and store.exists(commit, file):
            raise self._mismatch(snapshot, [file])
        if self.offline:
            raise not_in_cache(f"{file.path} of {repo_id}", self.cache)
        with exclusively(store.reading_lock(commit, file.path)):
            content = store.read(commit, file)
            if content is None:
                content = self.answer(repo_id, lambda api, patience: api.content(snapshot, file))
                if content is not None:
                    store.mark_fetched(commit)
                    store.writer(commit).put(content, file)
        if content is None:  # it comes with its whole build
            self.fetch(snapshot, file.path.split("/")[1])
            content = store.read(commit, file)
        if content is None:
            raise self._mismatch(snapshot, [file])
        return content

    def on_disk(self, snapshot: Snapshot, variant: str) -> Path | None:
        """The folder of a build that is complete in the snapshot; None where files have to be downloaded."""
        store, files = self.store(snapshot.repo_id), snapshot.builds[variant]
        missing = store.missing(snapshot.commit, files)
        if missing:
            # Not of a build of which perhaps its metadata alone was downloaded.
            if self.offline and all(store.exists(snapshot.commit, file) for file in missing):
                raise self._mismatch(snapshot, missing)
            return None
        _log.debug("%s: build %s of commit %s is in the cache", snapshot.repo_id, variant, snapshot.commit[:12])
        return self._folder(snapshot, variant)

    def _folder(self, snapshot: Snapshot, variant: str) -> Path:
        """The folder of a build, none of whose links leads out of the repository's folder."""
        store = self.store(snapshot.repo_id)
        store.check_links(snapshot.commit, snapshot.builds[variant])
        return store.snapshot(snapshot.commit) / BUILD_FOLDER / variant

    def fetch(self, snapshot: Snapshot, variant: str) -> Path:
        """The folder of a build in the snapshot; files that are missing or have another size are downloaded."""
        return self.on_disk(snapshot, variant) or self._completed(snapshot, variant)

    def _completed(self, snapshot: Snapshot, variant: str) -> Path:
        """The folder of a build, once its missing files are downloaded: again if another process removes them."""
        repo_id, commit, files = snapshot.repo_id, snapshot.commit, snapshot.builds[variant]
        if self.offline:
            raise not_in_cache(f"build {variant} of {repo_id}", self.cache)
        store, begun, size = self.store(repo_id), time.monotonic(), 0
        store.sweep()
        store.mark_fetched(commit)
        writer = store.writer(commit)
        with self._alone_at(snapshot, variant) as ahead:
            for _ in range(_CLEARED_TRIES):
                fresh = store.missing(commit, files)
                if not fresh:
                    break
                if ahead is not None:
                    ahead.finish()
                    ahead = None
                missing = [file for file in store.missing(commit, fresh) if not writer.reuse(file)]
                if missing:
                    self._download(snapshot, variant, missing)
                size += sum(file.size for file in fresh)
                self._just_checked.update((repo_id, commit, file.path) for file in fresh)
                # A `prune` that runs now may not have seen the new links, and removes their contents.
                with exclusively(store.lock(CLEARING)):
                    pass
            gone = store.missing(commit, files)
            if gone:
                raise StoreError(
                    f"{store.snapshot(commit) / gone[0].path} was removed by another process each time it was "
                    f"downloaded ({_CLEARED_TRIES} times). Try again when no `kernels cache prune` runs."
                )
        _log.info(
            "%s: build %s of commit %s was fetched from %s: %d bytes in %.1f s",
            *(repo_id, variant, commit[:12], self.endpoint, size, time.monotonic() - begun),
        )
        return self._folder(snapshot, variant)

    def _download(self, snapshot: Snapshot, variant: str, files: list[RepoFile], gate: Gate | None = None) -> None:
        store = self.store(snapshot.repo_id)
        store.check_room(files)
        self.answer(snapshot.repo_id, lambda api, patience: api.download(store, snapshot, variant, files, gate))

    @contextmanager
    def _alone_at(self, snapshot: Snapshot, variant: str) -> Iterator[Ahead | None]:
        """Hold the lock of a build; gives what is downloaded of it already."""
        ahead = self._ahead.pop((snapshot.repo_id, snapshot.commit, variant), None)
        if ahead is None or not ahead.take():
            with exclusively(self.store(snapshot.repo_id).lock(f"{snapshot.commit}-{variant}")):
                yield None
            return
        try:
            yield ahead
        finally:
            ahead.end()

    def prefetch(self, snapshot: Snapshot, variant: str, read: Collection[str]) -> Ahead | None:
        """Download files of a build that will probably be fetched, until they could be written."""
        repo_id, commit = snapshot.repo_id, snapshot.commit
        decisive = [file for file in map(snapshot.file, read) if file is not None]
        store = self.store(repo_id)
        if self.offline or self.memory.away or self.kind_of(repo_id) != "hub" or len(decisive) < len(read):
            return None  # a mirror gives no files one by one
        if not store.missing(commit, decisive):
            return None  # what decides is here already: nothing is waited for
        lock = store.lock(f"{commit}-{variant}")
        if not lock.try_acquire():
            return None  # another process does it
        from kernels.sources.ahead import Ahead, worth_requesting

        with ExitStack() as held:
            held.callback(lock.release)
            others = store.missing(commit, [file for file in snapshot.builds[variant] if file.path not in read])
            files = worth_requesting(
                [file for file in others if not store.has_content(file) and store.begun(file) is None]
            )
            if not files:
                return None
            ahead = Ahead(repo_id, files, lock, lambda gate: self._download(snapshot, variant, files, gate))
            self._ahead[repo_id, commit, variant] = ahead
            held.pop_all()
        return ahead

    def repair(self, snapshot: Snapshot, variant: str, content: BuildContent) -> None:
        """Compare the content of a build's files with the listing, and download those that differ again.

        Files that were compared while they arrived are not read.

        Raises:
            DigestMismatch: Files differ, and nothing may be downloaded.
            HubUnavailable, StoreError: They cannot be downloaded, or not be written.
        """
        repo_id, commit, files = snapshot.repo_id, snapshot.commit, snapshot.builds[variant]
        altered = content.changed(file for file in files if (repo_id, commit, file.path) not in self._just_checked)
        if not altered:
            return
        if self.offline:
            raise self._mismatch(snapshot, altered)
        from kernels.trust.file_hashes import changed_files

        store = self.store(repo_id)
        with exclusively(store.lock(f"{commit}-{variant}")):
            store.mark_fetched(commit)
            altered, writer = changed_files(store.snapshot(commit), altered), store.writer(commit)
            for file in altered:
                writer.remove(file)
            if altered:  # else another process has done it
                self._download(snapshot, variant, altered)
        content.look_again()

    def link_boundary(self, snapshot: Snapshot) -> Path | None:
        """The cache: huggingface_hub may share contents between its repositories."""
        return self.cache

    def check_record(self, snapshot: Snapshot, variant: str) -> Path | None:
        """A file in the repository's folder, for this Hub; None for a snapshot that it never listed."""
        if not snapshot.listed:
            return None
        return self.store(snapshot.repo_id).check_record(self.key, snapshot.commit, variant)

    def advice(self, repo_id: str, target: str) -> str:
        """How to download a build that may not be downloaded now."""
        return (
            "Nothing may be downloaded (HF_HUB_OFFLINE, or local_files_only): while online, "
            f"install_kernel({repo_id!r}, …, target={target!r})."
        )

    def _mismatch(self, snapshot: Snapshot, files: Iterable[RepoFile]) -> DigestMismatch:
        root = self.store(snapshot.repo_id).snapshot(snapshot.commit)
        named = [file.path if (root / file.path).is_file() else f"{file.path} (missing)" for file in files]
        return DigestMismatch(
            f"{snapshot.repo_id} has files that are not what the Hub listed: {format_names(named, limit=5)}, in {root}."
            " Go online to download them again, or delete the repository's folder in the cache."
        )
