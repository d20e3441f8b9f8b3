"""`kernels.lock`: which commit each kernel of a project is pinned to, and which content each build has.

Two formats are read (the one of today, and an older one with a hash for each variant); today's is written, in an order
that does not depend on anything but what is locked. Content hashes stand in a file of their own beside it, as other
readers refuse a lock with more in it.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from kernels.errors import LockError, RequestError
from kernels.models.requirement import Requirement, is_commit
from kernels.support.documents import load_json
from kernels.support.files import FileTooLarge, NotRegularFile, read_bounded
from kernels.support.formatting import format_text, format_value

__all__ = ["HASHES_FILE", "LOCK_FILE", "ContentHash", "Lock", "Locked", "hashes_path", "lock_again", "unpinned_build"]

LOCK_FILE = "kernels.lock"
HASHES_FILE = "kernels.hashes.json"

#: Larger than any lock: 1,000 kernels take 200 kB, and their hashes 2 MB. What is parsed takes some ten times as much.
_MAX_LOCK_BYTES = 2 * 1024 * 1024
_MAX_HASHES_BYTES = 8 * 1024 * 1024

#: Lists and objects inside each other: a file of hashes has 5.
_MAX_DEPTH = 8

#: How a content hash is made: over the lines that `sha256sum` prints, or as the older lock format says.
SHA256SUM, GIT_LFS_CONCAT = "sha256sum", "git_lfs_concat"
_HASH = re.compile(r"sha256-[0-9a-f]{64}")

#: What writes a broken lock again, and what a broken file of hashes.
_LOCK, _HASHES = "kernels lock --upgrade", "kernels lock --hashes"


@dataclass(frozen=True)
class ContentHash:
    """One hash over the files of a build.

    Attributes:
        kind: `sha256sum`, the SHA-256 of the lines that `sha256sum` prints for the files in the order of their paths'
            bytes; or `git_lfs_concat`, as older locks have it.
        value: `sha256-` and 64 hexadecimal digits.
    """

    kind: str
    value: str


@dataclass(frozen=True)
class Locked:
    """One pin of a lock.

    Attributes:
        requirement: What was asked for. The older format knows the repository alone.
        commit: What it is pinned to.
    """

    requirement: Requirement
    commit: str


@dataclass(frozen=True)
class Lock:
    """The pins of a lock file.

    Attributes:
        pins: In the order in which they are written.
        hashes: The content of builds: by repository and commit, then by variant. A commit that is here has no others.
        where: What to call it in a message: the file.
        older: Whether the file was of the older format.
    """

    pins: tuple[Locked, ...] = ()
    hashes: Mapping[tuple[str, str], Mapping[str, ContentHash]] = field(default_factory=dict)
    where: str = LOCK_FILE
    older: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "pins", tuple(sorted(self.pins, key=_order)))

    @staticmethod
    def read(path: Path, *, hashes: bool = True) -> Lock:
        """The lock in a file, with the hashes in the file beside it where there is one.

        Args:
            path: The lock file.
            hashes: Whether to read those; False for who writes them anew.

        Raises:
            LockError: It cannot be read, or is no lock; the message names the entry.
        """
        lock = Lock.from_bytes(_content(path, _MAX_LOCK_BYTES), where=str(path))
        beside = hashes_path(path)
        # A link that leads nowhere is no way to have content unpinned.
        if not hashes or not os.path.lexists(beside):
            return lock
        content = _read_hashes(_content(beside, _MAX_HASHES_BYTES), str(beside))
        return replace(lock, hashes={**lock.hashes, **content})

    @staticmethod
    def from_bytes(data: bytes, where: str = LOCK_FILE) -> Lock:
        """Read a lock of either format.

        Args:
            data: The file's content.
            where: What to call it in a message.

        Raises:
            LockError: It is not JSON, has other fields than a lock has, or pins one thing twice.

        Example:
            >>> Lock.from_bytes(b"[]").pins
            ()
        """
        if len(data) > _MAX_LOCK_BYTES:
            raise LockError(f"{where} has {len(data)} bytes; a lock never has more than {_MAX_LOCK_BYTES}.")
        entries = _parsed(data, where, _LOCK)
        if not isinstance(entries, list):
            raise LockError(
                f"{where} holds {format_value(entries)}; a lock is a list of locked kernels. {lock_again(where, _LOCK)}"
            )
        older = bool(entries) and all(isinstance(entry, dict) and "repo_id" in entry for entry in entries)
        try:
            if older:
                return _from_older(msgspec.convert(entries, list[_OlderEntry]), where)
            return _from_entries(msgspec.convert(entries, list[_Entry]), where)
        except msgspec.ValidationError as error:
            raise LockError(f"{where} is no lock: {format_text(error)}. {lock_again(where, _LOCK)}") from None

    def to_bytes(self) -> bytes:
        """The lock file's content, in today's format; byte for byte what other writers of it write."""
        entries = [{"dependency": _depend(pin.requirement), "lock": {"commit": pin.commit}} for pin in self.pins]
        return _pretty(entries)

    def hashes_to_bytes(self) -> bytes:
        """The content of the file with the hashes."""
        kernels = [
            {
                "repo-id": repo_id,
                "commit": commit,
                "variants": {
                    name: {"hash": each.value, "hash-type": each.kind} for name, each in sorted(variants.items())
                },
            }
            for (repo_id, commit), variants in sorted(self.hashes.items())
        ]
        return _pretty({"format": 1, "kernels": kernels})

    def of(self, repo_id: str) -> tuple[Locked, ...]:
        """The pins of a repository."""
        return tuple(pin for pin in self.pins if pin.requirement.repo_id == repo_id)

    def commit(self, requirement: Requirement) -> str | None:
        """The commit that something asked for is pinned to; None where the lock does not list the repository.

        Args:
            requirement: What is asked for.

        Raises:
            LockError: The lock lists the repository, but not what is asked for; the message names both.
        """
        pin = self.find(requirement)
        return None if pin is None else pin.commit

    def find(self, requirement: Requirement) -> Locked | None:
        """The pin that serves what is asked for; None where the lock does not list the repository.

        Args:
            requirement: What is asked for. Without a version and a revision, the one that is pinned.

        Raises:
            LockError: The lock lists the repository, but not what is asked for; the message names both.

        Example:
            >>> relu = Requirement("org/relu", version=1)
            >>> Lock((Locked(relu, "1" * 40),)).find(Requirement("org/relu")).requirement
            Requirement(repo_id='org/relu', version=1, revision=None)
        """
        pins = self.of(requirement.repo_id)
        if not pins:
            return None
        unnamed = requirement.branch is None
        fits = [pin for pin in pins if unnamed or _serves(pin, requirement)]
        if len(fits) == 1 or (fits and not unnamed):
            return fits[0]
        what = "; ".join(f"{_named(pin)} (commit {pin.commit[:12]})" for pin in pins)
        if unnamed:
            raise LockError(f"{requirement.repo_id} is asked for without a version, and {self.where} pins {what}.")
        raise LockError(
            f"{requirement} is asked for, but {self.where} pins {what}. Ask for that, or have another one locked. "
            f"{lock_again(self.where, f'kernels lock --upgrade-repo {requirement.repo_id}')}"
        )


def hashes_path(lock: Path) -> Path:
    """Where the hashes that belong to a lock file stand.

    Example:
        >>> hashes_path(Path("project/kernels.lock")).name, hashes_path(Path("gpu.lock")).name
        ('kernels.hashes.json', 'gpu.hashes.json')
    """
    return lock.with_name(f"{lock.name.removesuffix('.lock')}.hashes.json")


def lock_again(where: str, command: str) -> str:
    """What to do about a lock: write it again, or where it came with a package, install that again.

    Args:
        where: The lock's file.
        command: What writes it as it should be.

    Example:
        >>> lock_again("project/kernels.lock", "kernels lock --upgrade")
        'Lock again: kernels lock --upgrade'
        >>> lock_again("site-packages/model-1.0.dist-info/kernels.lock", "kernels lock")
        'It came with model-1.0: install that package again, or a newer version of it'
    """
    for part in Path(where).parts:
        name, dot, kind = part.rpartition(".")
        if dot and kind in ("dist-info", "egg-info"):
            return f"It came with {name}: install that package again, or a newer version of it"
    return f"Lock again: {command}"


def unpinned_build(variant: str) -> str:
    """What is wrong with a build that is none of those whose content is pinned.

    Example:
        >>> unpinned_build("torch-cpu")
        "'torch-cpu' is none of the commit's builds whose content is pinned, and a commit gets no builds later"
    """
    name = format_value(variant, 200)
    return f"{name} is none of the commit's builds whose content is pinned, and a commit gets no builds later"


# What stands in the files


class _Depend(msgspec.Struct, rename="kebab", forbid_unknown_fields=True):
    repo_id: str
    version: int | None = None
    revision: str | None = None


class _Commit(msgspec.Struct, forbid_unknown_fields=True):
    commit: str


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    dependency: _Depend
    lock: _Commit


class _OlderHash(msgspec.Struct, forbid_unknown_fields=True):
    hash: str
    hash_type: str


class _OlderEntry(msgspec.Struct, forbid_unknown_fields=True):
    repo_id: str
    sha: str
    variants: dict[str, _OlderHash] = {}


class _Hash(msgspec.Struct, rename="kebab", forbid_unknown_fields=True):
    hash: str
    hash_type: str


class _Hashed(msgspec.Struct, rename="kebab", forbid_unknown_fields=True):
    repo_id: str
    commit: str
    variants: dict[str, _Hash]


class _Hashes(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    kernels: list[_Hashed]


def _from_entries(entries: list[_Entry], where: str) -> Lock:
    pins: dict[Requirement, Locked] = {}
    for entry in entries:
        depend = entry.dependency
        named = f"{where}: {format_value(depend.repo_id)}"
        if (depend.version is None) == (depend.revision is None):
            raise LockError(f"{named} has to have either a version or a revision. {lock_again(where, _LOCK)}")
        requirement = _requirement(where, _LOCK, depend.repo_id, depend.version, depend.revision)
        if requirement in pins:
            raise LockError(f"{where} pins {requirement} twice. {lock_again(where, _LOCK)}")
        pins[requirement] = Locked(requirement, _checked_commit(where, _LOCK, depend.repo_id, entry.lock.commit))
    return Lock(tuple(pins.values()), where=where)


def _from_older(entries: list[_OlderEntry], where: str) -> Lock:
    pins: dict[Requirement, Locked] = {}
    hashes: dict[tuple[str, str], Mapping[str, ContentHash]] = {}
    for entry in entries:
        named = f"{where}: {format_value(entry.repo_id)}"
        requirement = _requirement(where, _LOCK, entry.repo_id)
        if requirement in pins:
            raise LockError(f"{where} pins {requirement} twice. {lock_again(where, _LOCK)}")
        pins[requirement] = Locked(requirement, _checked_commit(where, _LOCK, entry.repo_id, entry.sha))
        if entry.variants:
            hashes[entry.repo_id, pins[requirement].commit] = {
                name: _content_hash(where, _LOCK, f"{named}, {format_value(name)}", each.hash, each.hash_type)
                for name, each in entry.variants.items()
            }
    return Lock(tuple(pins.values()), hashes, where, older=True)


def _read_hashes(data: bytes, where: str) -> dict[tuple[str, str], Mapping[str, ContentHash]]:
    entries = _parsed(data, where, _HASHES)
    try:
        file = msgspec.convert(entries, _Hashes)
    except msgspec.ValidationError as error:
        raise LockError(
            f"{where} is not a file of hashes: {format_text(error)}. {lock_again(where, _HASHES)}"
        ) from None
    if file.format != 1:
        raise LockError(
            f"{where} has format {file.format}; this version of kernels reads format 1. {lock_again(where, _HASHES)}"
        )
    hashes: dict[tuple[str, str], Mapping[str, ContentHash]] = {}
    for each in file.kernels:
        named = f"{where}: {format_value(each.repo_id)}"
        _requirement(where, _HASHES, each.repo_id)
        key = (each.repo_id, _checked_commit(where, _HASHES, each.repo_id, each.commit))
        if key in hashes:
            raise LockError(f"{named} has the commit {each.commit} twice. {lock_again(where, _HASHES)}")
        hashes[key] = {
            name: _content_hash(where, _HASHES, f"{named}, {format_value(name)}", hashed.hash, hashed.hash_type)
            for name, hashed in each.variants.items()
        }
    return hashes


def _parsed(data: bytes, where: str, command: str) -> Any:
    """JSON in which no name stands twice: of two values, one reader would take the first and another the last."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
            raise ValueError(f"{format_value(twice)} stands twice in one object")
        return fields

    try:
        value = load_json(data, depth=_MAX_DEPTH, pairs=once)
        if b"\\u" in data:  # half a character, which JSON can spell and no file can hold
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        return value
    except ValueError as error:  # also what is not UTF-8, nests too deep, or has numbers of thousands of digits
        raise LockError(f"{where} is not JSON: {format_text(error)}. {lock_again(where, command)}") from None


