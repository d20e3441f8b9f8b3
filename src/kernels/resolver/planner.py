"""A requirement becomes a plan: the snapshot, the build, and the same for every kernel it depends on.

Nothing but listings and `metadata.json` is read until the whole tree is known and checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from kernels import backends
from kernels.errors import (
    DependencyCycle,
    InvalidMetadata,
    InvalidRepository,
    KernelsError,
    NotInCache,
    UntrustedSignature,
)
from kernels.models.lockfile import ContentHash, lock_again
from kernels.models.metadata import MAX_KERNEL_DEPENDS, MAX_METADATA_BYTES, Metadata
from kernels.models.requirement import Requirement
from kernels.models.snapshot import BUILD_FOLDER, METADATA_FILE, Snapshot
from kernels.resolver.finder import Finder, Found, Route
from kernels.resolver.lock_scope import NO_LOCK, LockInForce
from kernels.resolver.requirements_check import check_prerequisites
from kernels.resolver.selection import Ranking, Resolution, no_suitable_build
from kernels.resolver.signature_check import require_signature
from kernels.sources.base import Source
from kernels.support.concurrency import side_by_side
from kernels.support.formatting import format_names
from kernels.support.warn import warn_once
from kernels.trust import Policy, Rule
from kernels.trust.publishers import Admission, unverified, warn_unverified

if TYPE_CHECKING:
    from kernels.backends import Device
    from kernels.resolver.target import Target
    from kernels.sources import Sources
    from kernels.trust.publishers import TrustPolicy

__all__ = ["Choice", "Planned", "Planner", "wrong_version"]

_T = TypeVar("_T")
_R = TypeVar("_R")

#: A kernel of a plan: its source, its repository and its commit.
_Key = tuple[str, str, str]

#: Kernels nest two or three deep; a chain this long is a mistake or an attack.
MAX_DEPTH = 32

#: Kernels of one plan that are looked at at the same time, wherever they stand in it.
AT_ONCE = 8

#: Builds of one snapshot whose metadata is read to choose among them, and the most bytes of it; published kernels have
#: at most some 60 builds, with a few kilobytes each.
MAX_READ, MAX_READ_BYTES = 256, 64 * 2**20

_LOCAL_HINT = "The folder of a local build must keep its variant's name, such as torch-cpu."

_GONE = "not here, and nothing may be downloaded"

#: Versions that are looked at to name one that has a suitable build.
MAX_ALTERNATIVES = 5

#: Builds of each of them whose metadata is read: a hint is worth no more.
_HINT_READ = 16


@dataclass(frozen=True)
class Choice:
    """What builds of a snapshot suit, and why the others do not.

    Attributes:
        requirement: What was asked for, after redirects.
        source: Where it comes from.
        snapshot: The repository at the commit chosen.
        resolution: The builds, judged.
        metadata: What builds say of themselves, by name, as far as it was read.
        lock: The lock that chose the commit, as a message calls it; None where no lock did.
    """

    requirement: Requirement
    source: Source
    snapshot: Snapshot
    resolution: Resolution
    metadata: Mapping[str, Metadata]
    lock: str | None = None

    @property
    def best(self) -> str | None:
        """The name of the build to use."""
        return None if self.resolution.best is None else self.resolution.best.name

    @property
    def gone(self) -> bool:
        """Whether builds that fit by name are not here and may not be downloaded."""
        return any(each.reason == _GONE for each in self.resolution.rejected)


@dataclass(frozen=True)
class Planned:
    """One kernel of a plan.

    Attributes:
        requirement: What was asked for, after redirects.
        source: Where it comes from.
        snapshot: The repository at the commit chosen.
        variant: The build chosen.
        metadata: The build's metadata.
        backend: The name of the backend it was chosen for.
        device: The device it was chosen for, or None where none is visible.
        depends: The kernels it depends on, by repository as its metadata names them.
        signed: Whether a policy demands that its files are the ones that were signed.
        lock: The lock that chose the commit, as a message calls it; None where no lock did.
        pinned: The content that this lock pins of the build.
    """

    requirement: Requirement
    source: Source
    snapshot: Snapshot
    variant: str
    metadata: Metadata
    backend: str
    device: Device | None
    depends: Mapping[str, Planned] = field(default_factory=dict)
    signed: bool = False
    lock: str | None = None
    pinned: ContentHash | None = None

    def walk(self) -> Iterator[Planned]:
        """This kernel and all it depends on, each once, dependencies first."""
        seen: set[int] = set()

        def visit(planned: Planned) -> Iterator[Planned]:
            if id(planned) not in seen:
                seen.add(id(planned))
                for depend in planned.depends.values():
                    yield from visit(depend)
                yield planned

        yield from visit(self)


@dataclass
class Planner:
    """Plans kernels for one target.

    Args:
        sources: Where kernels are found.
        target: The machine they must run on.
        policy: What may be loaded beside what trusted publishers offer.
        backend: The backend to choose builds for, or None for the target's own.
        check_arch: Whether builds must cover the device.
        device: The device's index or Torch name, or None for the current one.
        prerequisites: Whether what a build needs beside a fitting machine must be there: a client new enough, and
            Python packages.
        signed: What must be signed, and by whom; the default is what `KERNELS_POLICY` says. What is the user's own, a
            path, need not be.
        lock: The lock in force: it chooses the commits of what it lists, dependencies and redirects too.
    """

    sources: Sources
    target: Target
    policy: TrustPolicy
    backend: str | None = None
    check_arch: bool = True
    device: int | str | None = None
    prerequisites: bool = True
    signed: Policy | None = field(default_factory=Policy.in_force)
    #: What was found on behalf of the plans so far.
    routes: list[Route] = field(default_factory=list)
    lock: LockInForce = NO_LOCK

    def plan(self, requirement: Requirement) -> Planned:
        """Plan a kernel of a source, with all it depends on.

        Raises:
            KernelsError: One of its kinds says what stands in the way.
        """
        return self._plan(requirement, self.finder.source(requirement))

    def plan_at(self, source: Source, requirement: Requirement) -> Planned:
        """Plan a kernel of one given source; what it depends on comes from the sources."""
        return self._plan(requirement, source)

    def find(self, requirement: Requirement) -> Route:
        """The snapshot that a requirement leads to, of publishers that are trusted.

        Raises:
            KernelsError: As for `plan`.
        """
        found, admitted = self._find(requirement, self.finder.source(requirement))
        if admitted is not Admission.GRANTED:
            raise unverified(found.snapshot.repo_id, found.source.publishers)
        return next(route for route in reversed(self.routes) if route.asked == requirement)

    def pinned(self, found: Found, variant: str) -> ContentHash | None:
        """The content that the lock pins of a build; None where the lock pins none of the commit's.

        Raises:
            DigestMismatch: It pins that of the commit's builds, and this one is none of them.
        """
        return None if found.lock is None else self.lock.content(found.listed_as, found.snapshot.commit, variant)

    def rule(self, source: Source, snapshot: Snapshot) -> Rule | None:
        """What the policy says of who must have signed a snapshot's builds; None where nothing does."""
        return None if self.signed is None or source.user_owned else self.signed.rule(snapshot.repo_id)

    def choose(self, requirement: Requirement, *, every: bool = False) -> Choice:
        """Choose among the builds of a snapshot, whoever publishes it; nothing is downloaded but metadata.

        Args:
            requirement: What is asked for.
            every: Judge every build, not only those needed to find the best.
        """
        return self.choose_at(self.finder.source(requirement), requirement, every=every)

    def choose_at(self, source: Source, requirement: Requirement, *, every: bool = False) -> Choice:
        """Choose among the builds of one given source's snapshot."""
        *_, found = self.finder.follow(requirement, source)
        return self.choose_among(found, every=every)

    def choose_among(self, found: Found, *, every: bool = False) -> Choice:
        """Choose among the builds of a snapshot that was found."""
        return self._choose(found, every=every)

    def choose_from(self, requirement: Requirement, source: Source, snapshot: Snapshot) -> Choice:
        """Choose among the builds of a snapshot that is known already."""
        return self._choose(Found(requirement, source, snapshot, version=requirement.named_version))

    def describe(self, choice: Choice) -> Metadata | None:
        """The metadata of any build of a snapshot, for what it says of the kernel, also where no build suits."""
        there = (name for name in choice.snapshot.builds if _metadata_bytes(choice.snapshot, name))
        for name in islice(there, MAX_READ):
            try:
                return read_metadata(choice.source, choice.snapshot, name)
            except (KernelsError, OSError):
                continue
        return None

    def _plan(self, requirement: Requirement, source: Source) -> Planned:
        """Level by level, each kernel once: a graph has many more ways through it than kernels."""
        start = (source.name, requirement)
        asked_as: dict[Requirement, tuple[str, Requirement]] = {}
        led: dict[tuple[str, Requirement], _Key] = {}
        kernels: dict[_Key, Planned] = {}
        level = {start: _Wanted(requirement, source)}
        while level:
            # What is asked for under several names, or past redirects, may be one kernel.
            new: dict[_Key, tuple[_Wanted, Found, Admission]] = {}
            ways: list[tuple[_Key, Found]] = []
            for (asked, wanted), (steps, admitted) in zip(
                level.items(), _side_by_side(self._steps, [*level.values()]), strict=True
            ):
                self.routes.append(Route(wanted.requirement, tuple(steps)))
                found = steps[-1]
                key = (found.source.name, found.snapshot.repo_id, found.snapshot.commit)
                led[asked] = key
                ways.append((key, found))
                step = (found.snapshot.repo_id, found.snapshot.commit)
                _check_path((*wanted.path, step))
                if key in kernels and admitted is Admission.REFUSED:
                    raise unverified(found.snapshot.repo_id, found.source.publishers)
                if key not in kernels:
                    _, _, other = new.get(key, (wanted, found, admitted))
                    worst = max(admitted, other, key=lambda each: each.value)
                    new[key] = (replace(wanted, path=(*wanted.path, step)), found, worst)
            kernels.update(
                zip(new, _side_by_side(lambda each: self._build(each[1], each[2]), [*new.values()]), strict=True)
            )
            for key, found in ways:
                kernels[key] = self._as_demanded(kernels[key], found)
            level = {}
            for key, (wanted, found, _) in new.items():
                for depend in kernels[key].metadata.kernel_depends:
                    self.finder.mention_unlocked(found, depend)
                    if depend not in asked_as:
                        other_source = self.finder.source(depend)
                        asked = asked_as[depend] = (other_source.name, depend)
                        if asked not in led:
                            level[asked] = _Wanted(depend, other_source, wanted.path)
            if len(led) + len(level) > 1 + MAX_KERNEL_DEPENDS:
                raise DependencyCycle(f"{led[start][1]} depends on more than {MAX_KERNEL_DEPENDS} kernels.")
        edges = {
            key: {depend.repo_id: led[asked_as[depend]] for depend in planned.metadata.kernel_depends}
            for key, planned in kernels.items()
        }
        for key in _dependencies_first(led[start], edges):
            depends = {repo_id: kernels[each] for repo_id, each in edges[key].items()}
            kernels[key] = replace(kernels[key], depends=depends)
        return kernels[led[start]]

    def _build(self, found: Found, admitted: Admission) -> Planned:
        """The build of a snapshot, as a plan has it; what it depends on is not looked at."""
        source, snapshot = found.source, found.snapshot
        choice = self._choose(found, fetchable=admitted is Admission.GRANTED)
        variant = choice.best
        if variant is None:
            raise self._nothing_suits(choice) if not choice.gone else self._not_here(choice, admitted)
        if admitted is Admission.REFUSED:
            raise unverified(snapshot.repo_id, source.publishers)
        if admitted is Admission.ON_DISK:
            warn_unverified(snapshot.repo_id, source.publishers)
        metadata = choice.metadata[variant]
        if self.prerequisites:
            check_prerequisites(snapshot.repo_id, variant, metadata)
        self._mention_uncovered(choice, variant)
        chosen = choice.resolution
        backends.mention_experimental(backends.get(chosen.backend))
        rule = self.rule(source, snapshot)
        return Planned(
            found.requirement,
            source,
            snapshot,
            variant,
            metadata,
            chosen.backend,
            chosen.device,
            signed=rule is not None and rule.required,
            lock=found.lock,
            pinned=self.pinned(found, variant),
        )

    def _as_demanded(self, planned: Planned, found: Found) -> Planned:
        """A kernel as each way that leads to it demands: of the version that it names, and with what a lock pins."""
        try:
            _asked_for(found.version, planned.metadata, self.rule(found.source, found.snapshot))
        except UntrustedSignature as error:
            raise UntrustedSignature(f"{found.requirement}: {error}") from error
        if planned.lock is None and found.lock is not None:
            return replace(planned, lock=found.lock, pinned=self.pinned(found, planned.variant))
        return planned

    def _steps(self, wanted: _Wanted) -> tuple[list[Found], Admission]:
        return self.finder.find(wanted.requirement, wanted.source)

    def _find(self, requirement: Requirement, source: Source) -> tuple[Found, Admission]:
        steps, admitted = self.finder.find(requirement, source)
        self.routes.append(Route(requirement, tuple(steps)))
        return steps[-1], admitted

    @property
    def finder(self) -> Finder:
        """Who finds the snapshots."""
        return Finder(self.sources, self.policy, self.lock, self.signed)

    # From a snapshot to a build

    def _choose(self, found: Found, *, every: bool = False, fetchable: bool = True, most: int = MAX_READ) -> Choice:
        source, snapshot = found.source, found.snapshot
        known: dict[str, Metadata | KernelsError] = {}
        offline = source.offline
        if offline or not fetchable:
            # Nothing can be downloaded: a build that is not complete here is no candidate. One that was changed here
            # is: it is refused where it would be used, and no other one takes its place unsaid.
            known = {
                name: NotInCache(_GONE)
                for name in snapshot.builds
                if not (source.is_local(snapshot, name) or (offline and source.is_damaged(snapshot, name)))
            }
        rule = self.rule(source, snapshot)
        ranking = Ranking(
            snapshot.builds, self.target, backend=self.backend, check_arch=self.check_arch, device=self.device
        )
        for name, fact in known.items():
            ranking.learn(name, fact)
        read = read_bytes = 0
        for name in ranking.unread(every=every):
            size = _metadata_bytes(snapshot, name)
            read, read_bytes = read + (size > 0), read_bytes + size
            if read > most or read_bytes > MAX_READ_BYTES:
                known[name] = _too_many(most)
            else:
                try:
                    known[name] = _asked_for(found.version, read_metadata(source, snapshot, name, rule), rule)
                except (InvalidMetadata, UntrustedSignature) as error:
                    known[name] = error
            ranking.learn(name, known[name])
        resolution = ranking.resolution()
        metadata = {name: fact for name, fact in known.items() if isinstance(fact, Metadata)}
        choice = Choice(found.requirement, source, snapshot, resolution, metadata, found.lock)
        for kind in (UntrustedSignature, InvalidMetadata, InvalidRepository):
            refused = next((fact for fact in known.values() if isinstance(fact, kind)), None)
            if refused is not None and resolution.best is None and not every:
                raise kind(f"{_called(choice)}: {refused}") from refused
        return choice

    def _nothing_suits(self, choice: Choice) -> Exception:
        from kernels.resolver.target import Target

        error = no_suitable_build(_called(choice), choice.resolution, here=self.target == Target.current())
        alternative = self._alternative(choice) if not choice.source.user_owned else _LOCAL_HINT
        return type(error)(f"{error}\n{alternative}") if alternative else error

    def _not_here(self, choice: Choice, admitted: Admission) -> KernelsError:
        snapshot, source = choice.snapshot, choice.source
        if admitted is not Admission.GRANTED and not source.offline:
            return unverified(snapshot.repo_id, source.publishers)
        here = [name for name in snapshot.builds if source.is_local(snapshot, name)]
        return NotInCache(
            f"No suitable build of {snapshot.repo_id}{_at(choice)} is complete in {source.name}. It has "
            f"{format_names(here) or 'none'}; this machine is {self.target}. "
            f"{source.advice(snapshot.repo_id, str(self.target))}"
        )

    def _alternative(self, choice: Choice) -> str | None:
        """A sentence that names a version with a suitable build, if one of the newest has one."""
        asked = choice.requirement
        if choice.lock is not None:
            again = lock_again(choice.lock, f"kernels lock --upgrade-repo {asked.repo_id}")
            return f"The lock chose that commit. Does a newer one suit? {again}"
        if asked.version is None or choice.source.user_owned:
            return None
        try:
            heads = choice.source.heads(asked.repo_id)
            for version in [each for each in heads.versions if each != asked.version][:MAX_ALTERNATIVES]:
                other = Requirement(asked.repo_id, version=version)
                snapshot = choice.source.snapshot(other, heads.branches[heads.versions[version]])
                if (
                    self._choose(Found(other, choice.source, snapshot, version=version), most=_HINT_READ).best
                    is not None
                ):
                    return f"Version {version} has a build that suits: version={version}."
        except (OSError, ValueError):
            return None  # a hint is not worth another error
        return None

    def _mention_uncovered(self, choice: Choice, variant: str) -> None:
        # With `check_arch=False` the caller knows better than the declared architectures.
        uncovered = choice.resolution.uncovered_devices if self.check_arch else ()
        if uncovered:
            names = ", ".join(f"{device.index} ({device.name or device.arch}, {device.arch})" for device in uncovered)
            warn_once(
                f"Build {variant} of {choice.snapshot.repo_id} was chosen for the current device and does not cover "
                f"every visible one: not {names}. For one of those, name it with `device=`."
            )


