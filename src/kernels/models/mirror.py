"""The documents of a mirror: a static tree that holds kernels, in a folder, an object store or behind any web server.

    mirror.json                                   the mirror: its repositories
    api/kernels/<org>/<name>/refs                 a repository: its branches, and the commits they are at
    api/kernels/<org>/<name>/tree/<commit>        one commit, of a branch or older
    archives/<first two>/<sha256>.tar.zst         a build

The two paths under `api/` are those of a Hub's first requests, so that a client that has only a URL finds out with its
first request whether a Hub or a mirror answers. `docs/mirror-format.md` describes the format.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Annotated

import msgspec
from msgspec import Meta

from kernels.models import MIRROR_FILE
from kernels.models.requested_names import MAX_VERSION
from kernels.models.requirement import check_repo_id
from kernels.models.snapshot import BUILD_FOLDER, MAX_FILE_BYTES, RepoFile, Snapshot
from kernels.support.text import is_safe

__all__ = [
    "MIRROR_FILE",
    "MirrorArchive",
    "MirrorBuild",
    "MirrorCommit",
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
    "parse_time",
]

#: The number of an index: every reader of JSON reads the largest one exactly (RFC 8259, section 6).
Number = Annotated[int, Meta(ge=1, le=2**53 - 1)]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
#: The hash of a build, of kind `git_lfs_concat` of lockfiles.
Content = Annotated[str, Meta(pattern=r"^sha256-[0-9a-f]{64}\Z")]
Commit = Annotated[str, Meta(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})\Z")]

#: Builds that are named although they are not here, and the characters of a name.
_MOST_ABSENT, _LONGEST_NAME = 1000, 250


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
    size: Annotated[int, Meta(ge=1, le=MAX_FILE_BYTES)]
    sha256: Sha256


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

    variants: dict[str, Content]
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
    number: Number
    time: str
    origin: MirrorOrigin
    publisher: MirrorPublisher
    commits: dict[Commit, MirrorCommit]
    builds: dict[Content, MirrorBuild]
    commit: Commit | None = None
    branches: dict[str, Commit] = {}
    tags: dict[str, Commit] = {}
    moved_to: str | None = None
    older: tuple[Commit, ...] = ()

    def snapshot(self, commit: str) -> Snapshot | None:
        """The files of a commit that the mirror has, as the origin listed them; None if it is not in this document."""
        entry = self.commits.get(commit)
        if entry is None:
            return None
        files = [file.listed() for file in entry.files]
        for variant, content in entry.variants.items():
            files += [file.listed(f"{BUILD_FOLDER}/{variant}/") for file in self.builds[content].files]
        absent = tuple(name for name in entry.absent[:_MOST_ABSENT] if is_safe(name) and len(name) < _LONGEST_NAME)
        return Snapshot(self.repo_id, commit, tuple(files), absent=absent)

    def build(self, commit: str, variant: str) -> MirrorBuild | None:
        """A build of a commit, or None."""
        entry = self.commits.get(commit)
        content = None if entry is None else entry.variants.get(variant)
        return None if content is None else self.builds[content]


class MirroredRepository(msgspec.Struct, frozen=True, rename="kebab", omit_defaults=True, gc=False):
    """What the mirror's index says of a repository.

    Attributes:
        number: The number of the repository's index.
        time: When that index was written.
        versions: The versions it has, the newest first.
    """

    number: Number
    time: str
    versions: tuple[Annotated[int, Meta(ge=0, le=MAX_VERSION)], ...] = ()


class MirrorIndex(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", omit_defaults=True):
    """The index of a mirror.

    Attributes:
        number: Grows by one with each change.
        time: When the index was written.
        writer: The program that wrote it.
        repositories: The repositories of the mirror.
    """

    number: Number
    time: str
    writer: str
    repositories: dict[str, MirroredRepository]


class MirrorSignature(msgspec.Struct, frozen=True, rename="kebab", omit_defaults=True, gc=False):
    """A signature of a document's content.

    Attributes:
        kind: `ed25519`.
        value: The signature in base64.
        key: The public key in base64 (32 bytes).
    """

    kind: str
    value: str
    key: str = ""


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
