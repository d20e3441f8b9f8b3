"""The variants to check and their files; no link is followed out of them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from kernels.errors import InvalidRepository, InvalidVariant, RepositoryNotFound
from kernels.models import MIRROR_FILE
from kernels.models.metadata import Metadata
from kernels.models.snapshot import BUILD_FOLDER, METADATA_FILE, is_bytecode
from kernels.resolver.variant import Variant, parse_variant
from kernels.support.files import FileTooLarge, open_regular, read_bounded
from kernels.support.formatting import shell_word

if TYPE_CHECKING:
    from kernels.authoring.check.python_sources import SourceFindings

__all__ = [
    "MAX_FILES",
    "MAX_TEXT_BYTES",
    "MAX_VARIANTS",
    "MAX_VARIANT_BYTES",
    "CheckedVariant",
    "VariantFiles",
    "find_variants",
]

#: Bounds far above published kernels, which have some 60 variants of a few hundred files and 2 GB.
MAX_VARIANTS, MAX_FILES, MAX_VARIANT_BYTES = 1000, 20_000, 16 * 10**9

#: Levels of folders, as in a source folder.
_MAX_DEPTH = 100

#: Bytes of a text file that is read; a generated Python module has some 100 kB.
MAX_TEXT_BYTES = 2 * 1024 * 1024


@dataclass(frozen=True)
class VariantFiles:
    """The files of a variant."""

    sizes: dict[str, int]  # bytes by POSIX path in the variant; includes links that stay inside
    faults: tuple[str, ...] = ()  # files and links that are not allowed
    safe: bool = True  # they may be read and loaded: no link leaves the variant, and the bounds are kept


@dataclass
class CheckedVariant:
    """A variant, and what earlier steps read of it."""

    folder: Path
    files: VariantFiles
    variant: Variant | None = None  # its parsed name; None if invalid
    metadata: Metadata | None = None  # its parsed `metadata.json`; None until that is read, and if invalid
    sources: SourceFindings | None = None  # what its sources show; None until they are read

    @staticmethod
    def of(folder: Path, root: Path | None = None, *, bytecode: bool = True) -> CheckedVariant:
        """List a variant's files, with or without bytecode; links may lead into `root`, by default the folder."""
        try:
            variant = parse_variant(folder.name)
        except InvalidVariant:
            variant = None
        return CheckedVariant(folder, _survey(folder, root or folder, bytecode), variant)

    def read(self, name: str, limit: int = MAX_TEXT_BYTES) -> bytes | None:
        """The content of a file; None if it has more than `limit` bytes."""
        try:
            return read_bounded(self.folder / name, limit)
        except FileTooLarge:
            return None

    def start(self, name: str, count: int) -> bytes:
        """The first bytes of a file."""
        with open_regular(self.folder / name) as file:
            return file.read(count)

    def python_files(self) -> Iterator[str]:
        """The Python sources."""
        return (name for name in self.files.sizes if name.endswith(".py"))


