"""Builds from the cache into a folder that can be moved: what `kernels download --to` writes.

    <folder>/kernels.lock                                    the lockfile, if one was active
    <folder>/<org>/<name>/.kernels.json                      the record (`sources/record.py`)
    <folder>/<org>/<name>/<commit>/build/<variant>/<path>    files, no links

A build is copied and checked beside its place, renamed into it, and only then named in the record, which is replaced
as a whole: a kill at any moment leaves the old state or the new one.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock

from msgspec.structs import replace

from kernels import settings
from kernels.errors import DigestMismatch, InvalidRepository, LockError, RequestError, StoreError
from kernels.models.lockfile import HASHES_FILE, LOCK_FILE, Lock, hashes_path
from kernels.models.requirement import check_repo_id, is_commit
from kernels.models.snapshot import BUILD_FOLDER, RepoFile, Snapshot
from kernels.operations.install_check import ExpectedContent, check_build, record_as_listed
from kernels.sources.folder import FolderSource
from kernels.sources.folder_record import FORM, RECORD_FILE, FolderRecord, lost_record, plain_files, read_folder_record
from kernels.support.concurrency import check_cancelled
from kernels.support.files import FileTooLarge, NotRegularFile, open_regular, read_bounded
from kernels.support.formatting import format_value
from kernels.support.json_store import replace_file
from kernels.support.logs import logger
from kernels.support.process_lock import exclusively, lock_at
from kernels.support.warn import warn_once
from kernels.trust.digest import is_as_listed

__all__ = ["MirrorFolder"]

_log = logger(__name__)

_STAGING = ".staging-"
_CHUNK = 1 << 20

#: Larger than any lockfile, or its file of hashes.
_MAX_LOCK_BYTES = 8 * 1024 * 1024

#: Names that are allowed beside repositories: the lockfile, and `lost+found` at the root of a file system.
_BESIDE = frozenset({LOCK_FILE, HASHES_FILE, "lost+found"})

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class MirrorFolder:
    """A folder of builds for other machines.

    Args:
        root: The folder; it is created with the first build.
        endpoint: The Hub that the builds come from.

    Raises:
        RequestError: It contains other files, or another Hub's builds. Nothing was changed.
        InvalidRepository: A repository in it has no record, or one that cannot be read. Nothing was changed.
        StoreError: It cannot be written. Nothing was changed.
    """

    def __init__(self, root: Path, endpoint: str) -> None:
        self.root = root
        self.endpoint = endpoint
        self._guard = RLock()
        _check_writable(root)
        for repository in _repositories(root):
            known = _read(repository)
            if known is not None and known.endpoint != endpoint:
                raise RequestError(
                    f"{repository} holds files from {format_value(known.endpoint, 200)}, and these come from "
                    f"{endpoint}. Name another folder for them."
                )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Lock out other processes of this machine, and remove the leftovers of killed ones."""
        name = hashlib.sha256(os.fsencode(os.path.realpath(self.root))).hexdigest()[:32]
        with exclusively(lock_at(settings.cache_dir() / ".locks" / "kernels-folders" / f"{name}.lock")):
            for left in [*self.root.glob(f"*/*/{_STAGING}*"), *self.root.glob(f"*/*/{RECORD_FILE}.*.tmp")]:
                _remove(left)
            yield

    def has(self, snapshot: Snapshot, variant: str) -> bool:
        """Whether a build is here as listed; its content is read again as `KERNELS_VERIFY` says.

        Args:
            snapshot: The snapshot, as its Hub lists it.
            variant: The build.
        """
        record = _read(self._repository(snapshot.repo_id))
        known = set() if record is None else {(each.path, each.blob) for each in record.files.get(snapshot.commit, ())}
        listed = {(file.path, file.blob) for file in snapshot.builds[variant]}
        return listed <= known and self._complete(snapshot, variant)

    def folder(self, snapshot: Snapshot, variant: str) -> Path:
        """The folder of a build here."""
        return self._repository(snapshot.repo_id) / snapshot.commit / BUILD_FOLDER / variant

    def add(self, snapshot: Snapshot, variant: str, folder: Path) -> Path:
        """Put a build here.

        Args:
            snapshot: The snapshot, as its Hub listed it.
            variant: The build.
            folder: The complete build.

        Returns:
            Its folder here.

        Raises:
            DigestMismatch: A file is not the one that was listed.
            StoreError: The folder cannot be written.
            RequestError: The Hub never listed the build here.
        """
        files = snapshot.builds[variant]
        if not all(file.blob for file in files):
            raise RequestError(
                f"{snapshot.repo_id} is in the cache without a Hub's listing, so a copy could not be checked. Download "
                "it while the Hub can be reached."
            )
        repository = self._open(snapshot)
        place = self.folder(snapshot, variant)
        if not self._complete(snapshot, variant):
            inside = f"{BUILD_FOLDER}/{variant}"
            with _writing(place), _staged(repository) as staging:
                for file in files:
                    name = file.path[len(inside) + 1 :]
                    _copy(folder / name, staging / "new" / name, file, snapshot.repo_id)
                place.parent.mkdir(parents=True, exist_ok=True)
                if os.path.lexists(place):  # cut short, or changed
                    place.rename(staging / "old")
                (staging / "new").rename(place)
                record_as_listed(FolderSource(self.root), snapshot, variant, place)
        self._list(snapshot, files)
        return place

    def add_file(self, snapshot: Snapshot, file: RepoFile, content: bytes) -> None:
        """Put a small file here that is not part of a build: a repository's redirect."""
        path = self._open(snapshot) / snapshot.commit / file.path
        with _writing(path):
            if not is_as_listed(path, file):
                replace_file(path, content)
        self._list(snapshot, (file,))

    def set_branches(
        self,
        repo_id: str,
        branches: Mapping[str, str],
        *,
        trusted: bool | None,
        moved_to: str | None = None,
        lock: str | None = None,
    ) -> None:
        """Record the branches of a repository, the trust in its publisher, and where it has moved.

        Args:
            repo_id: The repository.
            branches: Commits by branch; other recorded branches stay.
            trusted: Whether the publisher is marked as trusted; None if that is not known.
            moved_to: The new name of the repository, if it was renamed.
            lock: The lockfile that chose the commits. It may move a branch back, so a change is warned about.
        """
        with self._guard:
            before = _read(self._repository(repo_id))
            record = before or self._empty()
            for name, commit in branches.items() if lock is not None else ():
                if record.branches.get(name, commit) != commit:
                    warn_once(
                        _log,
                        f"{name} of {repo_id} in {self.root} is commit {commit[:12]} now, as {lock} pins; it was "
                        f"{record.branches[name][:12]}.",
                    )
            known = record.trusted if trusted is None else trusted
            merged = {**record.branches, **branches}
            self._write(repo_id, before, replace(record, branches=merged, trusted=known, moved_to=moved_to))

    def keep_lock(self, path: Path, pins: Lock) -> None:
        """Put a lockfile and its hashes beside the builds, and warn of repositories that only the old one listed.

        Args:
            path: The lockfile.
            pins: Its content.
        """
        beside = hashes_path(path)
        self._mention_unlisted(path, pins)
        hashes = read_bounded(beside, _MAX_LOCK_BYTES) if beside.is_file() else None
        for name, content in {LOCK_FILE: read_bounded(path, _MAX_LOCK_BYTES), HASHES_FILE: hashes}.items():
            path = self.root / name
            with _writing(path):
                if content is None:
                    path.unlink(missing_ok=True)  # of the old lockfile
                elif not _holds(path, content):
                    replace_file(path, content)

    def _mention_unlisted(self, lock: Path, pins: Lock) -> None:
        place = self.root / LOCK_FILE
        with suppress(LockError):  # one that cannot be read is replaced as well
            before = Lock.read(place).pins if place.is_file() else ()
            gone = dict.fromkeys(each.requirement.repo_id for each in before if not pins.of(each.requirement.repo_id))
            if gone:
                warn_once(
                    _log,
                    f"{place} is replaced by {lock}, which does not list {', '.join(gone)}. If they belong to another "
                    "project, download each project into its own folder.",
                )

    def _complete(self, snapshot: Snapshot, variant: str) -> bool:
        folder = self._repository(snapshot.repo_id)
        inside = f"{BUILD_FOLDER}/{variant}"
        _check_real(folder, f"{snapshot.commit}/{inside}")
        found = plain_files(folder / snapshot.commit / inside)
        files = snapshot.builds[variant]
        if found != {file.path[len(inside) + 1 :]: file.size for file in files}:
            return False
        try:
            check_build(
                FolderSource(self.root), snapshot, variant, folder / snapshot.commit / inside, ExpectedContent()
            )
        except DigestMismatch:
            return False
        return True

    def _repository(self, repo_id: str) -> Path:
        _check_real(self.root, repo_id)
        return self.root / repo_id

    def _empty(self) -> FolderRecord:
        return FolderRecord(form=FORM, endpoint=self.endpoint, time=0.0, trusted=None)

    def _open(self, snapshot: Snapshot) -> Path:
        """The repository's folder, with a record: a folder without one counts as another program's."""
        folder = self._repository(snapshot.repo_id)
        with self._guard:
            before = _read(folder)
            self._write(snapshot.repo_id, before, replace(before or self._empty(), repo_type=snapshot.repo_type))
        return folder

    def _list(self, snapshot: Snapshot, files: tuple[RepoFile, ...]) -> None:
        with self._guard:
            before = _read(self._repository(snapshot.repo_id))
            record = before or self._empty()
            here = {file.path: file for file in (*record.files.get(snapshot.commit, ()), *files)}
            listed = {**record.files, snapshot.commit: tuple(here[path] for path in sorted(here))}
            self._write(snapshot.repo_id, before, replace(record, files=listed))

    def _write(self, repo_id: str, before: FolderRecord | None, after: FolderRecord) -> None:
        if after == before:
            return
        path = self._repository(repo_id) / RECORD_FILE
        with _writing(path):
            replace_file(path, replace(after, time=time.time()).to_bytes())


