"""One build from its origin into a mirror: fetched and checked as for use, packed, and sent.

What was packed is recorded in the cache until its commit is in the mirror, so that a run that is broken off need
neither fetch nor send again what has arrived.
"""

from __future__ import annotations

import secrets
import shutil
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from kernels import settings
from kernels.cache.store import RepoStore
from kernels.errors import DigestMismatch, InvalidMetadata
from kernels.mirror.archive import pack
from kernels.mirror.stores.base import WriteStore
from kernels.models.cache_places import endpoint_key
from kernels.models.lockfile import GIT_LFS_CONCAT
from kernels.models.metadata import MAX_METADATA_BYTES
from kernels.models.mirror import MirrorArchive, MirrorBuild, MirrorFile, archive_path
from kernels.models.snapshot import BUILD_FOLDER, BUNDLE_FILE, METADATA_FILE, RepoFile, Snapshot
from kernels.operations.download_plan import WantedBuild
from kernels.operations.install import fetch_build
from kernels.operations.mirroring.request import MirrorProgress
from kernels.resolver.content_hash import listed_hash
from kernels.resolver.plan import Planned
from kernels.sources.base import Source
from kernels.sources.cached import CachedSource
from kernels.support.record_file import StoredRecord, read_record, write_record

__all__ = ["BuildTaker", "check_pinned", "content_of", "taken_files"]

#: The largest signature; a bundle of Sigstore has some 10 kB.
_MAX_SIGNATURE_BYTES = 1024 * 1024


class _Packed(StoredRecord):
    """An archive that was packed from a build that was checked."""

    size: int
    sha256: str


class BuildTaker:
    """Puts builds into a mirror.

    Args:
        store: The mirror's store.
        work: The folder of temporary files.
        keep: Whether builds that are fetched stay in the cache.
        send_again: Whether to send an archive also if one of its name and size is there: it is damaged.
        progress: Receives the progress.
    """

    def __init__(
        self, store: WriteStore, work: Path, *, keep: bool, send_again: bool, progress: MirrorProgress | None
    ) -> None:
        self._store = store
        self._work = work
        self._keep = keep
        self._send_again = send_again
        self._progress = progress
        self._guard = threading.Lock()
        self._beside: dict[int, CachedSource] = {}
        self._needed: Counter[tuple[str, str]] = Counter()
        self.sent = 0

    def announce(self, wanted: WantedBuild) -> None:
        """Say that a build will be taken: files that several builds share are kept until the last one is done."""
        with self._guard:
            self._needed.update((wanted.planned.snapshot.repo_id, file.blob) for file in _files(wanted.planned))

    def take(self, wanted: WantedBuild, content: str) -> MirrorBuild:
        """Put a build into the mirror, unless its archive is there.

        Args:
            wanted: The build.
            content: Its content.

        Raises:
            KernelsError: It cannot be fetched, is not what was signed or pinned, or cannot be written.
        """
        planned = wanted.planned
        try:
            metadata, signature = _texts(planned)
            files = taken_files(planned.snapshot, planned.variant)
            with wanted.counted(None if self._progress is None else self._progress.arrived):
                archive = self._already_packed(planned, content) or self._pack_and_send(planned, content, files)
            return MirrorBuild(files=files, archive=archive, metadata=metadata, signature=signature)
        finally:
            self._release(planned)

    def forget_listings(self) -> None:
        """Forget what the sources beside the cache know in memory."""
        for source in self._beside.values():
            source.forget_snapshots()

    def forget(self, content: str) -> None:
        """Forget an archive whose commit is in the mirror."""
        with suppress(OSError):
            _record_path(self._store.url, content).unlink()

    def _already_packed(self, planned: Planned, content: str) -> MirrorArchive | None:
        # What must be checked may have changed since.
        if self._send_again or planned.pinned is not None or planned.signed:
            return None
        known = read_record(_record_path(self._store.url, content), _Packed)
        if known is None or self._store.size(archive_path(known.sha256)) != known.size:
            return None
        return MirrorArchive(archive_path(known.sha256), known.size, known.sha256)

    def _pack_and_send(self, planned: Planned, content: str, files: tuple[MirrorFile, ...]) -> MirrorArchive:
        packed = self._work / f"{secrets.token_hex(8)}.tar.zst"
        try:
            archive = pack(self._fetched(planned), files, packed)
            # Written first: a run may be killed as soon as the archive is there. Until then, nothing follows from it.
            write_record(_record_path(self._store.url, content), _Packed(size=archive.size, sha256=archive.sha256))
            if self._send_again or self._store.size(archive.name) != archive.size:
                self._store.write(archive.name, packed, immutable=True)
                with self._guard:
                    self.sent += archive.size
                if self._progress is not None:
                    self._progress.stored(archive.size)
            return archive
        finally:
            with suppress(OSError):
                packed.unlink()

    def _fetched(self, planned: Planned) -> Path:
        """The folder of a build on disk, checked."""
        source, snapshot, variant = planned.source, planned.snapshot, planned.variant
        if self._keep or not isinstance(source, CachedSource) or source.on_disk(snapshot, variant):
            return fetch_build(planned).path
        beside = self._source_beside(source)
        return fetch_build(replace(planned, found=replace(planned.found, source=beside))).path

    def _source_beside(self, source: CachedSource) -> CachedSource:
        with self._guard:
            if id(source) not in self._beside:
                self._beside[id(source)] = source.with_cache(self._work / "cache")
            return self._beside[id(source)]

    def _release(self, planned: Planned) -> None:
        """Remove the files of a build beside the cache, except those that another one needs."""
        snapshot = planned.snapshot
        store = RepoStore(self._work / "cache", snapshot.repo_id)
        shutil.rmtree(store.snapshot(snapshot.commit) / BUILD_FOLDER / planned.variant, ignore_errors=True)
        with self._guard:
            for file in _files(planned):
                key = snapshot.repo_id, file.blob
                self._needed[key] -= 1
                if self._needed[key] <= 0:
                    del self._needed[key]
                    with suppress(OSError):
                        (store.folder / "blobs" / file.blob).unlink()


