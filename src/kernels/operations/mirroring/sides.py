"""What is compared: a mirror, a Hub or a lockfile, each as repositories with branches and builds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from kernels import settings
from kernels.errors import RepositoryNotFound, RequestError
from kernels.mirror.stores.base import ReadStore
from kernels.models.lockfile import Lock
from kernels.models.metadata import MAX_METADATA_BYTES
from kernels.models.mirror import RepositoryIndex
from kernels.models.requirement import Requirement
from kernels.models.snapshot import BUNDLE_FILE, METADATA_FILE, Heads, RepoFile, Snapshot
from kernels.operations.mirroring.addresses import open_mirror
from kernels.operations.mirroring.contents import read_index, read_own_index
from kernels.operations.mirroring.wanted import verdict
from kernels.sources.base import Moved, Source
from kernels.support.concurrency import side_by_side
from kernels.trust.sigstore import MAX_BUNDLE_BYTES

__all__ = ["BuildListing", "HubSide", "LockSide", "MirrorSide", "RepositoryState", "Side", "open_side", "origin_of"]

#: Small files of a repository that are read at once.
_FILES_AT_ONCE = 8


@dataclass(frozen=True)
class BuildListing:
    """A build on one side.

    Attributes:
        files: Its files, by their path in the build.
        metadata: The text of its `metadata.json`; None if it has none.
        signature: The text of its signature.
    """

    files: Mapping[str, RepoFile]
    metadata: str | None
    signature: str | None

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(file.size for file in self.files.values())


@dataclass(frozen=True)
class RepositoryState:
    """A repository on one side; the builds of a commit are read when they are needed.

    Attributes:
        refs: The commit of each branch and tag.
        trusted: Whether its publisher is marked as trusted; None if that is not known.
        moved_to: Its new name, if it was renamed.
        absent: The builds that a mirror left out, by commit.
        commits: The commits of a mirror; None of another side.
    """

    refs: Mapping[str, str]
    trusted: bool | None = None
    moved_to: str | None = None
    absent: Mapping[str, frozenset[str]] = field(default_factory=dict)
    commits: frozenset[str] | None = None


class Side(Protocol):
    """One of the two that are compared.

    Attributes:
        name: What messages call it.
    """

    name: str

    def repositories(self) -> list[str] | None:
        """Its repositories; None for a Hub, which is only asked about those of the other side."""
        ...

    def state(self, repo_id: str, other: RepositoryState | None) -> RepositoryState | None:
        """A repository; None if it does not have it. `other` is the state on the other side, if that is known."""
        ...

    def builds(self, repo_id: str, commit: str) -> Mapping[str, BuildListing] | None:
        """The builds of a commit; None if it does not know them."""
        ...


def open_side(address: str) -> Side:
    """The side at an address.

    Args:
        address: That of a mirror, the path of a lockfile, or `hub` for the Hub of the settings.

    Raises:
        RequestError: There is no mirror.
        HubUnavailable: The store did not answer.
    """
    if address == "hub":
        return HubSide(_source(settings.endpoint()))
    path = Path(address).expanduser()
    if path.is_file():
        return LockSide(Lock.read(path, hashes=False))
    return MirrorSide(open_mirror(address)[0])


def _source(url: str) -> Source:
    from kernels.sources.hub import HubSource

    return HubSource(url, settings.cache_dir(), list)


def origin_of(side: Side) -> Side:
    """The Hub that a mirror was taken from.

    Raises:
        RequestError: It is not one Hub, or the side is no mirror.
    """
    if not isinstance(side, MirrorSide):
        raise RequestError("A lockfile has no origin: name the mirror to compare it with.")
    urls = side.origins()
    if len(urls) != 1 or not urls[0].startswith(("http://", "https://")):
        named = ", ".join(urls) or "no repository"
        raise RequestError(f"{side.name} was taken from {named}: name what to compare it with, a mirror or `hub`.")
    return HubSide(_source(urls[0]))


class MirrorSide:
    """A mirror, by its documents."""

    def __init__(self, store: ReadStore) -> None:
        self.name = store.url
        self._store = store
        self._own = read_own_index(store)
        self._indexes: dict[str, RepositoryIndex | None] = {}
        self._commits: dict[tuple[str, str], RepositoryIndex | None] = {}

    def repositories(self) -> list[str]:
        return sorted(self._own.repositories)

    def origins(self) -> list[str]:
        indexes = (self._index(repo_id) for repo_id in self.repositories())
        return sorted({index.origin.url for index in indexes if index is not None})

    def state(self, repo_id: str, other: RepositoryState | None) -> RepositoryState | None:
        index = self._index(repo_id)
        if index is None:
            return None
        absent = {commit: frozenset(entry.absent) for commit, entry in index.commits.items()}
        refs, commits = {**index.tags, **index.branches}, frozenset({*index.commits, *index.older})
        return RepositoryState(refs, index.publisher.trusted, index.moved_to, absent, commits)

    def builds(self, repo_id: str, commit: str) -> Mapping[str, BuildListing] | None:
        index = self._index(repo_id)
        if index is not None and commit in index.older:
            index = self._commit(repo_id, commit)
        if index is None or commit not in index.commits:
            return None
        variants = index.commits[commit].variants
        return {
            variant: BuildListing(
                {file.path: file.listed() for file in index.builds[content].files},
                index.builds[content].metadata,
                index.builds[content].signature,
            )
            for variant, content in variants.items()
        }

    def _index(self, repo_id: str) -> RepositoryIndex | None:
        if repo_id not in self._own.repositories:
            return None
        if repo_id not in self._indexes:
            self._indexes[repo_id] = read_index(self._store, repo_id)
        return self._indexes[repo_id]

    def _commit(self, repo_id: str, commit: str) -> RepositoryIndex | None:
        if (repo_id, commit) not in self._commits:
            self._commits[repo_id, commit] = read_index(self._store, repo_id, commit)
        return self._commits[repo_id, commit]


class LockSide:
    """A lockfile: its repositories and the commits that it pins, whose builds the other side lists."""

    def __init__(self, lock: Lock) -> None:
        self.name = lock.where
        self._lock = lock

    def repositories(self) -> list[str]:
        return sorted({pin.requirement.repo_id for pin in self._lock.pins})

    def state(self, repo_id: str, other: RepositoryState | None) -> RepositoryState | None:
        return RepositoryState({pin.requirement.branch or pin.commit: pin.commit for pin in self._lock.of(repo_id)})

    def builds(self, repo_id: str, commit: str) -> Mapping[str, BuildListing] | None:
        return None


class HubSide:
    """A Hub."""

    def __init__(self, source: Source) -> None:
        self.name = source.endpoint or source.name
        self._source = source

    def repositories(self) -> list[str] | None:
        return None

    def state(self, repo_id: str, other: RepositoryState | None) -> RepositoryState | None:
        try:
            heads = self._source.heads(repo_id)
        except RepositoryNotFound:
            return None
        except Moved as error:
            return RepositoryState({} if other is None else other.refs, moved_to=error.destination)
        known = {} if other is None else other.refs
        # Versions that the mirror left out are not new.
        newest = max(Heads(known).versions, default=-1)
        added = {name for version, name in heads.versions.items() if version > newest}
        refs = {name: at for name, at in {**heads.tags, **heads.branches}.items() if name in known or name in added}
        return RepositoryState(refs, verdict(self._source, repo_id))

    def builds(self, repo_id: str, commit: str) -> Mapping[str, BuildListing] | None:
        snapshot = self._source.snapshot(Requirement(repo_id, revision=commit), commit)

        def read(variant: str) -> BuildListing:
            inside = {file.path.split("/", 2)[2]: file for file in snapshot.builds[variant]}
            return BuildListing(
                inside,
                self._text(snapshot, inside.get(METADATA_FILE), MAX_METADATA_BYTES),
                self._text(snapshot, inside.get(BUNDLE_FILE), MAX_BUNDLE_BYTES),
            )

        found = side_by_side(read, snapshot.builds, at_once=_FILES_AT_ONCE, name="metadata")
        return dict(zip(snapshot.builds, found, strict=True))

    def _text(self, snapshot: Snapshot, file: RepoFile | None, limit: int) -> str | None:
        if file is None or file.size > limit:
            return None
        return self._source.read(snapshot, file, limit).decode(errors="replace")
