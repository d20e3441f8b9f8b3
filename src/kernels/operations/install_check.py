"""Whether the files of a build on disk are what they must be: checked once, and recorded with their identity.

A file with the recorded size, times and inode is the file that was checked. Any other is checked again: one that was
changed, even if its modification time was set back (which changes the inode's own time), and one that was copied to
another machine with its cache. A record that another user could have written is not read (`support/record_file.py`).
"""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from kernels.errors import DigestMismatch
from kernels.models.metadata import Digest
from kernels.models.snapshot import Snapshot
from kernels.sources.base import Source
from kernels.support.record_file import MAX_LISTING_BYTES, StoredRecord, read_record, write_record
from kernels.trust.content import BuildContent, FileIdentity

if TYPE_CHECKING:
    from kernels.models.lockfile import ContentHash
else:  # `inspect.signature` and `help` evaluate the types of a struct's fields
    ContentHash = Any

__all__ = ["CheckRecord", "ExpectedContent", "check_build"]

#: The time of a record says when a build was last used, to the hour: more often would cost a write at each load.
_USED_SECONDS = 3600.0


class ExpectedContent(msgspec.Struct, frozen=True):
    """What the files of a build must be, beside what its source lists.

    Attributes:
        digest: The digest in the build's metadata.
        pinned: The content that a lock pins.
        lock: The lock's file, for messages.
        signed: Whether a policy requires the digest to be checked, because a signature covers it, even with `off`.
    """

    digest: Digest | None = None
    pinned: ContentHash | None = None
    lock: str = ""
    signed: bool = False

    @property
    def algorithms(self) -> list[str]:
        """The hashes of each file that are needed, beside those that a source lists."""
        found = [] if self.digest is None else [self.digest.algorithm]
        if self.pinned is not None:
            found.append("sha256" if self.pinned.kind == "sha256sum" else "git-sha1")
        return found

    def facts(self) -> dict[str, str]:
        """What to record once the files were found to be as expected."""
        facts = {}
        if self.digest is not None:
            listed = msgspec.json.encode(self.digest.files, order="sorted")
            facts[f"digest {self.digest.algorithm}"] = hashlib.sha256(listed).hexdigest()
        if self.pinned is not None:
            facts[f"pinned {self.pinned.kind}"] = self.pinned.value
        return facts


class CheckRecord(StoredRecord):
    """The record of the checks of a build.

    Attributes:
        facts: What was found to be true, by name.
        files: Each file's identity by its path relative to the build.
    """

    max_bytes: ClassVar[int] = MAX_LISTING_BYTES

    facts: dict[str, str]
    files: dict[str, FileIdentity]


def check_build(source: Source, snapshot: Snapshot, variant: str, folder: Path, expected: ExpectedContent) -> None:
    """Check the files of a build on disk, unless a record says that these files were checked.

    With `off` nothing is checked but what a policy requires, as with `install`, and what a lock pins: once, also if the
    files are changed later. No link may ever leave the source's folder.

    Args:
        source: The source of the build. It says when to check, and downloads files that are not as listed again.
        snapshot: The snapshot.
        variant: The build.
        folder: The build's folder.
        expected: What its files must be.

    Raises:
        DigestMismatch: The files are something else.
        InvalidRepository: A link leads out of the source's folder.
        KernelsError: A file that was changed could not be downloaded again.
    """
    facts, files, boundary = expected.facts(), snapshot.builds[variant], source.link_boundary(snapshot)
    spared = source.verify == "off" and not expected.signed
    checked = expected.pinned is not None if spared else bool(facts) or any(file.blob for file in files)
    if not checked and boundary is None:
        return
    content = BuildContent(folder, boundary=boundary, algorithms=expected.algorithms)
    # Before the content is read: a change meanwhile changes the time as well.
    found = content.identities()
    if not checked:
        return
    facts["listed"] = hashlib.sha256(msgspec.json.encode(files)).hexdigest()
    path = source.check_record(snapshot, variant)
    known = None if path is None or source.verify == "load" else read_record(path, CheckRecord)
    if known is not None and (known.files == found or spared) and facts.items() <= known.facts.items():
        _touch(path)
        return
    source.repair(snapshot, variant, content)
    if expected.digest is not None:
        content.check_digest(expected.digest)
    if expected.pinned is not None:
        _check_pin(snapshot, variant, content, expected.pinned, expected.lock)
    # A file that was changed meanwhile, or downloaded again, is another file: the next load checks that one.
    if path is not None and BuildContent(folder).identities() == found:
        write_record(path, CheckRecord(facts, found))


def _touch(path: Path | None) -> None:
    with suppress(OSError):  # a cache that cannot be written
        if path is not None and time.time() - path.lstat().st_mtime > _USED_SECONDS:
            # Not through a link that was put there meanwhile, which leads to another file.
            os.utime(path, follow_symlinks=os.utime not in os.supports_follow_symlinks)


def _check_pin(snapshot: Snapshot, variant: str, content: BuildContent, pinned: ContentHash, lock: str) -> None:
    from kernels.models.lockfile import lock_again

    found = content.pinned_hash(pinned.kind, snapshot.builds[variant] if snapshot.listed else ())
    if found != pinned:
        raise DigestMismatch(
            f"{snapshot.repo_id}: build {variant} of commit {snapshot.commit} is not what {lock} pins: expected the "
            f"hash ({pinned.kind}) {pinned.value}, got {found.value}. It was not loaded. If files were changed on this "
            f"machine: kernels cache verify --repo {snapshot.repo_id} --repair. If not, the publisher or a mirror "
            "changed the build after it was locked, or the lock is wrong. If what is on disk is right: "
            f"{lock_again(lock, 'kernels lock --rehash')}"
        )
