"""Digests: whether files on disk are those that a build's metadata, or a Hub's listing, describes."""

from __future__ import annotations

import base64
import hashlib
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kernels.errors import DigestMismatch, InvalidRepository, RequestError, StoreError
from kernels.models.metadata import Digest
from kernels.models.snapshot import UNCOVERED_FILES
from kernels.support.formatting import format_names
from kernels.support.hashing import feed_file, git_blob_hasher, on_every_core

if TYPE_CHECKING:
    from hashlib import _Hash

    from kernels.models.snapshot import RepoFile

__all__ = [
    "changed_files",
    "content_mismatch",
    "git_blob_id",
    "is_as_listed",
    "sha256_file",
    "variant_digest",
    "variant_files",
    "verify_digest",
]

#: The digest algorithms of `metadata.json`.
_ALGORITHMS = ("sha256", "sha512")
#: How many files of each kind an error message names.
_NAMED = 10


class _File(msgspec.Struct, frozen=True):
    name: str  # POSIX path relative to the variant
    path: str
    size: int  # bytes


def variant_digest(path: os.PathLike[str] | str, algorithm: str = "sha256") -> Digest:
    """Digest every file of a variant that a digest covers.

    Args:
        path: The variant's directory. Files that are symbolic links are read through.
        algorithm: `sha256` or `sha512`.

    Returns:
        The digest, in the form `metadata.json` holds it, with the files in the order of their paths.

    Raises:
        RequestError: The algorithm is neither, or the path is no directory.
        InvalidRepository: The directory holds what no digest can describe: a link to a directory, a broken link, a
            device, a name that is not Unicode.
        StoreError: A file could not be read.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "__init__.py").write_text("")
        >>> variant_digest(folder, "sha256").files
        {'__init__.py': '47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='}
    """
    if algorithm not in _ALGORITHMS:
        raise RequestError(f"`algorithm`: expected {' or '.join(_ALGORITHMS)}, got {algorithm!r}.")
    return Digest(algorithm, _digest_files(_scan(path), algorithm))


def verify_digest(
    path: os.PathLike[str] | str,
    digest: Digest,
    remedy: str = "Delete the folder and download it again, or ask the publisher for a new build.",
    known: Mapping[str, str] | None = None,
) -> None:
    """Check that a variant's files are exactly those a digest describes.

    Args:
        path: The variant's directory.
        digest: The digest in `metadata.json`. Its paths are compared, never opened.
        remedy: What to do, a sentence of the message.
        known: The SHA-256 of files that were hashed already (hexadecimal), by path: a digest of that kind reads only
            the others.

    Raises:
        DigestMismatch: Files are missing, were changed, or are not in the digest; the message names them.
        InvalidRepository, StoreError: As `variant_digest`.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "__init__.py").write_text("")
        >>> verify_digest(folder, variant_digest(folder, "sha256"))
    """
    if digest.algorithm not in _ALGORITHMS:
        raise RequestError(f"`digest.algorithm`: expected {' or '.join(_ALGORITHMS)}, got {digest.algorithm!r}.")
    files = _scan(path)
    found = {file.name for file in files}
    # Names first: a file too many is found before gigabytes are hashed.
    wrong = {"missing": digest.files.keys() - found, "not in the digest": found - digest.files.keys()}
    if not any(wrong.values()):
        actual = _digest_files(files, digest.algorithm, known or {})
        wrong = {"changed": {name for name in actual if actual[name] != digest.files[name]}}
    if any(wrong.values()):
        listed = "; ".join(
            f"{kind}: {format_names(map(repr, sorted(names)), limit=_NAMED)}" for kind, names in wrong.items() if names
        )
        raise DigestMismatch(
            f"The files in {os.fspath(path)} are not those its {digest.algorithm} digest describes. {listed}. {remedy}"
        )


def variant_files(path: os.PathLike[str] | str) -> list[str]:
    """The files of a variant: those that a digest covers, and those that hold the digest and its signature.

    Args:
        path: The variant's directory.

    Returns:
        POSIX paths relative to the variant, in order.

    Raises:
        RequestError, InvalidRepository, StoreError: As `variant_digest`.
    """
    return [file.name for file in _scan(path, frozenset())]


def sha256_file(path: os.PathLike[str] | str) -> str:
    """The SHA-256 of a file, as 64 hexadecimal digits: what a Hub's listing gives for large files (`lfs.oid`).

    Args:
        path: The file, read in blocks.

    Raises:
        StoreError: It could not be read.

    Example:
        >>> import pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "empty"
        >>> _ = file.write_bytes(b"")
        >>> sha256_file(file)[:16]
        'e3b0c44298fc1c14'
    """
    return _hash_file(path, lambda size: hashlib.sha256()).hexdigest()


