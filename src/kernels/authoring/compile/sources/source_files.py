"""The files of a source folder: which of them a build can depend on, and their hashes."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from kernels.errors import RequestError
from kernels.models.snapshot import BUILD_FOLDER
from kernels.support.files import open_regular

__all__ = [
    "COMPILE_COMMANDS",
    "SourceHashes",
    "hash_sources",
    "is_file",
    "is_source",
    "path_inside",
    "resolve_folder",
    "source_entries",
    "source_problem",
]

#: The deepest nesting of folders: copying and removing them takes a frame of Python's stack for each level.
_MAX_DEPTH = 100

#: The macros that pass a build's id to its sources: Torch's and tvm-ffi's.
_ID_MACROS = (b"TORCH_EXTENSION_NAME", b"TVM_FFI_EXTENSION_NAME")

#: The file that tells editors how each source is compiled; a build writes it beside `build.toml`.
COMPILE_COMMANDS = "compile_commands.json"

#: Suffixes of files that are made from sources: bytecode, and the wheels of `kernels wheel`.
_MADE = frozenset({".pyc", ".whl"})

#: Folders that do not go into builds.
_NOT_BUILT = frozenset({"benchmarks", "tests"})

#: Folders whose every file can go into builds, also Markdown.
_PACKAGES = frozenset({"torch-ext", "tvm-ffi-ext"})

#: Files beside `build.toml` that are for the card: what `kernels benchmark --output` saves.
_RESULTS = ".json"

#: Where `kernels benchmark --visual` puts its plots, and their suffixes.
_PLOT_FOLDER, _PLOTS = "media", (".png", ".svg")

_CHUNK = 1 << 20

#: Files that a message lists before it only counts them.
_LISTED = 10


@dataclass(frozen=True)
class SourceHashes:
    """The hashes of a source folder's files, all SHA-256 in hexadecimal.

    Attributes:
        hashes: The hash of each file, by its path relative to the folder.
        id: The hash of all files and their names.
        naming: The files that use a macro for the build's id: their objects change with every id.
        code: The hash of the files that go into builds: all but tests, benchmarks with their plots and JSON files, and
            Markdown outside of the Python package.
    """

    hashes: Mapping[str, str]
    id: str
    naming: frozenset[str]
    code: str = ""


def hash_sources(folder: Path) -> SourceHashes:
    """Hash the files of a source folder, without hidden files, bytecode and `build/`.

    Raises:
        RequestError: The folders are nested too deep.

    Example:
        >>> sorted(hash_sources(Path(__file__).parent.parent / "include").hashes)
        ['older_glibc.h', 'registration.h']
    """
    hashes, naming = {}, set()
    for name in source_entries(folder):
        if not (folder / name).is_file() or (name.parts[0] == BUILD_FOLDER and len(name.parts) > 1):
            continue
        digest, tail = hashlib.sha256(), b""
        with open_regular(folder / name) as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                if any(macro in tail + chunk for macro in _ID_MACROS):
                    naming.add(str(name))
                tail = chunk[-max(map(len, _ID_MACROS)) :]
        hashes[str(name)] = digest.hexdigest()
    code = {name: value for name, value in hashes.items() if _goes_into_builds(name)}
    return SourceHashes(hashes, _combined(hashes), frozenset(naming), _combined(code))


def _goes_into_builds(name: str) -> bool:
    top, _, rest = name.partition("/")
    if name.endswith(".md"):
        return top in _PACKAGES
    if top == _PLOT_FOLDER:
        return not name.endswith(_PLOTS)
    return top not in _NOT_BUILT if rest else not top.endswith(_RESULTS)


def _combined(hashes: Mapping[str, str]) -> str:
    text = "".join(f"{name}\0{value}\n" for name, value in hashes.items())
    # A file name need not be Unicode, unless the file is published.
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def source_entries(folder: Path) -> list[PurePosixPath]:
    """The paths of everything in a source folder but its folders, sorted, without hidden files and bytecode.

    Links to folders are listed and not followed.

    Raises:
        RequestError: The folders are nested too deep.
    """
    found: list[PurePosixPath] = []
    pending = [PurePosixPath()]
    while pending:
        inside = pending.pop()
        if len(inside.parts) > _MAX_DEPTH:
            raise RequestError(f"The folders in {folder} are nested deeper than {_MAX_DEPTH} levels.")
        for path in (inside / name for name in os.listdir(folder / inside)):
            if not is_source(path):
                continue
            is_folder = (folder / path).is_dir() and not (folder / path).is_symlink()
            (pending if is_folder else found).append(path)
    return sorted(found)


def is_source(path: PurePosixPath) -> bool:
    """Whether a build can depend on a file with this relative path: it is neither hidden nor made from the sources.

    Example:
        >>> is_source(PurePosixPath("tests/__pycache__/test_relu.pyc"))
        False
    """
    hidden = any(part.startswith(".") or part == "__pycache__" for part in path.parts)
    return not hidden and path.suffix not in _MADE and path.parts != (COMPILE_COMMANDS,)


def source_problem(folder: Path, path: str) -> str | None:
    """Why a path in `build.toml` is not a source file; None if it is one."""
    inside = path_inside(folder, path)
    if inside is None:
        return "leads out of the folder"
    if not is_file(inside):
        return _no_file(folder, path, inside)
    if not path.isprintable():
        return "has a name that not every system allows"
    plain = PurePosixPath(os.path.normpath(path))
    if not is_source(plain) or plain.parts[0] == BUILD_FOLDER:
        # Its changes would not be noticed.
        return f"is hidden, or is in {BUILD_FOLDER}/, the folder of the builds"
    return None


def resolve_folder(folder: os.PathLike[str] | str) -> Path:
    """The absolute path of a source folder that a caller names; it may not exist.

    Raises:
        RequestError: No folder can have that path.
    """
    text = os.fspath(folder)
    if "\0" in text:
        raise RequestError(f"`source_dir` is {text[:80]!r}, which has a null byte; expected a folder.")
    path = Path(os.path.realpath(text))
    try:
        path.lstat()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise RequestError(
                f"`source_dir` is {text[:80]!r}… with {len(text)} characters, a longer path than the file system has."
            ) from None
    return path


def is_file(path: Path) -> bool:
    """Whether a path is a file; no path is one whose name is too long for the file system.

    Example:
        >>> is_file(Path(__file__)), is_file(Path("x" * 5000))
        (True, False)
    """
    try:
        return path.is_file()
    except OSError:
        return False


def _no_file(folder: Path, path: str, inside: Path) -> str:
    try:
        if inside.is_dir():
            return "is a folder"
        if not set(path) & set("*?["):
            return "does not exist"
        matches = sorted(str(each.relative_to(folder)) for each in folder.glob(os.path.normpath(path)))
    except (OSError, ValueError, NotImplementedError):
        return "does not exist"
    listed = ", ".join(matches[:_LISTED]) + (f" and {len(matches) - _LISTED} more" if len(matches) > _LISTED else "")
    return f"is a pattern, which no builder reads (it matches {listed or 'nothing'})"


def path_inside(folder: Path, path: str) -> Path | None:
    """The absolute path of a path in `build.toml`; None if it is not inside the folder."""
    try:
        # As the compiler gets it: `link/..` is not the parent of the link's target.
        resolved = (folder / os.path.normpath(path)).resolve()
    except (OSError, ValueError, RuntimeError):  # too long, a null byte, a loop of links
        return None
    return resolved if not Path(path).is_absolute() and resolved.is_relative_to(folder) else None