def _holds(path: Path, content: bytes) -> bool:
    try:
        return read_bounded(path, len(content)) == content
    except (FileNotFoundError, NotRegularFile, FileTooLarge):
        return False


def _repositories(root: Path) -> Iterator[Path]:
    """The repositories in a folder.

    Raises:
        RequestError: It contains files that were not written here.
    """
    try:
        if not os.path.lexists(root):
            return
        if not root.is_dir():
            raise RequestError(f"{root} is not a folder; name an empty or a new one.")
        for publisher in sorted(root.iterdir()):
            if publisher.name in _BESIDE:
                continue
            for repository in _folders(root, publisher):
                _check_ours(root, repository)
                yield repository
    except OSError as error:
        raise StoreError(f"{root} cannot be read: {error.strerror or error}. Name another folder.") from error


def _check_ours(root: Path, repository: Path) -> None:
    inside = [each for each in _inside(root, repository) if not each.name.startswith((RECORD_FILE, _STAGING))]
    if not inside:  # a process was killed before it wrote the record
        return
    foreign = next((each for each in inside if not is_commit(each.name)), None)
    if not (repository / RECORD_FILE).is_file():
        raise _not_ours(root, repository) if foreign is not None else lost_record(repository)
    if foreign is not None:
        raise _not_ours(root, foreign)
    check_repo_id(repository.relative_to(root).as_posix())


