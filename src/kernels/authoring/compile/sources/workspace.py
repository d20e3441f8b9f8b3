"""A kernel's folder: its source folders, and the builds that they share."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kernels.authoring.compile.build_toml.model import BUILD_TOML, KernelSource
from kernels.authoring.compile.build_toml.reader import read_source
from kernels.authoring.compile.sources.source_files import resolve_folder
from kernels.errors import InvalidMetadata, RequestError
from kernels.models.metadata import Metadata
from kernels.models.snapshot import BUILD_FOLDER, METADATA_FILE

__all__ = ["Workspace", "find_workspace", "read_sources", "source_folders"]


@dataclass(frozen=True)
class Workspace:
    """A kernel's sources and builds.

    Attributes:
        folder: The folder of its builds, `build/<variant>`: the source folder, or the parent of several.
        sources: Its sources: one for each framework, with the same name and version.
    """

    folder: Path
    sources: tuple[KernelSource, ...]

    @property
    def backends(self) -> tuple[str, ...]:
        """The backends of all sources."""
        return tuple(dict.fromkeys(backend for source in self.sources for backend in source.backends))

    @property
    def repo_id(self) -> str | None:
        """The repository it is published to, if a source has it."""
        return next((source.repo_id for source in self.sources if source.repo_id is not None), None)

    @property
    def branch(self) -> str | None:
        """The branch it is published to, if a source has it."""
        return next((source.branch for source in self.sources if source.branch is not None), None)

    @property
    def folders(self) -> tuple[Path, ...]:
        """Its own folder and those of its sources, each once: they can hold tests and benchmarks."""
        return tuple(dict.fromkeys([self.folder, *(source.folder for source in self.sources)]))


def find_workspace(folder: os.PathLike[str] | str) -> Workspace | None:
    """The workspace that a folder belongs to.

    Args:
        folder: A source folder, or the parent of a kernel's source folders.

    Returns:
        The workspace: the parent's, if the folder is one of several sources there and the builds are in the parent.
        None if no `build.toml` is found.

    Raises:
        RequestError: A `build.toml` is not valid, or several do not make one kernel.

    Example:
        >>> import tempfile
        >>> find_workspace(tempfile.mkdtemp()) is None
        True
    """
    root = resolve_folder(folder)
    if not source_folders(root):
        return None
    sources = read_sources(root)
    if sources[0].folder == root and not _has_builds(root, sources[0]) and _has_builds(root.parent, sources[0]):
        beside = source_folders(root.parent)
        if root in beside:
            return Workspace(root.parent, read_sources(root.parent))
    return Workspace(root, sources)


def source_folders(folder: Path) -> list[Path]:
    """The folder itself if it has `build.toml`, else those of its own folders that have one, sorted.

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
    """Read one or more source folders of a kernel.

    Args:
        folder: A folder with `build.toml`, or the parent of such folders.

    Returns:
        The sources, at least one.

    Raises:
        RequestError: As for `read_source`; or they belong to different kernels, or two would make the same builds.
    """
    root = resolve_folder(folder)
    folders = source_folders(root)
    if not folders or folders == [root]:
        return (read_source(folder),)
    sources = tuple(map(read_source, folders))
    for key, get in _IN_COMMON.items():
        values = {source.folder.name: value for source in sources if (value := get(source)) is not None}
        if len(set(values.values())) > 1:
            each = ", ".join(f"{name}: {value!r}" for name, value in values.items())
            raise RequestError(f"The source folders in {root} differ in `{key}` ({each}); give one of them instead.")
    makers: dict[tuple[str, str], str] = {}
    for source in sources:
        for backend in source.backends:
            other = makers.setdefault((source.framework, backend), source.folder.name)
            if other != source.folder.name:
                raise RequestError(
                    f"The source folders {other} and {source.folder.name} in {root} both have `[{source.framework}]` "
                    f"for {backend}; only one of them can."
                )
    return sources


#: What the sources of a kernel must have in common, where they have it.
_IN_COMMON: dict[str, Callable[[KernelSource], object]] = {
    "general.name": lambda source: source.name,
    "general.version": lambda source: source.version,
    "general.license": lambda source: source.license,
    "general.hub.repo-id": lambda source: source.repo_id,
    "general.hub.branch": lambda source: source.branch,
}


def _has_builds(folder: Path, source: KernelSource) -> bool:
    """Whether a folder has builds of a source's kernel."""
    for path in folder.glob(f"{BUILD_FOLDER}/*/{METADATA_FILE}"):
        try:
            if Metadata.read_from_file(path).name == source.name:
                return True
        except InvalidMetadata:
            continue
    return False
