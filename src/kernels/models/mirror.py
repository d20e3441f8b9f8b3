"""The documents of a mirror: a static tree that holds kernels, in a folder, an object store or behind any web server.

    mirror.json                                   the mirror: its repositories
    api/kernels/<org>/<name>/refs                 a repository: its branches, and the commits they are at
    api/kernels/<org>/<name>/tree/<commit>        one commit, of a branch or older
    archives/<first two>/<sha256>.tar.zst         a build

The two paths under `api/` are those of a Hub's first requests, so that a client that has only a URL finds out with its
first request whether a Hub or a mirror answers. `docs/mirror-format.md` describes the format.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TypeVar

import msgspec

from kernels.errors import InvalidRepository, KernelsError
from kernels.models.requirement import check_repo_id, check_revision, check_version, is_commit
from kernels.models.snapshot import (
    BUILD_FOLDER,
    MAX_FILE_BYTES,
    MAX_FILES,
    METADATA_FILE,
    RepoFile,
    Snapshot,
    check_path,
)
from kernels.support.documents import TooComplex, check_json
from kernels.support.formatting import format_text, format_value
from kernels.support.typed_json import decode_json

__all__ = [
    "MAX_DOCUMENT_BYTES",
    "MIRROR_FILE",
    "MIRROR_FORMAT",
    "MirrorArchive",
    "MirrorBuild",
    "MirrorCommit",
    "MirrorDocument",
    "MirrorFile",
    "MirrorIndex",
    "MirrorOrigin",
    "MirrorPublisher",
    "MirrorSignature",
    "MirroredRepository",
    "RepositoryIndex",
    "archive_path",
    "commit_path",
    "format_time",
    "index_path",
    "is_mirror_document",
    "parse_time",
]

#: The version of the format. A reader refuses another one: it could not check what it does not know.
MIRROR_FORMAT = 1

#: The name of the mirror's own index.
MIRROR_FILE = "mirror.json"

#: The most bytes of a document: an index of 60 signed builds has less than one megabyte.
MAX_DOCUMENT_BYTES = 24 * 1024 * 1024

_SHA256 = re.compile(r"[0-9a-f]{64}")
_CONTENT = re.compile(r"sha256-[0-9a-f]{64}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_TYPES = ("kernel", "model")

_T = TypeVar("_T", bound=msgspec.Struct)


class MirrorFile(msgspec.Struct, frozen=True, rename="kebab", omit_defaults=True, gc=False):
    """A file as the Hub listed it.

    Attributes:
        path: POSIX path: of a build's file relative to the build's folder, of another one in the repository.
        size: Bytes.
        oid: Git blob id.
        sha256: SHA-256 of the content, where the Hub stores it as a large file.
    """

    path: str
    size: int
    oid: str = ""
    sha256: str | None = None

    def listed(self, folder: str = "") -> RepoFile:
        """The file in a snapshot, below a folder of the repository."""
        return RepoFile(f"{folder}{self.path}", self.size, self.oid, self.sha256)


class MirrorArchive(msgspec.Struct, frozen=True, rename="kebab", gc=False):
    """The archive of a build.

    Attributes:
        name: Its path in the mirror, `archive_path(sha256)`.
        size: Bytes.
        sha256: SHA-256 of its bytes.
    """

    name: str
    size: int
    sha256: str


class MirrorBuild(msgspec.Struct, frozen=True, rename="kebab", omit_defaults=True):
    """A build, which several commits may have.

    Attributes:
        files: Its files, sorted by path, without bytecode.
        archive: The archive with these files.
        metadata: The text of its `metadata.json`, as published; None if it has none.
        signature: The text of its `metadata.json.sigstore`, as published; None if it has none.
    """

    files: tuple[MirrorFile, ...]
    archive: MirrorArchive
    metadata: str | None = None
    signature: str | None = None

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(file.size for file in self.files)


class MirrorCommit(msgspec.Struct, frozen=True, rename="kebab", omit_defaults=True):
    """A commit of a repository.

    Attributes:
        variants: The builds that the mirror has, by the name of their folder in `build/`; the values are keys of the
            index's `builds`.
        taken: When the commit was last taken from its origin.
        date: When the commit was made, in ISO 8601; empty if the origin did not say.
        absent: The builds that the commit has at its origin and the mirror does not have.
        files: Files outside `build/` that the mirror has.
        texts: The text of each of those files.
    """

    variants: dict[str, str]
    taken: str
    date: str = ""
    absent: tuple[str, ...] = ()
    files: tuple[MirrorFile, ...] = ()
    texts: dict[str, str] = {}


class MirrorOrigin(msgspec.Struct, frozen=True, rename="kebab", gc=False):
    """Where a repository was taken from.

    Attributes:
        url: The Hub's URL.
        time: When it was last asked.
    """

    url: str
    time: str


class MirrorPublisher(msgspec.Struct, frozen=True, rename="kebab", gc=False):
    """The publisher of a repository.

    Attributes:
        name: The publisher, the org of org/name.
        trusted: Whether the origin marked it as trusted; None if the origin was not asked.
    """

    name: str
    trusted: bool | None


class RepositoryIndex(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", omit_defaults=True):
    """The index of one repository, or of one commit of it.

    Attributes:
        repo_id: The repository.
        repo_type: `kernel` or `model`.
        number: Grows by one with each change, so that an older index is recognized.
        time: When the index was written.
        commit: The commit that this is the document of; None for the index of the repository.
        origin: Where the repository was taken from.
        publisher: Its publisher.
        branches: The commit of each branch.
        tags: The commit of each tag.
        moved_to: The repository that replaces this one, if the origin renamed it.
        commits: The commits of the branches and tags; in the document of one commit only that one.
        older: The other commits that the mirror has; each has a document of its own.
        builds: The builds of `commits`, by content: `sha256-` and the hash of kind `git_lfs_concat` of lockfiles.
    """

    repo_id: str
    number: int
    time: str
    origin: MirrorOrigin
    publisher: MirrorPublisher
    commits: dict[str, MirrorCommit]
    builds: dict[str, MirrorBuild]
    repo_type: str = "kernel"
    commit: str | None = None
    branches: dict[str, str] = {}
    tags: dict[str, str] = {}
    moved_to: str | None = None
    older: tuple[str, ...] = ()

    def snapshot(self, commit: str) -> Snapshot | None:
        """The files of a commit that the mirror has, as the origin listed them; None if it is not in this document."""
        entry = self.commits.get(commit)
        if entry is None:
            return None
        files = [file.listed() for file in entry.files]
        for variant, content in entry.variants.items():
            files += [file.listed(f"{BUILD_FOLDER}/{variant}/") for file in self.builds[content].files]
        return Snapshot(self.repo_id, commit, tuple(files), self.repo_type)

    def build(self, commit: str, variant: str) -> MirrorBuild | None:
        """A build of a commit, or None."""
        entry = self.commits.get(commit)
        content = None if entry is None else entry.variants.get(variant)
        return None if content is None else self.builds[content]

    def of_commit(self, commit: str) -> RepositoryIndex:
        """The document of one of the commits here, under `commit_path`."""
        entry = self.commits[commit]
        builds = {content: self.builds[content] for content in sorted(set(entry.variants.values()))}
        return msgspec.structs.replace(
            self, commit=commit, commits={commit: entry}, builds=builds, branches={}, tags={}, older=(), moved_to=None
        )


class MirroredRepository(msgspec.Struct, frozen=True, rename="kebab", omit_defaults=True, gc=False):
    """What the mirror's index says of a repository.

    Attributes:
        number: The number of the repository's index.
        time: When that index was written.
        versions: The versions it has, the newest first.
    """

    number: int
    time: str
    versions: tuple[int, ...] = ()


class MirrorIndex(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", omit_defaults=True):
    """The index of a mirror.

    Attributes:
        number: Grows by one with each change.
        time: When the index was written.
        writer: The program that wrote it.
        repositories: The repositories of the mirror.
    """

    number: int
    time: str
    writer: str
    repositories: dict[str, MirroredRepository]


class MirrorSignature(msgspec.Struct, frozen=True, rename="kebab", omit_defaults=True, gc=False):
    """A signature of a document's content.

    Attributes:
        kind: `ed25519`, or `sigstore`.
        value: The signature in base64; of Sigstore the text of the bundle.
        key: The public key in base64 (32 bytes); empty with Sigstore.
    """

    kind: str
    value: str
    key: str = ""


class MirrorDocument(msgspec.Struct, frozen=True):
    """A document of a mirror: its content as it was written, and the signatures of exactly these bytes.

    The file is `{"mirror-format":1,"content":<content>,"signatures":[…]}`.

    Attributes:
        content: The JSON of an index.
        signatures: Who vouches for it.
    """

    content: bytes
    signatures: tuple[MirrorSignature, ...] = ()

    @classmethod
    def of(cls, index: RepositoryIndex | MirrorIndex) -> MirrorDocument:
        """The document of an index, without a signature. The same index always gives the same bytes."""
        return cls(msgspec.json.encode(index, order="sorted"))

    def to_bytes(self) -> bytes:
        """The file's content."""
        signatures = msgspec.json.encode(self.signatures)
        return b'{"mirror-format":%d,"content":%s,"signatures":%s}\n' % (MIRROR_FORMAT, self.content, signatures)

    @classmethod
    def parse(cls, data: bytes, where: str) -> MirrorDocument:
        """The document in a file.

        Args:
            data: The file's content.
            where: The file as messages call it: its URL, without a secret.

        Raises:
            InvalidRepository: It is not a mirror's document, or of another format.
        """
        if len(data) > MAX_DOCUMENT_BYTES:
            raise _invalid(where, f"it has more than {MAX_DOCUMENT_BYTES} bytes")
        found = _decode(data, _Envelope, where)
        if found.mirror_format != MIRROR_FORMAT:
            raise _invalid(
                where, f"expected the format {MIRROR_FORMAT}, got {format_value(found.mirror_format)}; update kernels"
            )
        if len(found.signatures) > _MAX_SIGNATURES:
            raise _invalid(where, f"it has more than {_MAX_SIGNATURES} signatures")
        return cls(bytes(found.content), tuple(found.signatures))

    def repository(self, repo_id: str, where: str, commit: str | None = None) -> RepositoryIndex:
        """The index of a repository, or of one commit of it, in this document, checked.

        Args:
            repo_id: The repository that was requested: an index of another one is refused.
            where: The file, for messages.
            commit: The commit whose document was requested; None for the index of the repository. Either is refused
                in place of the other: both may be signed.

        Raises:
            InvalidRepository: It is not a valid index of that repository, or that commit.
        """
        index = _decode(self.content, RepositoryIndex, where)
        _check_repository(index, repo_id, where)
        _check_subject(index, commit, where)
        return index

    def mirror(self, where: str) -> MirrorIndex:
        """The mirror's index in this document, checked.

        Args:
            where: The file, for messages.

        Raises:
            InvalidRepository: It is not a valid index.
        """
        index = _decode(self.content, MirrorIndex, where)
        _check_times(where, [index.time, *(each.time for each in index.repositories.values())])
        _check_numbers(where, [index.number, *(each.number for each in index.repositories.values())])
        known: dict[str, str] = {}
        try:
            for repo_id, repository in index.repositories.items():
                check_repo_id(repo_id)
                for version in repository.versions:
                    check_version(version)
        except KernelsError as error:
            raise _invalid(where, format_text(error)) from None
        for repo_id in index.repositories:
            # A Hub ignores case, and some file systems cannot hold both.
            other = known.setdefault(repo_id.lower(), repo_id)
            if other != repo_id:
                raise _invalid(where, f"it lists {repo_id} and {other}, which differ only in case")
        return index


