"""Folders as sources: a folder of repositories, and one kernel in a folder of the user."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from kernels import settings
from kernels.errors import InvalidRepository, NotInCache, RepositoryNotFound, RevisionNotFound
from kernels.models.requirement import SHORTEST_COMMIT, Requirement, is_repo_id
from kernels.models.snapshot import BUILD_FOLDER, METADATA_FILE, STATUS_FILE, Heads, RepoFile, Snapshot, is_bytecode
from kernels.settings import Verify
from kernels.sources.base import Moved, Source
from kernels.sources.folder_record import FolderRecord, FolderRecords, plain_files
from kernels.sources.hub_errors import of_hub
from kernels.support.files import FileTooLarge, read_bounded
from kernels.support.formatting import shell_word
from kernels.trust.content import BuildContent, content_mismatch
from kernels.trust.publishers import PublisherTrust

__all__ = ["FolderSource", "PathSource", "files_below"]


class FolderPublishers:
    """The publishers of a folder of repositories, as the Hub judged them when the folder was filled.

    Args:
        root: The folder.
        records: Its records.
    """

    def __init__(self, root: Path, records: FolderRecords) -> None:
        self._root = root
        self._records = records

    @property
    def authority(self) -> str:
        """The Hub that the folder was filled from."""
        return f"the Hub that the folder {self._root} was filled from"

    def trust(self, repo_id: str) -> PublisherTrust:
        """What the Hub said of a repository's publisher when the folder was filled."""
        trusted = record.trusted if (record := self._records.of(self._root / repo_id)) is not None else None
        return {True: PublisherTrust.TRUSTED, False: PublisherTrust.UNTRUSTED, None: PublisherTrust.UNKNOWN}[trusted]

    def problem(self, repo_id: str) -> None:
        """None: a folder is not asked over a network."""

    def publishes(self, repo_id: str, commit: str) -> bool:
        """Always: the user named the folder."""
        return True

    def may_use_cached(self, snapshot: Snapshot) -> bool:
        """Always: the user named the folder, and all of it is on disk."""
        return True

    def remember_allowed(self, snapshot: Snapshot) -> None:
        """Nothing: what is on disk is never refused."""


