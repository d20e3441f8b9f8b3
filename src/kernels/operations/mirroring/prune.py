"""`kernels mirror --prune`: remove what is no longer wanted from a mirror, by a plan that is shown first.

The documents go first, the archives last: a reader never finds a document that names something that was removed.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from msgspec.structs import replace

from kernels._version import __version__
from kernels.errors import InvalidRepository, RequestError
from kernels.mirror.signing import MirrorSigner
from kernels.mirror.stores.base import StoredEntry, WriteStore
from kernels.models.lockfile import Lock
from kernels.models.mirror import (
    MirrorIndex,
    RepositoryIndex,
    commit_path,
    format_time,
    index_path,
    parse_time,
)
from kernels.models.snapshot import Heads
from kernels.operations.mirroring.contents import (
    MirrorProblem,
    RepositoryContents,
    choose_repositories,
    read_contents,
    read_own_index,
)
from kernels.operations.mirroring.documents import MirrorDocuments
from kernels.operations.mirroring.merging import listed_repository
from kernels.operations.mirroring.pages import update_pages
from kernels.operations.mirroring.request import ALL_VERSIONS, MirrorVersions
from kernels.support.tasks import side_by_side

__all__ = ["MirrorPrunePlan", "MirrorPruneResult", "PrunedCommit", "plan_mirror_prune", "prune_mirror"]

#: A writer sends archives first, and then the documents that name them: what nothing names may be that of a writer at
#: work. After a day it is what a writer left that was broken off.
GRACE_SECONDS = 24 * 3600.0

_AT_ONCE = 8


@dataclass(frozen=True)
class PrunedCommit:
    """A commit of a mirror, and what becomes of it.

    Attributes:
        repo_id: The repository.
        commit: The commit.
        names: The branches and tags that are at it.
        taken: When it was last taken from its origin.
        why: Why it is removed, or kept.
    """

    repo_id: str
    commit: str
    names: tuple[str, ...]
    taken: str
    why: str


@dataclass(frozen=True)
class MirrorPrunePlan:
    """What is to be removed from a mirror.

    Attributes:
        url: The mirror.
        repositories: Repositories that are removed as a whole.
        branches: The branches that are removed, with their commits, by repository.
        remove: The commits that are removed.
        kept: The other commits that no branch or tag is at.
        documents: Documents that nothing names.
        archives: The archives that no document names then.
        recent: Archives that nothing names, and that a writer may have sent just now: they are kept.
    """

    url: str
    repositories: tuple[str, ...]
    branches: dict[str, dict[str, str]]
    remove: tuple[PrunedCommit, ...]
    kept: tuple[PrunedCommit, ...]
    documents: tuple[str, ...]
    archives: tuple[StoredEntry, ...]
    recent: tuple[StoredEntry, ...]

    @property
    def frees(self) -> int:
        """Bytes of the archives that are removed."""
        return sum(each.size for each in self.archives)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to remove."""
        return not (self.repositories or self.branches or self.remove or self.documents or self.archives)


@dataclass(frozen=True)
class MirrorPruneResult:
    """What was removed.

    Attributes:
        commits: The commits.
        archives: The archives.
        freed: Bytes of the archives.
        problems: Documents that name a removed archive: a writer was at work at the same moment.
    """

    commits: tuple[PrunedCommit, ...]
    archives: tuple[str, ...]
    freed: int
    problems: tuple[MirrorProblem, ...] = ()


