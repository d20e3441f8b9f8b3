"""What a mirror is asked: a document of a repository or of one commit, then one archive for each build."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from kernels import settings
from kernels.cache.records import Answer
from kernels.cache.store import RepoStore
from kernels.errors import ArchiveDamaged, HubUnavailable, InvalidRepository, RepositoryNotFound, RevisionNotFound
from kernels.mirror.read_index import read_mirror_index, read_repository_index, records_key
from kernels.mirror.stores.base import EntryNotFound, ReadStore, StoredDocument
from kernels.models.mirror import MIRROR_FILE, MirrorBuild, RepositoryIndex, commit_path, index_path
from kernels.models.mirror_form import MAX_DOCUMENT_BYTES, REPAIR_ADVICE, is_mirror_document
from kernels.models.snapshot import BUILD_FOLDER, BUNDLE_FILE, METADATA_FILE, RepoFile, Snapshot
from kernels.sources.http import BRIEF, OtherKind, Patience
from kernels.sources.hub_errors import of_hub
from kernels.sources.hub_responses import CommitInfo
from kernels.sources.memory import memory_of
from kernels.sources.progress import downloading, report
from kernels.support.env_values import is_url, without_password

if TYPE_CHECKING:
    from kernels.sources.download import Gate

__all__ = ["MirrorApi"]

#: How often an archive is requested if it is not the listed one.
_TRIES = 3

#: The fewest digits of a shortened commit.
_SHORTEST = 4


class MirrorApi:
    """The questions to one mirror, as `sources/api.py` describes them.

    Args:
        store: Gives the mirror's store, which retries so often.
        cache: The cache's folder.
        offline: Send no request.

    Attributes:
        endpoint: The mirror's URL.
        key: What its answers are stored for.
    """

    kind: Literal["mirror"] = "mirror"

    def __init__(self, store: Callable[[Patience], ReadStore], cache: Path, *, offline: bool = False) -> None:
        self.endpoint = store(Patience()).url
        self.key = records_key(self.endpoint)
        self._store = store
        self._cache = cache
        self._offline = offline
        self._documents = memory_of(self.key, cache).documents
        self._given: StoredDocument | None = None

    def given(self, document: StoredDocument) -> MirrorApi:
        """The same, which has the document already that the next question asks for."""
        other = copy.copy(self)
        other._given = document
        return other

    @property
    def name(self) -> str:
        """`the mirror at https://…`."""
        return f"the mirror at {self.endpoint}"

    @property
    def offline(self) -> bool:
        """Whether nothing may be read: a mirror on this machine needs no network."""
        return self.connects and (self._offline or settings.offline())

    @property
    def connects(self) -> bool:
        """Whether it is read over a network: not a mirror in a folder."""
        return not self.endpoint.startswith("file:")

    # Documents

    def heads(self, repo_id: str, last: Answer | None, patience: Patience) -> Answer:
        """The branches and tags of a repository: one conditional request."""
        index, etag = self._read(repo_id, None, patience, "" if last is None else last.etag)
        if index is None:
            assert last is not None
            return replace(last, time=time.time())
        return replace(
            self._answer(index), etag=etag, branches=index.branches, tags=index.tags, moved_to=index.moved_to
        )

    def files(
        self, repo_id: str, commit: str, last: Answer | None, patience: Patience
    ) -> tuple[Snapshot, Answer | None]:
        """The files of a commit, as the mirror lists them now."""
        index = self._index_of(repo_id, commit, patience)
        said: Answer | None = None
        if index.commit is not None and (last is None or last.number <= index.number):
            said = self._answer(index)
            if last is not None:  # a commit's document has no branches
                said = replace(said, etag=last.etag, branches=last.branches, tags=last.tags, moved_to=last.moved_to)
        return _as_requested(index, repo_id, commit), said

    def known(self, repo_id: str, commit: str) -> Snapshot | None:
        """The files of a commit in a document that was read."""
        index = self._known(repo_id, commit)
        return None if index is None else _as_requested(index, repo_id, commit)

    def revision(self, repo_id: str, revision: str, patience: Patience) -> CommitInfo | None:
        """The commit of a shortened commit, or of a whole one."""
        index = self._documents.get((repo_id, None))
        known = [] if index is None else [*index.commits, *index.older]
        found = [each for each in known if each.startswith(revision)] if len(revision) >= _SHORTEST else []
        commit = found[0] if len(found) == 1 else revision
        try:
            entry = self._index_of(repo_id, commit, patience).commits[commit] if len(commit) == 40 else None
        except (RepositoryNotFound, RevisionNotFound):
            return None
        return None if entry is None else CommitInfo(commit, entry.date or None)

    def repositories(self, publisher: str | None) -> Iterator[str]:
        """The repositories of a publisher, or all, as the mirror's own index lists them.

        Raises:
            RepositoryNotFound: It lists none of that publisher.
        """
        try:
            document = self._store(Patience()).read(MIRROR_FILE, MAX_DOCUMENT_BYTES)
        except EntryNotFound:
            raise HubUnavailable(
                f"{self.endpoint} does not list its kernel repositories, and has no {MIRROR_FILE}, as a mirror has; "
                "name them."
            ) from None
        assert document is not None
        index = read_mirror_index(document.content, f"{self.endpoint}/{MIRROR_FILE}")
        found = [each for each in index.repositories if publisher in (None, each.partition("/")[0])]
        if publisher is not None and not found:
            raise RepositoryNotFound(f"The mirror at {self.endpoint} has no repository of {publisher!r}.")
        yield from sorted(found)

    def _known(self, repo_id: str, commit: str) -> RepositoryIndex | None:
        index = self._documents.get((repo_id, None))
        return index if index is not None and commit in index.commits else self._documents.get((repo_id, commit))

    def _index_of(self, repo_id: str, commit: str, patience: Patience) -> RepositoryIndex:
        """A document with a commit: one that was read, or that of the commit."""
        known = self._known(repo_id, commit)
        if known is None:
            known, _ = self._read(repo_id, commit, patience)
            assert known is not None
        return known

    def _read(
        self, repo_id: str, commit: str | None, patience: Patience, etag: str = ""
    ) -> tuple[RepositoryIndex | None, str]:
        """The document of a commit, or a repository's index, and its ETag; no document if it is still that one.

        Raises:
            RepositoryNotFound, RevisionNotFound: There is none.
            InvalidRepository, UntrustedSignature: It is not valid, not signed as required, or too old.
            OtherKind: A Hub answers.
        """
        path = index_path(repo_id) if commit is None else commit_path(repo_id, commit)
        document, self._given = self._given, None
        if document is None:
            try:
                document = self._store(patience).read(path, MAX_DOCUMENT_BYTES, etag=etag)
            except EntryNotFound:
                raise self._missing(repo_id, commit) from None
        if document is None:
            return None, etag
        where = f"{self.endpoint}/{path}"
        if where.startswith("http") and not is_mirror_document(document.content):
            raise OtherKind(f"{where} is no document of a mirror.")
        index = read_repository_index(
            document.content,
            where,
            repo_id,
            commit,
            url=self.endpoint,
            cache=self._cache,
        )
        self._documents[repo_id, commit] = index
        return index, document.etag

    def _answer(self, index: RepositoryIndex) -> Answer:
        """What a document says of the repository, but for its branches."""
        url = index.origin.url
        return Answer(
            kind="mirror",
            endpoint=self.endpoint,
            time=time.time(),
            branches={},
            number=index.number,
            publisher=index.publisher.name,
            trusted=index.publisher.trusted,
            origin=url if is_url(url) and without_password(url) == url else "",
        )

    def _missing(self, repo_id: str, commit: str | None) -> RepositoryNotFound | RevisionNotFound:
        """The error for a commit that the mirror does not have, or whose repository it does not have."""
        if commit is not None:
            try:
                there = (repo_id, None) in self._documents or self._store(BRIEF).read(
                    index_path(repo_id), MAX_DOCUMENT_BYTES
                )
            except EntryNotFound:
                there = None
            if there:
                gone = RevisionNotFound(
                    f"The mirror at {self.endpoint} has no commit {commit} of {repo_id}. Add it with `kernels mirror … "
                    f"--repo {repo_id} --revision {commit}`."
                )
                return of_hub(gone)
        missing = RepositoryNotFound(
            f"The mirror at {self.endpoint} has no repository {repo_id}. Check the name, or add it with "
            f"`kernels mirror … --repo {repo_id}`."
        )
        return of_hub(missing)

    # Files

    def content(self, snapshot: Snapshot, file: RepoFile) -> bytes | None:
        """The text of a file in the document of its commit; None for a file in an archive."""
        index = self._index_of(snapshot.repo_id, snapshot.commit, Patience())
        parts = file.path.split("/", 2)
        if len(parts) == 3 and parts[0] == BUILD_FOLDER:
            build = self._build(index, snapshot, parts[1])
            text = {METADATA_FILE: build.metadata, BUNDLE_FILE: build.signature}.get(parts[2])
            if text is None:
                return None
        else:
            text = index.commits[snapshot.commit].texts.get(file.path)
            if text is None:
                raise HubUnavailable(f"{self.name} does not have {file.path} of {snapshot.repo_id}.")
        content = text.encode()
        if not file.describes(content):
            raise self._changed(snapshot, file.path)
        return content

    def download(
        self, store: RepoStore, snapshot: Snapshot, variant: str, files: list[RepoFile], gate: Gate | None = None
    ) -> None:
        """Put files of a build into the cache: one archive, unpacked while it arrives."""
        if not files:
            return
        from kernels.mirror.archive import unpack  # not for what is in the cache
        from kernels.mirror.ranges import archive_chunks

        index = self._index_of(snapshot.repo_id, snapshot.commit, Patience())
        build = self._build(index, snapshot, variant)
        folder = f"{BUILD_FOLDER}/{variant}/"
        listed = {file.path: file for file in (each.listed(folder) for each in build.files)}
        for file in files:
            if file.path not in listed or (listed[file.path].size, listed[file.path].blob) != (file.size, file.blob):
                raise self._changed(snapshot, file.path)
        where = f"{self.endpoint}/{build.archive.name}"
        try:
            with downloading(snapshot.repo_id, sum(file.size for file in files), len(files)):
                for attempt in range(_TRIES):
                    try:
                        with (
                            store.writer(snapshot.commit).unpacking(files, folder, report) as sink,
                            archive_chunks(self._store(Patience()), build.archive) as chunks,
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


def _as_requested(index: RepositoryIndex, repo_id: str, commit: str) -> Snapshot:
    """The snapshot under the name that was requested, which may differ in case."""
    found = index.snapshot(commit)
    assert found is not None
    if found.repo_id == repo_id:
        return found
    return Snapshot(repo_id, commit, found.files, absent=found.absent)
