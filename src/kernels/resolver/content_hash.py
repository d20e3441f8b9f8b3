"""The content of a build as one hash, from a source's listing.

It is that of the files on disk (`BuildContent.pinned_hash`): a lock made from listings alone is compared with what
another machine downloaded.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import MutableMapping

from kernels.errors import InvalidMetadata
from kernels.models.lockfile import GIT_LFS_CONCAT, SHA256SUM, ContentHash
from kernels.models.metadata import MAX_METADATA_BYTES, Metadata
from kernels.models.snapshot import BUILD_FOLDER, METADATA_FILE, UNCOVERED_FILES, RepoFile, Snapshot
from kernels.sources.base import Source
from kernels.support.tasks import side_by_side
from kernels.trust.content import BuildContent, hash_of_files

__all__ = ["listed_hash"]

#: Small files that are read from a Hub at the same time.
_AT_ONCE = 8

#: A file larger than this that a Hub does not keep as a large one is no source file; a Hub's own limit is 10 MB.
_MAX_SMALL_BYTES = 32 * 1024 * 1024


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
        RequestError: `git_lfs_concat` of a folder, which lists no hashes.
    """
    prefix = f"{BUILD_FOLDER}/{variant}/"
    files = {file.path.removeprefix(prefix): file for file in snapshot.builds[variant]}
    if not all(file.blob for file in files.values()):  # a folder: its files are on disk
        return BuildContent(source.fetch(snapshot, variant)).pinned_hash(kind)
    if kind == GIT_LFS_CONCAT:
        return hash_of_files(kind, {path: file.blob for path, file in files.items()})
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
        if file.oid not in known:
            known[file.oid] = hashlib.sha256(source.read(snapshot, firsts[file.oid], _MAX_SMALL_BYTES)).hexdigest()
        return known[file.oid]

    hashes = side_by_side(sha256, files.items(), at_once=_AT_ONCE, name="hash")
    return hash_of_files(kind, dict(zip(files, hashes, strict=True)))


def _digests(source: Source, snapshot: Snapshot, file: RepoFile | None) -> dict[str, str]:
    """The SHA-256 of files in the digest of a build's metadata. The install check finds a wrong one."""
    if file is None or file.size > MAX_METADATA_BYTES:
        return {}
    content = source.read(snapshot, file, MAX_METADATA_BYTES)
    try:
        digest = Metadata.from_bytes(content).digest
        if digest is None or digest.algorithm != "sha256":
            return {}
        hashes = {path: base64.b64decode(value, validate=True).hex() for path, value in digest.files.items()}
    except (InvalidMetadata, ValueError):  # no base64
        return {}
    return {path: each for path, each in hashes.items() if path not in UNCOVERED_FILES}