class _Envelope(msgspec.Struct, frozen=True, rename="kebab"):
    mirror_format: int
    content: msgspec.Raw
    signatures: list[MirrorSignature]


_MAX_SIGNATURES = 16

#: The largest number of an index: every reader of JSON reads it exactly (RFC 8259, section 6).
_MAX_NUMBER = 2**53 - 1


def is_mirror_document(data: bytes) -> bool:
    """Whether an answer to a Hub's request comes from a mirror.

    Example:
        >>> is_mirror_document(b'{"branches":[],"tags":[]}')
        False
    """
    return data.lstrip()[:40].startswith(b'{"mirror-format":')


def index_path(repo_id: str) -> str:
    """The path of a repository's index in a mirror.

    Example:
        >>> index_path("org/relu")
        'api/kernels/org/relu/refs'
    """
    return f"api/kernels/{check_repo_id(repo_id)}/refs"


def commit_path(repo_id: str, commit: str) -> str:
    """The path of the document of one commit in a mirror."""
    return f"api/kernels/{check_repo_id(repo_id)}/tree/{commit}"


def archive_path(sha256: str) -> str:
    """The path of an archive in a mirror, by the SHA-256 of its bytes."""
    return f"archives/{sha256[:2]}/{sha256}.tar.zst"


def format_time(seconds: float) -> str:
    """A time since 1970 as mirrors write it.

    Example:
        >>> format_time(0)
        '1970-01-01T00:00:00Z'
    """
    return datetime.fromtimestamp(int(seconds), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> float:
    """The seconds since 1970 of a time that `format_time` wrote.

    Raises:
        ValueError: It is not such a time.
    """
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc).timestamp()