def read_metadata(source: Source, snapshot: Snapshot, variant: str, rule: Rule | None = None) -> Metadata:
    """The metadata of a build.

    Args:
        source: Where the snapshot comes from.
        snapshot: The snapshot.
        variant: The build.
        rule: What a policy says of the repository: where it requires a signature, that is checked before the metadata
            is parsed.

    Raises:
        InvalidMetadata: It is missing, too large, or not what the format asks for.
        UntrustedSignature: A signature is required, and there is none that the rule accepts.
    """
    path = f"{BUILD_FOLDER}/{variant}/{METADATA_FILE}"
    file = snapshot.file(path)
    if file is None:
        raise InvalidMetadata(f"it has no {METADATA_FILE}, as builds from before the format")
    if file.size > MAX_METADATA_BYTES:
        raise InvalidMetadata(f"its {METADATA_FILE} has {file.size} bytes; metadata is never that large")
    try:
        content = source.read(snapshot, file, MAX_METADATA_BYTES)
    except NotInCache as error:
        raise InvalidMetadata(f"its {METADATA_FILE} is not in the cache") from error
    required = rule is not None and rule.required
    if rule is not None and required:
        require_signature(source, snapshot, variant, content, rule)
    metadata = Metadata.from_bytes(content, where=path)
    if required and metadata.digest is None:
        raise UntrustedSignature(f"its {METADATA_FILE} is signed, but has no digest: nothing says what its files are")
    return metadata