def git_blob_id(content: os.PathLike[str] | str | bytes) -> str:
    """The id git gives a file, as 40 hexadecimal digits: what a Hub's listing gives for small files (`oid`).

    Args:
        content: The file's path, or its bytes.

    Raises:
        StoreError: The file could not be read.

    Example:
        >>> git_blob_id(b"")
        'e69de29bb2d1d6434b8b29ae775ad8c2e48c5391'
    """
    if isinstance(content, bytes):
        hasher = git_blob_hasher(len(content))
        hasher.update(content)
        return hasher.hexdigest()
    return _hash_file(content, git_blob_hasher).hexdigest()


def is_as_listed(path: Path, file: RepoFile) -> bool:
    """Whether a file on disk has the size that was listed, and the hash where the listing has one."""
    try:
        facts = path.stat()
        if not stat.S_ISREG(facts.st_mode) or facts.st_size != file.size:
            return False
        return not file.blob or feed_file(path, lambda size: file.hasher()).hexdigest() == file.blob
    except OSError:
        return False


def changed_files(root: Path, files: Iterable[RepoFile]) -> list[RepoFile]:
    """The files below a folder whose content is not what was listed; those that are missing too."""
    listed = list(files)
    same = on_every_core(lambda file: is_as_listed(root / file.path, file), listed, lambda file: file.size)
    return [file for file, as_listed in zip(listed, same, strict=True) if not as_listed]


def content_mismatch(repo_id: str, root: Path, paths: Iterable[str], advice: str) -> DigestMismatch:
    """The error for files of a repository that are not what was listed.

    Args:
        repo_id: The repository.
        root: The folder of the commit.
        paths: The files, as the repository names them.
        advice: What to do, a sentence.
    """
    named = [path if (root / path).is_file() else f"{path} (missing)" for path in paths]
    return DigestMismatch(
        f"{repo_id} has files that are not what the Hub listed: {format_names(named, limit=5)}, in {root}. {advice}"
    )


def _hash_file(path: os.PathLike[str] | str, start: Callable[[int], _Hash]) -> _Hash:
    try:
        return feed_file(path, start)
    except OSError as error:
        raise StoreError(f"Cannot read {os.fspath(path)}: {error.strerror or error}.") from error


def _digest_files(files: list[_File], algorithm: str, known: Mapping[str, str] | None = None) -> dict[str, str]:
    hashes = known if known is not None and algorithm == "sha256" else {}

    def digest(file: _File) -> str:
        if file.name in hashes:
            raw = bytes.fromhex(hashes[file.name])
        else:
            raw = _hash_file(file.path, lambda size: hashlib.new(algorithm)).digest()
        return base64.b64encode(raw).decode("ascii")

    digests = on_every_core(digest, files, lambda file: 0 if file.name in hashes else file.size)
    return dict(zip((file.name for file in files), digests, strict=True))


def _scan(path: os.PathLike[str] | str, without: Collection[str] = UNCOVERED_FILES) -> list[_File]:
    root = os.fspath(path)
    if not os.path.isdir(root):
        raise RequestError(f"`path`: expected the directory of a variant, got {root!r}.")
    try:
        return sorted(_walk(root, "", without), key=lambda file: file.name)
    except OSError as error:
        raise StoreError(f"Cannot read {error.filename or root}: {error.strerror or error}.") from error


def _walk(folder: str, prefix: str, without: Collection[str]) -> Iterator[_File]:
    pending = [(folder, prefix)]  # not recursion: a hostile tree may nest deeper than Python's stack
    while pending:
        folder, prefix = pending.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                name = prefix + entry.name
                if entry.name == "__pycache__":
                    continue
                if entry.is_dir(follow_symlinks=False):
                    pending.append((entry.path, name + "/"))
                elif not entry.name.endswith(".pyc") and name not in without:
                    yield _regular_file(entry, name)


def _regular_file(entry: os.DirEntry[str], name: str) -> _File:
    def invalid(what: str) -> InvalidRepository:
        shown = name.encode("utf-8", "backslashreplace").decode("utf-8")
        return InvalidRepository(
            f"{os.path.dirname(entry.path)!r} holds {shown!r}, {what}; a variant holds plain files."
        )

    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise invalid("a name that is not Unicode") from None
    try:
        status: os.stat_result = entry.stat()
    except OSError as error:
        if not entry.is_symlink():
            raise
        raise invalid(f"a link that leads nowhere ({error.strerror})") from None
    if stat.S_ISDIR(status.st_mode):
        raise invalid("a link to a directory")
    if not stat.S_ISREG(status.st_mode):
        raise invalid("which is neither a file nor a directory")
    return _File(name, entry.path, status.st_size)
