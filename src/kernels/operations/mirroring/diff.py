"""`kernels mirror diff`: what differs between a mirror and another mirror, a Hub or a lockfile."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

from kernels import settings
from kernels.errors import InvalidMetadata, KernelsError, RepositoryNotFound, RequestError
from kernels.mirror.stores.base import ReadStore
from kernels.models.lockfile import Lock
from kernels.models.metadata import MAX_METADATA_BYTES, Metadata
from kernels.models.mirror import RepositoryIndex
from kernels.models.requirement import Requirement
from kernels.models.snapshot import METADATA_FILE, Heads, RepoFile, Snapshot
from kernels.operations.mirroring.addresses import open_mirror
from kernels.operations.mirroring.contents import read_index, read_own_index
from kernels.operations.mirroring.wanted import verdict
from kernels.sources.base import Moved, Source
from kernels.support.concurrency import side_by_side
from kernels.trust.sigstore import BUNDLE_FILE, MAX_BUNDLE_BYTES, parse_bundle, signer_of

__all__ = [
    "BuildChange",
    "FieldChange",
    "FileDifference",
    "MirrorDifference",
    "RefChange",
    "RepositoryDifference",
    "diff_mirror",
]

#: Repositories that are compared at once, and small files of one that are read at once.
_AT_ONCE, _FILES_AT_ONCE = 4, 8

Change = Literal["added", "removed", "changed"]


@dataclass(frozen=True)
class FieldChange:
    """A value that differs: of metadata, of the publisher, or the signer.

    Attributes:
        name: What it is.
        old: The first side's value, None if it has none.
        new: The second side's value.
    """

    name: str
    old: str | None
    new: str | None


@dataclass(frozen=True)
class FileDifference:
    """A file of a build that differs.

    Attributes:
        path: Its path in the build.
        change: What became of it.
        old: Bytes on the first side; None if it is not there.
        new: Bytes on the second side.
    """

    path: str
    change: Change
    old: int | None
    new: int | None


@dataclass(frozen=True)
class BuildChange:
    """A build that differs.

    Attributes:
        name: The branch or tag, or the commit that a lockfile pins.
        variant: The build.
        change: What became of it.
        old: Bytes of its files on the first side; None if it is not there.
        new: Bytes on the second side.
        files: The files that differ, of a build that both sides have.
        fields: The metadata and the signer, where they differ.
    """

    name: str
    variant: str
    change: Change
    old: int | None
    new: int | None
    files: tuple[FileDifference, ...] = ()
    fields: tuple[FieldChange, ...] = ()


@dataclass(frozen=True)
class RefChange:
    """A branch or tag that moved.

    Attributes:
        name: Its name.
        old: The commit on the first side; None if it is not there.
        new: The commit on the second side.
    """

    name: str
    old: str | None
    new: str | None


@dataclass(frozen=True)
class RepositoryDifference:
    """A repository that differs.

    Attributes:
        repo_id: The repository.
        change: What became of it.
        refs: Branches and tags that moved.
        builds: Builds that differ.
        fields: The publisher's verdict and the new name, where they differ.
    """

    repo_id: str
    change: Change
    refs: tuple[RefChange, ...] = ()
    builds: tuple[BuildChange, ...] = ()
    fields: tuple[FieldChange, ...] = ()


@dataclass(frozen=True)
class MirrorDifference:
    """What differs between two sides.

    Attributes:
        old: The first side.
        new: The second side.
        compared: The number of repositories that were compared.
        repositories: The repositories that differ.
    """

    old: str
    new: str
    compared: int
    repositories: tuple[RepositoryDifference, ...]


@dataclass(frozen=True)
class _Build:
    files: Mapping[str, RepoFile]
    metadata: str | None
    signature: str | None

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files.values())


@dataclass(frozen=True)
class _State:
    """A repository on one side; the builds of a commit are read when they are needed."""

    refs: Mapping[str, str]
    trusted: bool | None = None
    moved_to: str | None = None
    absent: Mapping[str, frozenset[str]] = field(default_factory=dict)


class _Side(Protocol):
    name: str

    def repositories(self) -> list[str] | None:
        """Its repositories; None for a Hub, which is only asked about those of the other side."""
        ...

    def state(self, repo_id: str, other: _State | None) -> _State | None:
        """A repository; None if it does not have it. `other` is the state on the other side, if that is known."""
        ...

    def builds(self, repo_id: str, commit: str) -> Mapping[str, _Build] | None:
        """The builds of a commit; None if it does not know them."""
        ...


def diff_mirror(first: str, second: str | None = None, repositories: Iterable[str] = ()) -> MirrorDifference:
    """What would change if the second side took the place of the first.

    Args:
        first: The address of a mirror, or the path of a lockfile.
        second: The same; `hub` for the Hub of the settings. Default: the origin of the first.
        repositories: The repositories to compare; default: all of the first and the second side.

    Raises:
        RequestError: There is no mirror at an address, or neither side has a repository.
        InvalidRepository, UntrustedSignature: A document is not valid.
        HubUnavailable, StoreError: A store or Hub did not answer.
    """
    old = _open(first)
    if isinstance(old, _HubSide):
        raise RequestError("The first side is a mirror or a lockfile; the Hub can be the second.")
    new = _origin(old) if second is None else _open(second)
    wanted = _chosen(old, new, list(dict.fromkeys(repositories)))
    found = side_by_side(partial(_compare, old, new), wanted, at_once=_AT_ONCE, name="diff")
    return MirrorDifference(old.name, new.name, len(wanted), tuple(each for each in found if each is not None))


def _open(address: str) -> _Side:
    if address == "hub":
        return _HubSide(_source(settings.endpoint()))
    path = Path(address).expanduser()
    if path.is_file():
        return _LockSide(Lock.read(path, hashes=False))
    return _MirrorSide(open_mirror(address)[0])


def _source(url: str) -> Source:
    from kernels.sources.hub import HubSource

    return HubSource(url, settings.cache_dir(), list)


def _origin(side: _Side) -> _Side:
    if not isinstance(side, _MirrorSide):
        raise RequestError("A lockfile has no origin: name the mirror to compare it with.")
    urls = side.origins()
    if len(urls) != 1 or not urls[0].startswith(("http://", "https://")):
        named = ", ".join(urls) or "no repository"
        raise RequestError(f"{side.name} was taken from {named}: name what to compare it with, a mirror or `hub`.")
    return _HubSide(_source(urls[0]))


def _chosen(old: _Side, new: _Side, wanted: list[str]) -> list[str]:
    ours, theirs = old.repositories() or [], new.repositories()
    if isinstance(new, _LockSide):
        known = theirs or []  # a lockfile says nothing of what it does not pin
    elif theirs is None or isinstance(old, _LockSide):
        known = ours
    else:
        known = sorted({*ours, *theirs})
    unknown = [repo_id for repo_id in wanted if repo_id not in known]
    if unknown:
        raise RequestError(f"Neither {old.name} nor {new.name} has {unknown[0]}.")
    return wanted or known


def _compare(old: _Side, new: _Side, repo_id: str) -> RepositoryDifference | None:
    before = old.state(repo_id, None)
    after = new.state(repo_id, before)
    if before is None or after is None:
        if before is None and after is None:
            return None
        change: Change = "added" if before is None else "removed"
        present = after or before
        assert present is not None
        refs = [
            RefChange(name, None, at) if before is None else RefChange(name, at, None)
            for name, at in sorted(present.refs.items())
        ]
        builds = [
            each
            for name, at in sorted(present.refs.items())
            for each in _compare_builds(
                name,
                (old.builds(repo_id, at) or {}) if after is None else {},
                (new.builds(repo_id, at) or {}) if before is None else {},
                (),
            )
        ]
        return RepositoryDifference(repo_id, change, tuple(refs), tuple(builds))
    refs, builds = [], []
    for name in sorted({*before.refs, *after.refs}):
        at, to = before.refs.get(name), after.refs.get(name)
        if at != to:
            refs.append(RefChange(name, at, to))
        elif not (isinstance(old, _MirrorSide) and isinstance(new, _MirrorSide)):
            continue  # a commit never changes, but a mirror may lack builds of it
        left, right = _builds_of(old, new, repo_id, at), _builds_of(new, old, repo_id, to)
        if at is not None and to is not None and (left is None or right is None):
            continue  # a lockfile, and a commit that the mirror does not have
        skipped = before.absent.get(at or "", frozenset()) if isinstance(new, _HubSide) else frozenset()
        builds += _compare_builds(name, left or {}, right or {}, skipped)
    fields = []
    if before.trusted != after.trusted and None not in (before.trusted, after.trusted):
        fields.append(FieldChange("publisher", *(_verdict(each.trusted) for each in (before, after))))
    if before.moved_to != after.moved_to:
        fields.append(FieldChange("moved to", before.moved_to, after.moved_to))
    if not (refs or builds or fields):
        return None
    return RepositoryDifference(repo_id, "changed", tuple(refs), tuple(builds), tuple(fields))


def _builds_of(side: _Side, other: _Side, repo_id: str, commit: str | None) -> Mapping[str, _Build] | None:
    if commit is None:
        return {}
    found = side.builds(repo_id, commit)
    # A commit is the same everywhere: what a lockfile pins, the mirror may have.
    return other.builds(repo_id, commit) if found is None else found


def _verdict(trusted: bool | None) -> str:
    return {True: "trusted", False: "not trusted", None: "unknown"}[trusted]


def _compare_builds(
    name: str, old: Mapping[str, _Build], new: Mapping[str, _Build], skipped: Collection[str]
) -> Iterator[BuildChange]:
    for variant in sorted({*old, *new}):
        before, after = old.get(variant), new.get(variant)
        if before is None and after is not None:
            if variant not in skipped:  # not taken before either
                yield BuildChange(name, variant, "added", None, after.size)
        elif after is None and before is not None:
            yield BuildChange(name, variant, "removed", before.size, None)
        elif before is not None and after is not None:
            files, fields = tuple(_files(before, after)), tuple(_fields(before, after))
            if files or fields:
                yield BuildChange(name, variant, "changed", before.size, after.size, files, fields)


def _files(old: _Build, new: _Build) -> Iterator[FileDifference]:
    for path in sorted({*old.files, *new.files}):
        before, after = old.files.get(path), new.files.get(path)
        if before is None and after is not None:
            yield FileDifference(path, "added", None, after.size)
        elif after is None and before is not None:
            yield FileDifference(path, "removed", before.size, None)
        elif before is not None and after is not None and (before.size, before.blob) != (after.size, after.blob):
            yield FileDifference(path, "changed", before.size, after.size)


def _fields(old: _Build, new: _Build) -> Iterator[FieldChange]:
    before, after = _metadata(old), _metadata(new)
    for name in {**before, **after}:
        if before.get(name) != after.get(name):
            yield FieldChange(name, before.get(name), after.get(name))
    signers = _signer(old), _signer(new)
    if signers[0] != signers[1]:
        yield FieldChange("signer", *signers)


def _metadata(build: _Build) -> dict[str, str | None]:
    if build.metadata is None:
        return {}
    try:
        found = Metadata.from_bytes(build.metadata.encode())
    except InvalidMetadata as error:
        return {"metadata": str(error)}
    return {
        "version": None if found.version is None else str(found.version),
        "license": found.license,
        "backend": found.backend.type,
        "archs": " ".join(sorted(found.backend.archs or ())) or None,
        "kernels": " ".join(sorted(map(str, found.kernel_depends))) or None,
        "python": " ".join(sorted(found.python_depends)) or None,
        "kernels-minver": None if found.kernels_minver is None else str(found.kernels_minver),
        "upstream": found.upstream,
        "source": found.source,
    }


def _signer(build: _Build) -> str | None:
    """Who signed, as the signature says; `--verify` checks it."""
    if build.signature is None:
        return None
    try:
        return str(signer_of(parse_bundle(build.signature.encode()).signing_certificate))
    except (KernelsError, ValueError):
        return "a signature that cannot be read here"


class _MirrorSide:
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

    def state(self, repo_id: str, other: _State | None) -> _State | None:
        index = self._index(repo_id)
        if index is None:
            return None
        absent = {commit: frozenset(entry.absent) for commit, entry in index.commits.items()}
        return _State({**index.tags, **index.branches}, index.publisher.trusted, index.moved_to, absent)

    def builds(self, repo_id: str, commit: str) -> Mapping[str, _Build] | None:
        index = self._index(repo_id)
        if index is not None and commit in index.older:
            index = self._commit(repo_id, commit)
        if index is None or commit not in index.commits:
            return None
        variants = index.commits[commit].variants
        return {
            variant: _Build(
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


class _LockSide:
    def __init__(self, lock: Lock) -> None:
        self.name = lock.where
        self._lock = lock

    def repositories(self) -> list[str]:
        return sorted({pin.requirement.repo_id for pin in self._lock.pins})

    def state(self, repo_id: str, other: _State | None) -> _State | None:
        return _State({pin.requirement.branch or pin.commit: pin.commit for pin in self._lock.of(repo_id)})

    def builds(self, repo_id: str, commit: str) -> Mapping[str, _Build] | None:
        return None


class _HubSide:
    def __init__(self, source: Source) -> None:
        self.name = source.endpoint or source.name
        self._source = source

    def repositories(self) -> list[str] | None:
        return None

    def state(self, repo_id: str, other: _State | None) -> _State | None:
        try:
            heads = self._source.heads(repo_id)
        except RepositoryNotFound:
            return None
        except Moved as error:
            return _State({} if other is None else other.refs, moved_to=error.destination)
        known = {} if other is None else other.refs
        # Versions that the mirror left out are not new.
        newest = max(Heads(known).versions, default=-1)
        added = {name for version, name in heads.versions.items() if version > newest}
        refs = {name: at for name, at in {**heads.tags, **heads.branches}.items() if name in known or name in added}
        return _State(refs, verdict(self._source, repo_id))

    def builds(self, repo_id: str, commit: str) -> Mapping[str, _Build] | None:
        snapshot = self._source.snapshot(Requirement(repo_id, revision=commit), commit)

        def read(variant: str) -> _Build:
            inside = {file.path.split("/", 2)[2]: file for file in snapshot.builds[variant]}
            return _Build(
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
