"""Read every file of the cache again, and compare it with the Hub's listing and the build's digest."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kernels.cache.inventory import CacheContents, CachedCommit
from kernels.errors import DigestMismatch, KernelsError
from kernels.models.metadata import Metadata
from kernels.models.snapshot import BUILD_FOLDER, METADATA_FILE, RepoFile, Snapshot, is_bytecode
from kernels.support.files import is_real_folder
from kernels.support.lock import exclusively
from kernels.trust.content import BuildContent
from kernels.trust.file_hashes import changed_files

__all__ = ["VerifiedCommit", "verify_contents"]


@dataclass(frozen=True)
class VerifiedCommit:
    """The result of verifying a commit on disk.

    Attributes:
        commit: The commit.
        files: How many files were read.
        listed: Whether a Hub's file list is on disk. Without one the files are compared with their names in the cache,
            which are their hashes.
        changed: The files that are not as listed.
        unlisted: Files of builds that no Hub listed.
        digest: Problems with builds' digests, a sentence each.
        repaired: Whether the wrong files were removed.
    """

    commit: CachedCommit
    files: int
    listed: bool
    changed: tuple[str, ...]
    unlisted: tuple[str, ...]
    digest: tuple[str, ...]
    repaired: bool = False

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not (self.changed or self.unlisted or self.digest)


def verify_contents(
    contents: CacheContents, *, repos: Collection[str] = (), repair: bool = False
) -> Iterator[VerifiedCommit]:
    """Read every file of the cache again, one commit after the other.

    Args:
        contents: The contents of the cache.
        repos: The repositories to verify, `org/name`; empty for all.
        repair: Remove files that are not as listed, so that the next load downloads them again.

    Raises:
        StoreError: A file cannot be removed.
    """
    for commit in contents.commits:
        if commit.size and (not repos or commit.repo_id in repos):
            yield _check(commit, repair)


def _check(commit: CachedCommit, repair: bool) -> VerifiedCommit:
    store, root = commit.store, commit.store.snapshot(commit.commit)
    lists = [snapshot.files for snapshot in commit.listed]
    # A mirror lists some of the builds that the Hub lists, and a build may differ: each list counts.
    listed: dict[str, list[RepoFile]] = {}
    for file in dict.fromkeys(file for files in lists or [store.files(commit.commit)] for file in files):
        listed.setdefault(file.path, []).append(file)
    here = [path for path in listed if os.path.lexists(root / path)]
    wrong = set(changed_files(root, [file for path in here for file in listed[path]]))
    changed = [path for path in here if wrong.issuperset(listed[path])]
    unlisted = sorted(set(_files_of_builds(root)).difference(listed)) if lists else []
    digest: list[str] = []
    if not (changed or unlisted):
        right = [next((each for each in files if each not in wrong), files[0]) for files in listed.values()]
        digest = list(_wrong_digests(commit, right))
    repair = repair and bool(changed or unlisted) and all(_is_below(root, path) for path in (*changed, *unlisted))
    for path in changed if repair else ():
        with exclusively(store.lock(f"{commit.commit}-{_build_of(path)}")):
            if len(changed_files(root, listed[path])) == len(listed[path]):  # nobody has repaired it meanwhile
                content = os.path.basename(os.path.realpath(root / path))
                file = next((each for each in listed[path] if each.blob == content), listed[path][0])
                store.writer(commit.commit).remove(file)
    for path in unlisted if repair else ():
        with suppress(OSError):
            os.unlink(root / path)
    return VerifiedCommit(
        commit, len(here), bool(lists), tuple(changed), tuple(unlisted), tuple(digest), repaired=repair
    )


def _is_below(root: Path, path: str) -> bool:
    """Whether no folder on the path to a file of a snapshot is a link, so that removing it stays inside."""
    return all(is_real_folder(parent) for parent in (root / path).parents if parent.is_relative_to(root))


def _build_of(path: str) -> str:
    parts = path.split("/", 2)
    return parts[1] if len(parts) == 3 else "index"


def _files_of_builds(root: Path) -> Iterator[str]:
    """The files in the builds of a snapshot."""
    for parent, _, names in os.walk(root / BUILD_FOLDER) if is_real_folder(root / BUILD_FOLDER) else ():
        for name in names:
            path = Path(parent, name).relative_to(root).as_posix()
            if not is_bytecode(path):
                yield path


def _wrong_digests(commit: CachedCommit, files: Sequence[RepoFile]) -> Iterator[str]:
    root = commit.store.snapshot(commit.commit) / BUILD_FOLDER
    with suppress(KernelsError):  # unsafe names: such a snapshot is never loaded
        snapshot = Snapshot(commit.repo_id, commit.commit, tuple(files))
        for build in commit.builds:
            listed = snapshot.builds.get(build.variant, ())
            if commit.store.missing(commit.commit, listed):
                continue
            known = {file.path.split("/", 2)[2]: file.sha256 for file in listed if file.sha256}  # compared just now
            with suppress(KernelsError):  # metadata that cannot be read is no metadata with a digest
                digest = Metadata.read_from_file(root / build.variant / METADATA_FILE).digest
                if digest is not None:
                    try:
                        BuildContent(root / build.variant, known=known).check_digest(digest)
                    except DigestMismatch as error:
                        yield f"{build.variant}: {error}"
