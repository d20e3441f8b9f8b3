"""Lock a project: compare its lockfile with what it needs, and write the difference.

Pins stay as they are, unless they are upgraded.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kernels.errors import LockError, RequestError, StoreError
from kernels.models.lockfile import SHA256SUM, ContentHash, Lock, Pin, hashes_path
from kernels.models.project import KernelProject
from kernels.models.requirement import check_repo_id
from kernels.models.snapshot import STATUS_FILE
from kernels.operations.lock_tree import lock_tree
from kernels.operations.open_sources import open_sources
from kernels.resolver.content_hash import listed_hash
from kernels.resolver.context import ResolveContext
from kernels.resolver.find import FoundSnapshot
from kernels.resolver.locks import NO_LOCK
from kernels.resolver.plan import mention_absent
from kernels.resolver.target import Target
from kernels.sources.session_cache import forget
from kernels.support.files import replace_file
from kernels.support.tasks import side_by_side
from kernels.support.written_paths import stay_inside
from kernels.trust.publishers import TrustPolicy

__all__ = ["LockChange", "Locking", "lock_project"]

#: Builds whose content is looked at side by side.
_AT_ONCE = 8


@dataclass(frozen=True)
class LockChange:
    """One difference between two locks.

    Attributes:
        kind: `added`, `removed` or `changed`; `differs` for a build whose pinned hash is not that of what is listed.
        what: The requirement, or the build whose hash it is.
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
        project: The project's folder.
        file: The lock file.
        before: The lock in the file; None if there is no file, or if it cannot be read and is not needed.
        lock: The lock as it should be.
        hashed: Whether the content of builds is pinned as well.
        listed: Of builds that are listed with other content than is pinned: the hash of that, by repository and
            commit, then by variant. They stay as they are pinned, and the lock cannot be written.
    """

    project: Path
    file: Path
    before: Lock | None
    lock: Lock
    hashed: bool
    listed: Mapping[tuple[str, str], Mapping[str, ContentHash]] = field(default_factory=dict)

    @property
    def changes(self) -> tuple[LockChange, ...]:
        """What is added, removed, changed or differs, in the order of names: pins, then hashes."""
        before = Lock() if self.before is None else self.before
        hashes = _hash_changes(before, self.lock) if self.hashed else []
        return (*_pin_changes(before, self.lock), *hashes, *self._differing)

    @property
    def _differing(self) -> list[LockChange]:
        return [
            LockChange("differs", _hash_of(key, name), _short(self.lock.hashes[key][name]), _short(each))
            for key, variants in sorted(self.listed.items())
            for name, each in sorted(variants.items())
        ]

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
        """Whether anything has to be written, or cannot be as it is."""
        return self.lock_changed or self.hashes_changed or bool(self.listed)

    def write(self) -> None:
        """Write what changed, each file whole or not at all; a file that did not change is not touched.

        Raises:
            LockError: A build is listed with other content than is pinned.
            RequestError: A file is a link that leaves the project.
            StoreError: A file cannot be written.
        """
        for each in self._differing:
            raise LockError(
                f"{hashes_path(self.file)} pins the {each.what} as {each.before}…, and it is listed as {each.after}…. "
                "A commit's content never changes: that file is wrong, or what answers is not the Hub of then. Nothing "
                "was written. To accept what is listed now: kernels lock --rehash"
            )
        # A link inside of the project stays: the file that it leads to is written.
        lock, hashes = (stay_inside(each, self.project) for each in (self.file, hashes_path(self.file)))
        # The hashes first: a lockfile is never without its hashes.
        if self.hashes_changed:
            _replace(hashes, self.lock.hashes_to_bytes())
        if self.lock_changed:
            _replace(lock, self.lock.to_bytes())


def lock_project(
    project: KernelProject,
    *,
    lock_file: Path | None = None,
    upgrade: bool | Collection[str] = False,
    hashes: bool = False,
    rehash: bool = False,
    trust_remote_code: bool | Sequence[str] = False,
) -> Locking:
    """Find the commit of everything that a project's kernels need; nothing is written.

    Args:
        project: The project.
        lock_file: Its lock, else the one beside its pyproject.toml.
        upgrade: Whether to use the current head of every branch, or of which repositories.
        hashes: Whether to also pin the content of builds, and to compare pinned content with the listing. An existing
            file of hashes is updated without this, and compared only for what is upgraded; a damaged one is written
            anew.
        rehash: The same, but the listing replaces what is pinned.
        trust_remote_code: As for `get_kernel`.

    Returns:
        The lock as it should be, and what differs from the file; `write` writes it.

    Raises:
        RequestError: An argument is invalid, or a version does not exist (a `ValueError`).
        LockError: The lock there is cannot be read, or pins a commit that is gone (a `ValueError`).
        UntrustedPublisher: A publisher is not trusted (a `ValueError`).
        DependencyCycle: Dependencies lead in a circle, nest too deep, or are too many (a `ValueError`).
        RepositoryNotFound: There is no such repository (a `FileNotFoundError`).
        HubUnavailable: The Hub gave no answer, and the cache has none, or an upgrade asks for what is new (a
            `ConnectionError`).
    """
    file = project.lock_file if lock_file is None else lock_file
    repositories = frozenset() if isinstance(upgrade, bool) else frozenset(map(check_repo_id, upgrade))
    hashes = hashes or rehash
    before = _existing(file, needed=upgrade is not True, hashes=not hashes)
    kept = Lock() if before is None or upgrade is True else before
    context = ResolveContext(
        sources=open_sources(overrides=False),
        target=Target.current(),
        trust=TrustPolicy.of(trust_remote_code),
        signing=None,  # what is locked is not loaded
        lock=NO_LOCK,
    )
    if upgrade:
        forget()  # a process that runs for long has heads that are old
    tree = lock_tree(context, project.dependencies, kept, upgrade is True or repositories, project.file)
    absent = sorted(repositories - {requirement.repo_id for requirement in tree.commits})
    if absent:
        raise RequestError(f"{absent[0]} cannot be upgraded: no kernel that {project.file} asks for needs it.")
    pins = tuple(Pin(requirement, commit) for requirement, commit in tree.commits.items())
    hashed = hashes or os.path.lexists(hashes_path(file)) or (before is not None and bool(before.hashes))
    if not hashed:
        return Locking(project.file.parent, file, before, Lock(pins, {}, str(file)), hashed)
    pinned = {} if before is None else before.hashes
    anew = set(pinned) if rehash else set()
    # Also what is upgraded: where its commit stays, its content has to.
    compared = {key for key in pinned if hashes or upgrade is True or key[0] in repositories}
    content, listed = _hashes(tree.snapshots, pinned, anew, compared)
    return Locking(project.file.parent, file, before, Lock(pins, content, str(file)), hashed, listed)


_Content = dict[tuple[str, str], dict[str, ContentHash]]


def _hashes(
    snapshots: Mapping[tuple[str, str], FoundSnapshot],
    pinned: Mapping[tuple[str, str], Mapping[str, ContentHash]],
    anew: Collection[tuple[str, str]],
    compared: Collection[tuple[str, str]],
) -> tuple[_Content, _Content]:
    """The content of every build, as it was pinned, else as it is listed; and what is listed with other content."""
    # For each repository apart, so that it does not depend on another one which of its files are read.
    small: dict[tuple[str, str], dict[str, str]] = {key: {} for key in snapshots}
    # The builds of a repository that has moved are not used: that none is pinned says that it led elsewhere.
    moved = {key for key, found in snapshots.items() if found.snapshot.file(STATUS_FILE) is not None}
    for key in sorted(snapshots.keys() - moved):
        mention_absent(snapshots[key])
    builds = [(key, variant) for key in sorted(snapshots.keys() - moved) for variant in snapshots[key].snapshot.builds]

    def one(build: tuple[tuple[str, str], str]) -> tuple[ContentHash, ContentHash | None]:
        key, variant = build
        known = None if key in anew else pinned.get(key, {}).get(variant)
        kind = SHA256SUM if known is None else known.kind
        if known is not None and key not in compared:
            return known, None
        found = snapshots[key]
        listed = listed_hash(found.source, found.snapshot, variant, kind, small[key])
        return known or listed, None if known in (None, listed) else listed

    # Also for snapshots without builds, such as a repository that has moved, so that none can be added later; and for
    # builds that this Hub does not list, such as a mirror with some of them: the commit still has them.
    hashes: _Content = {key: {} if key in moved else dict(pinned.get(key, {})) for key in snapshots}
    differing: _Content = {}
    found = side_by_side(one, builds, at_once=_AT_ONCE, name="lock-hash")
    for (key, variant), (each, listed) in zip(builds, found, strict=True):
        hashes[key][variant] = each
        if listed is not None:
            differing.setdefault(key, {})[variant] = listed
    return hashes, differing


def _existing(file: Path, *, needed: bool, hashes: bool) -> Lock | None:
    """The lock in a file; None if there is no file. A broken one is an error only if it is needed."""
    if not file.exists():
        return None
    try:
        return Lock.read(file)
    except LockError:
        if not hashes:
            with suppress(LockError):
                return Lock.read(file, hashes=False)
        if needed:
            raise
        return None


def _pin_changes(before: Lock, after: Lock) -> list[LockChange]:
    old: dict[str, str] = {}
    for pin_before in before.pins:
        # A pin of the older format has no version: it is compared with each pin of the repository.
        asked = after.of(pin_before.requirement.repo_id) if before.older else ()
        old |= {str(each.requirement): pin_before.commit for each in asked or (pin_before,)}
    return _changed(old, {str(each.requirement): each.commit for each in after.pins})


def _hash_changes(before: Lock, after: Lock) -> list[LockChange]:
    old: dict[str, str] = {}
    new: dict[str, str] = {}
    for key in before.hashes.keys() | after.hashes.keys():
        was, now = before.hashes.get(key), after.hashes.get(key)
        if was and now:  # of many builds, the ones that differ
            old |= {_hash_of(key, name): _short(each) for name, each in was.items()}
            new |= {_hash_of(key, name): _short(each) for name, each in now.items()}
            continue
        if was is not None:
            old[f"hashes of {_at(key)}"] = _builds(was)
        if now is not None:
            new[f"hashes of {_at(key)}"] = _builds(now)
    return _changed(old, new)


def _at(key: tuple[str, str]) -> str:
    return f"{key[0]} at {key[1][:12]}"


def _hash_of(key: tuple[str, str], variant: str) -> str:
    return f"hash of {_at(key)}, {variant}"


def _builds(hashes: Mapping[str, ContentHash]) -> str:
    return f"{len(hashes)} build{'s' * (len(hashes) != 1)}"


def _short(each: ContentHash) -> str:
    return each.value.removeprefix("sha256-")[:12]


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[LockChange]:
    changes = []
    for what in sorted(before.keys() | after.keys()):
        old, new = before.get(what), after.get(what)
        if old != new:
            kind = "added" if old is None else "removed" if new is None else "changed"
            changes.append(LockChange(kind, what, old, new))
    return changes


def _replace(file: Path, content: bytes) -> None:
    try:
        replace_file(file, content)
    except OSError as error:
        raise StoreError(f"Cannot write {file}: {error.strerror or error}. It was not changed.") from error
