"""What a folder has to publish: its builds, read and checked before anything is sent."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kernels.authoring.compile.freshness import digest_remedy
from kernels.authoring.compile.workspace import source_folders
from kernels.authoring.publish.model_card import CARD_FILE
from kernels.errors import InvalidMetadata, InvalidRepository, InvalidVariant, RequestError
from kernels.models.metadata import Metadata
from kernels.models.snapshot import BUILD_FOLDER, METADATA_FILE
from kernels.resolver.variant import UNIVERSAL, Variant, parse_variant
from kernels.trust.digest import sha256_file, verify_digest

__all__ = ["BENCHMARKS", "BENCHMARK_FILES", "Build", "Builds", "read_builds"]

#: Where a kernel's benchmarks lie, and which files are some: `kernels benchmark` runs those of a repository as well.
BENCHMARKS = "benchmarks"
BENCHMARK_FILES = "benchmark*.py"

#: Folders that a Hub has for itself, and that its client refuses to write to.
_RESERVED = frozenset({".git", ".cache"})


@dataclass(frozen=True)
class Build:
    """One build: its variant, what its metadata says, and its files by path in the repository."""

    variant: Variant
    metadata: Metadata
    files: Mapping[str, Path]


@dataclass(frozen=True)
class Builds:
    """The builds of one version of a kernel.

    Attributes:
        folder: Where they lie, in `build/<variant>`.
        builds: The builds, by variant name, in its order.
        benchmarks: The files of its benchmarks, by path in the repository.
        readme: The page that its author wrote beside `build.toml`, if there is one.
    """

    folder: Path
    builds: Mapping[str, Build]
    benchmarks: Mapping[str, Path]
    readme: Path | None = None

    @property
    def metadata(self) -> Metadata:
        """The metadata of the first build: name, version and licence are those of all."""
        return next(iter(self.builds.values())).metadata

    @property
    def files(self) -> dict[str, Path]:
        """Every file, by path in the repository."""
        files = {path: file for build in self.builds.values() for path, file in build.files.items()}
        return files | dict(self.benchmarks)


def read_builds(folder: os.PathLike[str] | str, sources: Iterable[Path] = ()) -> Builds:
    """Read a folder's builds, and check that they can be published together.

    Bytecode is left out: Python writes it beside a module that was imported to try it.

    Args:
        folder: The folder that holds `build/<variant>`.
        sources: Folders in it that hold benchmarks as well.

    Returns:
        The builds.

    Raises:
        RequestError: There is no such folder, there are no builds in it, or they differ in name, version or licence;
            or two benchmarks have one name.
        InvalidVariant: The name of a folder in `build` is no variant's.
        InvalidMetadata: A `metadata.json` is missing or wrong, or is for another backend than the variant.
        DigestMismatch: A build's files are not those its digest describes.
        InvalidRepository: A link leaves the folder, or there is something that is no file.
    """
    root = Path(os.path.realpath(folder))
    builds = {path.name: _read_build(root, path) for path in _variant_folders(folder, root)}
    for key in ("name", "version", "license"):
        said: dict[object, list[str]] = {}
        for name, build in builds.items():
            said.setdefault(getattr(build.metadata, key), []).append(name)
        if len(said) > 1:
            each = "; ".join(f"{value!r}: {', '.join(names)}" for value, names in said.items())
            raise RequestError(f"The builds in {folder} differ in `{key}` ({each}); build them all from one source.")
    benchmarks: dict[str, Path] = {}
    for place in dict.fromkeys([root, *sources]):
        for path in sorted((place / BENCHMARKS).glob(BENCHMARK_FILES)):
            file = _checked(path, root)
            other = benchmarks.setdefault(f"{BENCHMARKS}/{path.name}", file)
            if sha256_file(other) != sha256_file(file):
                raise RequestError(f"{other} and {file} would be published under one name; give one of them another.")
    # In a folder without sources it is the card of a repository that was downloaded, about the builds of that time.
    written = bool(source_folders(root)) and (root / CARD_FILE).exists()
    return Builds(root, builds, benchmarks, _checked(root / CARD_FILE, root) if written else None)


def _variant_folders(folder: os.PathLike[str] | str, root: Path) -> list[Path]:
    shown = os.fspath(folder)
    if not root.is_dir():
        raise RequestError(f"`folder` is {shown!r}, which is no folder; allowed is one that holds {BUILD_FOLDER}/.")
    if not (root / BUILD_FOLDER).is_dir():
        advice = "`kernels build` makes it."
        for parent, levels in ((root.parent, "the folder above it"), (root.parent.parent, "the one two above it")):
            if (parent / BUILD_FOLDER).is_dir() and root.is_relative_to(parent / BUILD_FOLDER):
                advice = f"did you mean {levels}, {parent}?"
        raise RequestError(f"`folder` is {shown!r}, which holds no folder {BUILD_FOLDER}/; {advice}")
    found = sorted(path for path in (root / BUILD_FOLDER).iterdir() if path.is_dir() and not path.name.startswith("."))
    if not found:
        raise RequestError(f"There are no builds in {root / BUILD_FOLDER}; `kernels build` makes them.")
    return found


def _read_build(root: Path, folder: Path) -> Build:
    try:
        variant = parse_variant(folder.name)
    except InvalidVariant as error:
        raise InvalidVariant(f"{folder}: {error} Delete the folder if it is no build.") from None
    files = {f"{BUILD_FOLDER}/{folder.name}/{path}": file for path, file in _files(folder, root)}
    metadata = Metadata.read_from_file(folder / METADATA_FILE)
    if variant.backend not in (UNIVERSAL, metadata.backend.type):
        raise InvalidMetadata(
            f"{folder / METADATA_FILE}: `backend.type` is {metadata.backend.type!r}; allowed for this variant is "
            f"{variant.backend!r}."
        )
    if metadata.digest is not None:
        verify_digest(folder, metadata.digest, digest_remedy(folder))
    return Build(variant, metadata, files)


def _files(top: Path, root: Path) -> Iterator[tuple[str, Path]]:
    if not Path(os.path.realpath(top)).is_relative_to(root):
        raise InvalidRepository(f"{top} is a link that leaves {root}; publish a folder that holds its own files.")
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in folders:
            path = Path(folder, name)
            if name in _RESERVED or path.is_symlink():
                what = "a link to a folder" if path.is_symlink() else "a folder that no repository may have"
                raise InvalidRepository(f"{path} is {what}; publish a folder that holds its own files.")
        for name in sorted(names):
            if not name.endswith((".pyc", ".pyo")):
                path = Path(folder, name)
                yield path.relative_to(top).as_posix(), _checked(path, root)


def _checked(path: Path, root: Path) -> Path:
    """A file inside the root, links followed."""
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(root):
        raise InvalidRepository(f"{path} is a link that leaves {root}; publish a folder that holds its own files.")
    if not real.exists() or not stat.S_ISREG(real.stat().st_mode):
        raise InvalidRepository(f"{path} is no file, or a link that leads nowhere; a build holds plain files.")
    return real
