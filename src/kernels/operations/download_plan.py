"""Which builds a download takes: each kernel planned for each machine, and every build once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from kernels.errors import KernelsError, NoSuitableBuild
from kernels.models.lockfile import Lock
from kernels.models.metadata import Metadata
from kernels.models.requirement import Requirement
from kernels.resolver.context import ResolveContext
from kernels.resolver.find import find
from kernels.resolver.found import FoundSnapshot
from kernels.resolver.metadata_of import every_metadata_of
from kernels.resolver.plan import Planned, PlanTree, plan_every_build, plan_tree
from kernels.resolver.target import Target
from kernels.sources.progress import downloading, watched
from kernels.trust.publishers import Admission

__all__ = [
    "PROBLEMS",
    "DownloadFailure",
    "DownloadedBuild",
    "KernelPlan",
    "WantedBuild",
    "deduplicate_builds",
    "is_dependency_only",
    "plan_download",
]

#: Errors of one kernel that do not stop the others.
PROBLEMS = (KernelsError, OSError, ValueError, TypeError)


@dataclass(frozen=True)
class DownloadFailure:
    """One kernel that could not be downloaded for one machine.

    Attributes:
        kernel: The requirement, or the build that failed.
        target: The machine, or None if every build is downloaded.
        error: Why.
        requirement: The requirement, where it could not be planned.
        planned: The build, where it could not be downloaded.
    """

    kernel: str
    target: str | None
    error: Exception
    requirement: Requirement | None = None
    planned: Planned | None = None


@dataclass(frozen=True)
class DownloadedBuild:
    """One build that is on disk now.

    Attributes:
        repo_id: The repository, after redirects.
        commit: The commit.
        variant: The build.
        size: Bytes of its files.
        targets: The machines it is for, as strings; none if every build is downloaded.
        path: Its folder; in a mirror (`to`), its archive.
        new: Whether it was not there before.
    """

    repo_id: str
    commit: str
    variant: str
    size: int
    targets: tuple[str, ...]
    path: Path
    new: bool


@dataclass(frozen=True)
class KernelPlan:
    """The builds that one kernel takes on one machine.

    Attributes:
        tree: Its build and those that it depends on; or every build of each.
        target: The machine, or None if every build is downloaded.
    """

    tree: PlanTree
    target: str | None


def plan_download(context: ResolveContext, asked: Requirement, target: Target | None) -> KernelPlan | DownloadFailure:
    """The builds that a kernel takes on a machine, or, where that is None, all of its builds; or why it has none."""
    try:
        if target is None:
            return KernelPlan(plan_every_build(context, asked), None)
        return KernelPlan(plan_tree(msgspec.structs.replace(context, target=target), asked), str(target))
    except PROBLEMS as error:
        return DownloadFailure(str(asked), None if target is None else str(target), error, asked)


def is_dependency_only(failure: DownloadFailure, context: ResolveContext, lock: Lock) -> bool:
    """Whether a kernel without a build for a target is locked only because builds for other targets depend on it."""
    if not isinstance(failure.error, NoSuitableBuild) or failure.requirement is None:
        return False
    repo_id = failure.requirement.repo_id

    def depends_on_it(found: FoundSnapshot) -> bool:
        if found.admission is not Admission.GRANTED:
            return False
        read = [each for each in every_metadata_of(context, found).values() if isinstance(each, Metadata)]
        return any(depend.repo_id == repo_id for each in read for depend in each.kernel_depends)

    for pin in lock.pins:
        with suppress(*PROBLEMS):
            if pin.requirement.repo_id != repo_id and find(context, pin.requirement, depends_on_it):
                return True
    return False


@dataclass(frozen=True)
class WantedBuild:
    """A build to download.

    Attributes:
        planned: The build.
        targets: The machines it is for; none if every build is downloaded.
    """

    planned: Planned
    targets: tuple[str, ...]

    @property
    def key(self) -> tuple[str, str, str]:
        """Its repository, commit and name."""
        return self.planned.snapshot.repo_id, self.planned.snapshot.commit, self.planned.variant

    @property
    def files(self) -> int:
        """How many files it has."""
        return len(self.planned.snapshot.builds[self.planned.variant])

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return self.planned.snapshot.size(self.planned.variant)

    @contextmanager
    def counted(self, arrived: Callable[[int, int], None] | None) -> Iterator[None]:
        """Report the files and bytes that arrive of it during the block, each once; at the end all have arrived."""
        if arrived is None:
            yield
            return
        with watched(arrived), downloading(self.planned.variant, self.size, self.files):
            yield


def deduplicate_builds(plans: Iterable[KernelPlan]) -> list[WantedBuild]:
    """The builds of all plans, each once, with the machines that it is for; in order."""
    wanted: dict[tuple[str, str, str], WantedBuild] = {}
    for plan in plans:
        for planned in plan.tree.builds:
            build = WantedBuild(planned, () if plan.target is None else (plan.target,))
            known = wanted.get(build.key, build)
            wanted[build.key] = replace(known, targets=tuple(dict.fromkeys([*known.targets, *build.targets])))
    return [wanted[key] for key in sorted(wanted)]
