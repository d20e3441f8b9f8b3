"""Read every file of the cache again, and compare it with the Hub's listing and the build's digest."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kernels.cache.inventory import CacheContents, CachedCommit, is_below, listings
from kernels.errors import DigestMismatch, KernelsError
from kernels.models.metadata import Metadata
from kernels.models.snapshot import BUILD_FOLDER, METADATA_FILE, RepoFile, Snapshot, is_bytecode
from kernels.support.files import is_real_folder
from kernels.support.lock import exclusively
from kernels.trust.content import BuildContent, changed_files

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
    store = commit.store
    lists = [files for _, files in listings(store, commit.commit)]
    # A mirror lists some of the builds that the Hub lists, so a file counts that any of them lists.
    listed = dict.fromkeys(file for files in lists or [store.listing(commit.commit)] for file in files)
    root = store.snapshot(commit.commit)
    here = [file for file in listed if os.path.lexists(root / file.path)]
    wrong = changed_files(root, here)
    right = {file.path: file for file in here if file not in wrong}
    changed = [*{file.path: file for file in wrong if file.path not in right}.values()]
    files = tuple(({file.path: file for file in listed} | right).values())
    unlisted = _unlisted(commit, files) if lists else []
    digest = [] if changed or unlisted else list(_wrong_digests(commit, files))
    repair = repair and all(is_below(root, path) for path in (*(file.path for file in changed), *unlisted))
    if repair:
        for file in changed:
            with exclusively(store.lock(f"{commit.commit}-{_variant(file)}")):
                if changed_files(root, [file]):
                    store.writer(commit.commit).remove(file)
        for path in unlisted:
            with suppress(OSError):
                os.unlink(root / path)
    return VerifiedCommit(
        commit,
        len({file.path for file in here}),
        bool(lists),
        tuple(file.path for file in changed),
        tuple(unlisted),
        tuple(digest),
        repair and bool(changed or unlisted),
    )


def _variant(file: RepoFile) -> str:
    parts = file.path.split("/", 2)
    return parts[1] if len(parts) == 3 else "index"


def _unlisted(commit: CachedCommit, files: tuple[RepoFile, ...]) -> list[str]:
    """Files of a kernel's builds that are not listed."""
    root = commit.store.snapshot(commit.commit)
    if not is_real_folder(root / BUILD_FOLDER):
        return []
    known = {file.path for file in files}
    found = (
        Path(parent, name).relative_to(root).as_posix()
        for parent, _, names in os.walk(root / BUILD_FOLDER)
        for name in names
    )
    return sorted(path for path in found if path not in known and not is_bytecode(path))


def _wrong_digests(commit: CachedCommit, files: tuple[RepoFile, ...]) -> Iterator[str]:
    root = commit.store.snapshot(commit.commit) / BUILD_FOLDER
    with suppress(KernelsError):  # unsafe names: such a snapshot is never loaded
        snapshot = Snapshot(commit.repo_id, commit.commit, files)
        for build in commit.builds:
            if commit.store.missing(commit.commit, snapshot.builds.get(build.variant, ())):
                continue
            with suppress(KernelsError):
                digest = Metadata.read_from_file(root / build.variant / METADATA_FILE).digest
                if digest is not None:
                    try:
                        BuildContent(root / build.variant).check_digest(digest)
                    except DigestMismatch as error:
                        yield f"{build.variant}: {error}"
