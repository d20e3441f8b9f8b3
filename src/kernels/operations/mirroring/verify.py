"""`kernels mirror --verify`: everything that a mirror has is read back and compared with what names it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernels import settings
from kernels.errors import (
    ArchiveDamaged,
    HubUnavailable,
    InvalidMetadata,
    KernelsError,
    MissingPythonDependency,
    UntrustedSignature,
)
from kernels.mirror.archive import unpack
from kernels.mirror.ranges import archive_chunks
from kernels.mirror.stores.base import EntryNotFound, ReadStore, WriteStore
from kernels.models.lockfile import GIT_LFS_CONCAT
from kernels.models.metadata import Digest, Metadata
from kernels.models.mirror import (
    MIRROR_FILE,
    MirrorBuild,
    MirroredRepository,
    MirrorFile,
    commit_path,
    index_path,
)
from kernels.models.snapshot import BUNDLE_FILE, METADATA_FILE, UNCOVERED_FILES, Heads
from kernels.operations.mirroring.contents import (
    MirrorProblem,
    RepositoryContents,
    choose_repositories,
    read_contents,
    read_own_index,
)
from kernels.resolver.metadata_of import check_signed_version
from kernels.sources.progress import downloading, report
from kernels.support.tasks import side_by_side
from kernels.trust.content import hash_of_files
from kernels.trust.policy import Policy, policy_to_verify
from kernels.trust.sigstore import verify_bundle

if TYPE_CHECKING:
    from hashlib import _Hash

__all__ = ["MirrorReport", "verify_mirror"]

#: Archives that are read at once.
_AT_ONCE = 4

#: The algorithms of digests in metadata.
_ALGORITHMS = ("sha256", "sha512")

#: Folders of a mirror in which every entry is named by a document.
_NAMED_FOLDERS = ("api/kernels", "archives")


@dataclass(frozen=True)
class MirrorReport:
    """What was found in a mirror.

    Attributes:
        url: The mirror.
        signers: Who may sign its documents (`KERNELS_MIRROR_KEYS`); empty if no signature is required.
        time: When its index was written.
        repositories: The number of repositories.
        commits: The number of commits.
        archives: The number of archives that were read.
        size: Bytes of these archives.
        signatures: The number of builds whose signature is valid.
        unchecked: Why signatures of builds were not checked; empty if all were.
        unnamed: Entries that no document names; None if the store cannot be listed. None that a document may name
            which cannot be read, or which the mirror's own does not list.
        problems: What is wrong.
    """

    url: str
    signers: tuple[str, ...]
    time: str
    repositories: int
    commits: int
    archives: int
    size: int
    signatures: int
    unchecked: str
    unnamed: tuple[str, ...] | None
    problems: tuple[MirrorProblem, ...]


@dataclass
class _Archive:
    """An archive, and the documents that name it."""

    build: MirrorBuild
    paths: dict[str, None]


def verify_mirror(
    store: ReadStore,
    repositories: Iterable[str] = (),
    *,
    writable: WriteStore | None = None,
    policy: Policy | None = None,
) -> MirrorReport:
    """Read a mirror back: documents, archives, digests and signatures.

    Args:
        store: Where it is read.
        repositories: The repositories; all if none is named.
        writable: The same store, if it can list its entries.
        policy: Who may sign builds; default: `KERNELS_POLICY`, or the policy of this package.

    Raises:
        RequestError: There is no mirror, or it does not have a repository.
        InvalidRepository, UntrustedSignature: The mirror's own index is not valid, or not signed as required.
        HubUnavailable, StoreError: The store did not answer.
    """
    wanted = tuple(repositories)
    own = read_own_index(store)
    chosen = choose_repositories(store, own, wanted)
    contents = read_contents(store, chosen)
    problems = [problem for each in contents.values() for problem in each.problems]
    for each in contents.values():
        problems += _check_documents(each)
    again = read_own_index(store)  # a writer may have been at work
    for repo_id, each in contents.items():
        problems += _check_listed(each, own.repositories.get(repo_id), again.repositories.get(repo_id))
    archives, conflicts = _archives(contents.values())
    with downloading(store.url, sum(each.build.archive.size for each in archives.values())):
        checked = side_by_side(
            lambda each: _check_archive(store, each), archives.values(), at_once=_AT_ONCE, name="archive"
        )
    problems += conflicts
    problems += [problem for found in checked for problem in found]
    signatures, unchecked, wrong = _check_signatures(contents.values(), policy_to_verify(policy))
    unnamed = None
    if writable is not None:
        unnamed, unlisted = _unnamed(writable, contents, archives, None if wanted else set(again.repositories))
        problems += unlisted
    return MirrorReport(
        url=store.url,
        signers=tuple(map(str, settings.mirror_keys())),
        time=own.time,
        repositories=len(chosen),
        commits=sum(len(each.commits) for each in contents.values()),
        archives=len(archives),
        size=sum(each.build.archive.size for each in archives.values()),
        signatures=signatures,
        unchecked=unchecked,
        unnamed=unnamed,
        problems=tuple(dict.fromkeys(sorted([*problems, *wrong], key=lambda each: (each.path, each.problem)))),
    )


def _check_documents(contents: RepositoryContents) -> list[MirrorProblem]:
    """What the documents of a repository say of each other."""
    index, problems = contents.index, []
    if index is None:
        return []
    path = index_path(contents.repo_id)
    for commit, entry in index.commits.items():
        alone = contents.commits.get(commit)
        if alone is None:
            continue
        other = alone.commits[commit]
        if dict(other.variants) != dict(entry.variants) or other.files != entry.files:
            problems.append(
                MirrorProblem(
                    commit_path(contents.repo_id, commit), "it does not have the builds and files of the index"
                )
            )
    for where, document in [
        (path, index),
        *((commit_path(contents.repo_id, c), d) for c, d in contents.commits.items()),
    ]:
        for content, build in document.builds.items():
            hashes = {file.path: file.sha256 or file.oid for file in build.files}
            if hash_of_files(GIT_LFS_CONCAT, hashes).value != content:
                problems.append(MirrorProblem(where, f"{content} is not the hash of the files of that build"))
        if document.publisher.name != contents.repo_id.partition("/")[0]:
            problems.append(MirrorProblem(where, f"its publisher is {document.publisher.name!r}"))
    return problems


def _check_listed(
    contents: RepositoryContents, before: MirroredRepository | None, after: MirroredRepository | None
) -> list[MirrorProblem]:
    """What the mirror's index says of a repository; it was read before and after the repository's own."""
    index = contents.index
    if index is None:
        return []
    own = MirroredRepository(index.number, index.time, tuple(Heads(index.branches).versions))
    listed = after or before
    if own in (before, after):
        return []
    if listed is None:
        return [MirrorProblem(MIRROR_FILE, f"it does not list {contents.repo_id}")]
    if before is not None and after is not None and before.number < own.number < after.number:
        return []  # written several times while it was read
    if listed.number != own.number:
        what = f"number {listed.number} of {contents.repo_id}, and its index has number {own.number}"
    else:
        what = f"{contents.repo_id} with another time or other versions than its index"
    return [MirrorProblem(MIRROR_FILE, f"it lists {what}")]


def _archives(contents: Iterable[RepositoryContents]) -> tuple[dict[str, _Archive], list[MirrorProblem]]:
    archives: dict[str, _Archive] = {}
    problems = []
    for each in contents:
        for path, _, variant, build in each.builds():
            known = archives.setdefault(build.archive.name, _Archive(build, {}))
            if known.build.archive != build.archive or known.build.files != build.files:
                problems.append(
                    MirrorProblem(
                        path, f"{variant} has the archive of another build, {build.archive.name}, with other files"
                    )
                )
            known.paths[path] = None
    return archives, problems


class _Digests:
    """Takes the files of an archive, and keeps their digests."""

    def __init__(self, digest: Digest | None) -> None:
        self._algorithm = digest.algorithm if digest is not None and digest.algorithm in _ALGORITHMS else None
        self._hasher: _Hash | None = None
        self._name = ""
        self.found: dict[str, str] = {}

    def begin(self, file: MirrorFile) -> bool:
        if self._algorithm is None:
            return False
        self._name, self._hasher = file.path, hashlib.new(self._algorithm)
        return True

    def write(self, piece: memoryview) -> None:
        assert self._hasher is not None
        self._hasher.update(piece)

    def end(self) -> None:
        if self._hasher is not None:
            self.found[self._name] = base64.b64encode(self._hasher.digest()).decode()
            self._hasher = None


def _check_archive(store: ReadStore, archive: _Archive) -> list[MirrorProblem]:
    build, name = archive.build, archive.build.archive.name
    where = " and ".join(list(archive.paths)[:2])
    digest, problems = None, []
    if build.metadata is not None:
        try:
            digest = Metadata.from_bytes(build.metadata.encode()).digest
        except InvalidMetadata as error:
            problems.append(
                MirrorProblem(name, f"{METADATA_FILE} of the build that {where} names is not valid: {error}")
            )
    for last in (False, True):
        digests = _Digests(digest)
        try:
            with archive_chunks(store, build.archive) as chunks:
                unpack(_reported(chunks), build, digests, name)
        except EntryNotFound:
            return [*problems, MirrorProblem(name, f"it is missing; named by {where}")]
        except (ArchiveDamaged, HubUnavailable) as error:
            if last or isinstance(error, HubUnavailable):
                return [*problems, MirrorProblem(name, f"{_without(name, error)} Named by {where}")]
        except MissingPythonDependency:
            raise
        except KernelsError as error:
            return [*problems, MirrorProblem(name, f"{_without(name, error)} Named by {where}")]
        else:
            break
    if digest is not None and digest.algorithm in _ALGORITHMS:
        found = {path: value for path, value in digests.found.items() if path not in UNCOVERED_FILES}
        wrong = sorted(path for path in {*found, *digest.files} if found.get(path) != digest.files.get(path))
        if wrong:
            problems.append(
                MirrorProblem(name, f"{wrong[0]!r} is not the file of the digest in {METADATA_FILE}; named by {where}")
            )
    return problems


def _reported(chunks: Iterable[bytes]) -> Iterable[bytes]:
    for chunk in chunks:
        report(0, len(chunk))
        yield chunk


def _without(name: str, error: BaseException) -> str:
    text = str(error)
    for before in (f"{name}: ", f"{name} "):
        text = text.removeprefix(before)
    return text.removesuffix(" Nothing was kept.")


def _check_signatures(contents: Iterable[RepositoryContents], policy: Policy) -> tuple[int, str, list[MirrorProblem]]:
    """How many builds have a valid signature, why others were not checked, and what is wrong with others."""
    valid: dict[tuple[str, str], bool] = {}
    unchecked: str = ""
    problems: dict[tuple[str, str], MirrorProblem] = {}  # a build of two documents is one problem, of the first
    for each in contents:
        rule = policy.rule(each.repo_id)
        for path, commit, variant, build in each.builds():
            key = (each.repo_id, build.archive.name)
            versions = _versions(each, commit)
            if key in valid and not versions:
                continue
            try:
                if build.signature is None:
                    if rule.required:
                        raise UntrustedSignature(f"it has no signature, and {rule.where} requires one")
                    continue
                if build.metadata is None:
                    raise UntrustedSignature(f"it has a {BUNDLE_FILE} and no {METADATA_FILE}")
                metadata = build.metadata.encode()
                if unchecked and not rule.required:
                    continue
                if key not in valid:
                    verify_bundle(metadata, build.signature.encode(), [rule])
                for version in versions:
                    check_signed_version(version, Metadata.from_bytes(metadata))
                valid[key] = True
            except (MissingPythonDependency, HubUnavailable) as error:
                if rule.required:
                    raise
                unchecked = str(error)
            except (UntrustedSignature, InvalidMetadata) as error:
                problem = f"{variant} of commit {commit}: {error}"
                problems.setdefault((each.repo_id, problem), MirrorProblem(path, problem))
    return len(valid), unchecked, [*problems.values()]


def _versions(contents: RepositoryContents, commit: str) -> list[int]:
    if contents.index is None:
        return []
    versions = Heads(contents.index.branches).versions
    return [version for version, name in versions.items() if contents.index.branches[name] == commit]


def _unnamed(
    store: WriteStore,
    contents: dict[str, RepositoryContents],
    archives: dict[str, _Archive],
    all_repositories: set[str] | None,
) -> tuple[tuple[str, ...], list[MirrorProblem]]:
    """The entries that no document names, and the indexes that the mirror's own does not list.

    Args:
        store: The store.
        contents: The documents that were read.
        archives: The archives that they name.
        all_repositories: The repositories of the mirror, if all were read: only then is an archive known to be unnamed.
    """
    named = {*archives}
    for repo_id, each in contents.items():
        named.add(index_path(repo_id))
        if each.index is not None:
            named |= {commit_path(repo_id, commit) for commit in (*each.index.commits, *each.index.older)}
    if all_repositories is not None:
        folders: tuple[str, ...] = _NAMED_FOLDERS
    else:
        folders = tuple(index_path(repo_id).rpartition("/")[0] for repo_id in contents)
    unnamed, problems, unlisted = [], [], []
    for folder in folders:
        for entry in store.entries(folder):
            if entry.path in named:
                continue
            repo_id = entry.path.removeprefix("api/kernels/").removesuffix("/refs")
            if entry.path.startswith("api/kernels/") and entry.path == f"api/kernels/{repo_id}/refs":
                problems.append(MirrorProblem(MIRROR_FILE, f"it does not list {repo_id}, which has an index"))
                unlisted.append(repo_id)
            else:
                unnamed.append(entry.path)
    lost = [f"api/kernels/{repo_id}/" for repo_id, each in contents.items() if each.index is None]
    lost += [f"api/kernels/{repo_id}/" for repo_id in unlisted]
    if lost or any(each.problems for each in contents.values()):
        lost.append("archives/")
    return tuple(path for path in unnamed if not path.startswith(tuple(lost))), problems