def _decode(data: bytes | msgspec.Raw, form: type[_T], where: str) -> _T:
    try:
        check_json(bytes(data))
        return decode_json(data, form)
    except (msgspec.DecodeError, UnicodeDecodeError, TooComplex) as error:
        raise _invalid(where, format_text(error)) from None


def _check_repository(index: RepositoryIndex, repo_id: str, where: str) -> None:
    if index.repo_id.lower() != repo_id.lower():
        raise _invalid(where, f"it is the index of {format_value(index.repo_id)}, not of {repo_id}")
    if index.repo_type not in _TYPES:
        raise _invalid(where, f"expected the type kernel or model, got {format_value(index.repo_type)}")
    try:
        check_repo_id(index.repo_id)
        for name in (*index.branches, *index.tags):
            check_revision(name)
        if index.moved_to is not None:
            check_repo_id(index.moved_to)
    except KernelsError as error:
        raise _invalid(where, format_text(error)) from None
    for commit in (*index.branches.values(), *index.tags.values(), *index.commits, *index.older):
        if not is_commit(commit):
            raise _invalid(where, f"{format_value(commit)} is not a commit")
    _check_numbers(where, [index.number])
    _check_times(where, [index.time, index.origin.time, *(entry.taken for entry in index.commits.values())])
    for content, build in index.builds.items():
        _check_build(where, content, build)
    for commit, entry in index.commits.items():
        _check_commit(index, commit, entry, where)
    _check_paths(index, where)


