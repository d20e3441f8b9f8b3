"""The steps of a call, in a row: a request, its plan, its builds on disk, its module."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from kernels import backends
from kernels.cache.in_use import in_use
from kernels.errors import KernelsError
from kernels.loader.import_system import FilesGone
from kernels.loader.load import is_loaded, load_variant
from kernels.loader.stages import prepare_build, stages_of
from kernels.models.requirement import RepoInfo, Requirement
from kernels.models.snapshot import BUILD_FOLDER, METADATA_FILE
from kernels.operations.integrity import Expected, check_build
from kernels.operations.open_sources import open_sources
from kernels.resolver.lock_scope import LockInForce, lock_in_force
from kernels.resolver.planner import Planned, Planner
from kernels.resolver.target import Target
from kernels.support.concurrency import side_by_side
from kernels.trust.publishers import TrustPolicy

if TYPE_CHECKING:
    from kernels.backends import BackendName
    from kernels.settings import Verify

__all__ = [
    "AT_ONCE",
    "KernelRequest",
    "check_user_agent",
    "fetch",
    "fetch_build",
    "get_requested",
    "load",
    "planner_for",
    "prepare",
    "target_of",
]

#: How often a build is fetched again that somebody cleared away before it was loaded. Each time that takes a moment of
#: a few microseconds, between two requests of milliseconds.
_CLEARED_TRIES = 10

#: Kernels that are planned and fetched at once; each fetches its own files side by side as well.
AT_ONCE = 8


@dataclass(frozen=True)
class KernelRequest:
    """One kernel to get, with the arguments of `get_kernel`.

    Attributes:
        local_files_only: Take what is in the cache and download nothing.
        local_kernels: Whether `LOCAL_KERNELS` counts.
        lock: The lock that counts, default that of the caller.
    """

    repo_id: str
    version: int | None = None
    revision: str | None = None
    backend: BackendName | None = None
    user_agent: str | Mapping[str, str] | None = None
    trust_remote_code: bool | Sequence[str] = False
    check_arch: bool = True
    device: int | str | None = None
    verify: Verify | None = None
    local_files_only: bool = False
    local_kernels: bool = True
    lock: LockInForce | None = field(default=None, repr=False, hash=False)

    @property
    def requirement(self) -> Requirement:
        """What is asked for: the repository, with the version or the revision."""
        return Requirement(self.repo_id, version=self.version, revision=self.revision)


def get_requested(request: KernelRequest) -> ModuleType:
    """Get a kernel, as `get_kernel` does.

    Args:
        request: What to get.

    Raises:
        KernelsError: As for `get_kernel`.
    """
    planned = planner_for(request).plan(request.requirement)
    return load(planned, fetch(planned))


def target_of(target: Target | str | None) -> Target:
    """The machine that a `target` argument names; None is this one."""
    if target is None:
        return Target.current()
    if isinstance(target, str):
        return Target.parse(target)
    if not isinstance(target, Target):
        raise TypeError(
            f"`target` is {target!r}, a {type(target).__name__}; allowed is a Target, or a string such as "
            "'torch2.9-cu128-x86_64-linux+sm_90'."
        )
    return target


def check_user_agent(user_agent: object) -> None:
    """Raise a `TypeError` unless it is None, a string, or a mapping from names to versions."""
    if user_agent is not None and not isinstance(user_agent, (str, Mapping)):
        raise TypeError(
            f"`user_agent` is {user_agent!r}, a {type(user_agent).__name__}; allowed is a string, or a mapping such as "
            "{'framework': 'transformers'}."
        )


def planner_for(
    request: KernelRequest,
    *,
    target: Target | None = None,
    prerequisites: bool = True,
) -> Planner:
    """Who plans a request.

    Args:
        request: What to get.
        target: The machine to choose builds for; the default is this one.
        prerequisites: Whether what a build needs beside a fitting machine must be there.

    Raises:
        TypeError: An argument of the request is of the wrong type.
        RequestError, LockError: A setting, or the caller's lock, cannot be used.
    """
    _check_flag("check_arch", request.check_arch)
    _check_flag("local_files_only", request.local_files_only)
    check_user_agent(request.user_agent)
    return Planner(
        open_sources(
            user_agent=request.user_agent,
            local_files_only=request.local_files_only,
            overrides=request.local_kernels,
            verify=request.verify,
        ),
        target or Target.current(),
        TrustPolicy.of(request.trust_remote_code),
        request.backend,
        request.check_arch,
        request.device,
        prerequisites,
        lock=lock_in_force() if request.lock is None else request.lock,
    )


def fetch(planned: Planned) -> dict[int, Path]:
    """Everything of a plan on disk: the folder of each kernel, by the identity of its plan."""
    [*depends, last] = list(planned.walk())
    folders = side_by_side(fetch_build, depends, at_once=AT_ONCE, name="fetch")
    return {id(each): folder for each, folder in zip([*depends, last], [*folders, fetch_build(last)], strict=True)}


def fetch_build(planned: Planned) -> Path:
    """One build of a plan on disk, with the content that its source lists and its metadata's digest names."""
    source, snapshot, variant = planned.source, planned.snapshot, planned.variant
    expected = Expected(planned.metadata.digest, planned.pinned, planned.lock or "", signed=planned.signed)
    for tries_left in reversed(range(_CLEARED_TRIES)):
        path = source.fetch(snapshot, variant)
        with in_use(path) as there:
            try:
                check_build(source, snapshot, variant, path, expected)
            except KernelsError:
                # What somebody clears away while it is checked is not another content.
                if not tries_left or source.is_local(snapshot, variant):
                    raise
                continue
        if there:
            break
    return path


