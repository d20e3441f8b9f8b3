"""How contents get into a repository's folder: each under a temporary name, renamed into place, then linked to.

The folders are opened once for a build, after they were checked, and what is written is named within them: a link that
another user plants meanwhile leads nowhere, and no file needs its folders checked again.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kernels.cache.links import NO_LINKS, link_to
from kernels.cache.repo_records import cache_errors
from kernels.support.concurrency import Cancelled
from kernels.support.json_store import replace_file
from kernels.support.real_folders import LinkedFolder, is_real_folder, make_folders
from kernels.trust.digest import is_as_listed

if TYPE_CHECKING:
    from typing_extensions import Self

    from kernels.models.snapshot import RepoFile

__all__ = ["Placing", "link_content", "prepare_blobs"]

#: How often a file is written again if its folder was removed meanwhile.
_TRIES = 5

#: The folders of a build that stay open; those of a larger one are opened for each file.
_MOST_OPEN = 32

#: Whether a file can be named within an open folder; not on Windows.
_IN_FOLDERS = {os.open, os.stat, os.rename, os.symlink} <= os.supports_dir_fd


class Placing:
    """Puts checked contents into the snapshot of a commit, from any number of threads.

    Args:
        cache: The cache's folder.
        folder: The repository's folder in it.
        commit: The commit.
    """

    def __init__(self, cache: Path, folder: Path, commit: str) -> None:
        self._cache = cache
        self._folder = folder
        self._blobs = folder / "blobs"
        self._snapshot = f"{os.fspath(folder)}{os.sep}snapshots{os.sep}{commit}"
        self._numbers = itertools.count(int.from_bytes(os.urandom(4), "big"))
        self._guard = threading.Lock()
        self._open: dict[str, int] = {}
        self._stale: list[int] = []
        self._users = 0
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with self._guard:
            self._closed = True
            self._close_unused()

    def put(self, content: bytes, *files: RepoFile) -> None:
        """Put a content into the snapshot, whose size and hash were checked.

        Args:
            content: The content.
            files: The files that have it.

        Raises:
            StoreError: The cache cannot be written.
            InvalidRepository: A folder of the cache is a link.
            Cancelled: This was closed meanwhile: the download was cancelled.
        """
        blob = files[0].blob or hashlib.sha256(content).hexdigest()
        with self._in_use(), cache_errors(self._blobs / blob):
            for attempt in range(_TRIES):
                try:
                    self._write(blob, content, files[0])
                    for file in files:
                        self._link(file, blob)
                    return
                except FileNotFoundError:  # `prune` removed a folder that was empty a moment ago
                    if attempt == _TRIES - 1:
                        raise
                    self._forget()

    def _write(self, blob: str, content: bytes, file: RepoFile) -> None:
        if not _IN_FOLDERS:
            prepare_blobs(self._folder, self._cache, make_folders)
            if not is_as_listed(self._blobs / blob, file):
                replace_file(self._blobs / blob, content, suffix=".incomplete")
            return
        with self._within(self._blobs) as blobs:
            with suppress(FileNotFoundError):
                os.stat(blob, dir_fd=blobs)
                if is_as_listed(self._blobs / blob, file):  # do not replace a file that a process may have open
                    return
            temporary = f"{blob}.{next(self._numbers) & 0xFFFFFFFF:08x}.incomplete"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                with open(os.open(temporary, flags, 0o666, dir_fd=blobs), "wb", buffering=0) as out:
                    view = memoryview(content)
                    while view:
                        view = view[out.write(view) :]
                os.rename(temporary, blob, src_dir_fd=blobs, dst_dir_fd=blobs)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=blobs)
                raise

    def _link(self, file: RepoFile, blob: str) -> None:
        path = f"{self._snapshot}{os.sep}{file.path}"
        if _IN_FOLDERS:
            parent, name = os.path.split(path)
            target = f"{_up(file.path)}blobs/{blob}"
            with self._within(Path(parent)) as folder:
                try:
                    try:
                        os.symlink(target, name, dir_fd=folder)  # whole or not at all
                    except FileExistsError:
                        with self._within(self._blobs) as blobs:
                            self._replace(name, folder, target, blobs)
                    return
                except OSError as error:
                    if error.errno not in NO_LINKS:
                        raise
        link_content(self._cache, Path(path), self._blobs / blob)

    def _replace(self, name: str, folder: int, target: str, blobs: int) -> None:
        """Make a link in the place of what is there, first among the contents, so that a kill leaves no other file."""
        temporary = f"{next(self._numbers) & 0xFFFFFFFF:08x}.incomplete"
        os.symlink(target, temporary, dir_fd=blobs)
        try:
            os.rename(temporary, name, src_dir_fd=blobs, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=blobs)
            raise

    @contextmanager
    def _within(self, folder: Path) -> Iterator[int]:
        """A folder, made if it is missing and checked, as the number of an open file."""
        path = os.fspath(folder)
        found = self._open.get(path)
        if found is not None:
            yield found
            return
        with self._guard:
            found = self._open.get(path)
            kept = found is not None or len(self._open) < _MOST_OPEN
            if found is None:
                found = self._opened(folder)
                if kept:
                    self._open[path] = found
        try:
            yield found
        finally:
            if not kept:
                os.close(found)

    def _opened(self, folder: Path) -> int:
        if folder == self._blobs:
            prepare_blobs(self._folder, self._cache, make_folders)
            shared = folder.is_symlink()  # to `<cache>/blobs`: `prepare_blobs` refuses any other
            return _open_within(self._cache, self._cache / "blobs" if shared else folder)
        make_folders(folder, self._cache)
        return _open_within(self._cache, folder)

    def _forget(self) -> None:
        """Open the folders again; other threads may still use the open ones."""
        with self._guard:
            self._stale += self._open.values()
            self._open.clear()

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        # A thread that was cancelled and not waited for must not write into a file that has the number of one of these.
        with self._guard:
            if self._closed:
                raise Cancelled
            self._users += 1
        try:
            yield
        finally:
            with self._guard:
                self._users -= 1
                self._close_unused()

    def _close_unused(self) -> None:
        if self._closed and not self._users:
            for number in (*self._open.values(), *self._stale):
                os.close(number)
            self._open.clear()
            self._stale.clear()


def _open_within(cache: Path, folder: Path) -> int:
    """Open a folder by way of each one above it: one that has become a link since it was checked is not followed."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    number = os.open(cache, flags)  # the cache's own folder may be a link of the user's
    for name in folder.relative_to(cache).parts:
        try:
            inner = os.open(name, flags | os.O_NOFOLLOW, dir_fd=number)
        finally:
            os.close(number)
        number = inner
    return number


