"""Read and check the builds of a folder before they are published."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kernels.authoring.compile.freshness import digest_remedy
from kernels.authoring.compile.sources.workspace import source_folders
from kernels.errors import InvalidMetadata, InvalidRepository, InvalidVariant, RequestError
from kernels.models.metadata import Metadata
from kernels.models.snapshot import BUILD_FOLDER, METADATA_FILE
from kernels.resolver.variant import UNIVERSAL, Variant, parse_variant
from kernels.support.hashing import on_every_core
from kernels.trust.content import BuildContent
from kernels.trust.file_hashes import sha256_file

__all__ = [
    "BENCHMARKS",
    "BENCHMARK_FILES",
    "CARD_FILE",
    "TEMPLATE_FILE",
    "LocalBuild",
    "LocalBuilds",
    "LocalFile",
    "Skipped",
    "read_builds",
]

#: The folder and the files of a kernel's benchmarks, which `kernels benchmark` also runs from a repository.
BENCHMARKS = "benchmarks"
BENCHMARK_FILES = "benchmark*.py"

#: Folders that are reserved on a Hub: its client refuses to write to them.
_RESERVED = frozenset({".git", ".cache"})

#: Levels of folders, as in a source folder.
_MAX_DEPTH = 100

_BYTECODE = "__pycache__"


#: The page that a Hub shows, and the template that its author keeps beside build.toml.
CARD_FILE = "README.md"
TEMPLATE_FILE = "CARD.md"


@dataclass(frozen=True)
class LocalFile:
    """A file that may be published: its path, its size in bytes, its SHA-256, and when it was changed."""

    path: Path
    size: int
    sha256: str
    mtime_ns: int

    @staticmethod
    def of(path: Path) -> LocalFile:
        """Read and hash a file."""
        facts = path.stat()
        return LocalFile(path, facts.st_size, sha256_file(path), facts.st_mtime_ns)

    @property
    def changed(self) -> bool:
        """Whether it was written since it was hashed."""
        try:
            facts = self.path.stat()
        except OSError:
            return True
        return (facts.st_size, facts.st_mtime_ns) != (self.size, self.mtime_ns)


@dataclass(frozen=True)
class Skipped:
    """What is not published, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class LocalBuild:
    """One build: its variant, its metadata, and its files by path in the repository."""

    variant: Variant
    metadata: Metadata
    files: Mapping[str, LocalFile]


@dataclass(frozen=True)
class LocalBuilds:
    """The builds of one version of a kernel.

    Attributes:
        folder: The folder that has `build/<variant>`.
        builds: The builds by variant name, sorted.
        benchmarks: The files of its benchmarks, by path in the repository.
        template: The author's `CARD.md`, if there is one.
        readme: The author's `README.md` beside `build.toml`, if there is one.
        skipped: Files that are left out.
    """

    folder: Path
    builds: Mapping[str, LocalBuild]
    benchmarks: Mapping[str, LocalFile]
    template: Path | None = None
    readme: Path | None = None
    skipped: tuple[Skipped, ...] = ()

    @property
    def metadata(self) -> Metadata:
        """The metadata of the first build: all have the same name, version and license."""
        return next(iter(self.builds.values())).metadata

    @property
    def files(self) -> dict[str, LocalFile]:
        """Every file, by path in the repository."""
        files = {path: file for build in self.builds.values() for path, file in build.files.items()}
        return files | dict(self.benchmarks)


def read_builds(folder: os.PathLike[str] | str, sources: Iterable[Path] = ()) -> LocalBuilds:
    """Read a folder's builds, and check that they can be published together.

    Bytecode is left out: importing a module writes it.

    Args:
        folder: The folder that has `build/<variant>`.
        sources: Folders in it that can have benchmarks too.

    Returns:
        The builds with their files, and what was skipped.

    Raises:
        RequestError: The folder is missing or has no builds; the builds differ in name, version or license; or two
            benchmarks have one name.
        InvalidVariant: A folder in `build` does not have the name of a variant.
        InvalidMetadata: A `metadata.json` is missing or wrong, or is for another backend than the variant.
        DigestMismatch: A build's files do not match its digest.
        InvalidRepository: A link leaves the folder, or an entry is not a regular file.
    """
    root = Path(os.path.realpath(folder))
    skipped: list[Skipped] = []
    found = [_find_build(root, path, skipped) for path in _variant_folders(folder, root)]
    # All at once: a release has gigabytes, and every core hashes another file.
    paths = list(dict.fromkeys(path for build in found for path in build.paths.values()))
    hashed = dict(zip(paths, on_every_core(LocalFile.of, paths, lambda path: path.stat().st_size), strict=True))
    builds = {build.folder.name: _checked_build(build, hashed) for build in found}
    for key in ("name", "version", "license"):
        values: dict[object, list[str]] = {}
        for name, build in builds.items():
            values.setdefault(getattr(build.metadata, key), []).append(name)
        if len(values) > 1:
            each = "; ".join(f"{value!r}: {', '.join(names)}" for value, names in values.items())
            raise RequestError(f"The builds in {folder} differ in `{key}` ({each}); build them all from one source.")
    benchmarks: dict[str, LocalFile] = {}
    places = list(dict.fromkeys([root, *sources]))
    for place in places:
        for path in sorted((place / BENCHMARKS).glob(BENCHMARK_FILES)):
            file = LocalFile.of(_checked(path, root))
            other = benchmarks.setdefault(f"{BENCHMARKS}/{path.name}", file)
            if other.sha256 != file.sha256:
                raise RequestError(
                    f"{other.path} and {file.path} would be published under one name; rename one of them."
                )
    # In a folder without sources it is the card of a downloaded repository, for its old builds.
    written = bool(source_folders(root)) and (root / CARD_FILE).exists()
    # Other builders leave a filled-in card beside the builds.
    cards = [place / TEMPLATE_FILE for place in (*places, root / BUILD_FOLDER)]
    template = next((_checked(path, root) for path in cards if os.path.lexists(path)), None)
    readme = _checked(root / CARD_FILE, root) if written else None
    return LocalBuilds(root, builds, benchmarks, template, readme, tuple(skipped))


