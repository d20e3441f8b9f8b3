"""Which build of a snapshot to use: metadata is read in the order of preference until one suits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from kernels import backends
from kernels.errors import (
    InvalidMetadata,
    InvalidRepository,
    KernelsError,
    MissingMetadata,
    NotInCache,
    UntrustedSignature,
)
from kernels.models.metadata import Metadata
from kernels.models.requirement import Requirement
from kernels.models.snapshot import METADATA_FILE, Snapshot
from kernels.resolver.choice import Resolution, rank
from kernels.resolver.context import ResolveContext
from kernels.resolver.decision import NotInMirror, RejectionKind
from kernels.resolver.found import FoundSnapshot, why_passed
from kernels.resolver.metadata_of import MAX_READ_BYTES, metadata_bytes, metadata_of
from kernels.sources.base import Source
from kernels.support.logs import logger, warn_once
from kernels.support.tasks import side_by_side
from kernels.support.text import clean, one_line
from kernels.trust.publishers import Admission

if TYPE_CHECKING:
    from kernels.resolver.likely_builds import LikelyBuilds

__all__ = ["MAX_READ", "BuildChoice", "choose_build"]

_logger = logger(__name__)

#: Builds of one snapshot whose metadata is read to choose among them; published kernels have at most some 60 builds.
MAX_READ = 256

#: Builds whose metadata is read at the same time.
_AT_ONCE = 8

#: Errors of a build's metadata that reject it; any other one says nothing about the build.
_REJECTS = (InvalidMetadata, NotInCache, UntrustedSignature)


class BuildChoice(msgspec.Struct, frozen=True):
    """Which builds of a snapshot suit, and why the others do not.

    Attributes:
        found: The snapshot.
        resolution: The builds, judged.
        metadata: The metadata of builds, by name, as far as it was read.
        named: The build that the user named by its folder, where it is used although its name does not suit.
    """

    found: FoundSnapshot
    resolution: Resolution
    metadata: Mapping[str, Metadata]
    named: str | None = None

    @property
    def requirement(self) -> Requirement:
        """The requirement, after redirects."""
        return self.found.requirement

    @property
    def source(self) -> Source:
        """Where the snapshot comes from."""
        return self.found.source

    @property
    def snapshot(self) -> Snapshot:
        """The repository at the commit chosen."""
        return self.found.snapshot

    @property
    def lock(self) -> str | None:
        """The lock that chose the commit, as a message calls it; None where no lock did."""
        return self.found.lock

    @property
    def name(self) -> str:
        """What was chosen among, for messages."""
        return self.source.name if self.source.user_owned else f"{self.requirement}{self.found.at}"

    @property
    def best(self) -> str | None:
        """The name of the build to use."""
        return self.named if self.resolution.best is None else self.resolution.best.name

    @property
    def title(self) -> str:
        """What was chosen among, and for which machine. More lines say where it is, and whether no build suits."""
        resolution = self.resolution
        device = "" if resolution.device is None else f", device {resolution.device.index}"
        result = "" if self.best is not None else "\nNo build fits." if resolution.decisions else "\nIt has no builds."
        taken = f"{self.requirement}{self.found.at} for {resolution.target}, backend {resolution.backend}{device}"
        passed = [f"\n{one_line(why_passed(self.found.asked, *each))}." for each in self.found.passed]
        where = f"\nFrom {self.source.name}." if passed or not self.found.final else ""
        return f"{taken}{where}{''.join(passed)}{result}"

    def _repr_html_(self) -> str:
        from kernels.support.html_table import html_table

        title, *result = self.title.split("\n")
        rows = [each.row for each in self.resolution.decisions]
        return html_table(("variant", "verdict", "reason"), rows, title=title, notes=result)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        # IPython's plain text.
        lines = [
            f"{name}: {verdict}, {reason}" for name, verdict, reason in (each.row for each in self.resolution.decisions)
        ]
        printer.text(clean("\n".join([self.title, *map(one_line, lines)])))


def choose_build(
    context: ResolveContext, found: FoundSnapshot, *, every: bool = False, most: int = MAX_READ
) -> BuildChoice:
    """Choose among the builds of a snapshot; only metadata is downloaded, unless the call expects to fetch a build.

    What may not be downloaded is a candidate only where it is complete on disk.

    Args:
        context: What the call resolves with.
        found: The snapshot.
        every: Judge every build, not only those needed to find the best.
        most: Builds whose metadata is read at most.

    Raises:
        UntrustedSignature, InvalidMetadata, InvalidRepository: No build suits, and one was rejected for that. Not where
            every build is judged.
    """
    choice = _choose_listed(context, found, every=every, most=most)
    if choice.best is None and found.admission is Admission.GRANTED:
        again = found.source.listed_again(found.snapshot)  # a mirror may have got builds since
        if again is not None:
            choice = _choose_listed(context, replace(found, snapshot=again), every=every, most=most)
    return choice


def _choose_listed(context: ResolveContext, found: FoundSnapshot, *, every: bool, most: int) -> BuildChoice:
    source, snapshot = found.source, found.snapshot
    fetchable = found.admission is Admission.GRANTED
    known: dict[str, Metadata | KernelsError] = {}
    if source.offline or not fetchable:
        known = {
            name: NotInCache("not here, and nothing may be downloaded")
            for name in snapshot.builds
            if not source.has(snapshot, name)
        }
    absent = [name for name in snapshot.absent if name not in snapshot.builds]
    known |= {name: NotInMirror(f"not in {source.name}") for name in absent}
    ranking = rank(
        [*snapshot.builds, *absent],
        context.target,
        backend=context.backend,
        check_arch=context.check_arch,
        device=context.device,
    )

    likely = context.likely if fetchable and not every else None
    unread = [name for name in ranking.fitting if name not in known]
    for name, fact in _facts(context, found, unread, likely, every=every, most=most):
        known[name] = fact
        if not every and ranking.rejection(name, fact) is None:
            break
    resolution = ranking.decide(known)
    if likely is not None:
        likely.settle(found, None if resolution.best is None else resolution.best.name)
    choice = BuildChoice(found, resolution, {name: fact for name, fact in known.items() if isinstance(fact, Metadata)})
    for kind in (UntrustedSignature, InvalidMetadata, InvalidRepository):
        refused = next((fact for fact in known.values() if isinstance(fact, kind)), None)
        if refused is not None and resolution.best is None and not every:
            message = f"{choice.name}: {refused}"
            raise (refused.reworded if isinstance(refused, MissingMetadata) else kind)(message) from refused
    if source.named_build is not None and not ranking.fitting and not every:
        return _as_named(context, choice, source.named_build)
    return choice


def _facts(
    context: ResolveContext,
    found: FoundSnapshot,
    names: Sequence[str],
    likely: LikelyBuilds | None,
    *,
    every: bool,
    most: int,
) -> Iterator[tuple[str, Metadata | KernelsError]]:
    """The metadata of builds in turn, or the error that rejects a build; they are read in groups."""
    readable = set(_readable(found.snapshot, names, most))

    def read(name: str) -> Metadata | KernelsError:
        try:
            return metadata_of(context, found, name) if name in readable else _too_many(most)
        except NotInCache:
            return NotInCache(f"its {METADATA_FILE} is not in the cache")
        except KernelsError as error:
            return error

    groups = [] if every else [names[:1]]  # usually the first one suits, and no other is read
    groups += [names[start : start + _AT_ONCE] for start in range(len(groups), len(names), _AT_ONCE)]
    for group in filter(None, groups):
        if likely is not None:
            likely.expect(found, group[0], signed=found.signing_rule(context) is not None)
        alone = len(group) == 1
        facts = map(read, group) if alone else side_by_side(read, group, at_once=_AT_ONCE, name="metadata")
        for name, fact in zip(group, facts, strict=True):
            if isinstance(fact, KernelsError) and name in readable and not isinstance(fact, _REJECTS):
                raise fact
            yield name, fact


def _readable(snapshot: Snapshot, names: Iterable[str], most: int) -> Iterator[str]:
    """The first builds, as many as metadata is read of."""
    read = read_bytes = 0
    for name in names:
        size = metadata_bytes(snapshot, name)
        read, read_bytes = read + (size > 0), read_bytes + size
        if read > most or read_bytes > MAX_READ_BYTES:
            return
        yield name


def _as_named(context: ResolveContext, choice: BuildChoice, name: str) -> BuildChoice:
    """The choice of a folder that is one build: the user chose it, so its name decides nothing.

    Raises:
        InvalidMetadata: Its metadata is not valid.
    """
    resolution = choice.resolution
    metadata = metadata_of(context, choice.found, name)
    if context.check_arch and metadata.backend.type == resolution.backend:
        archs = metadata.backend.archs
        if backends.get(resolution.backend).arch_reason(archs, resolution.device) is not None:
            return choice
    for each in resolution.rejected:
        if each.kind is not RejectionKind.NAME:
            warn_once(_logger, f"{choice.source.name} is loaded as named, but may not run here: {each.reason}.")
    return replace(choice, metadata={name: metadata}, named=name)


def _too_many(most: int) -> InvalidRepository:
    return InvalidRepository(
        f"its {METADATA_FILE} was not read: at most {most} of a snapshot are, with {MAX_READ_BYTES // 2**20} MiB "
        "together, and other builds come first"
    )