def content_of(source: Source, snapshot: Snapshot, variant: str) -> str:
    """The content of a build, as a mirror names it; nothing is read.

    Raises:
        RequestError: The source does not list hashes.
    """
    return listed_hash(source, snapshot, variant, GIT_LFS_CONCAT).value


def check_pinned(planned: Planned) -> None:
    """Compare what a lock pins of a build that is not fetched with its listing.

    Raises:
        DigestMismatch: It is another content.
    """
    pinned = planned.pinned
    if pinned is None:
        return
    found = listed_hash(planned.source, planned.snapshot, planned.variant, pinned.kind)
    if found != pinned:
        raise DigestMismatch(
            f"{planned.snapshot.repo_id}: build {planned.variant} is not what {planned.found.lock} pins: expected "
            f"{pinned.value}, got {found.value}."
        )


def taken_files(snapshot: Snapshot, variant: str) -> tuple[MirrorFile, ...]:
    """The files of a build as a mirror lists them."""
    prefix = f"{BUILD_FOLDER}/{variant}/"
    files = snapshot.builds[variant]
    return tuple(
        sorted(
            (MirrorFile(each.path.removeprefix(prefix), each.size, each.oid, each.sha256) for each in files),
            key=lambda each: each.path,
        )
    )


def _files(planned: Planned) -> tuple[RepoFile, ...]:
    return planned.snapshot.builds[planned.variant]


def _texts(planned: Planned) -> tuple[str | None, str | None]:
    """The text of a build's metadata and of its signature, as published."""
    texts: list[str | None] = []
    for name, limit in ((METADATA_FILE, MAX_METADATA_BYTES), (BUNDLE_FILE, _MAX_SIGNATURE_BYTES)):
        file = planned.snapshot.file(f"{BUILD_FOLDER}/{planned.variant}/{name}")
        if file is None:
            texts.append(None)
            continue
        if file.size > limit:
            raise InvalidMetadata(f"its {name} has {file.size} bytes; more than {limit} are not taken")
        try:
            texts.append(planned.source.read(planned.snapshot, file, limit).decode())
        except UnicodeDecodeError:
            raise InvalidMetadata(f"its {name} is not UTF-8") from None
    return texts[0], texts[1]


def _record_path(url: str, content: str) -> Path:
    # The same build may be on its way to several mirrors.
    return settings.cache_dir() / ".locks" / "kernels-mirrors" / endpoint_key(url) / f"{content}.json"
