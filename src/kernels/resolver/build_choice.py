"""Which build of a snapshot to use: metadata is read in the order of preference until one suits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

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
from kernels.resolver.find import find
from kernels.resolver.found import FoundSnapshot, why_passed
from kernels.resolver.metadata_of import MAX_READ_BYTES, metadata_bytes, metadata_of
from kernels.resolver.target import Target
from kernels.sources.base import Source
from kernels.sources.hub_errors import of_hub
from kernels.support.formatting import format_names, shell_word
from kernels.support.logs import logger
from kernels.support.tasks import side_by_side
from kernels.support.text import clean, one_line
from kernels.support.warn import warn_once
from kernels.trust.publishers import Admission, unverified

__all__ = [
    "BuildChoice",
    "choose_build",
    "choose_from_sources",
    "how_to_mirror",
    "no_build_error",
    "other_version",
    "usable_build",
]

_logger = logger(__name__)

#: Builds of one snapshot whose metadata is read to choose among them; published kernels have at most some 60 builds.
MAX_READ = 256

#: Versions that are looked at to name one that has a suitable build, and builds of each whose metadata is read.
_MAX_ALTERNATIVES, _HINT_READ = 5, 16

#: Builds whose metadata is read at the same time.
_AT_ONCE = 8

#: Errors of a build's metadata that reject it; any other one says nothing about the build.
_REJECTS = (InvalidMetadata, UntrustedSignature)

#: What the name of a build says.
_BY_NAME = frozenset(RejectionKind) - {
    RejectionKind.METADATA,
    RejectionKind.SIGNATURE,
    RejectionKind.ARCH,
    RejectionKind.NOT_LOCAL,
    RejectionKind.NOT_MIRRORED,
}

_LOCAL_HINT = "The folder of a local build must keep its variant's name, such as torch-cpu."


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
    def best(self) -> str | None:
        """The name of the build to use."""
        return self.named if self.resolution.best is None else self.resolution.best.name

    @property
    def title(self) -> str:
        """What was chosen among, and for which machine. More lines say where it is, and whether no build suits."""
        resolution = self.resolution
        pinned = "" if self.lock is None else f", pinned by {self.lock}"
        commit = f" (commit {self.snapshot.commit[:12]}{pinned})" if self.snapshot.commit else ""
        device = "" if resolution.device is None else f", device {resolution.device.index}"
        result = "" if self.best is not None else "\nNo build fits." if resolution.decisions else "\nIt has no builds."
        taken = f"{self.requirement}{commit} for {resolution.target}, backend {resolution.backend}{device}"
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
    readable = set(_readable(snapshot, unread, most))

    def read(name: str) -> Metadata | KernelsError:
        try:
            return metadata_of(context, found, name) if name in readable else _too_many(most)
        except KernelsError as error:
            return error

    def facts() -> Iterator[tuple[str, Metadata | KernelsError]]:
        groups = [] if every else [unread[:1]]  # usually the first one suits, and no other is read
        groups += [unread[start : start + _AT_ONCE] for start in range(len(groups), len(unread), _AT_ONCE)]
        for group in filter(None, groups):
            if likely is not None:
                likely.expect(found, group[0], signed=found.signing_rule(context) is not None)
            alone = len(group) == 1
            read_now = map(read, group) if alone else side_by_side(read, group, at_once=_AT_ONCE, name="metadata")
            yield from zip(group, read_now, strict=True)

    for name, fact in facts():
        if isinstance(fact, KernelsError) and name in readable and not isinstance(fact, _REJECTS):
            raise fact
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
            message = f"{_called(choice)}: {refused}"
            raise (refused.reworded if isinstance(refused, MissingMetadata) else kind)(message) from refused
    if choice.best is None and source.named_build is not None and not every:
        return _as_named(context, choice, source.named_build)
    return choice


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
    if any(each.kind not in _BY_NAME for each in resolution.rejected):
        return choice
    metadata = metadata_of(context, choice.found, name)
    if context.check_arch and metadata.backend.type == resolution.backend:
        archs = metadata.backend.archs
        if backends.get(resolution.backend).arch_reason(archs, resolution.device) is not None:
            return choice
    for each in resolution.rejected:
        if each.kind is not RejectionKind.NAME:
            warn_once(_logger, f"{choice.source.name} is loaded as named, but may not run here: {each.reason}.")
    return replace(choice, metadata={name: metadata}, named=name)


def usable_build(context: ResolveContext, found: FoundSnapshot) -> BuildChoice:
    """The choice among the builds of a snapshot, of which one can be used.

    Args:
        context: What the call resolves with.
        found: The snapshot.

    Raises:
        NoSuitableBuild, NotInCache: None can; the error is short where another source is asked then.
        PublisherUnknown: Nobody could be asked about the publisher.
        KernelsError: As for `choose_build`.
    """
    choice = choose_build(context, found)
    if choice.best is None:
        raise no_build_error(context, choice)
    if found.admission is Admission.REFUSED:
        raise unverified(found.snapshot.repo_id, found.source.publishers)
    return choice


def choose_from_sources(
    context: ResolveContext, requirement: Requirement, source: Source | None = None, *, every: bool = True
) -> BuildChoice:
    """Judge the builds of a kernel, in the source that `get_kernel` would use; its publisher need not be trusted.

    Args:
        context: What the call resolves with.
        requirement: The requirement.
        source: Its source; the default are those that the context's sources name.
        every: Judge every build, not only those needed to find the best.
    """

    def judged(found: FoundSnapshot) -> BuildChoice:
        choice = choose_build(context, found, every=every)
        refused = any(map(choice.resolution.rejects_for, (RejectionKind.SIGNATURE, RejectionKind.METADATA)))
        if choice.best is None and not found.final and not refused:  # refused, `get_kernel` asks no other source
            raise no_build_error(context, choice)
        return choice

    return find(context, requirement, judged, source, admit=False)


def no_build_error(context: ResolveContext, choice: BuildChoice) -> KernelsError:
    """The error for a snapshot of which no build can be used.

    Args:
        context: What the call resolves with.
        choice: The choice, without a best build.
    """
    found, source, snapshot = choice.found, choice.source, choice.snapshot
    if choice.resolution.rejects_for(RejectionKind.NOT_LOCAL):
        if found.admission is not Admission.GRANTED and not source.offline:
            return unverified(snapshot.repo_id, source.publishers)
        here = [name for name in snapshot.builds if source.has(snapshot, name)]
        not_here = NotInCache(
            f"No suitable build of {snapshot.repo_id}{_at(choice)} is complete in {source.name}. It has "
            f"{format_names(here) or 'none'}; this machine is {context.target}. "
            f"{source.advice(snapshot.repo_id, str(context.target))}"
        )
        return of_hub(not_here)
    from kernels.resolver.advice import no_suitable_build

    error = no_suitable_build(_called(choice), choice.resolution, here=context.target == Target.current())
    if not snapshot.builds and not source.user_owned:
        error = of_hub(error)
    hint = _LOCAL_HINT if source.user_owned else how_to_mirror(choice, context.target)
    if hint is None and found.final:
        hint = other_version(context, found)
    return error.reworded(f"{error}\n{hint}") if hint else error


def how_to_mirror(choice: BuildChoice, target: Target) -> str | None:
    """How to add a build that suits to a mirror that lacks it, a sentence; None if no such build is known.

    Args:
        choice: The choice, without a best build.
        target: The machine that it was made for.
    """
    if not choice.resolution.rejects_for(RejectionKind.NOT_MIRRORED):
        return None
    found, repo_id, endpoint = choice.found, choice.snapshot.repo_id, choice.source.endpoint or ""
    if endpoint.startswith("file:"):  # perhaps a carried folder: its origin is not reached from here
        commit = "" if found.lock is not None else f" --revision {shell_word(choice.snapshot.commit)}"
        where = " in the project, and" if found.lock is not None else ""
        add = f"kernels download {repo_id}{commit} --target '{target}' --to DIR"
        return f"To add it,{where} where its origin can be reached: {add}"
    # What is read over http(s) is written somewhere else: a bucket, a folder of the web server.
    web = endpoint.startswith(("http://", "https://"))
    place, where = ("MIRROR", ", with the address where it is written") if web else (shell_word(endpoint), "")
    return f"To add it to the mirror{where}: kernels mirror {place} --repo {repo_id} --target '{target}'"


def other_version(context: ResolveContext, found: FoundSnapshot) -> str | None:
    """A sentence that names a version with a suitable build, if one of the newest has one.

    Args:
        context: What the call resolves with.
        found: The snapshot that has none.
    """
    repo_id, version, source = found.requirement.repo_id, found.requirement.version, found.source
    if found.lock is not None:
        from kernels.models.lockfile import lock_again

        again = lock_again(found.lock, f"kernels lock --upgrade-repo {repo_id}")
        return f"The lock chose that commit. Does a newer one suit? {again}"
    if version is None:
        return None
    try:
        heads = source.heads(repo_id)
        context = replace(context, likely=None)  # no build of it is used
        for other in islice((each for each in heads.versions if each != version), _MAX_ALTERNATIVES):
            asked = Requirement(repo_id, version=other)
            snapshot = source.snapshot(asked, heads.branches[heads.versions[other]])
            there = FoundSnapshot(asked, asked, source, snapshot, version=other)
            if choose_build(context, there, most=_HINT_READ).best is not None:
                return f"Version {other} has a build that suits: version={other}."
    except (OSError, ValueError):
        return None  # a hint is not worth another error
    return None


def _too_many(most: int) -> InvalidRepository:
    return InvalidRepository(
        f"its {METADATA_FILE} was not read: at most {most} of a snapshot are, with {MAX_READ_BYTES // 2**20} MiB "
        "together, and other builds come first"
    )


def _called(choice: BuildChoice) -> str:
    return choice.source.name if choice.source.user_owned else f"{choice.requirement}{_at(choice)}"


def _at(choice: BuildChoice) -> str:
    commit = choice.snapshot.commit[:12]
    pinned = "" if choice.lock is None else f", pinned by {choice.lock}"
    return f" (commit {commit}{pinned})" if commit else ""
