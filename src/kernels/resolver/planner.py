"""A requirement becomes a plan: the snapshot, the build, and the same for every kernel it depends on.

Nothing but listings and `metadata.json` is read until the whole tree is known and checked; files of the likely builds
of trusted publishers may have been requested by then: small ones wait in memory, of large ones the answers wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from kernels import backends
from kernels.errors import InvalidMetadata, KernelsError, NoSuitableBuild, UntrustedSignature
from kernels.models.metadata import Metadata
from kernels.models.requirement import Requirement
from kernels.resolver.build_choice import BuildChoice, choose_build, misfit, no_build_error
from kernels.resolver.context import ResolveContext
from kernels.resolver.dependency_graph import Asked, GraphNode, walk_dependencies
from kernels.resolver.finder import Misfit, OfSnapshot, Resolved, mention_unlocked, resolve_snapshot
from kernels.resolver.ordered_sources import mention_absent, with_passed
from kernels.resolver.read_metadata import check_signed_version, read_all_metadata
from kernels.resolver.redirects import FoundSnapshot, SnapshotKey
from kernels.resolver.requirements_check import check_prerequisites
from kernels.sources.base import Source
from kernels.support.formatting import as_clause
from kernels.support.logs import logger
from kernels.support.warn import warn_once
from kernels.trust.publishers import Admission, unverified, warn_unverified

if TYPE_CHECKING:
    from kernels.backends import Device
    from kernels.models.lockfile import ContentHash
else:  # `inspect.signature` and `help` evaluate the types of a struct's fields
    Device = ContentHash = Any

__all__ = ["PlanTree", "Planned", "plan_every_build", "plan_tree"]

_log = logger(__name__)


class Planned(OfSnapshot, msgspec.Struct, frozen=True):
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


class PlanTree(msgspec.Struct, frozen=True):
    """A kernel and all it depends on.

    Attributes:
        builds: The builds, each once, after those it depends on.
        routes: Where each requirement of the tree led, redirects included.
    """

    builds: tuple[Planned, ...]
    routes: tuple[Resolved, ...]

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
    return _plan(
        context,
        Asked(requirement, source),
        lambda ways: [_planned_build(context, ways)],
        partial(misfit, context),
        allowed=Admission.ON_DISK,
    )


def plan_every_build(context: ResolveContext, requirement: Requirement) -> PlanTree:
    """Every build of a kernel, for whichever machine, and of each kernel that any of its builds depends on.

    Args:
        context: What the call resolves with.
        requirement: The kernel.

    Raises:
        KernelsError: As for `plan_tree`.
    """
    return _plan(
        context, Asked(requirement), lambda ways: _every_build(context, ways), _no_builds, allowed=Admission.GRANTED
    )


def _plan(
    context: ResolveContext,
    root: Asked,
    builds_of: Callable[[Sequence[Resolved]], list[Planned]],
    misfits: Misfit,
    *,
    allowed: Admission,
) -> PlanTree:
    def resolve(asked: Asked) -> Resolved:
        return resolve_snapshot(context, asked.requirement, asked.source, misfit=misfits)

    def edges_of(ways: Sequence[Resolved]) -> GraphNode[list[Planned]]:
        builds = builds_of(ways)
        depends = tuple(dict.fromkeys(each for build in builds for each in build.metadata.kernel_depends))
        if depends and context.likely is not None:
            context.likely.limit_wait()
        for each in depends:
            mention_unlocked(context, builds[0].found, each)
        return GraphNode(builds, depends)

    graph = walk_dependencies([root], resolve, edges_of)
    builds = []
    for key, node in graph.nodes.items():
        ways = [way for way in graph.ways.values() if way.found.key == key]
        for build in node.value:
            depends = {each.repo_id: graph.ways[Asked(each)].found.key for each in build.metadata.kernel_depends}
            builds.append(replace(_as_demanded(context, build, ways, allowed), depends=depends))
    return PlanTree(tuple(builds), tuple(graph.ways.values()))


def _planned_build(context: ResolveContext, ways: Sequence[Resolved]) -> Planned:
    """The build to use of a snapshot."""
    found = ways[0].found
    source, snapshot = found.source, found.snapshot
    admitted = max((way.admission for way in ways), key=lambda each: each.value)
    choice = choose_build(context, found, fetchable=admitted is Admission.GRANTED)
    found = choice.found
    snapshot = found.snapshot
    if choice.best is None:
        raise with_passed(no_build_error(context, choice, admitted), found.passed)
    if admitted is Admission.REFUSED:
        raise with_passed(unverified(snapshot.repo_id, source.publishers), found.passed)
    if admitted is Admission.ON_DISK:
        warn_unverified(snapshot.repo_id, source.publishers)
    for each in choice.resolution.rejected:
        _log.debug("%s: build %s is rejected: %s", found.asked, each.variant.variant_str, each.reason)
    planned = _of_variant(context, found, choice.best, choice.metadata[choice.best])
    if context.prerequisites:
        check_prerequisites(snapshot.repo_id, planned.variant, planned.metadata)
    if context.check_arch:  # without, the caller knows better than the declared architectures
        _mention_uncovered(choice, planned.variant)
        _mention_uncompared(choice, planned)
    backends.mention_experimental(backends.get(choice.resolution.backend))
    backend, device = choice.resolution.backend, choice.resolution.device
    count = len(snapshot.builds)
    why = f"the best of {count} for {backend}" if count > 1 else "the only one"
    why += "" if device is None else f", device {device.index} ({device.arch or device.name})"
    return replace(planned, backend=backend, device=device, why=why)


def _every_build(context: ResolveContext, ways: Sequence[Resolved]) -> list[Planned]:
    found = ways[0].found
    snapshot = found.snapshot
    problem = next(filter(None, (_no_builds(found, way.admission) for way in ways)), None)
    if problem is not None:
        raise with_passed(problem, found.passed)
    mention_absent(found.asked, found.source, snapshot)
    planned = []
    read = read_all_metadata(found.requirement, found.source, snapshot, found.signing_rule(context))
    for variant, metadata in read.items():
        if isinstance(metadata, InvalidMetadata):
            warn_once(_log, f"Build {variant} of {snapshot.repo_id} is left out: {as_clause(metadata)}.")
        else:
            planned.append(_of_variant(context, found, variant, metadata))
    return planned


def _no_builds(found: FoundSnapshot, admission: Admission) -> KernelsError | None:
    if admission is not Admission.GRANTED:
        return unverified(found.snapshot.repo_id, found.source.publishers)
    if not found.snapshot.builds:
        return NoSuitableBuild(f"{found.asked} (commit {found.snapshot.commit[:12]}) has no builds.")
    return None


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


def _as_demanded(context: ResolveContext, planned: Planned, ways: Sequence[Resolved], allowed: Admission) -> Planned:
    """A build as each way that leads to it demands: admitted, of the version it names, with what a lock pins."""
    for way in ways:
        found = way.found
        if way.admission.value > allowed.value:
            raise unverified(found.snapshot.repo_id, found.source.publishers)
        try:
            if planned.signed:
                check_signed_version(found.version, planned.metadata)
        except UntrustedSignature as error:
            raise UntrustedSignature(f"{found.requirement}: {error}") from error
        if planned.lock is None and found.lock is not None:
            found = replace(found, snapshot=planned.snapshot)  # a mirror may have listed it again
            planned = replace(planned, found=found, pinned=found.pinned_content(context, planned.variant))
    return planned


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
