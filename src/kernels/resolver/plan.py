"""A requirement becomes a plan: the snapshot, the build, and the same for every kernel it depends on.

Nothing but listings and `metadata.json` is read until the whole tree is known and checked; files of the likely builds
of trusted publishers may have been requested by then: small ones wait in memory, of large ones the answers wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from kernels import backends
from kernels.errors import DependencyCycle, HubUnavailable, NoSuitableBuild
from kernels.models.metadata import MAX_KERNEL_DEPENDS, Metadata
from kernels.models.requirement import Requirement
from kernels.models.snapshot import Snapshot
from kernels.resolver.build_choice import BuildChoice
from kernels.resolver.context import ResolveContext
from kernels.resolver.find import find, mention_unlocked
from kernels.resolver.found import FoundSnapshot, SnapshotKey, leads_on
from kernels.resolver.metadata_of import every_metadata_of
from kernels.resolver.requirements import check_prerequisites
from kernels.resolver.usable_build import usable_build
from kernels.sources.base import Source
from kernels.support import distributed
from kernels.support.formatting import as_clause, format_names
from kernels.support.logs import logger, warn_once
from kernels.support.tasks import side_by_side
from kernels.trust.publishers import Admission, unverified, warn_unverified

if TYPE_CHECKING:
    from kernels.backends import Device
    from kernels.models.lockfile import ContentHash
else:  # `inspect.signature` and `help` evaluate the types of a struct's fields
    Device = ContentHash = Any

__all__ = [
    "PlanTree",
    "Planned",
    "Visited",
    "mention_absent",
    "plan_every_build",
    "plan_tree",
    "walk",
    "without_undelivered",
]

_log = logger(__name__)

_T = TypeVar("_T")
_R = TypeVar("_R")
_Value = TypeVar("_Value")

#: Kernels nest two or three deep; a chain this long is a mistake or an attack.
MAX_DEPTH = 32

#: Kernels that are looked at at the same time.
AT_ONCE = 8


class Planned(msgspec.Struct, frozen=True):
    """One build of a plan.

    Attributes:
        found: The snapshot it belongs to.
        variant: The build's name.
        metadata: The build's metadata.
        backend: The name of the backend it was chosen for.
        device: The device it was chosen for, or None where none is visible.
        signed: Whether a policy demands that its files are the ones that were signed.
        pinned: The content that the lock pins of the build.
        depends: The snapshots it depends on, by repository as its metadata names them.
        why: Why this build, for the log.
    """

    found: FoundSnapshot
    variant: str
    metadata: Metadata
    backend: str
    device: Device | None
    signed: bool
    pinned: ContentHash | None
    depends: Mapping[str, SnapshotKey] = {}
    why: str = ""

    @property
    def source(self) -> Source:
        """Where it comes from."""
        return self.found.source

    @property
    def snapshot(self) -> Snapshot:
        """The repository at the commit chosen."""
        return self.found.snapshot


class PlanTree(msgspec.Struct, frozen=True):
    """A kernel and all it depends on.

    Attributes:
        builds: The builds, each once, after those it depends on.
        found: Where each requirement of the tree led, redirects included.
    """

    builds: tuple[Planned, ...]
    found: tuple[FoundSnapshot, ...]

    @property
    def root(self) -> Planned:
        """The build of the kernel itself."""
        return self.builds[-1]


def plan_tree(context: ResolveContext, requirement: Requirement, source: Source | None = None) -> PlanTree:
    """Choose the build of a kernel, and of each kernel it depends on.

    Args:
        context: What the call resolves with.
        requirement: The kernel.
        source: The source of the kernel itself, as a folder; the default is the one that the context's sources name.

    Raises:
        KernelsError: A kernel cannot be used; its subclasses say why.
    """
    return _plan(context, requirement, lambda found: [_build_to_use(context, found)], source)


def plan_every_build(context: ResolveContext, requirement: Requirement) -> PlanTree:
    """Every build of a kernel, for whichever machine, and of each kernel that any of its builds depends on.

    Args:
        context: What the call resolves with.
        requirement: The kernel.

    Raises:
        KernelsError: As for `plan_tree`.
    """
    return _plan(context, requirement, partial(_every_build, context))


def _plan(
    context: ResolveContext,
    root: Requirement,
    builds_of: Callable[[FoundSnapshot], list[Planned]],
    source: Source | None = None,
) -> PlanTree:
    def use(found: FoundSnapshot) -> Visited[list[Planned]]:
        builds = builds_of(found)
        depends = tuple(dict.fromkeys(each for build in builds for each in build.metadata.kernel_depends))
        for each in depends:
            mention_unlocked(context, found, each)
        return Visited(found, builds, depends)

    def visit(asked: Requirement) -> Visited[list[Planned]]:
        return find(context, asked, use, source if asked == root else None)

    nodes = walk([root], visit)
    planned: dict[SnapshotKey, list[Planned]] = {}
    for node in nodes.values():
        # Of several ways to a snapshot the one counts whose lock pins the content.
        if node.found.key not in planned or (node.found.lock and not planned[node.found.key][0].found.lock):
            planned[node.found.key] = node.value
    builds = [
        replace(build, depends={each.repo_id: nodes[each].found.key for each in build.metadata.kernel_depends})
        for each in planned.values()
        for build in each
    ]
    return PlanTree(tuple(builds), tuple(node.found for node in nodes.values()))


# One kernel


def _build_to_use(context: ResolveContext, found: FoundSnapshot) -> Planned:
    choice = usable_build(context, found)
    found, variant, resolution = choice.found, choice.best, choice.resolution
    assert variant is not None
    repo_id, backend, device = found.snapshot.repo_id, resolution.backend, resolution.device
    if found.admission is Admission.ON_DISK:
        warn_unverified(repo_id, found.source.publishers)
    for each in resolution.rejected:
        _log.debug("%s: build %s is rejected: %s", found.asked, each.variant.variant_str, each.reason)
    planned = _of_variant(context, found, variant, choice.metadata[variant])
    if context.prerequisites:
        check_prerequisites(repo_id, variant, planned.metadata)
    if context.check_arch:  # without, the caller knows better than the declared architectures
        _mention_uncovered(choice, variant)
        _mention_uncompared(choice, planned)
    backends.mention_experimental(backends.get(backend))
    count = len(found.snapshot.builds)
    why = f"the best of {count} for {backend}" if count > 1 else "the only one"
    why += "" if device is None else f", device {device.index} ({device.arch or device.name})"
    return replace(planned, backend=backend, device=device, why=why)


def _every_build(context: ResolveContext, found: FoundSnapshot) -> list[Planned]:
    snapshot, source = found.snapshot, found.source
    if found.admission is not Admission.GRANTED:
        raise unverified(snapshot.repo_id, source.publishers)
    if not snapshot.builds:
        raise NoSuitableBuild(f"{found.asked}{found.at} has no builds.")
    mention_absent(found)
    planned = []
    for variant, metadata in every_metadata_of(context, found).items():
        if isinstance(metadata, Metadata):
            planned.append(_of_variant(context, found, variant, metadata))
        else:
            warn_once(_log, f"Build {variant} of {snapshot.repo_id} is left out: {as_clause(metadata)}.")
    return planned


def _of_variant(context: ResolveContext, found: FoundSnapshot, variant: str, metadata: Metadata) -> Planned:
    return Planned(
        found,
        variant,
        metadata,
        metadata.backend.type,
        None,
        signed=found.signing_rule(context) is not None,
        pinned=found.pinned_content(context, variant),
    )


def _mention_uncovered(choice: BuildChoice, variant: str) -> None:
    uncovered = choice.resolution.uncovered_devices
    if uncovered:
        names = ", ".join(f"{device.index} ({device.name or device.arch}, {device.arch})" for device in uncovered)
        warn_once(
            _log,
            f"Build {variant} of {choice.snapshot.repo_id} was chosen for the current device and does not cover "
            f"every visible one: not {names}. For one of those, name it with `device=`.",
        )


def _mention_uncompared(choice: BuildChoice, planned: Planned) -> None:
    """Warn where a build lists architectures, and the probe failed to learn that of the device."""
    resolution, built_for = choice.resolution, planned.metadata.backend
    device = resolution.device
    if not built_for.archs or built_for.type != resolution.backend or (device is not None and device.arch):
        return
    queries = resolution.target.unanswered.get(resolution.backend, ())
    why = next((each.reason for each in queries if each.query == "architectures"), "")
    if why and backends.get(resolution.backend).checks_archs:
        warn_once(
            _log,
            f"Build {planned.variant} of {choice.snapshot.repo_id} is for {backends.listed(built_for.archs)}; that was "
            f"not compared with the {resolution.backend} devices, whose architectures are not known ({why}).",
        )


def mention_absent(found: FoundSnapshot) -> None:
    """Say, once, which builds a mirror does not have, where all are taken."""
    absent = found.snapshot.absent
    if absent:
        warn_once(
            _log,
            f"{found.source.name} does not have every build of {found.asked}: {format_names(absent)} "
            f"{'is' if len(absent) == 1 else 'are'} not in it. For all builds, name the Hub alone: KERNELS_HUB=hub.",
        )


def without_undelivered(context: ResolveContext, failed: Iterable[tuple[Planned, Exception]]) -> ResolveContext | None:
    """The context in which a plan is made again, without the sources of builds that could not be downloaded.

    The ranks of a job use one commit. If only one of them cannot download it, another source's branch is no help.

    Args:
        context: The context of the plan.
        failed: The builds, and why. Content that differs leads to no other source, which would hide it.

    Returns:
        The context; None where no other source may be asked.
    """
    undelivered: dict[tuple[str, str], HubUnavailable] = {}
    for planned, error in failed:
        found = planned.found
        is_last = found.source is context.sources.all_of(found.asked.repo_id)[-1]
        one_commit = found.lock is not None or found.requirement.commit is not None or distributed.rank_count() == 1
        if isinstance(error, HubUnavailable) and leads_on(error) and one_commit and not is_last:
            undelivered[found.source.name, found.asked.repo_id] = error
    return replace(context, undelivered={**context.undelivered, **undelivered}) if undelivered else None


# All that a kernel depends on


class Visited(msgspec.Struct, Generic[_Value], frozen=True):
    """What a requirement leads to: the snapshot, what was made of it, and what it depends on."""

    found: FoundSnapshot
    value: _Value
    depends: tuple[Requirement, ...] = ()


def walk(
    roots: Sequence[Requirement], visit: Callable[[Requirement], Visited[_Value]]
) -> dict[Requirement, Visited[_Value]]:
    """Walk from requirements to everything they depend on, level by level, side by side.

    Args:
        roots: Where to begin.
        visit: Finds what a requirement leads to. It is called once for each.

    Returns:
        What each requirement leads to, in an order in which each snapshot comes after those it depends on.

    Raises:
        DependencyCycle: Dependencies lead in a circle, nest too deep, or are too many.
    """
    most = len(roots) * (1 + MAX_KERNEL_DEPENDS)
    nodes: dict[Requirement, Visited[_Value]] = {}
    level = list(dict.fromkeys(roots))
    by: dict[Requirement, Requirement] = {}  # what first required each
    for _ in range(MAX_DEPTH):
        nodes.update(zip(level, _side_by_side(visit, level), strict=True))
        by |= {each: asked for asked in reversed(level) for each in nodes[asked].depends if each not in nodes}
        level = list(dict.fromkeys(each for asked in level for each in nodes[asked].depends if each not in nodes))
        if len(nodes) + len(level) > most:
            what = f"{roots[0].repo_id} depends" if len(roots) == 1 else f"{len(roots)} kernels depend"
            raise DependencyCycle(f"{what} on more than {most - len(roots)} kernels.")
        if not level:
            break
    else:
        path = [level[0]]
        while path[0] in by:
            path.insert(0, by[path[0]])
        route = " -> ".join(each.repo_id for each in path[:5])
        raise DependencyCycle(f"Kernel dependencies nest more than {MAX_DEPTH} deep: {route} -> …")
    # Requirements of several names or versions, or past redirects, may lead to one snapshot.
    depends: dict[SnapshotKey, list[SnapshotKey]] = {}
    for node in nodes.values():
        depends.setdefault(node.found.key, []).extend(nodes[each].found.key for each in node.depends)
    try:
        order = list(TopologicalSorter(depends).static_order())
    except CycleError as error:
        circle = error.args[1][:0:-1]
        first = circle.index(min(circle, key=list(depends).index))
        route = " -> ".join(each.repo_id for each in [*circle[first:], *circle[: first + 1]])
        raise DependencyCycle(f"Kernel dependencies lead in a circle: {route}.") from None
    return dict(sorted(nodes.items(), key=lambda item: order.index(item[1].found.key)))


def _side_by_side(work: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
    """One item is worked on in the caller's thread; several are, by no more threads than `AT_ONCE`."""
    return [work(items[0])] if len(items) == 1 else side_by_side(work, items, at_once=AT_ONCE, name="plan")