def _folders(root: Path, folder: Path) -> list[Path]:
    inside = _inside(root, folder)
    for each in inside:
        if each.is_symlink() or not each.is_dir():
            raise _not_ours(root, each)
    return inside


def _inside(root: Path, folder: Path) -> list[Path]:
    if folder.is_symlink() or not folder.is_dir():
        raise _not_ours(root, folder)
    return sorted(folder.iterdir())


def _not_ours(root: Path, path: Path) -> RequestError:
    return RequestError(
        f"{root} is not empty, and {format_value(path.relative_to(root).as_posix(), 200)} in it was not written by "
        "`kernels download --to`. Remove it, or name an empty or a new folder."
    )


def _check_writable(root: Path) -> None:
    place = root
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if place.is_dir() and not os.access(place, os.W_OK | os.X_OK):
        raise StoreError(f"{place} is not writable, so nothing can be put into {root}. Name another folder.")
    if not place.is_dir() and place != root:
        raise RequestError(f"{root} cannot be created: {place} is not a folder. Name another one.")


def _check_real(folder: Path, path: str) -> None:
    """Raise if a step from a folder to a path in it is a link or a file."""
    step = folder
    for part in path.split("/"):
        step = step / part
        try:
            mode = os.lstat(step).st_mode
        except OSError:
            return
        if not stat.S_ISDIR(mode):
            raise InvalidRepository(f"{step} is a link or a file, and nothing is written through it. Remove it.")


def _read(repository: Path) -> FolderRecord | None:
    try:
        return read_folder_record(repository)
    except InvalidRepository as error:
        raise InvalidRepository(f"{error} Or remove {repository}, and download again.") from None


@contextmanager
def _staged(repository: Path) -> Iterator[Path]:
    """A temporary folder for files that are not complete; it is removed in the end."""
    staging = repository / f"{_STAGING}{secrets.token_hex(6)}"
    try:
        staging.mkdir(parents=True)
        yield staging
    finally:
        _remove(staging)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _copy(source: Path, place: Path, file: RepoFile, repo_id: str) -> None:
    """Copy a file, and compare the copy with the listing."""
    hasher = file.hasher()
    place.parent.mkdir(parents=True, exist_ok=True)
    with open_regular(source) as original, place.open("xb") as copy:
        while chunk := original.read(_CHUNK):
            check_cancelled()
            hasher.update(chunk)
            copy.write(chunk)
    if place.stat().st_size != file.size or hasher.hexdigest() != file.blob:
        raise DigestMismatch(
            f"{repo_id}: {file.path} in the cache is not what the Hub lists; nothing of this build was copied. "
            "KERNELS_VERIFY=load fetches it again."
        )


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        advice = "Free some space, or name" if error.errno in _FULL else "Name"
        raise StoreError(
            f"Cannot write {path}: {error.strerror or error}. Nothing else was changed. {advice} another folder."
        ) from error
