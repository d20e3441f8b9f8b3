"""Whether a build's files are what they have to be, found out once and remembered with the files' identity.

A file whose size, times and inode are those of the file that was checked is taken for that file. Any other is checked
again: one that was changed, also where its time was set back (that changes the inode's own time), and one that was
copied to another machine with its cache. What somebody else found is not believed either (`records.py`).
"""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import msgspec

from kernels.errors import DigestMismatch
from kernels.models.lockfile import ContentHash, lock_again
from kernels.models.metadata import Digest
from kernels.models.snapshot import Snapshot, is_bytecode
from kernels.resolver.content_hash import folder_hash, large_files
from kernels.sources.base import Source
from kernels.support.json_store import MAX_LISTING_BYTES, Record, read_record, write_record
from kernels.trust.digest import verify_digest

__all__ = ["Expected", "Findings", "check_build", "identities", "remember_listed"]

#: The form of findings: those of another form count as none.
_FORM = 2

#: The time of findings says when a build was last used, to the hour: more often would cost a write at each load.
_USED_SECONDS = 3600.0


@dataclass(frozen=True)
class Expected:
    """What the files of a build have to be, beside what its source lists.

    Attributes:
        digest: What the build's metadata says.
        pinned: The content that a lock pins.
        lock: What to call that lock in a message: the file.
        signed: Whether a policy demands the digest to hold, as a signature covers it: then `off` is no answer.
    """

    digest: Digest | None = None
    pinned: ContentHash | None = None
    lock: str = ""
    signed: bool = False

    def facts(self) -> dict[str, str]:
        """What to remember once it was found to hold."""
        facts = {}
        if self.digest is not None:
            listed = msgspec.json.encode(self.digest.files, order="sorted")
            facts[f"digest {self.digest.algorithm}"] = hashlib.sha256(listed).hexdigest()
        if self.pinned is not None:
            facts[f"pinned {self.pinned.kind}"] = self.pinned.value
        return facts


#: A file's size in bytes, the times in nanoseconds when its content and when its inode changed, and its inode.
Identity = tuple[int, int, int, int]


class Findings(Record):
    """What was found of a build's files.

    Attributes:
        form: What the fields below mean.
        facts: What holds, by name.
        files: Each file's identity, as `identities` gives it, by its path relative to the build.
    """

    max_bytes: ClassVar[int] = MAX_LISTING_BYTES

    form: int
    facts: dict[str, str]
    files: dict[str, Identity]


def check_build(source: Source, snapshot: Snapshot, variant: str, folder: Path, expected: Expected) -> None:
    """Check the files of a build on disk, unless it is known that they are what they have to be.

    Args:
        source: Where the build comes from. It says when to check, and mends what is not as it listed it.
        snapshot: The snapshot.
        variant: The build.
        folder: The build's folder.
        expected: What its files have to be.

    Raises:
        DigestMismatch: They are something else.
        KernelsError: What was changed could not be fetched again.
    """
    facts = expected.facts()
    files = snapshot.builds[variant]
    if (source.verify == "off" and not expected.signed) or not (facts or any(file.blob for file in files)):
        return
    facts |= _listed(snapshot, variant)
    place = source.check_record(snapshot, variant)
    known = None if place is None else read_record(place, Findings)
    if known is not None and (known.form != _FORM or known.files != identities(folder)):
        known = None
    if known is not None and source.verify != "load" and facts.items() <= known.facts.items():
        _used(place)
        return
    # Before the content is read: who changes a file meanwhile changes its time as well.
    found = identities(folder)
    source.repair(snapshot, variant)
    if expected.digest is not None:
        verify_digest(folder, expected.digest)
    if expected.pinned is not None:
        _check_pin(snapshot, variant, folder, expected.pinned, expected.lock)
    # What was changed meanwhile, or fetched again, is another file: the next load looks at that one.
    if place is not None and identities(folder) == found:
        # What another lock pins holds as long as the files are the same.
        held = known.facts if known is not None and known.files == found else {}
        write_record(place, Findings(_FORM, {**held, **facts}, found))


def remember_listed(source: Source, snapshot: Snapshot, variant: str, folder: Path) -> None:
    """Remember of a build that was written here just now that its files are as they were listed.

    Args:
        source: Where the build will be read from.
        snapshot: The snapshot.
        variant: The build.
        folder: The build's folder. Each file was compared with its listing as it was written.
    """
    place = source.check_record(snapshot, variant)
    if place is not None:
        write_record(place, Findings(_FORM, _listed(snapshot, variant), identities(folder)))


def _listed(snapshot: Snapshot, variant: str) -> dict[str, str]:
    return {"listed": hashlib.sha256(msgspec.json.encode(snapshot.builds[variant])).hexdigest()}


def identities(folder: Path) -> dict[str, Identity]:
    """Each file's size, times and inode, by its path relative to a build's folder.

    Links are followed, bytecode is left out. What cannot be looked at has zeros.

    Args:
        folder: The folder.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp())
        >>> _ = (path / "__init__.py").write_text("")
        >>> [(name, size) for name, (size, *_) in identities(path).items()]
        [('__init__.py', 0)]
    """
    found: dict[str, Identity] = {}
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


def _identity(entry: os.DirEntry[str]) -> Identity:
    try:
        # Not `entry.stat()`, which has no inode on Windows.
        facts = os.stat(entry.path)
    except OSError:
        return 0, 0, 0, 0
    return facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino


def _used(place: Path | None) -> None:
    with suppress(OSError):  # a cache that cannot be written
        if place is not None and time.time() - place.lstat().st_mtime > _USED_SECONDS:
            # A link that somebody put there meanwhile would lead to another file.
            os.utime(place, follow_symlinks=os.utime not in os.supports_follow_symlinks)


def _check_pin(snapshot: Snapshot, variant: str, folder: Path, pinned: ContentHash, lock: str) -> None:
    known = snapshot.listed and all(file.blob for file in snapshot.builds[variant])
    found = folder_hash(folder, pinned.kind, large=large_files(snapshot, variant) if known else None)
    if found != pinned:
        raise DigestMismatch(
            f"{snapshot.repo_id}: build {variant} of commit {snapshot.commit} is not what {lock} pins: its hash "
            f"({pinned.kind}) is {found.value}, and {pinned.value} was locked. It was not loaded. Files that were "
            f"changed on this machine: kernels cache verify --repo {snapshot.repo_id} --repair. If they were not, the "
            "publisher or a mirror gives something else than when it was locked, or the lock is wrong. Is what is "
            f"here meant? {lock_again(lock, 'kernels lock --rehash')}"
        )
