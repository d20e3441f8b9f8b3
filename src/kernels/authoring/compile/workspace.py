"""A kernel's folder: its source folders, and the builds that they share."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kernels.authoring.compile.build_toml.model import KernelSource
from kernels.authoring.compile.build_toml.reader import read_source
from kernels.errors import InvalidMetadata, RequestError
from kernels.models.metadata import Metadata
from kernels.models.snapshot import BUILD_FOLDER, METADATA_FILE

__all__ = ["BUILD_TOML", "Workspace", "find_workspace", "read_sources", "source_folders"]

BUILD_TOML = "build.toml"


@dataclass(frozen=True)
class Workspace:
    """A kernel that is written here.

    Attributes:
        folder: Where its builds go, in `build/<variant>`: the source folder, or the one that holds several.
        sources: Its sources; those after the first are of another framework, of the same name and version.
    """

    folder: Path
    sources: tuple[KernelSource, ...]

    @property
    def backends(self) -> tuple[str, ...]:
        """The backends that it lists."""
        return tuple(dict.fromkeys(backend for source in self.sources for backend in source.backends))

    @property
    def repo_id(self) -> str | None:
        """The repository it is published to, if one of its sources says it."""
        return next((source.repo_id for source in self.sources if source.repo_id is not None), None)

    @property
    def branch(self) -> str | None:
        """The branch it is published to, if one of its sources says it."""
        return next((source.branch for source in self.sources if source.branch is not None), None)

    @property
    def folders(self) -> tuple[Path, ...]:
        """Its own folder and those of its sources, each once: where its tests and benchmarks may lie."""
        return tuple(dict.fromkeys([self.folder, *(source.folder for source in self.sources)]))


def find_workspace(folder: os.PathLike[str] | str) -> Workspace | None:
    """The kernel whose sources a folder holds.

    Args:
        folder: A source folder, or one that holds a kernel's source folders.

    Returns:
        The kernel. The folder of a source whose builds lie one above it, among those of its neighbours, is a part of
        the kernel there. None where there is no `build.toml`.

    Raises:
        RequestError: A `build.toml` is not valid, or several do not make one kernel.

    Example:
        >>> import tempfile
        >>> find_workspace(tempfile.mkdtemp()) is None
        True
    """
    root = Path(os.path.realpath(folder))
    if not source_folders(root):
        return None
    sources = read_sources(root)
    if sources[0].folder == root and not _has_builds(root, sources[0]) and _has_builds(root.parent, sources[0]):
        beside = source_folders(root.parent)
        if root in beside:
            return Workspace(root.parent, read_sources(root.parent))
    return Workspace(root, sources)


def source_folders(folder: Path) -> list[Path]:
    """Where a folder has `build.toml`: itself, or else its own folders, in the order of their names.

    Example:
        >>> source_folders(Path(__file__).parent)
        []
    """
    if (folder / BUILD_TOML).is_file():
        return [folder]
    if not folder.is_dir():
        return []
    return [path for path in sorted(folder.iterdir()) if path.name[0] != "." and (path / BUILD_TOML).is_file()]


def read_sources(folder: os.PathLike[str] | str) -> tuple[KernelSource, ...]:
    """Read a source folder, or those in a folder that share their builds.

    Args:
        folder: A folder with `build.toml`, or one whose own folders have it.

    Returns:
        The sources, at least one.

    Raises:
        RequestError: As for `read_source`; or they differ in what they must have in common, or two would make the same
            builds.
    """
    root = Path(os.path.realpath(folder))
    folders = source_folders(root)
    if not folders or folders == [root]:
        return (read_source(folder),)
    sources = tuple(map(read_source, folders))
    for key, get in _IN_COMMON.items():
        said = {source.folder.name: value for source in sources if (value := get(source)) is not None}
        if len(set(said.values())) > 1:
            each = ", ".join(f"{name}: {value!r}" for name, value in said.items())
            raise RequestError(
                f"The source folders in {root} differ in `{key}` ({each}); allowed are those of one kernel. "
                "Name one of them instead."
            )
    makers: dict[tuple[str, str], str] = {}
    for source in sources:
        for backend in source.backends:
            other = makers.setdefault((source.framework, backend), source.folder.name)
            if other != source.folder.name:
                raise RequestError(
                    f"The source folders {other} and {source.folder.name} in {root} both have `[{source.framework}]` "
                    f"for {backend}, which would make one build twice; allowed is one folder for it."
                )
    return sources


#: What the builds of a kernel have in common, and where they are published; each may say nothing of it.
_IN_COMMON: dict[str, Callable[[KernelSource], object]] = {
    "general.name": lambda source: source.name,
    "general.version": lambda source: source.version,
    "general.license": lambda source: source.license,
    "general.hub.repo-id": lambda source: source.repo_id,
    "general.hub.branch": lambda source: source.branch,
}


def _has_builds(folder: Path, source: KernelSource) -> bool:
    """Whether there are builds of a kernel in a folder."""
    for path in folder.glob(f"{BUILD_FOLDER}/*/{METADATA_FILE}"):
        try:
            if Metadata.read_from_file(path).name == source.name:
                return True
        except InvalidMetadata:
            continue
    return False