def plan_mirror_prune(
    store: WriteStore,
    repositories: Iterable[str] = (),
    *,
    remove: Iterable[str] = (),
    versions: MirrorVersions = ALL_VERSIONS,
    locks: Sequence[Lock] = (),
    older_than: float | None = None,
    now: float | None = None,
) -> MirrorPrunePlan:
    """What can be removed: commits that no branch or tag is at, and archives that no document names.

    Args:
        store: The mirror's store.
        repositories: Remove commits of these repositories alone; of all if none is named.
        remove: Repositories to remove as a whole.
        versions: The versions to keep; the branches of others are removed.
        locks: Lockfiles whose commits are kept.
        older_than: Keep commits that were taken within this many seconds.
        now: The time, in seconds since 1970.

    Raises:
        RequestError: There is no mirror, or it does not have a repository; or a lockfile pins a commit of a repository
            that is to be removed.
        InvalidRepository: A document is missing or not valid: an archive that it names would be removed.
        HubUnavailable, StoreError: The store did not answer.
    """
    clock = time.time() if now is None else now
    own = read_own_index(store)
    removed = tuple(dict.fromkeys(choose_repositories(store, own, remove))) if (remove := tuple(remove)) else ()
    chosen = {*choose_repositories(store, own, repositories), *removed}
    contents = read_contents(store, _everything(store, own))
    _check_whole(store, (each for each in contents.values() if each.repo_id not in removed))
    pinned = {(pin.requirement.repo_id.lower(), pin.commit): lock.where for lock in locks for pin in lock.pins}
    for repo_id, commit in pinned:
        if repo_id in {each.lower() for each in removed}:
            raise RequestError(f"{pinned[repo_id, commit]} pins {repo_id} at {commit[:12]}: it cannot be removed.")
    branches: dict[str, dict[str, str]] = {}
    gone: list[PrunedCommit] = []
    kept: list[PrunedCommit] = []
    for repo_id, each in contents.items():
        if each.index is None:
            continue  # it is removed as a whole
        dropped = {} if repo_id not in chosen or repo_id in removed else _dropped(each.index, versions)
        if dropped:
            branches[repo_id] = dropped
        left = {**each.index.tags, **{name: at for name, at in each.index.branches.items() if name not in dropped}}
        newest = max((entry.taken for entry in each.index.commits.values()), default="")
        for commit, document in each.commits.items():
            names = tuple(name for name, at in {**each.index.tags, **each.index.branches}.items() if at == commit)
            taken = document.commits[commit].taken
            recently = older_than is not None and parse_time(taken) > clock - older_than
            if repo_id in removed:
                gone.append(PrunedCommit(repo_id, commit, names, taken, "its repository is removed"))
                continue
            if commit in left.values():
                continue
            if (repo_id.lower(), commit) in pinned:
                kept.append(PrunedCommit(repo_id, commit, names, taken, f"pinned by {pinned[repo_id.lower(), commit]}"))
            elif repo_id not in chosen:
                kept.append(PrunedCommit(repo_id, commit, names, taken, "another repository"))
            elif recently:
                kept.append(PrunedCommit(repo_id, commit, names, taken, "taken recently"))
            else:
                why = f"{' and '.join(sorted(set(names) & set(dropped)))} is removed" if names else "no branch is at it"
                # A lockfile moves no branch. After a branch has moved, its commit is the one that was taken last.
                last = not names and taken > newest
                why += "; newer in this mirror than its branches: a lockfile may pin it" if last else ""
                gone.append(PrunedCommit(repo_id, commit, names, taken, why))
    away = {(each.repo_id, each.commit) for each in gone}
    still = {
        build.archive.name
        for repo_id, each in contents.items()
        for _, commit, _, build in each.builds()
        if repo_id not in removed and (repo_id, commit) not in away
    }
    archives, recent = _unnamed_archives(store, still, _named(contents.values()) - still, clock)
    return MirrorPrunePlan(
        url=store.url,
        repositories=removed,
        branches=branches,
        remove=tuple(gone),
        kept=tuple(kept),
        documents=_unnamed_documents(store, contents, clock),
        archives=archives,
        recent=recent,
    )


