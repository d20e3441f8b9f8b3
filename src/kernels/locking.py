"""A project's lock as it should be, beside the one it has.

What is locked stays, unless an upgrade is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernels.errors import LockError, RequestError, StoreError
from kernels.hashes import listed_hash
from kernels.lockfile import ContentHash, Lock, Locked, hashes_path
from kernels.project import Project
from kernels.records import replace_file
from kernels.release import Release
from kernels.requirement import check_repo_id
from kernels.side_by_side import side_by_side
from kernels.sources import Source, open_sources
from kernels.tree import Tree
from kernels.trust import TrustPolicy

__all__ = ["Change", "Locking", "lock_project"]

#: Builds whose content is looked at side by side.
_AT_ONCE = 8


@dataclass(frozen=True)
class Change:
    """One difference between two locks.

    Attributes:
        kind: `added`, `removed` or `changed`.
        what: What was asked for, or whose builds' hashes.
        before: The commit, or the beginning of each build's hash; None where there was nothing.
        after: The same, in the new lock.
    """

    kind: str
    what: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class Locking:
    """A project's lock as it should be, beside the one it has.

    Attributes:
        file: The lock file.
        before: What stands there; None where there is none, or one that cannot be read and need not be.
        lock: What should stand there.
        hashed: Whether the content of builds is pinned as well.
    """

    file: Path
    before: Lock | None
    lock: Lock
    hashed: bool

    @property
    def changes(self) -> tuple[Change, ...]:
        """What is added, removed or changed, in the order of names: pins, then hashes."""
        before = Lock() if self.before is None else self.before
        hashes = _hash_changes(before, self.lock) if self.hashed else []
        return (*_pin_changes(before, self.lock), *hashes)

    @property
    def lock_changed(self) -> bool:
        """Whether the lock file has to be written."""
        return self.before is None or self.before.older or self.before.pins != self.lock.pins

    @property
    def hashes_changed(self) -> bool:
        """Whether the file of hashes has to be written."""
        if not self.hashed:
            return False
        return self.before is None or not hashes_path(self.file).is_file() or self.before.hashes != self.lock.hashes

    @property
    def changed(self) -> bool:
        """Whether anything has to be written."""
        return self.lock_changed or self.hashes_changed

    def write(self) -> None:
        """Write what changed, each file whole or not at all; a file that did not change is not touched.

        Raises:
            StoreError: A file cannot be written.
        """
        # The hashes first: a lock never stands without those that belong to it.
        if self.hashes_changed:
            _replace(hashes_path(self.file), self.lock.hashes_to_bytes())
        if self.lock_changed:
            _replace(self.file, self.lock.to_bytes())


def lock_project(
    project: Project,
    *,
    lock_file: Path | None = None,
    upgrade: bool | Collection[str] = False,
    hashes: bool = False,
    trust_remote_code: bool | Sequence[str] = False,
) -> Locking:
    """Find the commit of everything that a project's kernels need; nothing is written.

    Args:
        project: The project.
        lock_file: Its lock, else the one beside its pyproject.toml.
        upgrade: Whether to ask for the head of everything anew, or of which repositories.
        hashes: Whether to pin the content of builds too; where a file of hashes stands beside the lock, it is kept in
            step without being asked for.
        trust_remote_code: As for `get_kernel`.

    Raises:
        RequestError: An argument is not what is allowed, or a version does not exist (a `ValueError`).
        LockError: The lock there is cannot be read, or pins a commit that is gone (a `ValueError`).
        UntrustedPublisher: A publisher is not trusted (a `ValueError`).
        DependencyCycle: Dependencies lead in a circle, nest too deep, or are too many (a `ValueError`).
        RepositoryNotFound: There is no such repository (a `FileNotFoundError`).
        HubUnavailable: The Hub gave no answer, and the cache has none (a `ConnectionError`).
    """
    file = project.lock_file if lock_file is None else lock_file
    repositories = frozenset() if isinstance(upgrade, bool) else frozenset(map(check_repo_id, upgrade))
    before = _existing(file, needed=upgrade is not True)
    kept = Lock() if before is None or upgrade is True else before
    tree = Tree(open_sources(overrides=False), TrustPolicy.of(trust_remote_code), kept, repositories)
    tree.grow(project.dependencies)
    absent = sorted(repositories - {requirement.repo_id for requirement in tree.commits})
    if absent:
        raise RequestError(f"{absent[0]} cannot be upgraded: no kernel that {project.file} asks for needs it.")
    pins = tuple(Locked(requirement, commit) for requirement, commit in tree.commits.items())
    hashed = hashes or os.path.lexists(hashes_path(file)) or (before is not None and bool(before.hashes))
    known = {key: each for key, each in kept.hashes.items() if key[0] not in repositories}
    content = _hashes(tree.releases, known) if hashed else {}
    return Locking(file, before, Lock(pins, content, str(file)), hashed)


def _hashes(
    releases: Mapping[tuple[str, str], tuple[Source, Release]],
    known: Mapping[tuple[str, str], Mapping[str, ContentHash]],
) -> dict[tuple[str, str], Mapping[str, ContentHash]]:
    """The content of every build: as it was pinned before, else as it is listed."""
    small: dict[str, str] = {}
    builds = [(key, variant) for key, (_, release) in sorted(releases.items()) for variant in release.builds]

    def one(build: tuple[tuple[str, str], str]) -> ContentHash:
        key, variant = build
        return known.get(key, {}).get(variant) or listed_hash(*releases[key], variant, known=small)

    # Also of what has no builds, as a repository that has moved: nobody can put one there later.
    hashes: dict[tuple[str, str], dict[str, ContentHash]] = {key: {} for key in releases}
    for (key, variant), each in zip(builds, side_by_side(one, builds, at_once=_AT_ONCE, name="lock-hash"), strict=True):
        hashes[key][variant] = each
    return dict(hashes)


def _existing(file: Path, *, needed: bool) -> Lock | None:
    """The lock that stands there; one that is not needed may be broken."""
    try:
        return Lock.read(file) if file.exists() else None
    except LockError:
        if needed:
            raise
        return None


def _pin_changes(before: Lock, after: Lock) -> list[Change]:
    old: dict[str, str] = {}
    for pin_before in before.pins:
        # What the older format says of a repository stands for whatever is asked of it now.
        asked = after.of(pin_before.requirement.repo_id) if before.older else ()
        old |= {str(each.requirement): pin_before.commit for each in asked or (pin_before,)}
    return _changed(old, {str(each.requirement): each.commit for each in after.pins})


def _hash_changes(before: Lock, after: Lock) -> list[Change]:
    old: dict[str, str] = {}
    new: dict[str, str] = {}
    for key in before.hashes.keys() | after.hashes.keys():
        what = f"{key[0]} at {key[1][:12]}"
        was, now = before.hashes.get(key), after.hashes.get(key)
        if was and now:  # of many builds, the ones that differ
            old |= {f"hash of {what}, {name}": _short(each) for name, each in was.items()}
            new |= {f"hash of {what}, {name}": _short(each) for name, each in now.items()}
            continue
        if was is not None:
            old[f"hashes of {what}"] = _builds(was)
        if now is not None:
            new[f"hashes of {what}"] = _builds(now)
    return _changed(old, new)


def _builds(hashes: Mapping[str, ContentHash]) -> str:
    return f"{len(hashes)} build{'s' * (len(hashes) != 1)}"


def _short(each: ContentHash) -> str:
    return each.value.removeprefix("sha256-")[:12]


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[Change]:
    changes = []
    for what in sorted(before.keys() | after.keys()):
        old, new = before.get(what), after.get(what)
        if old != new:
            kind = "added" if old is None else "removed" if new is None else "changed"
            changes.append(Change(kind, what, old, new))
    return changes


def _replace(file: Path, content: bytes) -> None:
    try:
        # Through a link to the file that is meant: the link stays one.
        replace_file(file.resolve(), content)
    except OSError as error:
        raise StoreError(f"Cannot write {file}: {error.strerror or error}. It was not changed.") from error