def _check_commit(index: RepositoryIndex, commit: str, entry: MirrorCommit, where: str) -> None:
    for variant, content in entry.variants.items():
        if content not in index.builds:
            raise _invalid(where, f"commit {commit} lists the build {format_value(variant)} without its files")
        if "/" in variant:
            raise _invalid(where, f"{format_value(variant)} is not the name of a build")
    for file in entry.files:
        if file.path.partition("/")[0] == BUILD_FOLDER:
            raise _invalid(where, f"commit {commit} lists {format_value(file.path)} outside its builds")
        _check_text(where, file, entry.texts.get(file.path))
    if sum(len(index.builds[content].files) for content in entry.variants.values()) > MAX_FILES:
        raise _invalid(where, f"commit {commit} has more than {MAX_FILES} files")


def _check_paths(index: RepositoryIndex, where: str) -> None:
    """Raise for a path that could leave its folder, in the snapshot of any commit.

    Each build is examined once, under the longest of its names: thousands of commits may name a build of thousands of
    files, and examining each snapshot would take hours.
    """
    names: dict[str, str] = {}
    try:
        for commit, entry in index.commits.items():
            for variant, content in entry.variants.items():
                check_path(index.repo_id, RepoFile(f"{BUILD_FOLDER}/{variant}", 0, ""))
                names[content] = max(variant, names.get(content, ""), key=lambda name: len(name.encode()))
            Snapshot(index.repo_id, commit, tuple(file.listed() for file in entry.files))
        for content, build in index.builds.items():
            folder = f"{BUILD_FOLDER}/{names[content]}/" if content in names else ""
            Snapshot(index.repo_id, "", tuple(file.listed(folder) for file in build.files))
    except InvalidRepository as error:
        raise _invalid(where, format_text(error).removesuffix(".").removesuffix(". Nothing was downloaded")) from None