def prune_mirror(store: WriteStore, plan: MirrorPrunePlan, signer: MirrorSigner | None = None) -> MirrorPruneResult:
    """Remove what a plan names, as far as nobody changed it meanwhile.

    A branch that moved stays, and so does a commit that a branch is at now.

    Args:
        store: The mirror's store.
        plan: The plan.
        signer: Signs the documents that are changed.

    Raises:
        InvalidRepository, UntrustedSignature: A document is not valid. Archives are removed last, so nothing is lost.
        HubUnavailable, StoreError: The store did not answer, or cannot be written.
    """
    documents = MirrorDocuments(store, signer)
    now = format_time(time.time())
    changed: dict[str, RepositoryIndex] = {}
    wanted: dict[str, set[str]] = {}
    for each in plan.remove:
        wanted.setdefault(each.repo_id, set()).add(each.commit)
    for repo_id in sorted({*wanted, *plan.branches} - {*plan.repositories}):

        def change(before: RepositoryIndex | None, repo_id: str = repo_id) -> RepositoryIndex:
            if before is None:
                raise InvalidRepository(f"{store.url}/{index_path(repo_id)} was removed by another writer.")
            return _without(before, plan.branches.get(repo_id, {}), wanted.get(repo_id, set()), now)

        changed[repo_id] = documents.change_repository(repo_id, change)
    if changed or plan.repositories:
        documents.change_mirror(lambda before: _listed(before, changed, plan.repositories, now))
        update_pages(store, documents, wanted=False)  # they have links to the archives
    for repo_id in plan.repositories:
        store.delete(index_path(repo_id))
    gone = tuple(
        each
        for each in plan.remove
        if each.repo_id in plan.repositories
        or not {each.commit} & {*changed[each.repo_id].commits, *changed[each.repo_id].older}
    )
    paths = [*(commit_path(each.repo_id, each.commit) for each in gone), *plan.documents]
    side_by_side(store.delete, paths, at_once=_AT_ONCE, name="prune")
    # A writer may have named one of the archives since the plan.
    contents = read_contents(store, _everything(store, read_own_index(store)))
    _check_whole(store, contents.values())
    named = _named(contents.values())
    archives = [each for each in plan.archives if each.path not in named]
    side_by_side(lambda each: store.delete(each.path), archives, at_once=_AT_ONCE, name="prune")
    removed = {each.path for each in archives}
    problems: list[MirrorProblem] = []
    if removed:  # a writer may have named one of them since; no document may name what is not there
        repaired: dict[str, RepositoryIndex] = {}
        for found in read_contents(store, _everything(store, read_own_index(store))).values():
            lost = [item for item in found.builds() if item[3].archive.name in removed]
            for path, commit, variant, _ in lost:
                why = f"{variant} of commit {commit} was written while its archive was removed; it is taken out"
                problems.append(MirrorProblem(path, why))

            def take_out(before: RepositoryIndex | None) -> RepositoryIndex:
                assert before is not None
                return _without_archives(before, removed, now)

            for commit in found.commits if lost else ():
                documents.change_commit(found.repo_id, commit, take_out)
            if lost:
                repaired[found.repo_id] = documents.change_repository(found.repo_id, take_out)
        if repaired:
            documents.change_mirror(lambda before: _listed(before, repaired, (), now))
    return MirrorPruneResult(gone, tuple(sorted(removed)), sum(each.size for each in archives), tuple(problems))


def _everything(store: WriteStore, own: MirrorIndex) -> list[str]:
    """The repositories of a mirror, also those that its index lacks because a run was broken off."""
    found = set(own.repositories)
    for entry in store.entries("api/kernels"):
        repo_id = entry.path.removeprefix("api/kernels/").removesuffix("/refs")
        with suppress(RequestError):
            if entry.path == index_path(repo_id):
                found.add(repo_id)
    return sorted(found)


def _check_whole(store: WriteStore, contents: Iterable[RepositoryContents]) -> None:
    """Raise if a document cannot be read: nobody knows which archives it names."""
    for each in contents:
        for problem in each.problems:
            raise InvalidRepository(
                f"{store.url}/{problem.path}: {problem.problem.rstrip('.')}. It may name archives: none was removed. "
                "`kernels mirror --verify` lists what is wrong; `--repo REPO --repair` writes documents anew."
            )


