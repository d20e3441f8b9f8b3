"""Lock a project: find the commit of everything that its kernels need, compare it with its lockfile, and write that.

Pins stay as they are, unless they are upgraded. Listings and metadata are read, over all builds of each kernel, and no
build is downloaded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from kernels.errors import (
    InvalidMetadata,
    LockError,
    NotInCache,
    RepositoryNotFound,
    RequestError,
    RevisionNotFound,
    StoreError,
)
from kernels.models.lockfile import SHA256SUM, ContentHash, Lock, Pin, hashes_path
from kernels.models.metadata import Metadata
from kernels.models.project import KernelProject
from kernels.models.requirement import Requirement, check_repo_id, is_commit
from kernels.models.snapshot import STATUS_FILE
from kernels.operations.open_sources import open_sources
from kernels.resolver.commit import PickedCommit, fresh_heads, pick_commit
from kernels.resolver.content_hash import listed_hash
from kernels.resolver.context import ResolveContext
from kernels.resolver.find import find
from kernels.resolver.found import FoundSnapshot
from kernels.resolver.locks import NO_LOCK
from kernels.resolver.metadata_of import every_metadata_of
from kernels.resolver.plan import Visited, mention_absent, walk
from kernels.resolver.target import Target
from kernels.sources.base import Source
from kernels.sources.memory import forget
from kernels.support.files import replace_file
from kernels.support.formatting import as_clause, format_error
from kernels.support.logs import logger, warn_once
from kernels.support.tasks import side_by_side
from kernels.support.written_paths import stay_inside
from kernels.trust.publishers import Admission, TrustPolicy, admission, ask_trust, unverified

__all__ = ["LockChange", "Locking", "lock_project"]

_log = logger(__name__)

#: Builds whose content is looked at side by side.
_AT_ONCE = 8

#: The hashes of builds by name, by repository and commit.
_Hashes = Mapping[tuple[str, str], Mapping[str, ContentHash]]


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
        changes = _changes(_commits(before, self.lock), _commits(self.lock))
        if self.hashed:
            old, new = before.hashes, self.lock.hashes
            changes += _changes(_shown_hashes(old, new), _shown_hashes(new, old))
        differing = {key: self.lock.hashes[key] for key in self.listed}
        wrong = _changes(_shown_hashes(differing, self.listed), _shown_hashes(self.listed, differing))
        return (*changes, *(LockChange("differs", each.what, each.before, each.after) for each in wrong if each.after))

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
        if self.listed:
            first = next(each for each in self.changes if each.kind == "differs")
            raise LockError(
                f"{hashes_path(self.file)} pins the {first.what} as {first.before}…, and it is listed as "
                f"{first.after}…. A commit's content never changes: that file is wrong, or what answers is not the Hub "
                "of then. Nothing was written. To accept what is listed now: kernels lock --rehash"
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

    def upgraded(repo_id: str) -> bool:
        return upgrade is True or repo_id in repositories

    before = _old_lock(file, everything=upgrade is True, hashes=hashes)
    context = ResolveContext(
        sources=open_sources(overrides=False),
        target=Target.current(),
        trust=TrustPolicy.of(trust_remote_code),
        signing=None,  # what is locked is not loaded
        lock=NO_LOCK,
    )
    if upgrade:
        forget()  # a process that runs for long has heads that are old
    steps = _find_tree(context, project, Lock() if before is None else before, upgraded)
    commits = {each: step.snapshot.commit for step in steps for each in (*step.former, step.asked)}
    absent = sorted(repositories - {requirement.repo_id for requirement in commits})
    if absent:
        raise RequestError(f"{absent[0]} cannot be upgraded: no kernel that {project.file} asks for needs it.")
    pins = tuple(Pin(requirement, commit) for requirement, commit in commits.items())
    hashed = hashes or os.path.lexists(hashes_path(file)) or (before is not None and bool(before.hashes))
    if not hashed:
        return Locking(project.file.parent, file, before, Lock(pins, {}, str(file)), hashed)
    pinned = {} if before is None else before.hashes
    # Also what is upgraded: where its commit stays, its content has to.
    compared = {key for key in pinned if hashes or upgraded(key[0])}
    content, listed = _content(steps, pinned, compared, anew=rehash)
    return Locking(project.file.parent, file, before, Lock(pins, content, str(file)), hashed, listed)


def _old_lock(file: Path, *, everything: bool, hashes: bool) -> Lock | None:
    """The lock there is; None if there is none. One that cannot be read is no error where it is written anew."""
    if not file.exists():
        return None
    try:
        return Lock.read(file)
    except LockError:
        if everything:
            return None
        if not hashes:
            raise
        return Lock.read(file, hashes=False)


def _replace(file: Path, content: bytes) -> None:
    try:
        replace_file(file, content)
    except OSError as error:
        raise StoreError(f"Cannot write {file}: {error.strerror or error}. It was not changed.") from error


# The commits


def _find_tree(
    context: ResolveContext, project: KernelProject, kept: Lock, upgraded: Callable[[str], bool]
) -> list[FoundSnapshot]:
    """The snapshots of everything that a project needs: of its kernels, of those they depend on, of each redirect."""
    started = time.time()

    def pick(asked: Requirement, source: Source, renamed: PickedCommit | None) -> PickedCommit:
        """The commit that a requirement stays at; else that of its former name, else its head."""
        if asked.commit is not None:
            return pick_commit(asked, source)
        if upgraded(asked.repo_id):
            fresh_heads(source, asked.repo_id, started)  # what is new is asked for
            return pick_commit(asked, source)
        for pin in kept.of(asked.repo_id):
            if pin.requirement.branch in (asked.branch, None):  # a pin of the older format has no version
                return PickedCommit(asked, pin.commit, kept.where, asked.repo_id)
        return pick_commit(asked, source, renamed)

    def visit(requirement: Requirement) -> Visited[None]:
        # Nothing that is allowed here is loaded: a later call decides about that on its own.
        locked = partial(find, context, requirement, partial(_lockable, context), remember_allowed=False)
        try:
            found = locked(pick=pick)
            if kept.older and _is_another_version(context, found):
                found = locked()
        except (RepositoryNotFound, RevisionNotFound) as error:
            if requirement not in project.dependencies:
                raise
            raise error.reworded(f"{project.file}: {error}") from error
        return Visited(found, None, _depends(context, found))

    nodes = walk(sorted(project.dependencies, key=str), visit)
    return [step for node in nodes.values() for step in node.found.steps]


def _lockable(context: ResolveContext, found: FoundSnapshot) -> FoundSnapshot:
    """A snapshot, if it can be locked: all of it is of trusted publishers, under its former names too."""
    for step in found.steps:
        asked, source, snapshot = step.asked, step.source, step.snapshot
        if not is_commit(snapshot.commit):
            raise RequestError(
                f"{asked} cannot be locked: {source.name} has no commits. Lock against a Hub (KERNELS_HUB)."
            )
        if not snapshot.listed:
            raise NotInCache(
                f"{asked} cannot be locked: {source.name} has files of the commit {snapshot.commit[:12]}, but not the "
                "list of all of them. Lock it while online."
            )
        for former in step.former:
            trust = ask_trust(former.repo_id, source.publishers, context.trust)
            if admission(former.repo_id, trust, source.publishers, context.trust) is not Admission.GRANTED:
                raise unverified(former.repo_id, source.publishers)
    if found.admission is not Admission.GRANTED:
        raise unverified(found.snapshot.repo_id, found.source.publishers)
    return found


def _is_another_version(context: ResolveContext, found: FoundSnapshot) -> bool:
    """Whether the builds of a snapshot that a lock of the older format chose are of another version than required."""
    if found.lock is None or found.asked.version is None:
        return False
    read = every_metadata_of(context, found).values()
    versions = {each.version for each in read if isinstance(each, Metadata)} - {None}
    return bool(versions) and found.asked.version not in versions


def _depends(context: ResolveContext, found: FoundSnapshot) -> tuple[Requirement, ...]:
    """What any build of a snapshot depends on."""
    read = every_metadata_of(context, found)
    for absent in (each for each in read.values() if isinstance(each, NotInCache)):
        raise absent  # it may be valid, and name others
    invalid = {name: each for name, each in read.items() if isinstance(each, InvalidMetadata)}
    if not read:
        warn_once(_log, f"{found.asked} is locked, but it has no builds.")
    for name, each in list(invalid.items())[:1]:
        warn_once(
            _log,
            f"{found.asked} is locked, but {len(invalid)} of its {len(read)} builds cannot be loaded: {name}: "
            f"{as_clause(format_error(each))}.",
        )
    depends = {depend for each in read.values() if isinstance(each, Metadata) for depend in each.kernel_depends}
    return tuple(sorted(depends, key=str))


# The content


def _content(
    steps: Sequence[FoundSnapshot], pinned: _Hashes, compared: Collection[tuple[str, str]], *, anew: bool
) -> tuple[_Hashes, _Hashes]:
    """The content of every build, as it was pinned, else as it is listed; and what is listed with other content."""
    snapshots = {(each.snapshot.repo_id, each.snapshot.commit): each for each in steps}
    # The builds of a repository that has moved are not used: that none is pinned says that it led elsewhere.
    used = {key: found for key, found in sorted(snapshots.items()) if found.snapshot.file(STATUS_FILE) is None}
    for found in used.values():
        mention_absent(found)
    # For each repository apart, so that it does not depend on another one which of its files are read.
    small: dict[tuple[str, str], dict[str, str]] = {key: {} for key in used}

    def hashed(build: tuple[tuple[str, str], str]) -> tuple[ContentHash, ContentHash]:
        """The hash of a build, as it is pinned and as it is listed."""
        key, variant = build
        known = None if anew else pinned.get(key, {}).get(variant)
        if known is not None and key not in compared:
            return known, known
        kind = SHA256SUM if known is None else known.kind
        listed = listed_hash(used[key].source, used[key].snapshot, variant, kind, small[key])
        return known or listed, listed

    builds = [(key, variant) for key, found in used.items() for variant in found.snapshot.builds]
    # Also for snapshots without builds, such as a repository that has moved, so that none can be added later; and for
    # builds that this Hub does not list, such as a mirror with some of them: the commit still has them.
    hashes = {key: dict(pinned.get(key, {})) if key in used else {} for key in snapshots}
    differing: dict[tuple[str, str], dict[str, ContentHash]] = {}
    for (key, variant), (own, listed) in zip(
        builds, side_by_side(hashed, builds, at_once=_AT_ONCE, name="lock-hash"), strict=True
    ):
        hashes[key][variant] = own
        if own != listed:
            differing.setdefault(key, {})[variant] = listed
    return hashes, differing


# The differences


def _commits(lock: Lock, after: Lock | None = None) -> dict[str, str]:
    """The commits of a lock, by requirement; of one of the older format, which has no versions, by those of `after`."""
    return {
        str(each.requirement): pin.commit
        for pin in lock.pins
        for each in (lock.older and after is not None and after.of(pin.requirement.repo_id)) or (pin,)
    }


def _shown_hashes(hashes: _Hashes, other: _Hashes) -> dict[str, str]:
    """What is said of hashes: of a commit that another lock has as well, the hash of each build; else how many."""
    shown: dict[str, str] = {}
    for (repo_id, commit), variants in hashes.items():
        where = f"{repo_id} at {commit[:12]}"
        if variants and other.get((repo_id, commit)):
            beginnings = {name: each.value.removeprefix("sha256-")[:12] for name, each in variants.items()}
            shown |= {f"hash of {where}, {name}": beginning for name, beginning in beginnings.items()}
        else:
            shown[f"hashes of {where}"] = f"{len(variants)} build{'s' * (len(variants) != 1)}"
    return shown


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[LockChange]:
    changes = []
    for what in sorted(before.keys() | after.keys()):
        old, new = before.get(what), after.get(what)
        if old != new:
            kind = "added" if old is None else "removed" if new is None else "changed"
            changes.append(LockChange(kind, what, old, new))
    return changes