def wrong_version(asked: int | None, metadata: Metadata) -> str | None:
    """Why signed metadata does not serve for a version: it is another one, with faults that were mended since.

    Args:
        asked: The version that was named; None where none was.
        metadata: What was signed.

    Example:
        >>> text = b'{"name": "relu", "id": "_relu_cpu_1234567", "backend": {"type": "cpu"}}'
        >>> wrong_version(2, Metadata.from_bytes(text))
        'what was signed has no version, and version 2 is asked for'
    """
    if asked is None or metadata.version == asked:
        return None
    signed = "has no version" if metadata.version is None else f"is version {metadata.version}"
    return f"what was signed {signed}, and version {asked} is asked for"


def _asked_for(version: int | None, metadata: Metadata, rule: Rule | None) -> Metadata:
    """Metadata; signed one only if it is of the version that is asked for."""
    problem = None if rule is None or not rule.required else wrong_version(version, metadata)
    if problem is not None:
        raise UntrustedSignature(problem)
    return metadata


def _metadata_bytes(snapshot: Snapshot, variant: str) -> int:
    """Bytes of a build's metadata that would be read; none where there is none, or where it is too large."""
    file = snapshot.file(f"{BUILD_FOLDER}/{variant}/{METADATA_FILE}")
    return 0 if file is None or file.size > MAX_METADATA_BYTES else max(1, file.size)