def _up(path: str) -> str:
    """The way from the folder of a file in a snapshot to the repository's folder.

    Example:
        >>> _up("build/torch-cpu/__init__.py")
        '../../../../'
    """
    return "../" * (path.count("/") + 2)


def prepare_blobs(folder: Path, cache: Path, prepare: Callable[[Path, Path], None]) -> None:
    """Check or make a repository's folder of contents, which may be a link to `<cache>/blobs`, shared by repositories.

    Args:
        folder: The repository's folder.
        cache: The cache's folder.
        prepare: Makes or checks a folder.

    Raises:
        LinkedFolder: It is another link.
    """
    blobs, shared = folder / "blobs", cache / "blobs"
    try:
        prepare(blobs, cache)
    except LinkedFolder:
        inside = is_real_folder(folder) and is_real_folder(shared)
        if not inside or os.path.realpath(blobs) != os.path.realpath(shared):
            raise


def link_content(cache: Path, link: Path, blob: Path) -> None:
    """Make a path of a snapshot a link to a content, in the place of what is there.

    Args:
        cache: The cache's folder.
        link: The path.
        blob: The content.

    Raises:
        OSError: It cannot be written, or one of its folders is a link.
    """
    for attempt in range(_TRIES):
        make_folders(link.parent, cache)
        try:
            link_to(link, blob)
            return
        except FileNotFoundError:  # `prune` removed a folder that was empty a moment ago
            if attempt == _TRIES - 1:
                raise