def _variant_folders(folder: os.PathLike[str] | str, root: Path) -> list[Path]:
    shown = os.fspath(folder)
    if not root.is_dir():
        raise RequestError(f"`folder` is {shown!r}, which is not a folder; expected one with {BUILD_FOLDER}/.")
    if not (root / BUILD_FOLDER).is_dir():
        advice = "run `kernels build` first."
        for parent, levels in ((root.parent, "the folder above it"), (root.parent.parent, "the one two above it")):
            if (parent / BUILD_FOLDER).is_dir() and root.is_relative_to(parent / BUILD_FOLDER):
                advice = f"did you mean {levels}, {parent}?"
        raise RequestError(f"`folder` is {shown!r}, which has no folder {BUILD_FOLDER}/; {advice}")
    found = sorted(path for path in (root / BUILD_FOLDER).iterdir() if path.is_dir() and not path.name.startswith("."))
    if not found:
        raise RequestError(f"{root / BUILD_FOLDER} has no builds; run `kernels build` first.")
    return found


@dataclass(frozen=True)
class _FoundBuild:
    """A build whose files are not hashed yet."""

    folder: Path
    variant: Variant
    metadata: Metadata
    paths: Mapping[str, Path]


def _find_build(root: Path, folder: Path, skipped: list[Skipped]) -> _FoundBuild:
    try:
        variant = parse_variant(folder.name)
    except InvalidVariant as error:
        raise InvalidVariant(f"{folder}: {error} Delete the folder if it is not a build.") from None
    paths = {f"{BUILD_FOLDER}/{folder.name}/{path}": file for path, file in _files(folder, root, skipped)}
    metadata = Metadata.read_from_file(folder / METADATA_FILE)
    if variant.backend not in (UNIVERSAL, metadata.backend.type):
        raise InvalidMetadata(
            f"{folder / METADATA_FILE}: `backend.type` is {metadata.backend.type!r}; this variant needs "
            f"{variant.backend!r}."
        )
    return _FoundBuild(folder, variant, metadata, paths)


def _checked_build(build: _FoundBuild, hashed: Mapping[Path, LocalFile]) -> LocalBuild:
    files = {path: hashed[file] for path, file in build.paths.items()}
    if build.metadata.digest is not None:
        prefix = f"{BUILD_FOLDER}/{build.folder.name}/"
        known = {path.removeprefix(prefix): file.sha256 for path, file in files.items()}
        BuildContent(build.folder, known=known).check_digest(build.metadata.digest, digest_remedy(build.folder))
    return LocalBuild(build.variant, build.metadata, files)


def _files(top: Path, root: Path, skipped: list[Skipped]) -> Iterator[tuple[str, Path]]:
    if not Path(os.path.realpath(top)).is_relative_to(root):
        raise InvalidRepository(f"{top} is a link that leaves {root}; publish a folder with its own files.")
    for folder, folders, names in os.walk(top):
        if len(Path(folder).relative_to(top).parts) > _MAX_DEPTH:
            raise InvalidRepository(f"The folders in {top} are nested deeper than {_MAX_DEPTH} levels.")
        if _BYTECODE in folders:
            path = Path(folder, _BYTECODE).relative_to(top)
            skipped.append(Skipped(f"{BUILD_FOLDER}/{top.name}/{path.as_posix()}/", "bytecode"))
        folders[:] = sorted(name for name in folders if name != _BYTECODE)
        for name in folders:
            path = Path(folder, name)
            if name in _RESERVED or path.is_symlink():
                what = "a link to a folder" if path.is_symlink() else "a folder that is reserved on the Hub"
                raise InvalidRepository(f"{path} is {what}; publish a folder with its own files.")
        for name in sorted(names):
            path = Path(folder, name)
            inside = path.relative_to(top).as_posix()
            if name.endswith((".pyc", ".pyo")):
                skipped.append(Skipped(f"{BUILD_FOLDER}/{top.name}/{inside}", "bytecode"))
            else:
                yield inside, _checked(path, root)


def _checked(path: Path, root: Path) -> Path:
    """A file inside the root, links followed."""
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(root):
        raise InvalidRepository(f"{path} is a link that leaves {root}; publish a folder with its own files.")
    if not real.exists() or not stat.S_ISREG(real.stat().st_mode):
        raise InvalidRepository(f"{path} is not a regular file, or is a broken link; a build has regular files only.")
    return real
