"""`kernels.lock`: the commit that each kernel of a project is pinned to, and the content hash of each build.

Two formats are read: the current one, and an older one with a hash for each variant. The current one is written, byte
for byte as other clients write it. Content hashes have a file of their own beside it: other clients refuse a lockfile
with more fields.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec.structs import replace

from kernels.errors import LockError, LockFileNotFound
from kernels.models import LOCK_FILE
from kernels.models.requirement import Requirement, check_repo_id, is_commit
from kernels.support.documents import load_json
from kernels.support.files import FileTooLarge, NotRegularFile, read_bounded
from kernels.support.formatting import format_text, format_value
from kernels.support.record_file import decode_json

__all__ = ["HASHES_FILE", "LOCK_FILE", "ContentHash", "Lock", "Pin", "hashes_path", "lock_again", "unpinned_build"]

HASHES_FILE = "kernels.hashes.json"

#: Larger than any lockfile: 1,000 kernels take 200 kB, and their hashes 2 MB. Parsing takes ten times as much memory.
_MAX_LOCK_BYTES = 2 * 1024 * 1024
_MAX_HASHES_BYTES = 8 * 1024 * 1024

#: How a content hash is made: over the lines that `sha256sum` prints, or as the older lockfiles have it.
SHA256SUM, GIT_LFS_CONCAT = "sha256sum", "git_lfs_concat"

HashKind = Annotated[str, msgspec.Meta(pattern=rf"^({SHA256SUM}|{GIT_LFS_CONCAT})\Z")]
HashValue = Annotated[str, msgspec.Meta(pattern=r"^sha256-[0-9a-f]{64}\Z")]

_T = TypeVar("_T")


class ContentHash(
    msgspec.Struct, frozen=True, rename={"value": "hash", "kind": "hash-type"}, forbid_unknown_fields=True
):
    """One hash over the files of a build.

    Attributes:
        kind: `sha256sum`, the SHA-256 of the lines that `sha256sum` prints for the files in the order of their paths'
            bytes; or `git_lfs_concat`, as older lockfiles have it.
        value: `sha256-` and 64 hexadecimal digits.
    """

    kind: HashKind
    value: HashValue


class Pin(msgspec.Struct, frozen=True):
    """A requirement and the commit that it is pinned to.

    Attributes:
        requirement: The requirement; in the older format a repository alone.
        commit: The commit.
    """

    requirement: Requirement
    commit: str

    @property
    def asked(self) -> Requirement:
        """The requirement that leads to the commit: in the older format, which has no versions, the commit itself."""
        own = self.requirement
        return own if own.branch else Requirement(own.repo_id, revision=self.commit)


class Lock(msgspec.Struct, frozen=True):
    """The content of a lockfile.

    Attributes:
        pins: The pins, sorted.
        hashes: The content hashes by variant, by repository and commit. A commit that is listed has no other builds.
        where: The file's name in messages.
        older: Whether the file has the older format.
    """

    pins: tuple[Pin, ...] = ()
    hashes: Mapping[tuple[str, str], Mapping[str, ContentHash]] = {}
    where: str = LOCK_FILE
    older: bool = False

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "pins", tuple(sorted(self.pins, key=_order)))

    @staticmethod
    def read(path: Path, *, hashes: bool = True) -> Lock:
        """Read a lockfile, and the file of hashes beside it if it exists.

        Args:
            path: The lockfile.
            hashes: Whether to read the hashes; False where they are written anew.

        Raises:
            LockError: A file cannot be read or is not valid; the message names the entry.
        """
        lock = Lock.from_bytes(_content(path, _MAX_LOCK_BYTES), where=str(path))
        beside = hashes_path(path)
        # A broken link is an error: it must not unpin the content.
        if not hashes or not os.path.lexists(beside):
            return lock
        content = _hashes(_content(beside, _MAX_HASHES_BYTES), str(beside))
        return replace(lock, hashes={**lock.hashes, **content})

    @staticmethod
    def from_bytes(data: bytes, where: str = LOCK_FILE) -> Lock:
        """Parse a lockfile of either format.

        Args:
            data: The file's content; `read` limits its size.
            where: The file's name in messages.

        Raises:
            LockError: It is not JSON, has other fields than a lockfile, or pins one requirement twice.

        Example:
            >>> Lock.from_bytes(b"[]").pins
            ()
        """
        entries = _checked_json(data, where, _LOCK_COMMAND)
        older = isinstance(entries, list) and any(isinstance(each, dict) and "repo_id" in each for each in entries)
        if older:
            return _older_lock(_decoded(data, list[_OlderEntry], where, _LOCK_COMMAND), where)
        asked = [(each.dependency, each.lock.commit) for each in _decoded(data, list[_Entry], where, _LOCK_COMMAND)]
        for requirement, _ in asked:
            if requirement.branch is None:
                problem = f": {requirement.repo_id}: expected either a version or a revision"
                raise _broken(where, problem, _LOCK_COMMAND)
        return Lock(_pins(asked, where), where=where)

    def to_bytes(self) -> bytes:
        """The lockfile's content in the current format, byte for byte as other clients write it."""
        return _pretty([{"dependency": pin.requirement, "lock": {"commit": pin.commit}} for pin in self.pins])

    def hashes_to_bytes(self) -> bytes:
        """The content of the file of hashes."""
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

    def of(self, repo_id: str) -> tuple[Pin, ...]:
        """The pins of a repository.

        Args:
            repo_id: The repository, `org/name`.
        """
        return tuple(pin for pin in self.pins if pin.requirement.repo_id == repo_id)

    def find(self, requirement: Requirement) -> Pin | None:
        """The pin for a requirement; None where the lockfile does not list the repository.

        Args:
            requirement: The requirement. Without a version and a revision, the repository's only pin is found.

        Raises:
            LockError: The lockfile lists the repository, but not the requirement; the message names both.

        Example:
            >>> relu = Requirement("org/relu", version=1)
            >>> Lock((Pin(relu, "1" * 40),)).find(Requirement("org/relu")).requirement
            Requirement(repo_id='org/relu', version=1, revision=None)
        """
        pins = self.of(requirement.repo_id)
        if not pins:
            return None
        unnamed = requirement.branch is None
        fits = [pin for pin in pins if unnamed or _serves(pin, requirement)]
        if len(fits) == 1 or (fits and not unnamed):
            return fits[0]
        pinned = "; ".join(f"{_named(pin)} (commit {pin.commit[:12]})" for pin in pins)
        if unnamed:
            raise LockError(f"{requirement.repo_id} was requested without a version, but {self.where} pins {pinned}.")
        raise LockError(
            f"{requirement} was requested, but {self.where} pins {pinned}. Request that version, or lock this one. "
            f"{lock_again(self.where, f'kernels lock --upgrade-repo {requirement.repo_id}')}"
        )