def _requirement(
    where: str, command: str, repo_id: str, version: int | None = None, revision: str | None = None
) -> Requirement:
    try:
        return Requirement(repo_id, version=version, revision=revision)
    except (RequestError, TypeError) as error:
        raise LockError(f"{where}: {format_value(repo_id)}: {error} {lock_again(where, command)}") from None


def _checked_commit(where: str, command: str, repo_id: str, commit: str) -> str:
    # Other readers take capital letters too.
    if not is_commit(commit.lower()):
        raise LockError(
            f"{where}: {format_value(repo_id)} is pinned to {format_value(commit)}; expected a commit of 40 or 64 "
            f"hexadecimal digits. {lock_again(where, command)}"
        )
    return commit.lower()


def _content_hash(where: str, command: str, named: str, value: str, kind: str) -> ContentHash:
    wrong = None
    if kind not in (SHA256SUM, GIT_LFS_CONCAT):
        wrong = f"the hash type {format_value(kind)}; allowed are {SHA256SUM} and {GIT_LFS_CONCAT}"
    elif _HASH.fullmatch(value) is None:
        wrong = f"the hash {format_value(value)}; allowed is sha256- and 64 hexadecimal digits"
    if wrong is not None:
        raise LockError(f"{named} has {wrong}. {lock_again(where, command)}")
    return ContentHash(kind, value)


