"""The documents of a mirror, all of them, read for a check or a plan."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from kernels.errors import KernelsError, RequestError, StoreError
from kernels.mirror.read_index import read_mirror_index, read_repository_index
from kernels.mirror.stores.base import EntryNotFound, ReadStore
from kernels.models.mirror import (
    MIRROR_FILE,
    MirrorBuild,
    MirrorIndex,
    RepositoryIndex,
    commit_path,
    index_path,
)
from kernels.models.mirror_form import MAX_DOCUMENT_BYTES
from kernels.support.formatting import did_you_mean
from kernels.support.tasks import side_by_side

__all__ = [
    "MirrorProblem",
    "RepositoryContents",
    "choose_repositories",
    "read_contents",
    "read_own_index",
]

#: Documents that are read at once.
_AT_ONCE = 8


@dataclass(frozen=True)
class MirrorProblem:
    """Something in a mirror that is wrong.

    Attributes:
        path: The entry, as the mirror names it.
        problem: What is wrong, without the mirror's address.
    """

    path: str
    problem: str


@dataclass
class RepositoryContents:
    """The documents of one repository.

    Attributes:
        repo_id: The repository.
        index: Its index; None if it is missing or not valid.
        commits: The documents of its commits that are valid.
        problems: What is wrong with the others.
    """

    repo_id: str
    index: RepositoryIndex | None = None
    commits: dict[str, RepositoryIndex] = field(default_factory=dict)
    problems: list[MirrorProblem] = field(default_factory=list)

    def builds(self) -> Iterator[tuple[str, str, str, MirrorBuild]]:
        """Each build of each valid document: the document's path, commit, variant and build."""
        named = [(index_path(self.repo_id), self.index)] if self.index is not None else []
        named += [(commit_path(self.repo_id, commit), index) for commit, index in self.commits.items()]
        for path, index in named:
            for commit, entry in index.commits.items():
                for variant, content in entry.variants.items():
                    yield path, commit, variant, index.builds[content]


def read_own_index(store: ReadStore) -> MirrorIndex:
    """The index of a mirror.

    Raises:
        RequestError: There is no mirror.
        InvalidRepository, UntrustedSignature: It is not valid, or not signed as `KERNELS_MIRROR_KEYS` requires.
        HubUnavailable: The store did not answer.
    """
    try:
        found = store.read(MIRROR_FILE, MAX_DOCUMENT_BYTES)
    except EntryNotFound:
        raise RequestError(f"{store.url} is not a mirror: it has no {MIRROR_FILE}.") from None
    assert found is not None  # only a conditional request has no document
    return read_mirror_index(found.content, f"{store.url}/{MIRROR_FILE}")


def choose_repositories(store: ReadStore, index: MirrorIndex, wanted: Iterable[str]) -> list[str]:
    """The repositories of a mirror that a caller names; all if none is named.

    Raises:
        RequestError: The mirror does not have one.
    """
    chosen = list(dict.fromkeys(wanted))
    known = {repo_id.lower(): repo_id for repo_id in index.repositories}
    for repo_id in chosen:
        if repo_id.lower() not in known:
            hint = did_you_mean(repo_id, index.repositories)
            raise RequestError(f"{store.url} does not have {repo_id}.{hint}")
    return [known[repo_id.lower()] for repo_id in chosen] or sorted(index.repositories)


def read_contents(store: ReadStore, repositories: Collection[str]) -> dict[str, RepositoryContents]:
    """The documents of some repositories. What is wrong with one becomes a problem of its repository.

    Args:
        store: The mirror's store.
        repositories: The repositories.

    Raises:
        StoreError: The store cannot be read.
    """
    found = side_by_side(
        lambda repo_id: _read_index(store, repo_id), repositories, at_once=_AT_ONCE, name="repositories"
    )
    contents = {each.repo_id: each for each in found}
    wanted = [
        (each, commit)
        for each in found
        if each.index is not None
        for commit in dict.fromkeys((*each.index.commits, *each.index.older))
    ]
    side_by_side(lambda item: _read_commit(store, *item), wanted, at_once=_AT_ONCE, name="commits")
    for each in found:
        each.problems.sort(key=lambda problem: problem.path)
        each.commits = dict(sorted(each.commits.items()))
    return contents


def _read_index(store: ReadStore, repo_id: str) -> RepositoryContents:
    contents = RepositoryContents(repo_id)
    contents.index = _read(store, contents, index_path(repo_id), None)
    return contents


def _read_commit(store: ReadStore, contents: RepositoryContents, commit: str) -> None:
    found = _read(store, contents, commit_path(contents.repo_id, commit), commit)
    if found is not None:
        contents.commits[commit] = found


def _read(store: ReadStore, contents: RepositoryContents, path: str, commit: str | None) -> RepositoryIndex | None:
    try:
        found = store.read(path, MAX_DOCUMENT_BYTES)
        assert found is not None  # only a conditional request has no document
        return read_repository_index(found.content, path, contents.repo_id, commit)
    except EntryNotFound:
        contents.problems.append(MirrorProblem(path, "it is missing"))
    except StoreError:
        raise
    except KernelsError as error:
        contents.problems.append(MirrorProblem(path, str(error).removeprefix(f"{path} ")))
    return None
