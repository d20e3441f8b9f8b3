"""A repository's branches, its snapshot at a commit, and the files in that."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from kernels.errors import InvalidRepository
from kernels.models.requested_names import branch_version
from kernels.support.formatting import format_value
from kernels.support.hashing import hasher_of
from kernels.support.text import is_safe

if TYPE_CHECKING:
    from hashlib import _Hash

__all__ = [
    "BUILD_FOLDER",
    "BUNDLE_FILE",
    "METADATA_FILE",
    "STATUS_FILE",
    "UNCOVERED_FILES",
    "Heads",
    "RepoFile",
    "Snapshot",
    "check_path",
    "is_bytecode",
]

BUILD_FOLDER = "build"
METADATA_FILE = "metadata.json"
BUNDLE_FILE = "metadata.json.sigstore"
STATUS_FILE = "kernel-status.toml"

#: The files of a build that its digest does not cover: one has the digest, the other its signature.
UNCOVERED_FILES = frozenset({METADATA_FILE, BUNDLE_FILE})

#: The most files of a repository; the largest published one has some 5,000.
MAX_FILES = 250_000

#: The most nested folders; published kernels have up to twelve.
MAX_PARTS = 64

#: The most bytes of a file: a petabyte.
MAX_FILE_BYTES = 2**50

_OID = r"[0-9a-f]{40}|[0-9a-f]{64}"
#: Paths like those of nearly all files, of which only the length is left to be checked.
_PLAIN = r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.+-]*)*"
#: Characters that no name may have: controls and lone surrogates, besides Windows' separators of folders and drives.
_UNSAFE = r"[\x00-\x1f\x7f\ud800-\udfff]"


class RepoFile(msgspec.Struct, frozen=True, gc=False):
    """A file in a source's list.

    Attributes:
        path: POSIX path in the repository.
        size: Bytes.
        oid: Git blob id (SHA-1 or SHA-256 of git's blob header and the content); "" if the source has none.
        sha256: SHA-256 of the content, if the Hub stores it as a large file.
        xet_hash: The hash in Xet; "" if the Hub does not store it there.
    """

    path: str
    size: int
    oid: str = ""
    sha256: str | None = None
    xet_hash: str = ""

    @property
    def blob(self) -> str:
        """The name of its content in the cache: huggingface_hub's ETag, and the result of `hasher`."""
        return self.sha256 or self.oid

    @property
    def algorithm(self) -> str:
        """The algorithm of `blob`."""
        return "sha256" if self.sha256 else "git-sha256" if len(self.oid) == 64 else "git-sha1"

    def hasher(self) -> _Hash:
        """A hash whose result for the content is `blob`."""
        return hasher_of(self.algorithm, self.size)

    def describes(self, content: bytes) -> bool:
        """Whether `content` has the listed size, and the listed hash if there is one."""
        if len(content) != self.size:
            return False
        hasher = self.hasher()
        hasher.update(content)
        return not self.blob or hasher.hexdigest() == self.blob


class Heads(msgspec.Struct, frozen=True, dict=True):
    """The commits of a repository's branches and tags, and the time of the answer."""

    branches: Mapping[str, str]
    tags: Mapping[str, str] = {}
    time: float = 0.0

    @cached_property
    def versions(self) -> dict[int, str]:
        """The branches of versions, by version, newest first."""
        found = {version: name for name in self.branches if (version := branch_version(name)) is not None}
        return dict(sorted(found.items(), reverse=True))

    def commit(self, revision: str) -> str | None:
        """The commit of a branch or tag, which may have its prefix `refs/heads/` or `refs/tags/`."""
        for prefix, refs in (("refs/heads/", self.branches), ("refs/tags/", self.tags)):
            name = revision.removeprefix(prefix)
            if name in refs and (name == revision or revision.startswith(prefix)):
                return refs[name]
        return None


class Snapshot(msgspec.Struct, frozen=True, dict=True):
    """A repository at one commit, and the files in it: they never change.

    Attributes:
        repo_id: The repository.
        commit: The commit.
        files: Its files.
        listed: Whether the source listed the files; otherwise they are those in the cache.
        absent: Builds of the commit that the origin of a mirror has, and the mirror has not, as far as it was asked.

    Raises:
        InvalidRepository: The path of a file is not safe or not unique, or there are too many files.
    """

    repo_id: str
    commit: str
    files: tuple[RepoFile, ...]
    listed: bool = True
    absent: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.files) > MAX_FILES:
            raise InvalidRepository(f"{self.repo_id} lists more than {MAX_FILES} files, the most that are read.")
        paths: set[str] = set()
        for file in self.files:
            check_path(self.repo_id, file)
            if file.path in paths:
                raise InvalidRepository(f"{self.repo_id} lists the file {file.path!r} twice.")
            paths.add(file.path)
        folders: set[str] = set()
        for path in paths:
            folder = path.rpartition("/")[0]
            while folder and folder not in folders:  # the folders above a known one are known
                if folder in paths:
                    raise InvalidRepository(f"{self.repo_id} lists {folder!r} both as a file and as a folder.")
                folders.add(folder)
                folder = folder.rpartition("/")[0]

    @cached_property
    def builds(self) -> dict[str, tuple[RepoFile, ...]]:
        """The files of each build, without bytecode, by the name of its folder in `build/`."""
        builds: dict[str, list[RepoFile]] = {}
        for file in self.files:
            parts = file.path.split("/", 2)
            if len(parts) == 3 and parts[0] == BUILD_FOLDER and not is_bytecode(file.path):
                builds.setdefault(parts[1], []).append(file)
        return {name: tuple(files) for name, files in sorted(builds.items())}

    def file(self, path: str) -> RepoFile | None:
        """The file at a path of the repository, or None."""
        return self._by_path.get(path)

    def size(self, variant: str) -> int:
        """Bytes of a build; 0 of one that is not here."""
        return sum(file.size for file in self.builds.get(variant, ()))

    @cached_property
    def _by_path(self) -> dict[str, RepoFile]:
        return {file.path: file for file in self.files}