def _content(path: Path, limit: int) -> bytes:
    try:
        return read_bounded(path, limit)
    except NotRegularFile:
        raise LockError(f"Cannot read {path}: it is not a file.") from None
    except FileTooLarge:
        raise LockError(f"{path} has more than {limit} bytes; no lock is that large.") from None
    except OSError as error:
        raise LockError(f"Cannot read {path}: {error.strerror or error}.") from error


def _serves(pin: Locked, asked: Requirement) -> bool:
    own = pin.requirement
    return own.branch is None or own.branch == asked.branch or asked.commit == pin.commit


def _named(pin: Locked) -> str:
    own = pin.requirement
    return f"version {own.version}" if own.version is not None else own.revision or "no version"


def _order(pin: Locked) -> tuple[Any, ...]:
    own = pin.requirement
    return own.repo_id, own.version is None, own.version or 0, own.revision or ""


def _depend(requirement: Requirement) -> dict[str, Any]:
    named = {"version": requirement.version, "revision": requirement.revision}
    return {"repo-id": requirement.repo_id, **{key: value for key, value in named.items() if value is not None}}


def _pretty(value: Iterable[Any]) -> bytes:
    # Without a line break at the end: that is how the file is written by others, so that no writer changes it.
    return msgspec.json.format(msgspec.json.encode(value), indent=2)