class FolderSource(Source):
    """A folder of repositories: `<root>/<org>/<name>/<version or revision>/build/<variant>/…`.

    Each sub-folder of a repository is one of its versions (`v1`) or revisions; its name is used as the commit. Where
    an older `kernels download --to` wrote a record, it gives branches, commits and whether the publisher is trusted,
    and only the builds that it lists exist.

    Args:
        root: The folder.
        verify: When the content of builds is checked, the default as `KERNELS_VERIFY` says.
    """

    endpoint = None

    def __init__(self, root: Path, *, verify: Verify | None = None) -> None:
        self.root = root
        self.verify = settings.verify_when(verify)
        self._records = FolderRecords()
        self.publishers = FolderPublishers(root, self._records)

    @property
    def name(self) -> str:
        """`the folder /path`."""
        return f"the folder {self.root}"

    def origin(self, repo_id: str) -> str:
        """The Hub in the record; a folder without one has no other origin."""
        record = self._record(repo_id)
        return self.name if record is None else record.endpoint

    def repositories(self, publisher: str | None = None) -> Iterable[str]:
        """The repositories in the folder that have a record; others have no commits."""
        for path in sorted(self.root.glob(f"{publisher or '*'}/*")):
            repo_id = path.relative_to(self.root).as_posix()
            if is_repo_id(repo_id) and self._record(repo_id) is not None:
                yield repo_id

    def heads(self, repo_id: str) -> Heads:
        """The branches in the record, else the sub-folders of the repository's folder."""
        folder = self._repository(repo_id)
        record = self._record(repo_id)
        if record is None:
            return Heads({path.name: path.name for path in sorted(folder.iterdir()) if path.is_dir()})
        if record.moved_to is not None:
            raise Moved(repo_id, record.moved_to)
        return Heads(record.branches, time=record.time)

    def commits(self, repo_id: str) -> tuple[str, ...]:
        """The commits in the record."""
        record = self._record(repo_id)
        return () if record is None else tuple(record.files)

    def find_commit(self, repo_id: str, revision: str) -> str | None:
        """The commit in the record that begins with these digits; None without a record."""
        record = self._record(repo_id)
        known = () if record is None or len(revision) < SHORTEST_COMMIT else record.files
        fits = [commit for commit in known if commit.startswith(revision)]
        return fits[0] if len(fits) == 1 else None

    def snapshot(self, requirement: Requirement, commit: str) -> Snapshot:
        """The files below one sub-folder."""
        repo_id = requirement.repo_id
        folder = self._repository(repo_id) / commit
        record = self._record(repo_id)
        if record is None:
            if not folder.is_dir():
                raise _missing(f"{repo_id} has no folder {commit!r} in {folder.parent}.")
            return Snapshot(repo_id, commit, files_below(folder, contained=True))
        if record.moved_to is not None:
            raise Moved(repo_id, record.moved_to)
        snapshot = record.snapshot(repo_id, commit)
        if snapshot is None:
            there = ", ".join(record.files) or "none"
            message = f"{repo_id} has no commit {commit} in {folder.parent}, which has {there}."
            raise _missing(message)
        return snapshot

    def read(self, snapshot: Snapshot, file: RepoFile, limit: int) -> bytes:
        """The content of a small file."""
        folder = self._folder(snapshot)
        if not file.blob:
            return _read(folder / file.path, file, limit)
        _check_no_link(folder, file.path)
        if not (folder / file.path).is_file():
            variant = file.path.split("/", 2)[1] if file.path.startswith(f"{BUILD_FOLDER}/") else ""
            if variant in snapshot.builds:
                self._check_whole(snapshot, variant)
            raise NotInCache(f"{folder / file.path} is missing. {_COPY_AGAIN}")
        data = _read(folder / file.path, file, limit)
        if not file.describes(data):
            raise content_mismatch(snapshot.repo_id, folder, [file.path], _COPY_AGAIN)
        return data

    def advice(self, repo_id: str, target: str) -> str:
        """How to add a build to the folder."""
        return (
            f"Add it to the folder on a machine with a network, and copy the folder here again: "
            f"kernels download {repo_id} --target {target} --to DIR"
        )

    def on_disk(self, snapshot: Snapshot, variant: str) -> Path | None:
        """The folder of the variant; None where the record lists files, and none was copied here."""
        if self._missing(snapshot, variant):
            self._check_whole(snapshot, variant)
            return None
        return self._folder(snapshot) / BUILD_FOLDER / variant

    def fetch(self, snapshot: Snapshot, variant: str) -> Path:
        """The folder of the variant."""
        folder = self.on_disk(snapshot, variant)
        if folder is None:
            raise NotInCache(f"There is no {self._folder(snapshot) / BUILD_FOLDER / variant}. {_COPY_AGAIN}")
        return folder

    def link_boundary(self, snapshot: Snapshot) -> Path | None:
        """The folder of the version or revision."""
        return self._folder(snapshot)

    def check_record(self, snapshot: Snapshot, variant: str) -> Path | None:
        """A file in the cache, because the folder may be read-only."""
        folder = os.path.realpath(self._folder(snapshot) / BUILD_FOLDER / variant)
        key = hashlib.sha256(folder.encode(errors="surrogateescape")).hexdigest()
        return settings.cache_dir() / ".locks" / "kernels-folders" / f"{key[:32]}.checked"

    def repair(self, snapshot: Snapshot, variant: str, content: BuildContent) -> None:
        """Compare the content of a build's files with the record; nothing can be downloaded.

        Raises:
            DigestMismatch: Files differ, or are not in the record.
        """
        folder, files = self._folder(snapshot), snapshot.builds[variant]
        if not _recorded(files):
            return
        altered = [file.path for file in content.changed(files)]
        found = {f"{BUILD_FOLDER}/{variant}/{name}" for name in plain_files(folder / BUILD_FOLDER / variant)}
        altered += sorted(found - {file.path for file in files})
        if altered:
            raise content_mismatch(snapshot.repo_id, folder, altered, _COPY_AGAIN)

    def _damaged(self, snapshot: Snapshot, variant: str) -> list[str]:
        missing = self._missing(snapshot, variant)
        carried = missing and plain_files(self._folder(snapshot) / BUILD_FOLDER / variant)
        return missing if carried else []

    def _check_whole(self, snapshot: Snapshot, variant: str) -> None:
        """Raise if a build was copied here without all of its files: no other build is used instead."""
        damaged = self._damaged(snapshot, variant)
        if damaged:
            raise content_mismatch(snapshot.repo_id, self._folder(snapshot), damaged, _COPY_AGAIN)

    def _missing(self, snapshot: Snapshot, variant: str) -> list[str]:
        """The files of a build that are missing, or have another size than in the record."""
        files = snapshot.builds[variant]
        if not _recorded(files):
            return []
        folder, inside = self._folder(snapshot), f"{BUILD_FOLDER}/{variant}"
        _check_no_link(folder, inside)
        found = plain_files(folder / inside)
        return [file.path for file in files if found.get(file.path[len(inside) + 1 :]) != file.size]

    def _record(self, repo_id: str) -> FolderRecord | None:
        return self._records.of(self.root / repo_id)

    def _folder(self, snapshot: Snapshot) -> Path:
        return self._repository(snapshot.repo_id) / snapshot.commit

    def _repository(self, repo_id: str) -> Path:
        folder = self.root / repo_id
        if not folder.is_dir():
            missing = RepositoryNotFound(f"{self.name} has no repository {repo_id}: there is no folder {folder}.")
            raise of_hub(missing, "RepositoryNotFoundError")
        return folder