def is_bytecode(path: str) -> bool:
    """Whether a path is Python bytecode, which is never downloaded, hashed or locked.

    Example:
        >>> is_bytecode("build/torch-cpu/__pycache__/layers.cpython-311.pyc")
        True
    """
    return path.endswith((".pyc", ".pyo")) or "__pycache__" in path.split("/")


def check_path(repo_id: str, file: RepoFile) -> None:
    """Raise `InvalidRepository` unless a listed file can be written safely into a folder."""
    path = file.path
    plain = len(path) <= 255 and path.count("/") < MAX_PARTS and 0 <= file.size <= MAX_FILE_BYTES
    if not plain or re.fullmatch(_PLAIN, path) is None:
        _check_unusual(repo_id, file)
    for oid in (file.oid, file.sha256, file.xet_hash):
        if oid and re.fullmatch(_OID, oid) is None:
            raise InvalidRepository(f"{repo_id} lists {file.path[:200]!r} with the object id {oid[:80]!r}.")


def _check_unusual(repo_id: str, file: RepoFile) -> None:
    parts = file.path.split("/", MAX_PARTS)
    # File systems limit the bytes of a name, not its characters.
    sizes = [len(part.encode(errors="replace")) for part in parts]
    if (
        len(parts) > MAX_PARTS
        or sum(sizes) + len(sizes) > 1024
        or max(sizes) > 255
        or any(part in ("", ".", "..") for part in parts)
        or "\\" in file.path
        or ":" in file.path
        or (not file.path.isprintable() and re.search(_UNSAFE, file.path))
        or file.size < 0
    ):
        raise InvalidRepository(f"{repo_id} lists the file {file.path[:200]!r}: a path that could leave its folder.")
    if file.size > MAX_FILE_BYTES:
        raise InvalidRepository(
            f"{repo_id} lists {format_value(file.path, 200)} with the size {format_value(file.size)}."
        )
    # A build whose name is not a variant's is never downloaded.
    inside = "/".join(parts[2:]) if parts[0] == BUILD_FOLDER else ""
    if not is_safe(inside):
        # Progress bars, logs and errors show the paths, those of other libraries as well.
        raise InvalidRepository(f"{repo_id} lists the file {file.path[:200]!r}: a path with invisible characters.")