def prepare(planned: Planned, folders: Mapping[int, Path]) -> None:
    """What the backends that builds were chosen for do with them once, before the first is loaded."""
    for each in planned.walk():
        prepare_build(backends.known(each.backend), folders[id(each)], each.device)


def load(planned: Planned, folders: Mapping[int, Path]) -> ModuleType:
    """The module of a plan that is on disk, after those it depends on; what was cleared away since is fetched again."""
    folders = dict(folders)
    builds = list(planned.walk())
    for tries_left in reversed(range(_CLEARED_TRIES)):
        with ExitStack() as held:
            # Of a kernel that is loaded no file is needed.
            needed = [each for each in builds if not is_loaded(folders[id(each)])]
            cleared = [each for each in needed if not held.enter_context(in_use(folders[id(each)]))]
            before = {id(each): _identity(folders[id(each)]) for each in needed}
            if not cleared or not tries_left:
                try:
                    return _load(planned, folders)
                except (KernelsError, OSError) as error:
                    cleared = [each for each in needed if _was_cleared(each, folders, before, error)]
                    if not cleared or not tries_left:
                        raise
        # Not while it is held: who clears it away waits for nobody, and would be waited for.
        folders.update({id(each): fetch_build(each) for each in cleared})
    raise AssertionError


def _load(planned: Planned, folders: Mapping[int, Path]) -> ModuleType:
    prepare(planned, folders)
    modules: dict[int, ModuleType] = {}
    for each in planned.walk():
        own = each.source.user_owned  # a folder of the user's, in which everything counts
        prefix = f"{BUILD_FOLDER}/{each.variant}/"
        modules[id(each)] = load_variant(
            folders[id(each)],
            each.metadata,
            deps={repo_id: modules[id(depend)] for repo_id, depend in each.depends.items()},
            repo_info=None if own else RepoInfo(each.snapshot.repo_id, each.snapshot.commit),
            stages=stages_of(backends.known(each.backend), each.device),
            root=each.source.link_boundary(each.snapshot),
            files=None if own else [file.path.removeprefix(prefix) for file in each.snapshot.builds[each.variant]],
            fetch=None if own else partial(fetch_build, each),
        )
    return modules[id(planned)]


def _identity(folder: Path) -> tuple[int, ...] | None:
    """What tells a build from the same one that was fetched again: its metadata's link, which no kernel writes."""
    try:
        facts = os.lstat(folder / METADATA_FILE)
    except OSError:
        return None
    return facts.st_dev, facts.st_ino, facts.st_ctime_ns


def _was_cleared(
    each: Planned, folders: Mapping[int, Path], before: Mapping[int, tuple[int, ...] | None], error: BaseException
) -> bool:
    """Whether a build's files were removed while it was loaded, whether or not they are there again."""
    if each.source.user_owned:
        return False
    folder = folders[id(each)]
    if not each.source.is_local(each.snapshot, each.variant) or _identity(folder) != before[id(each)]:
        return True
    listed = {os.path.join(folder, *file.path.split("/")[2:]) for file in each.snapshot.builds[each.variant]}
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, FilesGone) or (isinstance(cause, FileNotFoundError) and cause.filename in listed):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"`{name}` is {value!r}, a {type(value).__name__}; allowed is True or False.")