class PathSource(Source):
    """One kernel in a folder of the user: a repository with a `build` folder, a folder of variants, or one variant.

    Args:
        path: The folder.
        verify: When the content of the builds is checked. `install` means never here: a kernel under development
            changes after it was built. The default is as `KERNELS_VERIFY` says.

    Raises:
        RepositoryNotFound: The folder does not exist, or has no build.
    """

    endpoint = None
    publishers = None

    def __init__(self, path: Path, *, verify: Verify | None = None) -> None:
        self.path = path
        self.verify = "load" if settings.verify_when(verify) == "load" else "off"
        self._builds, self._variant = _find_builds(path)

    @property
    def requirement(self) -> Requirement:
        """A requirement for the kernel when the caller names no repository."""
        folder = self._builds.parent if self._builds.name == BUILD_FOLDER else self._builds
        name = re.sub(r"[^A-Za-z0-9]+", "-", folder.name).strip("-")[:96].strip("-")
        return Requirement(f"local/{name or 'kernel'}")

    @property
    def name(self) -> str:
        """`the folder /path`."""
        return f"the folder {self.path}"

    @property
    def named_build(self) -> str | None:
        """The name of the folder, where it is a build's."""
        return self._variant

    def snapshot(self, requirement: Requirement, commit: str) -> Snapshot:
        """The files of the builds at the path."""
        root = self._builds if self._variant is None else self._builds / self._variant
        prefix = BUILD_FOLDER if self._variant is None else f"{BUILD_FOLDER}/{self._variant}"
        files = [RepoFile(f"{prefix}/{file.path}", file.size) for file in files_below(root, contained=False)]
        return Snapshot(requirement.repo_id, commit, tuple(files))

    def read(self, snapshot: Snapshot, file: RepoFile, limit: int) -> bytes:
        """The content of a small file."""
        return _read(self._builds / file.path.removeprefix(f"{BUILD_FOLDER}/"), file, limit)

    def advice(self, repo_id: str, target: str) -> str:
        """How to build the kernel."""
        return f"Build it: kernels build {shell_word(self.path)}"

    def fetch(self, snapshot: Snapshot, variant: str) -> Path:
        """The folder of the variant."""
        return self._builds / variant

    def on_disk(self, snapshot: Snapshot, variant: str) -> Path:
        """The folder of the variant."""
        return self._builds / variant

    def repair(self, snapshot: Snapshot, variant: str, content: BuildContent) -> None:
        """Nothing: a folder of the user lists no hashes."""

    def link_boundary(self, snapshot: Snapshot) -> None:
        """None: the user may link anything."""

    def check_record(self, snapshot: Snapshot, variant: str) -> None:
        """None: nothing is recorded."""


