"""What an audit looks at: the variants below a path, and the files of each; no link is followed out of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from kernels.authoring.compile.workspace import find_workspace, source_folders
from kernels.errors import InvalidRepository, InvalidVariant, RepositoryNotFound
from kernels.models.metadata import Metadata
from kernels.models.snapshot import BUILD_FOLDER, METADATA_FILE, is_bytecode
from kernels.resolver.variant import Variant, parse_variant
from kernels.support.files import FileTooLarge, open_regular, read_bounded

__all__ = ["MAX_FILES", "MAX_TEXT_BYTES", "MAX_VARIANTS", "MAX_VARIANT_BYTES", "Files", "Subject", "find_variants"]

#: Bounds far above what is published: some 60 variants a kernel, a few hundred files and 2 GB a variant.
MAX_VARIANTS, MAX_FILES, MAX_VARIANT_BYTES = 1000, 20_000, 16 * 10**9

#: The largest text file that is read; a generated Python module has some 100 kB.
MAX_TEXT_BYTES = 2 * 1024 * 1024


@dataclass(frozen=True)
class Files:
    """The files of a variant.

    Attributes:
        sizes: Bytes of each plain file, by its POSIX path in the variant. Links that stay inside are among them.
        faults: What is wrong with how they lie there.
        safe: Whether the files may be read and loaded: no link leaves, and there are not too many or too large ones.
    """

    sizes: dict[str, int]
    faults: tuple[str, ...] = ()
    safe: bool = True

    def without_bytecode(self) -> Files:
        """The others alone."""
        return replace(self, sizes={name: size for name, size in self.sizes.items() if not is_bytecode(name)})


@dataclass
class Subject:
    """A variant that is audited, and what earlier steps learned of it.

    Attributes:
        folder: The variant's folder.
        files: Its files.
        variant: What its name says; None where it says nothing.
        metadata: What its `metadata.json` says; None while that is not known to be valid.
    """

    folder: Path
    files: Files
    variant: Variant | None = None
    metadata: Metadata | None = None

    @staticmethod
    def of(folder: Path, root: Path | None = None) -> Subject:
        """Look at a variant's folder.

        Args:
            folder: The folder.
            root: The folder that links may lead into. Default: the variant's own.
        """
        try:
            variant = parse_variant(folder.name)
        except InvalidVariant:
            variant = None
        return Subject(folder, _survey(folder, folder if root is None else root), variant)

    def read(self, name: str, limit: int = MAX_TEXT_BYTES) -> bytes | None:
        """The bytes of one of its files; None where it has more than `limit`."""
        try:
            return read_bounded(self.folder / name, limit)
        except FileTooLarge:
            return None

    def start(self, name: str, count: int) -> bytes:
        """The first bytes of one of its files."""
        with open_regular(self.folder / name) as file:
            return file.read(count)

    def python_files(self) -> Iterator[str]:
        """Its Python sources."""
        return (name for name in self.files.sizes if name.endswith(".py"))


def find_variants(path: os.PathLike[str] | str) -> list[Path]:
    """The folders of the variants at a path.

    Args:
        path: A repository's folder, its `build` folder, or one variant.

    Returns:
        Absolute paths, in the order of their names.

    Raises:
        RepositoryNotFound: There is no such folder, or no variant in it.
        InvalidRepository: It holds more folders than any kernel has variants.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "build" / "torch-cpu").mkdir(parents=True)
        >>> [variant.name for variant in find_variants(folder)]
        ['torch-cpu']
    """
    folder = Path(os.path.realpath(os.path.expanduser(path)))
    if not folder.is_dir():
        raise RepositoryNotFound(f"There is no folder {os.fspath(path)}.")
    if _is_variant(folder):
        return [folder]
    builds = folder / BUILD_FOLDER
    if not builds.is_dir() and source_folders(folder):
        project = find_workspace(folder)
        if project is None or project.folder == folder:
            raise RepositoryNotFound(
                f"{os.fspath(path)} holds a kernel's sources (build.toml), and no builds; `kernels build "
                f"{os.fspath(path)}` makes them."
            )
        builds = project.folder / BUILD_FOLDER
    inside = _folders(builds if builds.is_dir() else folder)
    if inside and (builds.is_dir() or any(map(_is_variant, inside))):
        return inside
    raise RepositoryNotFound(
        f"{os.fspath(path)} holds no build of a kernel: it is no variant such as torch-cpu, and has no folder of "
        "variants."
    )


def _is_variant(folder: Path) -> bool:
    try:
        parse_variant(folder.name)
    except InvalidVariant:
        return (folder / METADATA_FILE).is_file()
    return True


def _folders(folder: Path) -> list[Path]:
    inside: list[Path] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                inside.append(Path(entry.path))
            if len(inside) > MAX_VARIANTS:
                raise InvalidRepository(f"{folder} holds more than {MAX_VARIANTS} folders; a kernel has fewer builds.")
    return sorted(inside)


def _survey(folder: Path, root: Path) -> Files:
    inside = os.path.join(os.path.realpath(root), "")
    if os.path.islink(folder):
        return Files({}, (f"it is a link to {os.path.realpath(folder)}; a variant is a folder",), safe=False)
    sizes: dict[str, int] = {}
    faults: list[str] = []
    safe, seen, total = True, 0, 0
    pending = [("", os.fspath(folder))]  # not recursion: a hostile tree may nest deeper than Python's stack
    while pending:
        prefix, path = pending.pop()
        with os.scandir(path) as entries:
            for entry in entries:
                name, seen = prefix + entry.name, seen + 1
                if seen > MAX_FILES:
                    return Files({}, (f"it holds more than {MAX_FILES} files and folders",), safe=False)
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
        faults.append(f"its files have {total} bytes; at most {MAX_VARIANT_BYTES} are looked at")
        safe = False
    return Files(dict(sorted(sizes.items())), tuple(sorted(faults)), safe)


def _fault(entry: os.DirEntry[str], inside: str) -> tuple[str, bool]:
    """What is wrong with a file, "" when nothing is, and whether it keeps the others from being looked at."""
    if entry.is_symlink():
        target = os.path.realpath(entry.path)
        if not target.startswith(inside):
            return f"a link to {target}, outside of {os.path.dirname(inside)}", True
        if entry.is_dir():
            return "a link to a folder; a variant holds plain files", True
        if not entry.is_file():
            return "a link that leads nowhere", True
    elif not stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):
        return "neither a file nor a folder", True
    if not entry.name.isprintable() or "\\" in entry.name:
        return "a name that not every system can have", False
    return "", False
