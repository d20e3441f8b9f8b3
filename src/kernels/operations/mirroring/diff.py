"""`kernels mirror diff`: what differs between a mirror and another mirror, a Hub or a lockfile."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial

from kernels.errors import InvalidMetadata, KernelsError, RequestError
from kernels.models.metadata import Metadata
from kernels.operations.mirroring.difference import (
    BuildChange,
    CommitChange,
    FieldChange,
    FileDifference,
    MirrorDifference,
    RefChange,
    RepositoryDifference,
)
from kernels.operations.mirroring.sides import (
    BuildListing,
    HubSide,
    LockSide,
    MirrorSide,
    RepositoryState,
    Side,
    open_side,
    origin_of,
)
from kernels.support.concurrency import side_by_side
from kernels.trust.sigstore import parse_bundle, signer_of

__all__ = ["diff_mirror"]

#: Repositories that are compared at once.
_AT_ONCE = 4


def diff_mirror(first: str, second: str | None = None, repositories: Iterable[str] = ()) -> MirrorDifference:
    """What would change if the second side took the place of the first.

    Args:
        first: The address of a mirror, or the path of a lockfile.
        second: The same; `hub` for the Hub of the settings. Default: the origin of the first.
        repositories: The repositories to compare; default: all of the first and the second side.

    Raises:
        RequestError: There is no mirror at an address, or neither side has a repository.
        InvalidRepository, UntrustedSignature: A document is not valid.
        HubUnavailable, StoreError: A store or Hub did not answer.
    """
    old = open_side(first)
    if isinstance(old, HubSide):
        raise RequestError("The first side is a mirror or a lockfile; the Hub can be the second.")
    new = origin_of(old) if second is None else open_side(second)
    wanted = _chosen(old, new, list(dict.fromkeys(repositories)))
    found = side_by_side(partial(_compare, old, new), wanted, at_once=_AT_ONCE, name="diff")
    return MirrorDifference(old.name, new.name, len(wanted), tuple(each for each in found if each is not None))


def _chosen(old: Side, new: Side, wanted: list[str]) -> list[str]:
    ours, theirs = old.repositories() or [], new.repositories()
    if isinstance(new, LockSide):
        known = theirs or []  # a lockfile says nothing of what it does not pin
    elif theirs is None or isinstance(old, LockSide):
        known = ours
    else:
        known = sorted({*ours, *theirs})
    unknown = [repo_id for repo_id in wanted if repo_id not in known]
    if unknown:
        raise RequestError(f"Neither {old.name} nor {new.name} has {unknown[0]}.")
    return wanted or known


def _compare(old: Side, new: Side, repo_id: str) -> RepositoryDifference | None:
    before = old.state(repo_id, None)
    after = new.state(repo_id, before)
    if before is not None and after is not None:
        return _changed(old, new, repo_id, before, after)
    if after is not None:
        return _added(new, repo_id, after)
    return None if before is None else _removed(old, repo_id, before)


def _added(side: Side, repo_id: str, state: RepositoryState) -> RepositoryDifference:
    refs: list[RefChange] = []
    builds: list[BuildChange] = []
    for name, at in sorted(state.refs.items()):
        refs.append(RefChange(name, None, at))
        builds += _compare_builds(name, {}, side.builds(repo_id, at) or {}, ())
    return RepositoryDifference(repo_id, "added", tuple(refs), tuple(builds))


def _removed(side: Side, repo_id: str, state: RepositoryState) -> RepositoryDifference:
    refs: list[RefChange] = []
    builds: list[BuildChange] = []
    for name, at in sorted(state.refs.items()):
        refs.append(RefChange(name, at, None))
        builds += _compare_builds(name, side.builds(repo_id, at) or {}, {}, ())
    return RepositoryDifference(repo_id, "removed", tuple(refs), tuple(builds))


def _changed(
    old: Side, new: Side, repo_id: str, before: RepositoryState, after: RepositoryState
) -> RepositoryDifference | None:
    refs: list[RefChange] = []
    builds: list[BuildChange] = []
    for name in sorted({*before.refs, *after.refs}):
        at, to = before.refs.get(name), after.refs.get(name)
        if at != to:
            refs.append(RefChange(name, at, to))
        elif not (isinstance(old, MirrorSide) and isinstance(new, MirrorSide)):
            continue  # a commit never changes, but a mirror may lack builds of it
        left, right = _builds_of(old, new, repo_id, at), _builds_of(new, old, repo_id, to)
        if at is not None and to is not None and (left is None or right is None):
            continue  # a lockfile, and a commit that the mirror does not have
        skipped = before.absent.get(at or "", frozenset()) if isinstance(new, HubSide) else frozenset()
        builds += _compare_builds(name, left or {}, right or {}, skipped)
    fields = []
    if before.trusted != after.trusted and None not in (before.trusted, after.trusted):
        fields.append(FieldChange("publisher", *(_verdict(each.trusted) for each in (before, after))))
    if before.moved_to != after.moved_to:
        fields.append(FieldChange("moved to", before.moved_to, after.moved_to))
    commits: list[CommitChange] = []
    if before.commits is not None and after.commits is not None:
        commits = _compare_commits(before, after)
        builds += _older_builds(old, new, repo_id, before, after)
    if not (refs or builds or fields or commits):
        return None
    return RepositoryDifference(repo_id, "changed", tuple(refs), tuple(builds), tuple(fields), tuple(commits))


def _compare_commits(before: RepositoryState, after: RepositoryState) -> list[CommitChange]:
    """The commits that one of two mirrors has, without those to which a branch moved."""
    ours, theirs = before.commits or frozenset(), after.commits or frozenset()
    added = sorted(theirs - ours - {*after.refs.values()})
    # A branch that was removed has a line of its own.
    gone = {at for name, at in before.refs.items() if name not in after.refs}
    removed = sorted(ours - theirs - gone)
    return [*(CommitChange(each, "added") for each in added), *(CommitChange(each, "removed") for each in removed)]


def _older_builds(
    old: Side, new: Side, repo_id: str, before: RepositoryState, after: RepositoryState
) -> Iterator[BuildChange]:
    """The builds that differ of the commits that no branch or tag is at, on neither of two mirrors."""
    heads = {*before.refs.values(), *after.refs.values()}
    for commit in sorted({*(before.commits or ()), *(after.commits or ())} - heads):
        yield from _compare_builds(commit, old.builds(repo_id, commit) or {}, new.builds(repo_id, commit) or {}, ())


def _builds_of(side: Side, other: Side, repo_id: str, commit: str | None) -> Mapping[str, BuildListing] | None:
    if commit is None:
        return {}
    found = side.builds(repo_id, commit)
    # A commit is the same everywhere: what a lockfile pins, the mirror may have.
    return other.builds(repo_id, commit) if found is None else found


def _verdict(trusted: bool | None) -> str:
    return {True: "trusted", False: "not trusted", None: "unknown"}[trusted]


def _compare_builds(
    name: str, old: Mapping[str, BuildListing], new: Mapping[str, BuildListing], skipped: Collection[str]
) -> Iterator[BuildChange]:
    for variant in sorted({*old, *new}):
        before, after = old.get(variant), new.get(variant)
        if before is None and after is not None:
            if variant not in skipped:  # not taken before either
                yield BuildChange(name, variant, "added", None, after.size)
        elif after is None and before is not None:
            yield BuildChange(name, variant, "removed", before.size, None)
        elif before is not None and after is not None:
            files, fields = tuple(_files(before, after)), tuple(_fields(before, after))
            if files or fields:
                yield BuildChange(name, variant, "changed", before.size, after.size, files, fields)


def _files(old: BuildListing, new: BuildListing) -> Iterator[FileDifference]:
    for path in sorted({*old.files, *new.files}):
        before, after = old.files.get(path), new.files.get(path)
        if before is None and after is not None:
            yield FileDifference(path, "added", None, after.size)
        elif after is None and before is not None:
            yield FileDifference(path, "removed", before.size, None)
        elif before is not None and after is not None and (before.size, before.blob) != (after.size, after.blob):
            yield FileDifference(path, "changed", before.size, after.size)


def _fields(old: BuildListing, new: BuildListing) -> Iterator[FieldChange]:
    before, after = _metadata(old), _metadata(new)
    for name in {**before, **after}:
        if before.get(name) != after.get(name):
            yield FieldChange(name, before.get(name), after.get(name))
    signers = _signer(old), _signer(new)
    if signers[0] != signers[1]:
        yield FieldChange("signer", *signers)


def _metadata(build: BuildListing) -> dict[str, str | None]:
    if build.metadata is None:
        return {}
    try:
        found = Metadata.from_bytes(build.metadata.encode())
    except InvalidMetadata as error:
        return {"metadata": str(error)}
    return {
        "version": None if found.version is None else str(found.version),
        "license": found.license,
        "backend": found.backend.type,
        "archs": " ".join(sorted(found.backend.archs or ())) or None,
        "kernels": " ".join(sorted(map(str, found.kernel_depends))) or None,
        "python": " ".join(sorted(found.python_depends)) or None,
        "kernels-minver": None if found.kernels_minver is None else str(found.kernels_minver),
        "upstream": found.upstream,
        "source": found.source,
    }


def _signer(build: BuildListing) -> str | None:
    """Who signed, as the signature says; `--verify` checks it."""
    if build.signature is None:
        return None
    try:
        return str(signer_of(parse_bundle(build.signature.encode()).signing_certificate))
    except (KernelsError, ValueError):
        return "a signature that cannot be read here"
