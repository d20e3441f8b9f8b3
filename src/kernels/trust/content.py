"""The content of a build on disk: whether its files are those of a listing, a digest or a lock.

Each file is read once, whatever it is compared with.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kernels.errors import DigestMismatch, InvalidRepository, RequestError, StoreError
from kernels.models.metadata import Digest
from kernels.models.snapshot import BUILD_FOLDER, UNCOVERED_FILES, is_bytecode
from kernels.support.files import real_path
from kernels.support.formatting import format_names
from kernels.support.hashing import on_every_core
from kernels.trust.file_hashes import hash_file

if TYPE_CHECKING:
    from kernels.models.lockfile import ContentHash
    from kernels.models.snapshot import RepoFile

__all__ = [
    "BuildContent",
    "BuildFile",
    "FileIdentity",
    "hash_of_files",
]

#: The digest algorithms of `metadata.json`.
_DIGESTS = ("sha256", "sha512")
#: How many files of each kind an error message names.
_NAMED = 10

#: A file's size in bytes, the times in nanoseconds when its content and when its inode changed, and its inode.
FileIdentity = tuple[int, int, int, int]


class BuildFile(msgspec.Struct):
    """A file in a build's folder.

    Attributes:
        path: Where it is on disk.
        identity: What another file in its place does not have, also with the same size and modification time.
        odd: Why it can be no file of a build; empty for a plain file.
        hashes: What is known of its content, hexadecimal, by algorithm.
    """

    path: str
    identity: FileIdentity
    odd: str = ""
    hashes: dict[str, str] = msgspec.field(default_factory=dict)


class BuildContent:
    """The files in a build's folder, without bytecode; each is read once for all questions about it.

    Args:
        folder: The build's folder. Files that are symbolic links are read through.
        boundary: The folder that no link may leave; None where links may lead anywhere.
        algorithms: The hashes (`sha256`, `sha512`, `git-sha1`) that the questions need of each file: a file that is
            read for one of them is hashed for all.
        known: The SHA-256 of files that were hashed already, hexadecimal, by path.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "__init__.py").write_text("")
        >>> BuildContent(folder).digest("sha256").files
        {'__init__.py': '47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='}
    """

    def __init__(
        self,
        folder: os.PathLike[str] | str,
        *,
        boundary: os.PathLike[str] | str | None = None,
        algorithms: Iterable[str] = (),
        known: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = Path(folder)
        self._boundary = boundary
        self._inside = "" if boundary is None else os.path.join(os.path.realpath(boundary), "")
        self._resolved: dict[str, str] = {}  # real paths of folders
        self._algorithms = tuple(algorithms)
        self._known = known or {}

    @cached_property
    def files(self) -> dict[str, BuildFile]:
        """The files by their POSIX paths relative to the folder, in order.

        Raises:
            InvalidRepository: A link leads out of the boundary.
            StoreError: A folder cannot be read.
        """
        try:
            return dict(sorted(self._walk()))
        except OSError as error:
            raise StoreError(f"Cannot read {error.filename or self.folder}: {error.strerror or error}.") from error

    def look_again(self) -> None:
        """Forget the files and their hashes: something was written."""
        self.__dict__.pop("files", None)

    def identities(self) -> dict[str, FileIdentity]:
        """Each file's size, times and inode, by its path; zeros for a file that cannot be read.

        Raises:
            InvalidRepository, StoreError: As `files`.
        """
        return {name.encode(errors="replace").decode(): file.identity for name, file in self.files.items()}

    def changed(self, listed: Iterable[RepoFile]) -> list[RepoFile]:
        """The listed files of the build that are missing, or whose content is not what was listed."""
        prefix = f"{BUILD_FOLDER}/{self.folder.name}/"
        files = list(listed)

        def is_same(file: RepoFile) -> bool:
            name = file.path.removeprefix(prefix)
            found = self.files.get(name)
            if found is None or found.odd or found.identity[0] != file.size:
                return False
            try:
                return not file.blob or self._hash(name, file.algorithm) == file.blob
            except StoreError:
                return False

        same = on_every_core(is_same, files, lambda file: file.size)
        return [file for file, is_listed in zip(files, same, strict=True) if not is_listed]

    def digest(self, algorithm: str) -> Digest:
        """The digest of every file, as `metadata.json` holds it, but of those that hold the digest and its signature.

        Args:
            algorithm: `sha256` or `sha512`.

        Raises:
            RequestError: The algorithm is neither.
            InvalidRepository: The folder holds what no digest can describe: a link to a directory, a broken link, a
                device, a name that is not Unicode.
            StoreError: A file could not be read.
        """
        if algorithm not in _DIGESTS:
            raise RequestError(f"`algorithm`: expected {' or '.join(_DIGESTS)}, got {algorithm!r}.")
        covered = [name for name in self._plain_files() if name not in UNCOVERED_FILES]
        hashes = self._hashes(dict.fromkeys(covered, algorithm))
        return Digest(
            algorithm, {name: base64.b64encode(bytes.fromhex(each)).decode() for name, each in hashes.items()}
        )

    def differences(self, digest: Digest) -> dict[str, tuple[str | None, str | None]]:
        """The files that are not as in a digest: its hash and that of the file here, None where there is no such file.

        Args:
            digest: The digest in `metadata.json`. Its paths are compared, never opened.

        Raises:
            RequestError, InvalidRepository, StoreError: As `digest`.
        """
        here = self.digest(digest.algorithm).files
        both = {path: (digest.files.get(path), here.get(path)) for path in sorted(digest.files.keys() | here.keys())}
        return {path: (expected, got) for path, (expected, got) in both.items() if expected != got}

    def check_digest(
        self,
        digest: Digest,
        remedy: str = "Delete the folder and download it again, or ask the publisher for a new build.",
    ) -> None:
        """Check that the files are exactly those that a digest describes.

        Args:
            digest: The digest in `metadata.json`.
            remedy: What to do, a sentence of the message.

        Raises:
            DigestMismatch: Files are missing, were changed, or are not in the digest; the message names them.
            RequestError, InvalidRepository, StoreError: As `digest`.
        """
        wrong: dict[str, list[str]] = {}
        for path, (expected, got) in self.differences(digest).items():
            kind = "missing" if got is None else "not in the digest" if expected is None else "changed"
            wrong.setdefault(kind, []).append(repr(path))
        if wrong:
            listed = "; ".join(f"{kind}: {format_names(names, limit=_NAMED)}" for kind, names in wrong.items())
            raise DigestMismatch(
                f"The files in {self.folder} are not those its {digest.algorithm} digest describes. {listed}. {remedy}"
            )

    def pinned_hash(self, kind: str, listed: Collection[RepoFile] = ()) -> ContentHash:
        """The whole content as one hash, as a lock pins it.

        Args:
            kind: `sha256sum`, or `git_lfs_concat` as older locks have it.
            listed: For `git_lfs_concat`, the build's files as a Hub lists them: which it keeps as large ones. Without,
                the links in a cache say it, whose targets are named by their hashes.

        Raises:
            RequestError: `git_lfs_concat` of plain files that no Hub listed.
            InvalidRepository: The folder holds what no build has: a link to a folder, a name with a line break.
            StoreError: A file could not be read.

        Example:
            >>> import tempfile
            >>> folder = Path(tempfile.mkdtemp())
            >>> _ = (folder / "__init__.py").write_text("")
            >>> BuildContent(folder).pinned_hash("sha256sum").value[:16]
            'sha256-b1522d29e'
        """
        from kernels.models.lockfile import GIT_LFS_CONCAT

        names = self._plain_files()
        invalid = next((name for name in names if "\n" in name or "\\" in name), None)
        if invalid is not None:
            raise InvalidRepository(
                f"{self.folder} has the file {invalid!r}; a name in a build has no line break or backslash."
            )
        wanted = dict.fromkeys(names, "sha256")
        if kind == GIT_LFS_CONCAT:
            prefix = f"{BUILD_FOLDER}/{self.folder.name}/"
            kinds = {file.path.removeprefix(prefix): file.algorithm for file in listed if file.blob}
            wanted = {
                name: kinds.get(name, "git-sha1") if kinds else _linked_algorithm(self.folder / name) for name in names
            }
        return hash_of_files(kind, self._hashes(wanted))

    def _plain_files(self) -> list[str]:
        for name, file in self.files.items():
            if file.odd:
                shown = name.encode("utf-8", "backslashreplace").decode("utf-8")
                raise InvalidRepository(
                    f"{os.path.dirname(file.path)!r} holds {shown!r}, {file.odd}; a variant holds plain files."
                )
        return list(self.files)

    def _hashes(self, wanted: Mapping[str, str]) -> dict[str, str]:
        """The hashes of files, by path, for the algorithm of each."""

        def size(item: tuple[str, str]) -> int:
            file = self.files[item[0]]
            return 0 if item[1] in file.hashes else file.identity[0]

        hashes = on_every_core(lambda item: self._hash(*item), list(wanted.items()), size)
        return dict(zip(wanted, hashes, strict=True))

    def _hash(self, name: str, algorithm: str) -> str:
        file = self.files[name]
        if algorithm not in file.hashes:
            file.hashes |= hash_file(file.path, {algorithm, *self._algorithms})
        return file.hashes[algorithm]

    def _walk(self) -> Iterator[tuple[str, BuildFile]]:
        self._check_link(os.fspath(self.folder))
        pending = [("", os.fspath(self.folder))]  # not recursion: a hostile tree may nest deeper than Python's stack
        while pending:
            prefix, folder = pending.pop()
            with os.scandir(folder) as entries:
                for entry in entries:
                    name = prefix + entry.name
                    if entry.is_symlink():
                        self._check_link(entry.path)
                    if is_bytecode(entry.name):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        pending.append((f"{name}/", entry.path))
                    else:
                        known = {"sha256": self._known[name]} if name in self._known else {}
                        yield name, BuildFile(entry.path, *_look_at(entry, name), known)

    def _check_link(self, link: str) -> None:
        if self._boundary is None:
            return
        target = real_path(link, self._resolved)
        if not os.path.join(target, "").startswith(self._inside):
            raise InvalidRepository(
                f"{link} leads to {target}, outside of {os.fspath(self._boundary)}. Delete the repository's folder "
                "from the cache and download it again; if it comes back, do not use the repository."
            )


def hash_of_files(kind: str, hashes: Mapping[str, str]) -> ContentHash:
    """The content of a build as one hash, from those of its files.

    Args:
        kind: `sha256sum`: over what that command prints for the files, in the order of their paths' bytes; or
            `git_lfs_concat`: over each path and the bytes of its hash.
        hashes: Of each file by its path, hexadecimal: the SHA-256; for `git_lfs_concat` of small files git's object id.
    """
    from kernels.models.lockfile import GIT_LFS_CONCAT, ContentHash

    hasher = hashlib.sha256()
    for path, each in sorted((path.encode(), each) for path, each in hashes.items()):
        hasher.update(path + bytes.fromhex(each) if kind == GIT_LFS_CONCAT else each.encode() + b"  " + path + b"\n")
    return ContentHash(kind, f"sha256-{hasher.hexdigest()}")


def _linked_algorithm(path: Path) -> str:
    """The algorithm of the hash that names a file's content in a cache."""
    name = os.path.basename(os.path.realpath(path))
    if not path.is_symlink() or re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", name) is None:
        raise RequestError(
            f"git_lfs_concat depends on whether the Hub keeps {path} as a large file, which a plain file does not "
            "show. Lock again with the current kind of hash: kernels lock --rehash"
        )
    return "sha256" if len(name) == 64 else "git-sha1"


def _look_at(entry: os.DirEntry[str], name: str) -> tuple[FileIdentity, str]:
    """What identifies a file, and why it can be no file of a build."""
    try:
        # Not `entry.stat()`, which has no inode on Windows.
        facts = os.stat(entry.path)
    except OSError as error:
        what = "a link that leads nowhere" if entry.is_symlink() else "which cannot be read"
        return (0, 0, 0, 0), f"{what} ({error.strerror})"
    identity = (facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino)
    if not name.isascii() and name.encode(errors="replace").decode() != name:
        return identity, "a name that is not Unicode"
    if stat.S_ISDIR(facts.st_mode):
        return identity, "a link to a directory"
    return identity, "" if stat.S_ISREG(facts.st_mode) else "which is neither a file nor a directory"
