"""Folders as sources: a folder of repositories, and one kernel in a folder of the user."""

from __future__ import annotations

import hashlib
import os
import re
from abc import abstractmethod
from pathlib import Path

from kernels import settings
from kernels.errors import InvalidRepository, RepositoryNotFound, RevisionNotFound
from kernels.models import MIRROR_FILE
from kernels.models.requirement import Requirement
from kernels.models.snapshot import BUILD_FOLDER, METADATA_FILE, STATUS_FILE, Heads, RepoFile, Snapshot, is_bytecode
from kernels.settings import Verify
from kernels.sources.base import Source
from kernels.sources.hub_errors import of_hub
from kernels.support.files import FileTooLarge, read_bounded
from kernels.support.formatting import shell_word
from kernels.trust.content import BuildContent

__all__ = ["FolderSource", "PathSource", "files_below"]


class _Folder(Source):
    """Builds in a folder: all of them are on disk, and nothing lists the hashes of their files."""

    endpoint = None

    @abstractmethod
    def place(self, snapshot: Snapshot, path: str) -> Path:
        """Where a path of a repository is on disk."""

    def read(self, snapshot: Snapshot, file: RepoFile, limit: int) -> bytes:
        """The content of a small file."""
        path = self.place(snapshot, file.path)
        try:
            return read_bounded(path, limit)
        except FileTooLarge:
            raise InvalidRepository(f"{path} has more than {limit} bytes, the most that are read.") from None
        except OSError as error:
            raise InvalidRepository(f"Cannot read {path}: {error.strerror or error}") from error

    def on_disk(self, snapshot: Snapshot, variant: str) -> Path:
        """The folder of the build."""
        return self.place(snapshot, f"{BUILD_FOLDER}/{variant}")

    def fetch(self, snapshot: Snapshot, variant: str) -> Path:
        """The folder of the build."""
        return self.on_disk(snapshot, variant)

    def repair(self, snapshot: Snapshot, variant: str, content: BuildContent) -> None:
        """Nothing: no hash is listed."""


class _FolderPublishers:
    """The publishers of a folder of repositories, which says nothing about them: the user named the folder.

    Args:
        root: The folder.
    """

    def __init__(self, root: Path) -> None:
        self.authority = f"the Hub that the folder {root} was filled from"

    def trusts(self, repo_id: str) -> None:
        """Not known."""

    def problem(self, repo_id: str) -> None:
        """None: a folder is not asked over a network."""

    def publishes(self, repo_id: str, commit: str) -> bool:
        """Always: what is in the folder was put there."""
        return True

    def may_use_cached(self, snapshot: Snapshot) -> bool:
        """Always: all of it is on disk."""
        return True

    def remember_allowed(self, snapshot: Snapshot) -> None:
        """Nothing: what is on disk is never refused."""


class FolderSource(_Folder):
    """A folder of repositories: `<root>/<org>/<name>/<version or revision>/build/<variant>/…`.

    Each sub-folder of a repository is one of its versions (`v1`) or revisions; its name is used as the commit.

    Args:
        root: The folder.
        verify: When the content of builds is checked, the default as `KERNELS_VERIFY` says.
    """

    def __init__(self, root: Path, *, verify: Verify | None = None) -> None:
        self.root = root
        self.verify = settings.verify_when(verify)
        self.publishers = _FolderPublishers(root)

    @property
    def name(self) -> str:
        """`the folder /path`."""
        return f"the folder {self.root}"

    def heads(self, repo_id: str) -> Heads:
        """The sub-folders of the repository's folder."""
        return Heads({path.name: path.name for path in sorted(self._repository(repo_id).iterdir()) if path.is_dir()})

    def snapshot(self, requirement: Requirement, commit: str) -> Snapshot:
        """The files below one sub-folder."""
        repo_id = requirement.repo_id
        folder = self._repository(repo_id) / commit
        if not folder.is_dir():
            missing = RevisionNotFound(f"{repo_id} has no folder {commit!r} in {folder.parent}.")
            raise of_hub(missing)
        return Snapshot(repo_id, commit, files_below(folder, contained=True))

    def place(self, snapshot: Snapshot, path: str) -> Path:
        """Where a path of a repository is on disk."""
        return self._repository(snapshot.repo_id) / snapshot.commit / path

    def advice(self, repo_id: str, target: str) -> str:
        """How to add a build."""
        return f"Put a build for {target} into {self.root / repo_id}."

    def link_boundary(self, snapshot: Snapshot) -> Path:
        """The folder of the version or revision."""
        return self.place(snapshot, "")

    def check_record(self, snapshot: Snapshot, variant: str) -> Path:
        """A file in the cache, because the folder may be read-only."""
        folder = os.path.realpath(self.on_disk(snapshot, variant))
        key = hashlib.sha256(folder.encode(errors="surrogateescape")).hexdigest()
        return settings.cache_dir() / ".locks" / "kernels-folders" / f"{key[:32]}.checked"

    def _repository(self, repo_id: str) -> Path:
        folder = self.root / repo_id
        if not folder.is_dir():
            missing = RepositoryNotFound(f"{self.name} has no repository {repo_id}: there is no folder {folder}.")
            raise of_hub(missing)
        return folder


class PathSource(_Folder):
    """One kernel in a folder of the user: a repository with a `build` folder, a folder of variants, or one variant.

    Args:
        path: The folder.
        verify: When the content of the builds is checked. `install` means never here: a kernel under development
            changes after it was built. The default is as `KERNELS_VERIFY` says.

    Raises:
        RepositoryNotFound: The folder does not exist, or has no build.
    """

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

    def place(self, snapshot: Snapshot, path: str) -> Path:
        """Where a path of a build is on disk."""
        return self._builds / path.removeprefix(f"{BUILD_FOLDER}/")

    def advice(self, repo_id: str, target: str) -> str:
        """How to build the kernel."""
        return f"Build it: kernels build {shell_word(self.path)}"

    def link_boundary(self, snapshot: Snapshot) -> None:
        """None: the user may link anything."""

    def check_record(self, snapshot: Snapshot, variant: str) -> None:
        """None: nothing is recorded."""


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
    if (path / MIRROR_FILE).is_file():
        raise RepositoryNotFound(
            f"{path} is a mirror: name a repository, and the mirror in KERNELS_HUB={shell_word(path)}. "
            f"To verify all of it: kernels mirror {shell_word(path)} --verify"
        )
    moved = f" It has a {STATUS_FILE}: the repository has moved." if (path / STATUS_FILE).is_file() else ""
    raise RepositoryNotFound(
        f"{path} has no kernel: no {BUILD_FOLDER!r} folder, no folder of variants, and no {METADATA_FILE}." + moved
    )
