"""Which builds several kernels take on several machines: each kernel planned for each machine, and every build once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from kernels.errors import DependencyCycle, InvalidMetadata, InvalidRepository, KernelsError, NoSuitableBuild
from kernels.models.lockfile import Lock
from kernels.models.metadata import MAX_KERNEL_DEPENDS, Metadata
from kernels.models.requirement import Requirement
from kernels.resolver.dependency_graph import MAX_BUILDS
from kernels.resolver.finder import Found, Route
from kernels.resolver.lock_scope import LockInForce
from kernels.resolver.planner import Planned, Planner, check_metadata_size, read_metadata
from kernels.resolver.target import Target
from kernels.sources import Sources
from kernels.support.concurrency import side_by_side
from kernels.support.warn import warn_once
from kernels.trust.publishers import TrustPolicy

__all__ = [
    "AT_ONCE",
    "PROBLEMS",
    "DownloadFailure",
    "DownloadJob",
    "KernelPlan",
    "WantedBuild",
    "each_once",
    "is_dependency_only",
]

#: Kernels that are planned, and builds that are fetched, at once; each fetches its own files side by side as well.
AT_ONCE = 8

#: What may go wrong with one kernel and leaves the others as they are.
PROBLEMS = (KernelsError, OSError, ValueError, TypeError)


@dataclass(frozen=True)
class DownloadFailure:
    """One kernel that could not be had for one machine.

    Attributes:
        kernel: What was asked for, or the build that failed.
        target: The machine, or None where every build was asked for.
        error: Why.
    """

    kernel: str
    target: str | None
    error: Exception


@dataclass(frozen=True)
class KernelPlan:
    """What one kernel takes on one machine.

    Attributes:
        builds: Its build and those that it depends on; or every build of each.
        routes: How each of them was found, redirects included.
        target: The machine, or None where every build was asked for.
    """

    builds: tuple[Planned, ...]
    routes: tuple[Route, ...]
    target: str | None


@dataclass(frozen=True)
class DownloadJob:
    """What all plans of a download have in common.

    Attributes:
        sources: Where kernels are found.
        lock: Which commits are meant.
        policy: Whose kernels may be had.
        backend: The backend to choose builds for.
        prerequisites: Whether client version and Python packages are looked at, which is for this machine alone.
    """

    sources: Sources
    lock: LockInForce
    policy: TrustPolicy
    backend: str | None
    prerequisites: bool

    def planner(self, machine: Target) -> Planner:
        """A planner of its own for each kernel: how much one may depend on does not count for another."""
        return Planner(
            self.sources,
            machine,
            self.policy,
            self.backend,
            prerequisites=self.prerequisites,
            lock=self.lock,
        )

    def plan(self, asked: Requirement, target: Target | None) -> KernelPlan | DownloadFailure:
        """What a kernel takes on a machine, or, where that is None, all of its builds; or why that is not known."""
        named = None if target is None else str(target)
        machine = Target.current() if target is None else target
        planner = self.planner(machine)
        try:
            builds = list(planner.plan(asked).walk()) if target is not None else _every(planner, asked)
        except PROBLEMS as error:
            return DownloadFailure(str(asked), named, error)
        return KernelPlan(tuple(builds), tuple(planner.routes), named)


def _every(planner: Planner, asked: Requirement) -> list[Planned]:
    """Every build of a kernel, and of all that any of its builds depends on."""
    builds: list[Planned] = []
    pending, seen = [asked], {asked}
    while pending:
        requirement = pending.pop()
        found = planner.find(requirement).found
        snapshot = found.snapshot
        rule = planner.rule(found.source, snapshot)
        signed = rule is not None and rule.required
        if not snapshot.builds:
            raise NoSuitableBuild(f"{requirement} (commit {snapshot.commit[:12]}) has no builds.")
        for variant, metadata in _all_metadata(planner, found).items():
            builds.append(
                Planned(
                    found.requirement,
                    found.source,
                    snapshot,
                    variant,
                    metadata,
                    metadata.backend.type,
                    None,
                    signed=signed,
                    lock=found.lock,
                    pinned=planner.pinned(found, variant),
                )
            )
            new = [each for each in metadata.kernel_depends if each not in seen]
            seen.update(new)
            pending += new
        if len(seen) > MAX_KERNEL_DEPENDS:
            raise DependencyCycle(f"{asked} depends on more than {MAX_KERNEL_DEPENDS} kernels.")
    return builds


def _all_metadata(planner: Planner, found: Found) -> dict[str, Metadata]:
    source, snapshot = found.source, found.snapshot
    rule = planner.rule(source, snapshot)

    def read(variant: str) -> Metadata | None:
        try:
            return read_metadata(source, snapshot, variant, rule)
        except InvalidMetadata as error:
            warn_once(f"Build {variant} of {snapshot.repo_id} is left out: {error}.")
            return None

    names = list(snapshot.builds)
    if len(names) > MAX_BUILDS:
        raise InvalidRepository(f"{found.requirement} has {len(names)} builds; more than {MAX_BUILDS} are not read.")
    check_metadata_size(found.requirement, snapshot)
    each_one = side_by_side(read, names, at_once=AT_ONCE, name="metadata")
    return {name: each for name, each in zip(names, each_one, strict=True) if each is not None}


def is_dependency_only(failure: DownloadFailure, job: DownloadJob, lock: Lock) -> bool:
    """Whether what has no build for a target is locked only because builds for other targets depend on it."""
    if not isinstance(failure.error, NoSuitableBuild):
        return False
    repo_id = failure.kernel.partition(" ")[0]
    planner = job.planner(Target.current())
    for pin in lock.pins:
        if pin.requirement.repo_id == repo_id:
            continue
        try:
            metadata = _all_metadata(planner, planner.find(pin.requirement).found).values()
        except PROBLEMS:
            continue
        if any(depend.repo_id == repo_id for each in metadata for depend in each.kernel_depends):
            return True
    return False


@dataclass(frozen=True)
class WantedBuild:
    """A build that is wanted, whoever wants it.

    Attributes:
        planned: The build.
        targets: The machines it is for; none where every build was asked for.
    """

    planned: Planned
    targets: tuple[str, ...]

    @property
    def files(self) -> int:
        """How many files it has."""
        return len(self.planned.snapshot.builds[self.planned.variant])

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return self.planned.snapshot.size(self.planned.variant)


def each_once(plans: Iterable[KernelPlan]) -> list[WantedBuild]:
    """The builds of all plans, each once, with the machines that it is for; in order."""
    wanted: dict[tuple[str, str, str], WantedBuild] = {}
    for plan in plans:
        for planned in plan.builds:
            key = (planned.snapshot.repo_id, planned.snapshot.commit, planned.variant)
            known = wanted.get(key) or WantedBuild(planned, ())
            targets = [*known.targets, *([] if plan.target is None else [plan.target])]
            wanted[key] = replace(known, targets=tuple(dict.fromkeys(targets)))
    return [wanted[key] for key in sorted(wanted)]