def _dropped(index: RepositoryIndex, versions: MirrorVersions) -> dict[str, str]:
    """The branches of versions that are not kept."""
    heads = Heads(index.branches)
    kept = set(versions.of(heads))
    return {name: index.branches[name] for version, name in heads.versions.items() if version not in kept}


def _without(before: RepositoryIndex, branches: dict[str, str], commits: set[str], now: str) -> RepositoryIndex:
    """An index without some branches, if they are where they were, and without commits that no name is at."""
    left = {name: at for name, at in before.branches.items() if branches.get(name) != at}
    heads = {*left.values(), *before.tags.values()}
    entries = {commit: entry for commit, entry in before.commits.items() if commit in heads}
    older = tuple(
        commit
        for commit in dict.fromkeys((*before.older, *before.commits))
        if commit not in heads and commit not in commits
    )
    used = {content for entry in entries.values() for content in entry.variants.values()}
    after = replace(
        before,
        branches=left,
        commits=entries,
        older=older,
        builds={content: build for content, build in before.builds.items() if content in used},
    )
    return before if after == before else replace(after, number=before.number + 1, time=now)


def _without_archives(before: RepositoryIndex, removed: Collection[str], now: str) -> RepositoryIndex:
    """A document without the builds whose archives were removed; a run that takes the commit brings them again."""
    builds = {content: build for content, build in before.builds.items() if build.archive.name not in removed}
    if builds == before.builds:
        return before
    commits = {
        commit: replace(
            entry,
            variants={variant: content for variant, content in entry.variants.items() if content in builds},
            absent=tuple(
                sorted({*entry.absent, *(name for name, content in entry.variants.items() if content not in builds)})
            ),
        )
        for commit, entry in before.commits.items()
    }
    return replace(before, number=before.number + 1, time=now, commits=commits, builds=builds)


def _listed(
    before: MirrorIndex | None, changed: dict[str, RepositoryIndex], removed: Collection[str], now: str
) -> MirrorIndex:
    assert before is not None  # it was read for the plan
    repositories = {name: entry for name, entry in before.repositories.items() if name not in removed}
    for repo_id, index in changed.items():
        if repo_id in repositories and repositories[repo_id].number < index.number:
            repositories[repo_id] = listed_repository(index)
    if repositories == before.repositories:
        return before
    return replace(
        before, number=before.number + 1, time=now, writer=f"kernels {__version__}", repositories=repositories
    )


def _named(contents: Iterable[RepositoryContents]) -> set[str]:
    return {build.archive.name for each in contents for _, _, _, build in each.builds()}


def _unnamed_archives(
    store: WriteStore, still: set[str], released: set[str], now: float
) -> tuple[tuple[StoredEntry, ...], tuple[StoredEntry, ...]]:
    """The archives that nothing names once the commits are gone, and those among them that may be a writer's."""
    archives, recent = [], []
    for entry in store.entries("archives"):
        if entry.path in still:
            continue
        if entry.path in released or (entry.modified is not None and entry.modified < now - GRACE_SECONDS):
            archives.append(entry)
        else:
            recent.append(entry)
    return tuple(archives), tuple(recent)


def _unnamed_documents(store: WriteStore, contents: dict[str, RepositoryContents], now: float) -> tuple[str, ...]:
    """Documents of commits that their repository's index does not name, as a run that was broken off leaves them."""
    named = {index_path(repo_id) for repo_id in contents}
    named |= {commit_path(repo_id, commit) for repo_id, each in contents.items() for commit in each.commits}
    return tuple(
        entry.path
        for entry in store.entries("api/kernels")
        if entry.path not in named and entry.modified is not None and entry.modified < now - GRACE_SECONDS
    )
