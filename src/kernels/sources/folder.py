"""Folders as sources: a folder of repositories, and a single repository, build folder or variant."""

from __future__ import annotations

import os
import re
from pathlib import Path

from kernels import settings
from kernels.errors import InvalidRepository, RepositoryNotFound, RevisionNotFound
from kernels.release import BUILD_FOLDER, METADATA_FILE, STATUS_FILE, Heads, Release, RepoFile, is_bytecode
from kernels.requirement import Requirement

__all__ = ["FolderSource", "PathSource", "files_below"]


class FolderSource:
    """A folder of repositories: `<root>/<org>/<name>/<version or revision>/build/<variant>/…`.

    Each sub-folder of a repository is one of its versions (`v1`) or revisions; its name stands for the commit.

    Args:
        root: The folder.
    """

    verified = False

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def name(self) -> str:
        """What to call the source in a message."""
        return f"the folder {self.root}"

    def heads(self, repo_id: str) -> Heads:
        """The sub-folders of a repository's folder."""
        folder = self._repository(repo_id)
        return Heads({path.name: path.name for path in sorted(folder.iterdir()) if path.is_dir()})

    def look_up(self, repo_id: str, revision: str) -> str | None:
        """None: a folder has no revisions but its sub-folders."""
        return None

    def date(self, repo_id: str, commit: str) -> str | None:
        """None: a folder does not say when it was published."""
        return None

    def release(self, requirement: Requirement, commit: str) -> Release:
        """The files below one sub-folder."""
        folder = self._repository(requirement.repo_id) / commit
        if not folder.is_dir():
            raise RevisionNotFound(f"{requirement.repo_id} has no folder {commit!r} in {folder.parent}.")
        return Release(requirement.repo_id, commit, files_below(folder, contained=True))

    def read(self, release: Release, file: RepoFile, limit: int) -> bytes:
        """The content of a small file."""
        return _read(self._folder(release) / file.path, file, limit)

    def is_local(self, release: Release, variant: str) -> bool:
        """Always: a folder needs no download."""
        return True

    def fetch(self, release: Release, variant: str) -> Path:
        """The folder of the variant, where it lies."""
        return self._folder(release) / BUILD_FOLDER / variant

    def boundary(self, release: Release) -> Path | None:
        """The folder of the version or revision."""
        return self._folder(release)

    def digest_due(self, release: Release, variant: str) -> bool:
        """Always: files in a folder may change at any time."""
        return True

    def digest_done(self, release: Release, variant: str) -> None:
        """Nothing is remembered."""

    def _folder(self, release: Release) -> Path:
        return self._repository(release.repo_id) / release.commit

    def _repository(self, repo_id: str) -> Path:
        folder = self.root / repo_id
        if not folder.is_dir():
            raise RepositoryNotFound(f"{self.name} has no repository {repo_id}: there is no folder {folder}.")
        return folder


class PathSource:
    """One kernel at a path: a repository with a `build` folder, a folder of variants, or one variant.

    Args:
        path: The folder.

    Raises:
        RepositoryNotFound: There is no such folder, or no build in it.
    """

    verified = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self._builds, self._variant = _find_builds(path)

    @property
    def requirement(self) -> Requirement:
        """What to call the kernel where no repository was named."""
        folder = self._builds.parent if self._builds.name == BUILD_FOLDER else self._builds
        name = re.sub(r"[^A-Za-z0-9]+", "-", folder.name).strip("-")[:96].strip("-")
        return Requirement(f"local/{name or 'kernel'}")

    @property
    def name(self) -> str:
        """What to call the source in a message."""
        return f"the folder {self.path}"

    def heads(self, repo_id: str) -> Heads:
        """None: whatever version is asked for, this is what there is."""
        return Heads({})

    def look_up(self, repo_id: str, revision: str) -> str | None:
        """None: a folder has no revisions but its sub-folders."""
        return None

    def date(self, repo_id: str, commit: str) -> str | None:
        """None: a folder does not say when it was published."""
        return None

    def release(self, requirement: Requirement, commit: str) -> Release:
        """The files of the builds at the path."""
        root = self._builds if self._variant is None else self._builds / self._variant
        prefix = BUILD_FOLDER if self._variant is None else f"{BUILD_FOLDER}/{self._variant}"
        files = [RepoFile(f"{prefix}/{file.path}", file.size) for file in files_below(root, contained=False)]
        return Release(requirement.repo_id, commit, tuple(files))

    def read(self, release: Release, file: RepoFile, limit: int) -> bytes:
        """The content of a small file."""
        return _read(self._builds / file.path.removeprefix(f"{BUILD_FOLDER}/"), file, limit)

    def is_local(self, release: Release, variant: str) -> bool:
        """Always: a folder needs no download."""
        return True

    def fetch(self, release: Release, variant: str) -> Path:
        """The folder of the variant, where it lies."""
        return self._builds / variant

    def boundary(self, release: Release) -> Path | None:
        """None: the folder is the user's own."""
        return None

    def digest_due(self, release: Release, variant: str) -> bool:
        """Only when asked for: a kernel that is being worked on changes after it was built."""
        return settings.verify_on_load()

    def digest_done(self, release: Release, variant: str) -> None:
        """Nothing is remembered."""


def files_below(root: Path, *, contained: bool) -> tuple[RepoFile, ...]:
    """The files below a folder, as a listing without hashes.

    Args:
        root: The folder.
        contained: Whether a link out of the folder is refused: to a file, to a folder, or to nothing yet.

    Raises:
        InvalidRepository: A link leads out of the folder.
    """
    real = Path(os.path.realpath(root))
    files = []
    for path in sorted(root.rglob("*")):
        # A linked folder's files are not listed, but an import would find them.
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
    if not path.is_dir():
        raise RepositoryNotFound(f"There is no folder {path}.")
    if (path / METADATA_FILE).is_file():
        return path.parent, path.name
    if (path / BUILD_FOLDER).is_dir():
        return path / BUILD_FOLDER, None
    if any((child / METADATA_FILE).is_file() for child in path.iterdir()):
        return path, None
    if any((folder / "build.toml").is_file() for folder in (path, *path.iterdir())):
        raise RepositoryNotFound(
            f"{path} holds a kernel's sources (build.toml), and no builds; `kernels build {path}` makes them."
        )
    moved = f" It has a {STATUS_FILE}: the repository has moved." if (path / STATUS_FILE).is_file() else ""
    raise RepositoryNotFound(
        f"{path} holds no kernel: it has no {BUILD_FOLDER!r} folder, no folder of variants, and no {METADATA_FILE}."
        + moved
    )


def _read(path: Path, file: RepoFile, limit: int) -> bytes:
    try:
        with path.open("rb") as content:
            data = content.read(limit + 1)
    except OSError as error:
        raise InvalidRepository(f"Cannot read {path}: {error.strerror or error}") from error
    if len(data) > limit:
        raise InvalidRepository(f"{path} has more than {limit} bytes; more are not read.")
    return data