def check_metadata_size(asked: object, snapshot: Snapshot) -> None:
    """Raise `InvalidRepository` when the metadata of all builds of a snapshot is too much to be read at once."""
    size = sum(_metadata_bytes(snapshot, name) for name in snapshot.builds)
    if size > MAX_READ_BYTES:
        raise InvalidRepository(
            f"{asked} has builds with {size} bytes of metadata; more than {MAX_READ_BYTES} are not read."
        )


def _too_many(most: int) -> InvalidRepository:
    return InvalidRepository(
        f"its {METADATA_FILE} was not read: at most {most} of a snapshot are, with {MAX_READ_BYTES // 2**20} MiB "
        "together, and other builds come first"
    )


def _side_by_side(work: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
    """One is looked at in the caller's thread; several are looked at by no more threads than `AT_ONCE`."""
    if len(items) == 1:
        return [work(items[0])]
    return side_by_side(work, items, at_once=AT_ONCE, name="plan")


@dataclass(frozen=True)
class _Wanted:
    """A kernel of a plan that is to be looked at, and the kernels that lead to it."""

    requirement: Requirement
    source: Source
    path: tuple[tuple[str, str], ...] = ()


def _dependencies_first(start: _Key, edges: Mapping[_Key, Mapping[str, _Key]]) -> list[_Key]:
    """All kernels of a plan, each after those that it depends on.

    Raises:
        DependencyCycle: They lead in a circle, or nest too deep.
    """
    longest: dict[_Key, tuple[tuple[str, str], ...]] = {}  # the longest way on from each, which it begins

    def visit(key: _Key, path: tuple[tuple[str, str], ...]) -> None:
        here = (*path, key[1:])
        _check_path(here)
        if key not in longest:
            following = dict.fromkeys(edges[key].values())
            for each in following:
                visit(each, here)
            longest[key] = (key[1:], *max((longest[each] for each in following), key=len, default=()))
        _check_path((*path, *longest[key]))

    visit(start, ())
    return list(longest)


def _check_path(path: tuple[tuple[str, str], ...]) -> None:
    *before, last = path
    if last in before:
        route = " -> ".join(repo_id for repo_id, _ in path[before.index(last) :])
        raise DependencyCycle(f"Kernel dependencies lead in a circle: {route}.")
    if len(path) > MAX_DEPTH:
        route = " -> ".join(repo_id for repo_id, _ in path[:5])
        raise DependencyCycle(f"Kernel dependencies nest more than {MAX_DEPTH} deep: {route} -> …")


def _called(choice: Choice) -> str:
    if choice.source.user_owned:
        return choice.source.name
    return f"{choice.requirement}{_at(choice)}"


def _at(choice: Choice) -> str:
    commit = choice.snapshot.commit[:12]
    pinned = "" if choice.lock is None else f", pinned by {choice.lock}"
    return f" (commit {commit}{pinned})" if commit else ""
