"""The content of a build as one hash, from a source's listing or from the files on disk.

Both give the same hash: a lock made from listings alone is compared with what another machine downloaded.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
from collections.abc import Collection, Iterable, MutableMapping
from pathlib import Path

from kernels.errors import InvalidMetadata, InvalidRepository, RequestError
from kernels.models.lockfile import GIT_LFS_CONCAT, SHA256SUM, ContentHash
from kernels.models.metadata import MAX_METADATA_BYTES, Metadata
from kernels.models.snapshot import BUILD_FOLDER, METADATA_FILE, UNCOVERED_FILES, RepoFile, Snapshot, is_bytecode
from kernels.sources.base import Source
from kernels.support.hashing import on_every_core
from kernels.support.tasks import side_by_side
from kernels.trust.digest import git_blob_id, sha256_file, variant_files

__all__ = ["build_hash", "folder_hash", "listed_hash"]

#: Files that are hashed, or small ones that are read from a Hub, at the same time.
_AT_ONCE = 8

#: A file larger than this that a Hub does not keep as a large one is no source file; a Hub's own limit is 10 MB.
_MAX_SMALL_BYTES = 32 * 1024 * 1024

_BLOB = r"[0-9a-f]{40}|[0-9a-f]{64}"


def listed_hash(
    source: Source,
    snapshot: Snapshot,
    variant: str,
    kind: str = SHA256SUM,
    known: MutableMapping[str, str] | None = None,
) -> ContentHash:
    """The content of a build that may not be on disk.

    The listing has the SHA-256 of large files, and the digest in the build's metadata that of others. A file in
    neither is small, and is read.

    Args:
        source: Where the snapshot is from.
        snapshot: The repository at a commit.
        variant: The build's name.
        kind: How the hash is made: `sha256sum`, or `git_lfs_concat` as older locks have it, which reads nothing.
        known: SHA-256 by git blob id of small files that were read before; those read now are added. Builds of one
            repository share most of their files.

    Raises:
        InvalidRepository: A file is not what was listed, or too large to be read.
        RequestError: The source lists no git blob ids, which `git_lfs_concat` needs.
    """
    prefix = f"{BUILD_FOLDER}/{variant}/"
    files = {file.path.removeprefix(prefix): file for file in snapshot.builds[variant]}
    if kind == GIT_LFS_CONCAT:
        unnamed = [path for path, file in files.items() if not file.blob]
        if unnamed:
            raise RequestError(f"{source.name} lists no git blob id for {unnamed[0]!r}, which {kind} needs.")
        return _concat((path, file.blob) for path, file in files.items())
    digests = _digests(source, snapshot, files.get(METADATA_FILE))
    known = {} if known is None else known
    # Of files with the same content, always the same one is read: the cache has it next time.
    firsts: dict[str, RepoFile] = {}
    for each in snapshot.files:
        firsts.setdefault(each.oid, each)

    def sha256(item: tuple[str, RepoFile]) -> str:
        path, file = item
        if file.sha256 is not None:
            return file.sha256
        if path in digests:
            return digests[path]
        if not file.oid:  # a folder: its files are on disk
            return sha256_file(source.fetch(snapshot, variant) / path)
        if file.oid not in known:
            known[file.oid] = hashlib.sha256(source.read(snapshot, firsts[file.oid], _MAX_SMALL_BYTES)).hexdigest()
        return known[file.oid]

    return _lines(zip(files, side_by_side(sha256, files.items(), at_once=_AT_ONCE, name="hash"), strict=True))


def folder_hash(
    path: os.PathLike[str] | str, kind: str = SHA256SUM, *, large: Collection[str] | None = None
) -> ContentHash:
    """The content of a build on disk.

    Args:
        path: The build's folder.
        kind: How the hash is made: `sha256sum`, or `git_lfs_concat` as older locks have it.
        large: For `git_lfs_concat`, the files that the Hub keeps as large ones, as POSIX paths relative to the build.
            The default takes them from the links in a cache, whose targets are named by their hashes.

    Raises:
        RequestError: The folder does not exist; or `git_lfs_concat` of plain files without `large`.
        InvalidRepository: It has what no build has: a link to a folder, a device, a name with a line break.
        StoreError: A file could not be read.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "__init__.py").write_text("")
        >>> folder_hash(folder).value[:16]
        'sha256-b1522d29e'
    """
    root = Path(path)
    names = [name for name in variant_files(root) if not is_bytecode(name)]
    invalid = next((name for name in names if "\n" in name or "\\" in name), None)
    if invalid is not None:
        raise InvalidRepository(f"{root} has the file {invalid!r}; a name in a build has no line break or backslash.")

    def hash_file(name: str) -> str:
        if kind == GIT_LFS_CONCAT and not (name in large if large is not None else _linked_as_large(root / name)):
            return git_blob_id(root / name)
        return sha256_file(root / name)

    hashes = zip(names, on_every_core(hash_file, names, lambda name: _size(root / name)), strict=True)
    return _concat(hashes) if kind == GIT_LFS_CONCAT else _lines(hashes)


def build_hash(folder: Path, snapshot: Snapshot, variant: str, kind: str) -> ContentHash:
    """The content of a build on disk, as `folder_hash`; which files the Hub keeps as large ones, its listing says.

    Args:
        folder: The build's folder.
        snapshot: The repository at a commit.
        variant: The build's name.
        kind: How the hash is made.
    """
    files, prefix = snapshot.builds[variant], f"{BUILD_FOLDER}/{variant}/"
    hashed = snapshot.listed and all(file.blob for file in files)
    large = frozenset(file.path.removeprefix(prefix) for file in files if file.sha256 is not None)
    return folder_hash(folder, kind, large=large if hashed else None)


def _lines(hashed: Iterable[tuple[str, str]]) -> ContentHash:
    """Over what `sha256sum` prints for the files, in the order of their paths' bytes."""
    lines = sorted((path.encode(), digest) for path, digest in hashed)
    content = b"".join(digest.encode() + b"  " + path + b"\n" for path, digest in lines)
    return ContentHash(SHA256SUM, f"sha256-{hashlib.sha256(content).hexdigest()}")


def _concat(named: Iterable[tuple[str, str]]) -> ContentHash:
    hasher = hashlib.sha256()
    for path, blob in sorted((path.encode(), blob) for path, blob in named):
        hasher.update(path)
        hasher.update(bytes.fromhex(blob))
    return ContentHash(GIT_LFS_CONCAT, f"sha256-{hasher.hexdigest()}")


def _digests(source: Source, snapshot: Snapshot, file: RepoFile | None) -> dict[str, str]:
    """The SHA-256 of files in the digest of a build's metadata. The install check finds a wrong one."""
    if file is None or file.size > MAX_METADATA_BYTES:
        return {}
    try:
        digest = Metadata.from_bytes(source.read(snapshot, file, MAX_METADATA_BYTES)).digest
    except InvalidMetadata:
        return {}
    if digest is None or digest.algorithm != "sha256":
        return {}
    found = {}
    for path, value in digest.files.items():
        try:
            raw = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            continue
        if len(raw) == hashlib.sha256().digest_size and path not in UNCOVERED_FILES:
            found[path] = raw.hex()
    return found


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # reading it says why
        return 0


def _linked_as_large(path: Path) -> bool:
    name = os.path.basename(os.path.realpath(path))
    if not path.is_symlink() or re.fullmatch(_BLOB, name) is None:
        raise RequestError(
            f"{GIT_LFS_CONCAT} depends on whether the Hub keeps {path} as a large file, which a plain file does not "
            "show. Lock again with the current kind of hash: kernels lock --rehash"
        )
    return len(name) == 64