def _missing(message: str) -> RevisionNotFound:
    return of_hub(RevisionNotFound(message), "RevisionNotFoundError")


def files_below(root: Path, *, contained: bool) -> tuple[RepoFile, ...]:
    """The files below a folder, as a listing without hashes.

    Args:
        root: The folder.
        contained: Whether a link out of the folder is refused: to a file, to a folder, or to a missing path.

    Raises:
        InvalidRepository: A link leads out of the folder, or its folders are nested too deep.
    """
    real = Path(os.path.realpath(root))
    files = []
    try:
        paths = sorted(root.rglob("*"))
    except RecursionError:
        raise InvalidRepository(f"The folders in {root} are nested too deep.") from None
    for path in paths:
        # Files in a linked folder are not listed, but an import would find them.
        if contained and path.is_symlink():
            linked = Path(os.path.realpath(path))
            if not linked.is_relative_to(real):
                raise InvalidRepository(f"{path} is a link to {linked}, outside {root}.")
        name = path.relative_to(root).as_posix()
        if is_bytecode(name) or not path.is_file():
            continue
        files.append(RepoFile(name, path.stat().st_size))
    return tuple(files)


_COPY_AGAIN = "Copy the folder here again; if it is damaged there too, download its kernels again, into a new folder."


def _recorded(files: Iterable[RepoFile]) -> bool:
    """Whether files are from a record: those have hashes, a folder without a record has none."""
    return any(file.blob for file in files)


def _check_no_link(folder: Path, path: str) -> None:
    """Raise if a commit's folder, or a folder or file on the path below it, is a link."""
    step = folder
    for part in ("", *path.split("/")):
        step = step / part
        if step.is_symlink():
            raise InvalidRepository(
                f"{step} is a link to {os.path.realpath(step)}. Copy the folder here again, without links."
            )


def _find_builds(path: Path) -> tuple[Path, str | None]:
    if path.is_file():
        raise RepositoryNotFound(f"{path} is a file; expected the folder of a kernel or a build.")
    if not path.is_dir():
        raise RepositoryNotFound(f"The folder {path} does not exist.")
    if (path / METADATA_FILE).is_file():
        return path.parent, path.name
    if (path / BUILD_FOLDER).is_dir():
        return path / BUILD_FOLDER, None
    if any((child / METADATA_FILE).is_file() for child in path.iterdir()):
        return path, None
    if any((folder / "build.toml").is_file() for folder in (path, *path.iterdir())):
        raise RepositoryNotFound(
            f"{path} has the sources of a kernel (build.toml) and no builds. Build them: "
            f"kernels build {shell_word(path)}"
        )
    if (path / "mirror.json").is_file():
        raise RepositoryNotFound(
            f"{path} is a mirror: name a repository, and the mirror in KERNELS_HUB={shell_word(path)}. "
            f"To verify all of it: kernels mirror {shell_word(path)} --verify"
        )
    moved = f" It has a {STATUS_FILE}: the repository has moved." if (path / STATUS_FILE).is_file() else ""
    raise RepositoryNotFound(
        f"{path} has no kernel: no {BUILD_FOLDER!r} folder, no folder of variants, and no {METADATA_FILE}." + moved
    )


def _read(path: Path, file: RepoFile, limit: int) -> bytes:
    try:
        return read_bounded(path, limit)
    except FileTooLarge:
        raise InvalidRepository(f"{path} has more than {limit} bytes, the most that are read.") from None
    except OSError as error:
        raise InvalidRepository(f"Cannot read {path}: {error.strerror or error}") from error
