"""What can be said of a kernel without loading it: its versions, and its builds, judged for this machine or another."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kernels.errors import (
    HubUnavailable,
    InvalidMetadata,
    KernelsError,
    LockError,
    NotInCache,
    RepositoryNotFound,
    RequestError,
)
from kernels.models.requirement import Requirement, check_repo_id
from kernels.operations.call import KernelRequest, context_for
from kernels.resolver.advice import advice
from kernels.resolver.build_choice import MAX_READ, BuildChoice
from kernels.resolver.context import ResolveContext
from kernels.resolver.found import Passed, leads_on, why_passed, with_passed
from kernels.resolver.locks import NO_LOCK, ActiveLock, active_lock
from kernels.resolver.metadata_of import read_metadata
from kernels.resolver.target import Target
from kernels.resolver.usable_build import choose_from_sources, what_else
from kernels.sources.base import Moved, Source
from kernels.sources.call_sources import Sources
from kernels.sources.folder import PathSource
from kernels.support.formatting import format_text
from kernels.support.logs import logger, warn_once
from kernels.support.tasks import side_by_side
from kernels.trust.policy import active_policy
from kernels.trust.publishers import TrustPolicy

if TYPE_CHECKING:
    from kernels.models.metadata import Metadata

__all__ = [
    "MAX_VERSIONS",
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


def repository_versions(repo_id: str) -> list[VersionInfo]:
    """The versions of a repository, the newest first; of those after the newest `MAX_VERSIONS` the heads alone.

    Args:
        repo_id: The repository, `org/name`.

    Raises:
        RequestError: It is not `org/name` (a `ValueError`).
        RepositoryNotFound: There is no such repository (a `FileNotFoundError`).
        HubUnavailable: The Hub did not answer, and the cache does not help (a `ConnectionError`).
    """
    context = context_for(KernelRequest(repo_id, lock=NO_LOCK))
    found = _heads(context, repo_id)
    lock = active_lock()

    def look(item: tuple[VersionInfo, Source]) -> VersionInfo:
        return replace(_looked_at(context, repo_id, *item), locked=_pinned(lock, repo_id, item[0].version))

    newest = side_by_side(look, found[:MAX_VERSIONS], at_once=_AT_ONCE, name="offer")
    return [*newest, *(version for version, _ in found[MAX_VERSIONS:])]


def repository_info(
    kernel: str | os.PathLike[str], *, version: int | None = None, revision: str | None = None
) -> BuildChoice:
    """Judge every build of a repository at one commit, or of a folder, for this machine, and read what each says.

    Args:
        kernel: A repository, `org/name`, or the path of a kernel's folder: one that exists, or that starts with a dot
            or a slash.
        version: A major version of the repository; a folder has only one.
        revision: A branch, a tag or a commit of the repository.

    Returns:
        The decision for each build, and the metadata of each that has valid metadata.

    Raises:
        RequestError: An argument is invalid, or there is no such version or revision (a `ValueError`).
        RepositoryNotFound: There is no such repository or folder (a `FileNotFoundError`).
        HubUnavailable: The Hub did not answer, and the cache does not help (a `ConnectionError`).
    """
    if not is_path(kernel):
        request = KernelRequest(os.fspath(kernel), version, revision)
        choice = choose_from_sources(context_for(request), request.requirement)
    else:
        choice = explain_folder(Path(kernel))
    return msgspec.structs.replace(choice, metadata=_metadata(choice))


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
    try:
        source = PathSource(path.expanduser().absolute())
    except RuntimeError:
        raise RequestError(f"`kernel` is {str(path)!r}, but there is no such user's home to find.") from None
    context = _context_of(source, target or Target.current(), backend)
    return choose_from_sources(context, source.requirement, source)


def what_helps(choice: BuildChoice, *, here: bool) -> list[str]:
    """What to try where no build suits, as the error of `get_kernel` says it: sentences, each a line.

    Args:
        choice: The choice, without a best build.
        here: Whether it was made for this machine.
    """
    resolution = choice.resolution
    context = _context_of(choice.source, resolution.target, resolution.backend)
    return [line for line in (advice(resolution, here=here), what_else(context, choice)) if line is not None]


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


def _context_of(source: Source, target: Target, backend: str | None) -> ResolveContext:
    """The context in which the builds of one source are judged."""
    sources, signing = Sources(source), active_policy()
    return ResolveContext(
        sources=sources, target=target, trust=TrustPolicy(), signing=signing, lock=NO_LOCK, backend=backend
    )


def _pinned(lock: ActiveLock, repo_id: str, version: int) -> str | None:
    try:
        pin = None if lock.lock is None else lock.lock.find(Requirement(repo_id, version=version))
    except LockError:  # another version is locked
        return None
    return None if pin is None else pin.commit


def _heads(context: ResolveContext, repo_id: str) -> list[tuple[VersionInfo, Source]]:
    """The versions of all sources, the newest first, with the first source that has each."""
    versions: dict[int, tuple[VersionInfo, Source]] = {}
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
            info = VersionInfo(version, branch, heads.branches[branch], looked_at=False, source=source.name)
            versions.setdefault(version, (info, source))
    if len(passed) == len(sources):
        raise with_passed(passed[-1][1], passed[:-1])
    for source, said in passed:
        if isinstance(said, HubUnavailable):
            warn_once(_log, f"{why_passed(repo_id, source, said)}.")
    return [versions[version] for version in sorted(versions, reverse=True)]


def _looked_at(context: ResolveContext, repo_id: str, info: VersionInfo, source: Source) -> VersionInfo:
    info = replace(info, looked_at=True)
    with suppress(HubUnavailable):  # a date is worth a question, not an error: the rest may be in the cache
        info = replace(info, date=source.commit_date(repo_id, info.commit))
    # By branch, as an older version is no choice of the caller's here that needs a warning.
    asked = Requirement(repo_id, revision=info.branch)
    try:
        choice = choose_from_sources(context, asked, source, every=False)
        if choice.best is None and len(context.sources.all_of(repo_id)) > 1:
            choice = choose_from_sources(context, asked, every=False)
    except KernelsError as error:
        return replace(info, problem=str(error))
    info = replace(info, builds=tuple(choice.snapshot.builds), fits=choice.best, source=choice.source.name)
    if choice.snapshot.repo_id != repo_id:
        return replace(info, moved_to=choice.snapshot.repo_id)
    return replace(info, commit=choice.snapshot.commit)


def _metadata(choice: BuildChoice) -> dict[str, Metadata]:
    """The metadata of each build, where it is there and valid; where it is not, its decision says so."""

    def read(name: str) -> Metadata | None:
        # A name that the locale's encoding lacks has no place in the cache.
        with suppress(InvalidMetadata, NotInCache, UnicodeEncodeError):
            return choice.metadata.get(name) or read_metadata(choice.source, choice.snapshot, name)
        return None

    # Of some, only the origin of a mirror has them.
    names = [each.variant.name for each in choice.resolution.decisions if each.variant.name in choice.snapshot.builds]
    found = side_by_side(read, names[:MAX_READ], at_once=_AT_ONCE, name="offer")
    return {name: metadata for name, metadata in zip(names, found, strict=False) if metadata is not None}
