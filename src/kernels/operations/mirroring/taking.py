"""One repository in a run: what is wanted of it, what the mirror has of that, and what was taken."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from kernels.errors import RequestError
from kernels.mirror.ranges import archive_chunks
from kernels.mirror.stores.base import EntryNotFound, WriteStore
from kernels.models.mirror import MirrorArchive, MirrorBuild, MirrorIndex, MirrorOrigin, RepositoryIndex, format_time
from kernels.models.snapshot import Snapshot
from kernels.operations.download_plan import WantedBuild
from kernels.operations.mirroring.builds import check_pinned, content_of
from kernels.operations.mirroring.commit_texts import commit_texts
from kernels.operations.mirroring.merging import TakenCommit, TakenRepository
from kernels.operations.mirroring.request import MirroredBuild, parse_date
from kernels.operations.mirroring.state import MirrorState
from kernels.operations.mirroring.wanted import WantedRepository, verdict
from kernels.support.formatting import format_value, shell_word

__all__ = ["Taking", "prepare"]

#: Documents of older commits that are searched for the builds of a new one.
_OLDER_READ = 8


@dataclass
class Taking:
    """What is taken of one repository in a batch.

    Attributes:
        wanted: What is wanted.
        base: The repository's index in the mirror, when the batch began.
        contents: The content of each build, by commit and name.
        present: Builds that the mirror has, by content.
        taken: Builds that were taken in this batch, by content.
        failed: The builds that could not be taken.
    """

    wanted: WantedRepository
    base: RepositoryIndex | None
    contents: dict[tuple[str, str], str] = field(default_factory=dict)
    present: dict[str, MirrorBuild] = field(default_factory=dict)
    taken: dict[str, MirrorBuild] = field(default_factory=dict)
    failed: set[tuple[str, str]] = field(default_factory=set)

    def missing(self) -> Iterator[tuple[str, WantedBuild]]:
        """The builds that the mirror does not have, with their contents."""
        for key, content in self.contents.items():
            if content not in self.present:
                yield content, self.wanted.builds[key]

    def receive(self, builds: Mapping[str, MirrorBuild | None]) -> None:
        """Note what became of missing builds, by content; None stands for one that could not be taken."""
        for key, content in self.contents.items():
            build = builds.get(content)
            if build is not None:
                self.taken[content] = build
            elif content in builds:
                self.failed.add(key)

    def rows(self, commit: str) -> tuple[MirroredBuild, ...]:
        """The wanted builds of a commit, as the result lists them."""
        rows = []
        for (at, variant), content in sorted(self.contents.items()):
            if at == commit and (at, variant) not in self.failed:
                build = self.taken.get(content) or self.present.get(content)
                size = None if build is None else build.archive.size
                new = content not in self.present
                wanted = self.wanted.builds[at, variant]
                rows.append(MirroredBuild(self.wanted.repo_id, commit, variant, wanted.size, size, new))
        return tuple(rows)

    def names(self, commit: str) -> tuple[str, ...]:
        """The wanted branches and tags that are at a commit."""
        named = {**self.wanted.tags, **self.wanted.pinned, **self.wanted.branches}
        return tuple(sorted(name for name, at in named.items() if at == commit))

    def result(self, state: MirrorState, started: float) -> TakenRepository:
        """What was taken, for the documents.

        Args:
            state: The mirror.
            started: When the run began, in seconds since 1970.

        Raises:
            KernelsError: A text beside the builds cannot be read.
        """
        wanted = self.wanted
        builds = {**self.present, **self.taken}
        commits, whole = {}, set()
        for commit, snapshot in wanted.snapshots.items():
            keys = [key for key in wanted.builds if key[0] == commit]
            variants = {key[1]: self.contents[key] for key in keys if key not in self.failed}
            if keys and not variants:
                continue  # all of its builds failed
            if not any(key in self.failed for key in keys):
                whole.add(commit)
            commits[commit] = self._commit(state, snapshot, variants)
        known = self.base

        def kept(names: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
            # A name never moves from a commit that is whole to one that is not: builds that were there would be gone.
            return {
                name: commit
                for name, commit in names.items()
                if commit in commits and (commit in whole or name not in before)
            }

        return TakenRepository(
            repo_id=wanted.repo_id,
            origin=MirrorOrigin(wanted.source.origin(wanted.repo_id), format_time(started)),
            trusted=verdict(wanted.source, wanted.repo_id),
            branches=kept(wanted.branches, {} if known is None else known.branches),
            tags=kept(wanted.tags, {} if known is None else known.tags),
            pinned={name: commit for name, commit in wanted.pinned.items() if commit in commits},
            moved_to=wanted.moved_to,
            commits=commits,
            builds={content: builds[content] for each in commits.values() for content in each.variants.values()},
        )

    def _all_variants(self, snapshot: Snapshot) -> tuple[str, ...]:
        # A mirror that is taken from may lack builds of its own origin.
        return (*snapshot.builds, *snapshot.absent)

    def _commit(self, state: MirrorState, snapshot: Snapshot, variants: Mapping[str, str]) -> TakenCommit:
        wanted, commit, all_variants = self.wanted, snapshot.commit, self._all_variants(snapshot)
        document = self.base
        if self.base is not None and commit in self.base.older:
            document = state.known(wanted.repo_id, commit)
        known = None if document is None else document.commits.get(commit)
        if known is not None:
            return TakenCommit(variants, all_variants, known.date, known.files, known.texts)
        files, texts = commit_texts(wanted.source, snapshot)
        date = wanted.source.commit_date(wanted.repo_id, commit) or ""
        return TakenCommit(variants, all_variants, date if parse_date(date) is not None else "", files, texts)


def prepare(
    wanted: WantedRepository, state: MirrorState, *, other_origin: bool, look_at_archives: bool, read_archives: bool
) -> Taking:
    """What the mirror has of a wanted repository.

    Args:
        wanted: What is wanted.
        state: The mirror.
        other_origin: Whether it may come from another origin than before.
        look_at_archives: Whether to see that the archives of builds that the mirror lists are there.
        read_archives: Whether to read them, too.

    Raises:
        RequestError: It comes from another origin than before, or differs from another repository only in case.
        DigestMismatch: A build that the mirror has is not what a lockfile pins.
        KernelsError: A document cannot be read.
    """
    base = state.known(wanted.repo_id, None)
    if not other_origin:
        _check_origin(wanted, base, state.store)
    _check_spelling(wanted.repo_id, state.index, state.store)
    contents = {
        (commit, variant): content_of(wanted.source, wanted.snapshots[commit], variant)
        for commit, variant in wanted.builds
    }
    taking = Taking(wanted, base, contents)
    for commit in wanted.snapshots if base is None and read_archives else ():  # of an index that was lost
        document = state.known(wanted.repo_id, commit)
        taking.present.update({} if document is None else document.builds)
    if base is not None:
        taking.present.update(base.builds)
        older = [commit for commit in wanted.snapshots if commit in base.older]
        if not set(contents.values()) <= set(taking.present):
            older += islice((each for each in reversed(base.older) if each not in older), _OLDER_READ)
        for commit in older:
            document = state.known(wanted.repo_id, commit)
            taking.present.update({} if document is None else document.builds)
    if look_at_archives or read_archives:
        for content in set(contents.values()) & taking.present.keys():
            archive = taking.present[content].archive
            missing = state.store.size(archive.name) != archive.size
            if missing or (read_archives and not _is_whole(state.store, archive)):
                del taking.present[content]
    for key, content in contents.items():
        if content in taking.present:
            check_pinned(wanted.builds[key].planned)
    return taking


def _is_whole(store: WriteStore, archive: MirrorArchive) -> bool:
    """Whether an archive has the listed bytes."""
    hasher = hashlib.sha256()
    try:
        with archive_chunks(store, archive) as chunks:
            for chunk in chunks:
                hasher.update(chunk)
    except EntryNotFound:
        return False
    return hasher.hexdigest() == archive.sha256


def _check_origin(wanted: WantedRepository, base: RepositoryIndex | None, store: WriteStore) -> None:
    origin = wanted.source.origin(wanted.repo_id)
    if base is not None and base.origin.url != origin:
        raise RequestError(
            f"{base.repo_id} in {store.url} comes from {format_value(base.origin.url, 200)}, and this run "
            f"takes it from {origin}. Use another mirror; or, to replace it, name the source: "
            f"--from {shell_word(origin)}"
        )


def _check_spelling(repo_id: str, index: MirrorIndex | None, store: WriteStore) -> None:
    listed = () if index is None else index.repositories
    other = next((each for each in listed if each != repo_id and each.lower() == repo_id.lower()), None)
    if other is not None:
        raise RequestError(f"{repo_id} is {other} in {store.url}: take it by that name.")
