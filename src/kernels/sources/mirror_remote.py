"""The requests to a mirror: a document, then one archive for each build."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernels import settings
from kernels.cache.repo_records import MirrorRecord
from kernels.cache.repo_store import RepoStore
from kernels.errors import ArchiveDamaged, HubUnavailable, InvalidRepository, RepositoryNotFound, RevisionNotFound
from kernels.mirror.read_index import read_mirror_index, read_repository_index, records_key
from kernels.mirror.stores.base import EntryNotFound, ReadStore, StoredDocument
from kernels.models.mirror import (
    MIRROR_FILE,
    MirrorBuild,
    RepositoryIndex,
    commit_path,
    index_path,
)
from kernels.models.mirror_form import MAX_DOCUMENT_BYTES, REPAIR_ADVICE
from kernels.models.snapshot import BUILD_FOLDER, BUNDLE_FILE, METADATA_FILE, Heads, RepoFile, Snapshot
from kernels.sources.base import Moved
from kernels.sources.http import BRIEF, Patience
from kernels.sources.hub_errors import NAME_ADVICE, of_hub
from kernels.sources.hub_responses import CommitInfo
from kernels.sources.mirror_publishers import MirrorPublishers
from kernels.sources.progress import downloading, report
from kernels.sources.remote import Remote
from kernels.sources.session_cache import memory_of
from kernels.support.env_values import is_url, without_password

__all__ = ["MirrorRemote"]

#: How often an archive is requested if it is not the listed one.
_TRIES = 3

#: The fewest digits of a shortened commit.
_SHORTEST = 4


@dataclass(frozen=True)
class MirrorStores:
    """The store of a mirror.

    Attributes:
        patient: For what nothing else can answer.
        brief: For what the cache can answer too; it has fewer retries.
    """

    patient: ReadStore
    brief: ReadStore

    @property
    def local(self) -> bool:
        """Whether it is a folder, which needs no network."""
        return self.patient.url.startswith("file:")


class MirrorRemote(Remote):
    """The wire of one mirror.

    Args:
        stores: Its store.
        cache: The cache's folder.
        offline: Send no request.
    """

    def __init__(self, stores: MirrorStores, cache: Path, *, offline: bool = False) -> None:
        self.endpoint = stores.patient.url
        self.key = records_key(self.endpoint)
        self.publishers = MirrorPublishers(self, cache)
        self._stores = stores
        self._cache = cache
        self._offline = offline
        self._memory = memory_of(self.key, cache)

    @property
    def name(self) -> str:
        """`the mirror at https://…`."""
        return f"the mirror at {self.endpoint}"

    @property
    def offline(self) -> bool:
        """Whether nothing may be read: a mirror on this machine needs no network."""
        return not self._stores.local and (self._offline or settings.offline())

    @property
    def connects(self) -> bool:
        """Whether it is read over a network: not a mirror in a folder."""
        return not self._stores.local and not self.offline

    # Documents

    def heads(self, repo_id: str, stored: Heads | None, patience: Patience) -> Heads:
        """The branches and tags of a repository: one conditional request."""
        record = self.record(repo_id)
        etag = "" if record is None else record.etag
        try:
            document = self._document(index_path(repo_id), patience, etag)
        except EntryNotFound:
            raise self.no_repository(repo_id) from None
        if document is not None:
            return self.accept_index(repo_id, document)
        assert record is not None
        record.asked = time.time()
        RepoStore(self._cache, repo_id).keep_mirror(record)
        self._answered()
        if record.moved_to is not None:
            raise Moved(repo_id, record.moved_to)
        return Heads(record.branches, record.tags, record.asked)

    def accept_index(self, repo_id: str, document: StoredDocument) -> Heads:
        """The heads in a repository's index that was read; the index is kept for what follows.

        Raises:
            InvalidRepository, UntrustedSignature: It is not valid, not signed as required, or too old.
            Moved: The repository has another name now.
        """
        path = index_path(repo_id)
        index = read_repository_index(
            document.content,
            f"{self.endpoint}/{path}",
            repo_id,
            url=self.endpoint,
            cache=self._cache,
        )
        self._answered()
        self._memory.indexes[repo_id] = index
        now = time.time()
        self._keep(repo_id, index, document.etag, now)
        if index.moved_to is not None:
            raise Moved(repo_id, index.moved_to)
        return Heads(index.branches, index.tags, now)

    def accept_commit(self, repo_id: str, commit: str, document: StoredDocument) -> RepositoryIndex:
        """The document of a commit that was read, kept for what follows.

        Raises:
            InvalidRepository, UntrustedSignature: It is not valid, not signed as required, or too old.
        """
        where = f"{self.endpoint}/{commit_path(repo_id, commit)}"
        index = read_repository_index(
            document.content,
            where,
            repo_id,
            commit,
            url=self.endpoint,
            cache=self._cache,
        )
        self._answered()
        self._memory.commits[repo_id, commit] = index
        known = self.record(repo_id)
        if known is None or known.number <= index.number:
            self._keep(repo_id, index, None, time.time())
        return index

    def repositories(self, publisher: str | None) -> Iterator[str]:
        """The repositories of a publisher, or all, as the mirror's own index lists them.

        Raises:
            RepositoryNotFound: It lists none of that publisher.
        """
        try:
            document = self._document(MIRROR_FILE, Patience())
        except EntryNotFound:
            raise HubUnavailable(f"{self.name} has no {MIRROR_FILE}, which lists its repositories.") from None
        assert document is not None
        index = read_mirror_index(document.content, f"{self.endpoint}/{MIRROR_FILE}")
        found = [each for each in index.repositories if publisher in (None, each.partition("/")[0])]
        if publisher is not None and not found:
            raise RepositoryNotFound(f"The mirror at {self.endpoint} has no repository of {publisher!r}.")
        yield from sorted(found)

    def record(self, repo_id: str) -> MirrorRecord | None:
        """What the mirror last said of a repository, as the cache has it."""
        return RepoStore(self._cache, repo_id).mirror(self.key)

    def _keep(self, repo_id: str, index: RepositoryIndex, etag: str | None, now: float) -> None:
        """Record what a document says; without an ETag it is that of a commit, which has no branches."""
        store = RepoStore(self._cache, repo_id)
        record = MirrorRecord(
            form=0,
            key=self.key,
            etag=etag or "",
            number=index.number,
            asked=now,
            publisher=index.publisher.name,
            trusted=index.publisher.trusted,
            branches=dict(index.branches),
            tags=dict(index.tags),
            moved_to=index.moved_to,
            origin=index.origin.url,
        )
        known = store.mirror(self.key) if etag is None else None
        if known is not None:
            record.etag, record.moved_to = known.etag, known.moved_to
            record.branches, record.tags = known.branches, known.tags
        store.keep_mirror(record)

    def _answered(self) -> None:
        self._memory.answered = True
        self._memory.kind = "mirror"

    def _document(self, path: str, patience: Patience, etag: str = "") -> StoredDocument | None:
        store = self._stores.brief if patience is BRIEF else self._stores.patient
        return store.read(path, MAX_DOCUMENT_BYTES, etag=etag)

    # Commits

    def revision(self, repo_id: str, revision: str) -> CommitInfo | None:
        """The commit of a shortened commit, or of a whole one."""
        index = self._memory.indexes.get(repo_id)
        known = [] if index is None else [*index.commits, *index.older]
        found = [each for each in known if each.startswith(revision)] if len(revision) >= _SHORTEST else []
        commit = found[0] if len(found) == 1 else revision
        try:
            entry = self._index_of(repo_id, commit, BRIEF).commits[commit] if len(commit) == 40 else None
        except (RepositoryNotFound, RevisionNotFound):
            return None
        return None if entry is None else CommitInfo(commit, entry.date or None)

    def snapshot(self, repo_id: str, commit: str, patience: Patience) -> Snapshot:
        """The files of a commit, as the mirror lists them now."""
        known = self.known_snapshot(repo_id, commit)
        if known is not None:
            return known
        snapshot = self._index_of(repo_id, commit, patience).snapshot(commit)
        assert snapshot is not None
        return _as_requested(snapshot, repo_id)

    def known_snapshot(self, repo_id: str, commit: str) -> Snapshot | None:
        """The files of a commit in a document that was read."""
        index = self._known(repo_id, commit)
        snapshot = None if index is None else index.snapshot(commit)
        return None if snapshot is None else _as_requested(snapshot, repo_id)

    def may_grow(self, snapshot: Snapshot) -> bool:
        """Whether the listing may lack builds: not if it comes from a document of this process."""
        return snapshot.listed and self._known(snapshot.repo_id, snapshot.commit) is None

    def origin(self, repo_id: str) -> str:
        """The Hub that the mirror took a repository from; the mirror itself before it was asked."""
        index = self._memory.indexes.get(repo_id)
        record = self.record(repo_id)
        url = index.origin.url if index is not None else "" if record is None else record.origin
        return url if is_url(url) and without_password(url) == url else self.endpoint

    def _known(self, repo_id: str, commit: str) -> RepositoryIndex | None:
        index = self._memory.indexes.get(repo_id)
        if index is not None and commit in index.commits:
            return index
        return self._memory.commits.get((repo_id, commit))

    def _index_of(self, repo_id: str, commit: str, patience: Patience) -> RepositoryIndex:
        known = self._known(repo_id, commit)
        if known is not None:
            return known
        try:
            document = self._document(commit_path(repo_id, commit), patience)
        except EntryNotFound:
            raise self.no_commit(repo_id, commit) from None
        assert document is not None
        return self.accept_commit(repo_id, commit, document)

    # Files

    def content(self, snapshot: Snapshot, file: RepoFile) -> bytes | None:
        """The text of a file in the document of its commit; None for a file in an archive."""
        index = self._index_of(snapshot.repo_id, snapshot.commit, Patience())
        parts = file.path.split("/", 2)
        if len(parts) < 3 or parts[0] != BUILD_FOLDER:
            text = index.commits[snapshot.commit].texts.get(file.path)
        else:
            build = self._build(index, snapshot, parts[1])
            text = {METADATA_FILE: build.metadata, BUNDLE_FILE: build.signature}.get(parts[2])
        content = None if text is None else text.encode()
        if content is None and parts[0] != BUILD_FOLDER:
            raise HubUnavailable(f"{self.name} does not have {file.path} of {snapshot.repo_id}.")
        if content is not None and not file.describes(content):
            raise self._changed(snapshot, file.path)
        return content

    def download(self, store: RepoStore, snapshot: Snapshot, variant: str, files: list[RepoFile]) -> None:
        """Put files of a build into the cache: one archive, unpacked while it arrives."""
        from kernels.mirror.archive import unpack  # not for what is in the cache
        from kernels.mirror.ranges import archive_chunks

        index = self._index_of(snapshot.repo_id, snapshot.commit, Patience())
        build = self._build(index, snapshot, variant)
        folder = f"{BUILD_FOLDER}/{variant}/"
        listed = {file.path: file for file in (each.listed(folder) for each in build.files)}
        for file in files:
            if file.path not in listed or (listed[file.path].size, listed[file.path].blob) != (file.size, file.blob):
                raise self._changed(snapshot, file.path)
        if not files:
            return
        where = f"{self.endpoint}/{build.archive.name}"
        try:
            with downloading(snapshot.repo_id, sum(file.size for file in files), len(files)):
                for attempt in range(_TRIES):
                    try:
                        with (
                            store.writer(snapshot.commit).unpacking(files, folder, report) as sink,
                            archive_chunks(self._stores.patient, build.archive) as chunks,
                        ):
                            unpack(chunks, build, sink, where)
                        return
                    except ArchiveDamaged as error:  # perhaps on the way
                        if attempt == _TRIES - 1:
                            raise error.reworded(f"{error} If it stays so: {REPAIR_ADVICE}.") from None
        except EntryNotFound as error:
            raise HubUnavailable(
                f"{where} is listed but not available: build {variant} of {snapshot.repo_id}. Nothing was kept. "
                "`kernels mirror --verify` finds what a mirror lacks."
            ) from error

    def _build(self, index: RepositoryIndex, snapshot: Snapshot, variant: str) -> MirrorBuild:
        build = index.build(snapshot.commit, variant)
        if build is None:
            raise HubUnavailable(
                f"{self.name} no longer has build {variant} of {snapshot.repo_id} (commit {snapshot.commit[:12]})."
            )
        return build

    def _changed(self, snapshot: Snapshot, path: str) -> InvalidRepository:
        return InvalidRepository(
            f"{self.name} lists {path} of {snapshot.repo_id} (commit {snapshot.commit[:12]}) with another content than "
            "before: a commit never changes. Nothing was kept."
        )

    @property
    def asks_publishers(self) -> bool:
        """Never: the index has the verdict."""
        return False

    # Errors

    def no_repository(self, repo_id: str) -> RepositoryNotFound:
        """The error for a repository that the mirror does not have."""
        missing = RepositoryNotFound(
            f"The mirror at {self.endpoint} has no repository {repo_id}.{_NAME_ADVICE.format(repo_id)}"
        )
        return of_hub(missing)

    def no_commit(self, repo_id: str, commit: str) -> RepositoryNotFound | RevisionNotFound:
        """The error for a commit that the mirror does not have, or whose repository it does not have."""
        try:
            if repo_id not in self._memory.indexes:
                self._document(index_path(repo_id), BRIEF)
        except EntryNotFound:
            return self.no_repository(repo_id)
        missing = RevisionNotFound(
            f"The mirror at {self.endpoint} has no commit {commit} of {repo_id}. Add it with `kernels mirror … --repo "
            f"{repo_id} --revision {commit}`."
        )
        return of_hub(missing)


_NAME_ADVICE = NAME_ADVICE.partition(";")[0] + ", or add it with `kernels mirror … --repo {}`."


def _as_requested(snapshot: Snapshot, repo_id: str) -> Snapshot:
    """The snapshot under the name that was requested, which may differ in case."""
    if snapshot.repo_id == repo_id:
        return snapshot
    return Snapshot(repo_id, snapshot.commit, snapshot.files, absent=snapshot.absent)
