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
from kernels.models.snapshot import BUILD_FOLDER, Snapshot, is_bytecode
from kernels.sources.base import Source
from kernels.support.record_file import MAX_LISTING_BYTES, StoredRecord, read_record, write_record

if TYPE_CHECKING:
    from kernels.models.lockfile import ContentHash
else:  # `inspect.signature` and `help` evaluate the types of a struct's fields
    ContentHash = Any

__all__ = ["CheckRecord", "ExpectedContent", "check_build", "file_identities"]

#: The form of a record; one of another form is not used.
_FORM = 2

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

    def facts(self) -> dict[str, str]:
        """What to record once the files were found to be as expected."""
        facts = {}
        if self.digest is not None:
            listed = msgspec.json.encode(self.digest.files, order="sorted")
            facts[f"digest {self.digest.algorithm}"] = hashlib.sha256(listed).hexdigest()
        if self.pinned is not None:
            facts[f"pinned {self.pinned.kind}"] = self.pinned.value
        return facts


#: A file's size in bytes, the times in nanoseconds when its content and when its inode changed, and its inode.
FileIdentity = tuple[int, int, int, int]


class CheckRecord(StoredRecord):
    """The record of the checks of a build.

    Attributes:
        form: The form of the fields below.
        facts: What was found to be true, by name.
        files: Each file's identity by its path relative to the build, as `file_identities` gives it.
    """

    max_bytes: ClassVar[int] = MAX_LISTING_BYTES

    form: int
    facts: dict[str, str]
    files: dict[str, FileIdentity]


def check_build(source: Source, snapshot: Snapshot, variant: str, folder: Path, expected: ExpectedContent) -> None:
    """Check the files of a build on disk, unless a record says that these files were checked.

    With `off` nothing is checked but what a policy requires, as with `install`, and what a lock pins: once, also if the
    files are changed later.

    Args:
        source: The source of the build. It says when to check, and downloads files that are not as listed again.
        snapshot: The snapshot.
        variant: The build.
        folder: The build's folder.
        expected: What its files must be.

    Raises:
        DigestMismatch: The files are something else.
        KernelsError: A file that was changed could not be downloaded again.
    """
    facts = expected.facts()
    files = snapshot.builds[variant]
    spared = source.verify == "off" and not expected.signed
    if (spared and expected.pinned is None) or not (facts or any(file.blob for file in files)):
        return
    facts |= _listed(snapshot, variant)
    path = source.check_record(snapshot, variant)
    # Before the content is read: a change meanwhile changes the time as well.
    found = file_identities(folder)
    known = None if path is None else read_record(path, CheckRecord)
    if known is not None and (known.form != _FORM or (known.files != found and not spared)):
        known = None
    if known is not None and source.verify != "load" and facts.items() <= known.facts.items():
        _touch(path)
        return
    if known is not None and known.files != found:
        known = None
    same = source.repair(snapshot, variant)
    if expected.digest is not None:
        from kernels.trust.digest import verify_digest

        # What was compared with a SHA-256 of the listing just now has that SHA-256.
        prefix = f"{BUILD_FOLDER}/{variant}/"
        hashed = {file.path.removeprefix(prefix): file.sha256 for file in same if file.sha256}
        verify_digest(folder, expected.digest, known=hashed)
    if expected.pinned is not None:
        _check_pin(snapshot, variant, folder, expected.pinned, expected.lock)
    # A file that was changed meanwhile, or downloaded again, is another file: the next load checks that one.
    if path is not None and file_identities(folder) == found:
        # What another lock pins is still true of the same files.
        write_record(path, CheckRecord(_FORM, {**(known.facts if known is not None else {}), **facts}, found))


def _listed(snapshot: Snapshot, variant: str) -> dict[str, str]:
    return {"listed": hashlib.sha256(msgspec.json.encode(snapshot.builds[variant])).hexdigest()}


def file_identities(folder: Path) -> dict[str, FileIdentity]:
    """Each file's size, times and inode, by its path relative to a build's folder.

    Links are followed, bytecode is left out. A file that cannot be read has zeros.

    Args:
        folder: The folder.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp())
        >>> _ = (path / "__init__.py").write_text("")
        >>> [(name, size) for name, (size, *_) in file_identities(path).items()]
        [('__init__.py', 0)]
    """
    found: dict[str, FileIdentity] = {}
    pending = [("", os.fspath(folder))]
    while pending:
        prefix, current = pending.pop()
        with suppress(OSError), os.scandir(current) as entries:
            for entry in entries:
                name = prefix + entry.name
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != "__pycache__":
                        pending.append((f"{name}/", entry.path))
                elif not is_bytecode(entry.name):
                    found[name.encode(errors="replace").decode()] = _identity(entry)
    return found


def _identity(entry: os.DirEntry[str]) -> FileIdentity:
    try:
        # Not `entry.stat()`, which has no inode on Windows.
        facts = os.stat(entry.path)
    except OSError:
        return 0, 0, 0, 0
    return facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino


def _touch(path: Path | None) -> None:
    with suppress(OSError):  # a cache that cannot be written
        if path is not None and time.time() - path.lstat().st_mtime > _USED_SECONDS:
            # Not through a link that was put there meanwhile, which leads to another file.
            os.utime(path, follow_symlinks=os.utime not in os.supports_follow_symlinks)


def _check_pin(snapshot: Snapshot, variant: str, folder: Path, pinned: ContentHash, lock: str) -> None:
    from kernels.models.lockfile import lock_again
    from kernels.resolver.content_hash import build_hash

    found = build_hash(folder, snapshot, variant, pinned.kind)
    if found != pinned:
        raise DigestMismatch(
            f"{snapshot.repo_id}: build {variant} of commit {snapshot.commit} is not what {lock} pins: expected the "
            f"hash ({pinned.kind}) {pinned.value}, got {found.value}. It was not loaded. If files were changed on this "
            f"machine: kernels cache verify --repo {snapshot.repo_id} --repair. If not, the publisher or a mirror "
            "changed the build after it was locked, or the lock is wrong. If what is on disk is right: "
            f"{lock_again(lock, 'kernels lock --rehash')}"
        )
