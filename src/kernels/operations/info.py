"""What a repository offers: its versions, its builds, and which of them fit this machine."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from kernels.errors import HubUnavailable, InvalidMetadata, KernelsError, LockError, RepositoryNotFound, RequestError
from kernels.models.requirement import Requirement, check_repo_id
from kernels.operations.open_sources import open_sources
from kernels.resolver.advice import advice
from kernels.resolver.build_choice import (
    BuildChoice,
    choose_from_sources,
    how_to_mirror,
    other_version,
)
from kernels.resolver.context import ResolveContext
from kernels.resolver.decision import VariantRejected
from kernels.resolver.found import Passed, leads_on, why_passed, with_passed
from kernels.resolver.locks import NO_LOCK, ActiveLock, active_lock
from kernels.resolver.metadata_of import read_metadata
from kernels.resolver.target import Target
from kernels.resolver.variant import Variant
from kernels.sources.base import Moved, Source
from kernels.sources.call_sources import Sources
from kernels.sources.folder import PathSource
from kernels.support.formatting import format_text
from kernels.support.logs import logger
from kernels.support.tasks import side_by_side
from kernels.support.warn import warn_once
from kernels.trust.policy import active_policy
from kernels.trust.publishers import TrustPolicy

if TYPE_CHECKING:
    from kernels.models.metadata import Metadata

__all__ = [
    "MAX_VERSIONS",
    "BuildInfo",
    "RepositoryInfo",
    "VersionInfo",
    "explain_folder",
    "is_path",
    "repository_info",
    "repository_versions",
    "what_helps",
]

_log = logger(__name__)

#: Repositories' answers that are waited for at once.
_AT_ONCE = 8

#: Builds whose metadata is read; published kernels have at most some 60.
_MAX_READ = 256

#: Versions whose builds are looked at, the newest; each takes some requests.
MAX_VERSIONS = 50


@dataclass(frozen=True)
class VersionInfo:
    """One version of a repository.

    Attributes:
        version: The major version.
        branch: The branch that holds it.
        commit: The branch's head.
        date: When the commit was made, in ISO 8601, where the source knows.
        builds: The names of its builds.
        fits: The build that this machine would use, or None.
        moved_to: The repository that this version has moved to, if any.
        problem: Why its builds could not be judged, if so.
        looked_at: Whether its date and builds were read; only those of the newest `MAX_VERSIONS` are.
        locked: The commit that the caller's lockfile pins for this version, or None.
        source: Where it comes from: `the Hub at https://…`.
    """

    version: int
    branch: str
    commit: str
    date: str | None = None
    builds: tuple[str, ...] = ()
    fits: str | None = None
    moved_to: str | None = None
    problem: str | None = None
    looked_at: bool = True
    locked: str | None = None
    source: str | None = None


@dataclass(frozen=True)
class BuildInfo:
    """One build of a repository.

    Attributes:
        name: The variant's name.
        size: Bytes of its files.
        variant: The name's meaning, None where it is not a variant's name.
        metadata: The build's metadata; None if it is missing or not valid.
        reason: Why it does not fit this machine, None where it does.
    """

    name: str
    size: int
    variant: Variant | None
    metadata: Metadata | None
    reason: str | None


@dataclass(frozen=True)
class RepositoryInfo:
    """A repository at one commit, or a kernel at a path.

    Attributes:
        repo_id: The repository, after redirects; None for a path.
        path: The path; None for a repository.
        revision: The branch, tag or commit it was looked at; None for a path.
        commit: The commit; None for a path.
        builds: Its builds: those that fit this machine, best first, then the others.
        fits: The build that this machine would use, or None.
        lock: The lock that chose the commit, None where no lock did.
        source: Where it comes from: `the Hub at https://…`.
        passed: Why it does not come from the sources that were asked before; a sentence each.
    """

    repo_id: str | None
    path: Path | None
    revision: str | None
    commit: str | None
    builds: tuple[BuildInfo, ...]
    fits: str | None
    lock: str | None = None
    source: str | None = None
    passed: tuple[str, ...] = ()

    @property
    def metadata(self) -> Metadata | None:
        """The metadata of the first build that has any."""
        return next((build.metadata for build in self.builds if build.metadata is not None), None)

    @property
    def backends(self) -> tuple[str, ...]:
        """The backends that there are builds for, by name."""
        return tuple(sorted({backend for build in self.builds if (backend := _backend(build)) is not None}))

    @property
    def torch_versions(self) -> tuple[str, ...]:
        """The Torch versions that there are compiled builds for, oldest first; `2.9+` where newer ones fit as well."""
        found = {
            (build.variant.framework_version, "+" * (build.variant.kind == "torch-stable-abi"))
            for build in self.builds
            if build.variant is not None
            and build.variant.kind in ("torch", "torch-stable-abi")
            and build.variant.framework_version is not None
        }
        return tuple(f"{version}{newer}" for version, newer in sorted(found))

    @property
    def archs(self) -> dict[str, tuple[str, ...]]:
        """The device architectures that builds declare, by backend."""
        found: dict[str, dict[str, None]] = {}
        for build in self.builds:
            if build.metadata is not None and build.metadata.backend.archs:
                found.setdefault(build.metadata.backend.type, {}).update(dict.fromkeys(build.metadata.backend.archs))
        return {backend: tuple(archs) for backend, archs in sorted(found.items())}

    @property
    def size(self) -> int:
        """Bytes of all builds."""
        return sum(build.size for build in self.builds)


def repository_versions(repo_id: str) -> list[VersionInfo]:
    """The versions of a repository, the newest first; of those after the newest `MAX_VERSIONS` the heads alone.

    Args:
        repo_id: The repository, `org/name`.

    Raises:
        RequestError: It is not `org/name` (a `ValueError`).
        RepositoryNotFound: There is no such repository (a `FileNotFoundError`).
        HubUnavailable: The Hub did not answer, and the cache does not help (a `ConnectionError`).
    """
    context = _context(open_sources(), NO_LOCK)
    found = _versions_of_sources(context, check_repo_id(repo_id))
    lock = active_lock()

    def look(item: _VersionHead) -> VersionInfo:
        return replace(_version(context, repo_id, item), locked=_pinned(lock, repo_id, item.version))

    older = [
        VersionInfo(each.version, each.branch, each.commit, looked_at=False, source=each.source.name)
        for each in found[MAX_VERSIONS:]
    ]
    return [*side_by_side(look, found[:MAX_VERSIONS], at_once=_AT_ONCE, name="offer"), *older]


def repository_info(
    kernel: str | os.PathLike[str], *, version: int | None = None, revision: str | None = None
) -> RepositoryInfo:
    """The builds of a repository at one commit, or of a folder.

    Args:
        kernel: A repository, `org/name`, or the path of a kernel's folder: one that exists, or that starts with a dot
            or a slash.
        version: A major version of the repository.
        revision: A branch, a tag or a commit of the repository.

    Raises:
        RequestError: An argument is invalid, or there is no such version or revision (a `ValueError`).
        RepositoryNotFound: There is no such repository or folder (a `FileNotFoundError`).
        HubUnavailable: The Hub did not answer, and the cache does not help (a `ConnectionError`).
    """
    path = _expanded(kernel) if is_path(kernel) else None
    if path is None:
        requirement = Requirement(os.fspath(kernel), version=version, revision=revision)
        context = _context(open_sources(), active_lock())
        choice = choose_from_sources(context, requirement)
    elif version is not None or revision is not None:
        asked = f"`version` {version}" if version is not None else f"`revision` {revision!r}"
        raise RequestError(f"{asked} of {path}: a folder has one version only. Leave it out, or name a repository.")
    else:
        choice = explain_folder(path)
    return RepositoryInfo(
        repo_id=choice.snapshot.repo_id if path is None else None,
        path=path,
        revision=choice.requirement.branch,
        commit=choice.snapshot.commit or None,
        builds=_builds(choice),
        fits=choice.best,
        lock=choice.lock,
        source=choice.source.name,
        passed=tuple(f"{why_passed(choice.found.asked, *each)}." for each in choice.found.passed),
    )


def explain_folder(
    path: Path,
    *,
    backend: str | None = None,
    target: Target | None = None,
) -> BuildChoice:
    """Judge every build in a folder for a machine.

    Args:
        path: The folder.
        backend: The backend to judge builds for.
        target: The machine; the default is this one.

    Raises:
        RepositoryNotFound: There is no kernel in the folder (a `FileNotFoundError`).
    """
    source = PathSource(path.expanduser().absolute())
    context = msgspec.structs.replace(
        _context(Sources(source), NO_LOCK), backend=backend, target=target or Target.current()
    )
    return choose_from_sources(context, source.requirement, source)


def what_helps(choice: BuildChoice, *, here: bool) -> list[str]:
    """What to try where no build suits, as the error of `get_kernel` says it: sentences, each a line.

    Args:
        choice: The choice, without a best build.
        here: Whether it was made for this machine.
    """
    resolution = choice.resolution
    mirrored = how_to_mirror(choice, resolution.target)
    if mirrored is not None:
        return [advice(resolution, here=here), mirrored]
    context = msgspec.structs.replace(
        _context(Sources(choice.source), NO_LOCK), backend=resolution.backend, target=resolution.target
    )
    if not choice.source.user_owned:
        other = other_version(context, choice.found)
        if other is not None:
            return [other]
    return [advice(resolution, here=here)]


def is_path(kernel: str | os.PathLike[str]) -> bool:
    """Whether a kernel's name is the path of a folder (or of a file, by mistake), not a repository's name.

    Raises:
        RequestError: It can be neither.

    Example:
        >>> is_path("./relu"), is_path("kernels-community/relu")
        (True, False)
    """
    if not isinstance(kernel, str):
        return True
    if kernel.startswith((".", "/", "~", os.sep)) or (kernel != "" and os.path.exists(kernel)):
        return True
    try:
        check_repo_id(kernel)
    except RequestError as error:
        raise RequestError(
            f"There is no folder {kernel[:200]!r} here, and it is no repository's name: {error}"
        ) from None
    return False


def _expanded(kernel: str | os.PathLike[str]) -> Path:
    try:
        return Path(kernel).expanduser()
    except RuntimeError:
        raise RequestError(f"`kernel` is {os.fspath(kernel)!r}, but there is no such user's home to find.") from None


def _context(sources: Sources, lock: ActiveLock) -> ResolveContext:
    return ResolveContext(
        sources=sources, target=Target.current(), trust=TrustPolicy(), signing=active_policy(), lock=lock
    )


def _pinned(lock: ActiveLock, repo_id: str, version: int) -> str | None:
    try:
        pin = None if lock.lock is None else lock.lock.find(Requirement(repo_id, version=version))
    except LockError:  # another version is locked
        return None
    return None if pin is None else pin.commit


class _VersionHead(NamedTuple):
    """A version, and the first source that has it."""

    version: int
    branch: str
    commit: str
    source: Source


def _versions_of_sources(context: ResolveContext, repo_id: str) -> list[_VersionHead]:
    """The versions of all sources, the newest first."""
    versions: dict[int, _VersionHead] = {}
    passed: list[Passed] = []
    sources = context.sources.all_of(repo_id)
    for source in sources:
        try:
            heads = source.heads(repo_id)
        except Moved as moved:
            if passed or versions:
                continue
            raise RepositoryNotFound(
                f"{repo_id} has moved to {format_text(moved.destination)}; ask for that."
            ) from None
        except KernelsError as error:
            if len(sources) == 1 or not leads_on(error):
                raise
            passed.append((source, error))
            continue
        for version, branch in heads.versions.items():
            versions.setdefault(version, _VersionHead(version, branch, heads.branches[branch], source))
    if len(passed) == len(sources):
        raise with_passed(passed[-1][1], passed[:-1])
    for source, said in passed:
        if isinstance(said, HubUnavailable):
            warn_once(_log, f"{why_passed(repo_id, source, said)}.")
    return sorted(versions.values(), reverse=True, key=lambda each: each.version)


def _version(context: ResolveContext, repo_id: str, head: _VersionHead) -> VersionInfo:
    version, branch, commit, source = head
    date = None
    with suppress(HubUnavailable):  # a date is worth a question, not an error: the rest may be in the cache
        date = source.commit_date(repo_id, commit)
    try:
        # By branch, as an older version is no choice of the caller's here that needs a warning.
        asked = Requirement(repo_id, revision=branch)
        choice = choose_from_sources(context, asked, source, every=False)
        if choice.best is None and len(context.sources.all_of(repo_id)) > 1:
            choice = choose_from_sources(context, asked, every=False)
    except KernelsError as error:
        return VersionInfo(version, branch, commit, date, problem=str(error), source=source.name)
    moved = choice.snapshot.repo_id if choice.snapshot.repo_id != repo_id else None
    return VersionInfo(
        version,
        branch,
        choice.snapshot.commit if moved is None else commit,
        date,
        tuple(choice.snapshot.builds),
        choice.best,
        moved,
        source=choice.source.name,
    )


def _builds(choice: BuildChoice) -> tuple[BuildInfo, ...]:
    def read(name: str) -> Metadata | None:
        if name not in choice.snapshot.builds:  # only the origin of a mirror has it
            return None
        try:
            return choice.metadata.get(name) or read_metadata(choice.source, choice.snapshot, name)
        except (InvalidMetadata, UnicodeEncodeError):
            # A build without valid metadata is a fact, and its reason says so where it matters; so is one whose name
            # the locale's encoding lacks, so that it has no place in the cache.
            return None

    decisions = choice.resolution.decisions
    names = [decision.variant.name for decision in decisions]
    known = side_by_side(read, names[:_MAX_READ], at_once=_AT_ONCE, name="offer")
    metadata = dict(zip(names, known, strict=False))
    return tuple(
        BuildInfo(
            name=decision.variant.name,
            size=choice.snapshot.size(decision.variant.name),
            variant=decision.variant if isinstance(decision.variant, Variant) else None,
            metadata=metadata.get(decision.variant.name),
            reason=decision.reason if isinstance(decision, VariantRejected) else None,
        )
        for decision in decisions
    )


def _backend(build: BuildInfo) -> str | None:
    """The backend a build is for: a universal one says in its metadata what it was made on, not what it needs."""
    if build.variant is not None:
        return build.variant.backend
    return None if build.metadata is None else build.metadata.backend.type