def hashes_path(lock: Path) -> Path:
    """The file of hashes that belongs to a lockfile.

    Example:
        >>> hashes_path(Path("project/kernels.lock")).name, hashes_path(Path("gpu.lock")).name
        ('kernels.hashes.json', 'gpu.hashes.json')
    """
    return lock.with_name(f"{lock.name.removesuffix('.lock')}.hashes.json")


def lock_again(where: str, command: str) -> str:
    """The advice to write a lockfile again; to install the package again if the lockfile came with one.

    Args:
        where: The lockfile.
        command: The command that writes it.

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
    """The problem of a build whose content is not pinned, while its commit's builds are.

    Example:
        >>> unpinned_build("torch-cpu")
        "'torch-cpu' is none of the commit's builds whose content is pinned, and a commit gets no builds later"
    """
    name = format_value(variant, 200)
    return f"{name} is none of the commit's builds whose content is pinned, and a commit gets no builds later"


# The files' content


class _Commit(msgspec.Struct, forbid_unknown_fields=True):
    commit: str

    def __post_init__(self) -> None:
        self.commit = _commit(self.commit)


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    dependency: Requirement
    lock: _Commit


class _OlderHash(msgspec.Struct, forbid_unknown_fields=True):
    hash: HashValue
    hash_type: HashKind


class _OlderEntry(msgspec.Struct, forbid_unknown_fields=True):
    repo_id: str
    sha: str
    variants: dict[str, _OlderHash] = {}

    def __post_init__(self) -> None:
        check_repo_id(self.repo_id)
        self.sha = _commit(self.sha)


class _Hashed(msgspec.Struct, rename="kebab", forbid_unknown_fields=True):
    repo_id: str
    commit: str
    variants: dict[str, ContentHash]

    def __post_init__(self) -> None:
        check_repo_id(self.repo_id)
        self.commit = _commit(self.commit)


class _Hashes(msgspec.Struct, forbid_unknown_fields=True):
    format: Annotated[int, msgspec.Meta(ge=1, le=1)]
    kernels: list[_Hashed]


#: The commands that write a file that cannot be read again.
_LOCK_COMMAND, _HASHES_COMMAND = "kernels lock --upgrade", "kernels lock --hashes"


def _commit(text: str) -> str:
    if not is_commit(text.lower()):  # other clients accept capital letters
        raise ValueError(f"expected a commit of 40 or 64 hexadecimal digits, got {format_value(text)}")
    return text.lower()


def _pins(asked: Iterable[tuple[Requirement, str]], where: str) -> tuple[Pin, ...]:
    pins: dict[Requirement, Pin] = {}
    for requirement, commit in asked:
        if requirement in pins:
            raise _broken(where, f" pins {requirement} twice", _LOCK_COMMAND)
        pins[requirement] = Pin(requirement, commit)
    return tuple(pins.values())


def _older_lock(entries: list[_OlderEntry], where: str) -> Lock:
    hashes = {
        (entry.repo_id, entry.sha): {
            name: ContentHash(each.hash_type, each.hash) for name, each in entry.variants.items()
        }
        for entry in entries
        if entry.variants
    }
    return Lock(_pins(((Requirement(each.repo_id), each.sha) for each in entries), where), hashes, where, older=True)


def _hashes(data: bytes, where: str) -> dict[tuple[str, str], Mapping[str, ContentHash]]:
    _checked_json(data, where, _HASHES_COMMAND)
    hashes: dict[tuple[str, str], Mapping[str, ContentHash]] = {}
    for each in _decoded(data, _Hashes, where, _HASHES_COMMAND).kernels:
        if (each.repo_id, each.commit) in hashes:
            raise _broken(where, f": {each.repo_id} has the commit {each.commit} twice", _HASHES_COMMAND)
        hashes[each.repo_id, each.commit] = each.variants
    return hashes


def _broken(where: str, problem: str, command: str) -> LockError:
    return LockError(f"{where}{problem.rstrip('.')}. {lock_again(where, command)}")


def _checked_json(data: bytes, where: str, command: str) -> Any:
    try:
        return load_json(data, pairs=_unique)
    except ValueError as error:  # also what is not UTF-8, nests too deep, or has numbers of thousands of digits
        raise _broken(where, f" is not JSON: {format_text(error)}", command) from None


def _decoded(data: bytes, form: type[_T], where: str, command: str) -> _T:
    try:
        return decode_json(data, form)
    except msgspec.DecodeError as error:
        raise _broken(where, f" is not valid: {format_text(error)}", command) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names are unique: of two values, one client would read the first and another the last."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"an object has the name {format_value(twice)} twice")
    return fields


def _content(path: Path, limit: int) -> bytes:
    try:
        return read_bounded(path, limit)
    except NotRegularFile:
        raise LockError(f"Cannot read {path}: it is not a file.") from None
    except FileTooLarge:
        raise LockError(f"{path} has more than {limit} bytes; no lockfile is that large.") from None
    except FileNotFoundError:
        raise LockFileNotFound(f"Cannot read {path}: No such file or directory.") from None
    except OSError as error:
        raise LockError(f"Cannot read {path}: {error.strerror or error}.") from error


def _serves(pin: Pin, asked: Requirement) -> bool:
    own = pin.requirement
    return own.branch is None or own.branch == asked.branch or asked.commit == pin.commit


def _named(pin: Pin) -> str:
    own = pin.requirement
    return f"version {own.version}" if own.version is not None else own.revision or "no version"


def _order(pin: Pin) -> tuple[Any, ...]:
    own = pin.requirement
    return own.repo_id, own.version is None, own.version or 0, own.revision or ""


def _pretty(value: Any) -> bytes:
    # Without a line break at the end, as other clients write it.
    return msgspec.json.format(msgspec.json.encode(value), indent=2)