def find_variants(path: os.PathLike[str] | str) -> list[Path]:
    """The folders of the variants in a repository's folder, in its `build` folder, or of one variant, sorted by name.

    Raises:
        RepositoryNotFound: The folder does not exist, or has no variants.
        InvalidRepository: It has too many folders.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "build" / "torch-cpu").mkdir(parents=True)
        >>> [variant.name for variant in find_variants(folder)]
        ['torch-cpu']
    """
    from kernels.authoring.compile.sources.workspace import find_workspace, source_folders

    folder = Path(os.path.realpath(os.path.expanduser(path)))
    if folder.is_file():
        raise RepositoryNotFound(f"{os.fspath(path)} is a file; expected the folder of a kernel or a build.")
    if not folder.is_dir():
        raise RepositoryNotFound(f"The folder {os.fspath(path)} does not exist.")
    if _is_variant(folder):
        return [folder]
    builds = folder / BUILD_FOLDER
    if not builds.is_dir() and source_folders(folder):
        workspace = find_workspace(folder)
        if workspace is None or workspace.folder == folder:
            raise RepositoryNotFound(
                f"{os.fspath(path)} has a kernel's sources (build.toml) but no builds; make them with `kernels build "
                f"{shell_word(os.fspath(path))}`."
            )
        builds = workspace.folder / BUILD_FOLDER
    inside = _folders(builds if builds.is_dir() else folder)
    if inside and (builds.is_dir() or any(map(_is_variant, inside))):
        return inside
    if (folder / MIRROR_FILE).is_file():
        raise RepositoryNotFound(
            f"{os.fspath(path)} is a mirror: name a repository, and the mirror in "
            f"KERNELS_HUB={shell_word(os.fspath(path))}. "
            f"To verify all of it: kernels mirror {shell_word(os.fspath(path))} --verify"
        )
    raise RepositoryNotFound(
        f"{os.fspath(path)} has no builds: it is not a variant such as torch-cpu, nor a folder of variants."
    )


def _is_variant(folder: Path) -> bool:
    try:
        parse_variant(folder.name)
    except InvalidVariant:
        return (folder / METADATA_FILE).is_file()
    return True


def _folders(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        inside = sorted(islice((Path(entry.path) for entry in entries if entry.is_dir()), MAX_VARIANTS + 1))
    if len(inside) > MAX_VARIANTS:
        raise InvalidRepository(f"{folder} has more than {MAX_VARIANTS} folders; kernels have fewer builds.")
    return inside


def _survey(folder: Path, root: Path, bytecode: bool) -> VariantFiles:
    inside = os.path.join(os.path.realpath(root), "")
    if os.path.islink(folder):
        return VariantFiles({}, (f"it is a link to {os.path.realpath(folder)}; expected a folder",), safe=False)
    sizes: dict[str, int] = {}
    faults: list[str] = []
    safe, seen, total = True, 0, 0
    pending = [("", os.fspath(folder))]  # no recursion: a hostile tree may be deeper than Python's stack
    while pending:
        prefix, path = pending.pop()
        if prefix.count("/") > _MAX_DEPTH:
            return VariantFiles({}, (f"its folders are nested deeper than {_MAX_DEPTH} levels",), safe=False)
        with os.scandir(path) as entries:
            for entry in entries:
                name, seen = prefix + entry.name, seen + 1
                if seen > MAX_FILES:
                    return VariantFiles({}, (f"it has more than {MAX_FILES} files and folders",), safe=False)
                if entry.is_dir(follow_symlinks=False):
                    pending.append((f"{name}/", entry.path))
                    continue
                fault, leaves = _fault(entry, inside)
                safe = safe and not leaves
                if fault:
                    faults.append(f"{name}: {fault}")
                    continue
                sizes[name] = entry.stat().st_size
                total += sizes[name]
    if total > MAX_VARIANT_BYTES:
        faults.append(f"its files have {total} bytes; the limit is {MAX_VARIANT_BYTES}")
        safe = False
    kept = {name: size for name, size in sorted(sizes.items()) if bytecode or not is_bytecode(name)}
    return VariantFiles(kept, tuple(sorted(faults)), safe)


def _fault(entry: os.DirEntry[str], inside: str) -> tuple[str, bool]:
    """Why a file is not allowed ("" if it is), and whether that makes the variant unsafe to read."""
    if entry.is_symlink():
        target = os.path.realpath(entry.path)
        if not target.startswith(inside):
            return f"a link to {target}, outside of {os.path.dirname(inside)}", True
        if entry.is_dir():
            return "a link to a folder; only files may be links", True
        if not entry.is_file():
            return "a broken link", True
    elif not stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):
        return "neither a file nor a folder", True
    if not entry.name.isprintable() or "\\" in entry.name:
        return "a name that is invalid on some systems", False
    return "", False