def _check_subject(index: RepositoryIndex, commit: str | None, where: str) -> None:
    if index.commit != commit:
        found = "of the repository" if index.commit is None else f"of commit {format_value(index.commit)}"
        expected = "of the repository" if commit is None else f"of commit {commit}"
        raise _invalid(where, f"it is the document {found}, not {expected}")
    if commit is not None and (list(index.commits) != [commit] or index.branches or index.tags or index.older):
        raise _invalid(where, f"the document of commit {commit} has more than that commit, or not even that")


def _check_build(where: str, content: str, build: MirrorBuild) -> None:
    if _CONTENT.fullmatch(content) is None:
        raise _invalid(where, f"{format_value(content)} is not the hash of a build")
    archive = build.archive
    if _SHA256.fullmatch(archive.sha256) is None or archive.name != archive_path(archive.sha256):
        raise _invalid(where, f"{format_value(archive.name)} is not the name of an archive")
    if not 0 < archive.size <= MAX_FILE_BYTES:
        raise _invalid(where, f"{format_value(archive.size)} is not the size of an archive")
    paths = [file.path for file in build.files]
    if paths != sorted(paths):
        raise _invalid(where, "the files of a build are not sorted")
    for file in build.files:
        if not file.listed().blob:  # its content could not be checked
            raise _invalid(where, f"it lists {format_value(file.path)} without a hash")
    texts = {METADATA_FILE: build.metadata, f"{METADATA_FILE}.sigstore": build.signature}
    for file in build.files:
        if file.path in texts:
            _check_text(where, file, texts.pop(file.path))
    for name, text in texts.items():
        if text is not None:
            raise _invalid(where, f"it has a text of {name}, which is not a file of the build")


def _check_text(where: str, file: MirrorFile, text: str | None) -> None:
    if text is not None and not file.listed().describes(text.encode()):
        raise _invalid(where, f"its text of {format_value(file.path)} is not the file that it lists")


def _check_numbers(where: str, numbers: Sequence[int]) -> None:
    for number in numbers:
        if not 0 < number <= _MAX_NUMBER:
            raise _invalid(where, f"{format_value(number)} is not the number of an index")


def _check_times(where: str, times: Sequence[str]) -> None:
    for time in times:
        if _TIME.fullmatch(time) is None:
            raise _invalid(where, f"{format_value(time)} is not a time")
        try:
            parse_time(time)
        except ValueError:
            raise _invalid(where, f"{format_value(time)} is not a time") from None


def _invalid(where: str, why: str) -> InvalidRepository:
    return InvalidRepository(f"{where} is not a valid document of a mirror: {why}. Nothing was downloaded.")
