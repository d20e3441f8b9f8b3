"""The build to use, or the error that says why none can be used and what helps."""

from __future__ import annotations

from itertools import islice

from msgspec.structs import replace

from kernels.errors import KernelsError, NotInCache
from kernels.models.requirement import Requirement
from kernels.resolver.build_choice import BuildChoice, choose_build
from kernels.resolver.context import ResolveContext
from kernels.resolver.decision import RejectionKind
from kernels.resolver.find import find
from kernels.resolver.found import FoundSnapshot
from kernels.resolver.target import Target
from kernels.sources.base import Source
from kernels.sources.hub_errors import of_hub
from kernels.support.formatting import format_names, shell_word
from kernels.trust.publishers import Admission, unverified

__all__ = ["choose_from_sources", "usable_build", "what_else"]

#: Versions that are looked at to name one that has a suitable build, and builds of each whose metadata is read.
_MAX_ALTERNATIVES, _HINT_READ = 5, 16

_LOCAL_HINT = "The folder of a local build must keep its variant's name, such as torch-cpu."


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
        raise _no_build_error(context, choice)
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
            raise _no_build_error(context, choice)
        return choice

    return find(context, requirement, judged, source, admit=False)


def _no_build_error(context: ResolveContext, choice: BuildChoice) -> KernelsError:
    """The error for a snapshot of which no build can be used."""
    found, source, snapshot = choice.found, choice.source, choice.snapshot
    if choice.resolution.rejects_for(RejectionKind.NOT_LOCAL):
        if found.admission is not Admission.GRANTED and not source.offline:
            return unverified(snapshot.repo_id, source.publishers)
        here = [name for name in snapshot.builds if source.has(snapshot, name)]
        not_here = NotInCache(
            f"No suitable build of {snapshot.repo_id}{found.at} is complete in {source.name}. It has "
            f"{format_names(here) or 'none'}; this machine is {context.target}. "
            f"{source.advice(snapshot.repo_id, str(context.target))}"
        )
        return of_hub(not_here)
    from kernels.resolver.advice import no_suitable_build

    error = no_suitable_build(choice.name, choice.resolution, here=context.target == Target.current())
    if not snapshot.builds and not source.user_owned:
        error = of_hub(error)
    hint = what_else(context, choice)
    return error.reworded(f"{error}\n{hint}") if hint else error


def what_else(context: ResolveContext, choice: BuildChoice) -> str | None:
    """What may help where no build suits, beside another machine, a sentence; None if nothing is known.

    Args:
        context: What the call resolves with.
        choice: The choice, without a best build.
    """
    if choice.source.user_owned:
        return _LOCAL_HINT
    in_mirror = _how_to_mirror(choice, context.target)
    return in_mirror or (_other_version(context, choice.found) if choice.found.final else None)


def _how_to_mirror(choice: BuildChoice, target: Target) -> str | None:
    """How to add a build that suits to a mirror that lacks it; None if no such build is known."""
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


def _other_version(context: ResolveContext, found: FoundSnapshot) -> str | None:
    """A version with a suitable build, if one of the newest has one."""
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
            there = FoundSnapshot(asked, asked, source, snapshot)
            if choose_build(context, there, most=_HINT_READ).best is not None:
                return f"Version {other} has a build that suits: version={other}."
    except (OSError, ValueError):
        return None  # a hint is not worth another error
    return None
