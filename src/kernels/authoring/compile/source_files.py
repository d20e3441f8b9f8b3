"""The files of a source folder: which of them a build can depend on, and which paths are theirs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from kernels.errors import RequestError
from kernels.models.snapshot import BUILD_FOLDER

__all__ = ["is_source", "path_inside", "source_entries", "source_fault", "source_files"]

#: Folders inside each other: what copies and removes them takes a frame of Python's stack for each.
_MAX_DEPTH = 100


def source_files(folder: Path) -> Iterator[tuple[PurePosixPath, Path]]:
    """The files of a source folder that a build can depend on, sorted: none that are hidden, nor bytecode.

    Args:
        folder: The source folder.

    Returns:
        Each file's path relative to the folder, and the file. Links to folders are not followed.

    Raises:
        RequestError: The folders nest deeper than any sources do.
    """
    for path in source_entries(folder):
        if (folder / path).is_file():
            yield path, folder / path


def source_entries(folder: Path) -> list[PurePosixPath]:
    """Everything in a source folder but its folders: files, links, and what else there is; as for `source_files`."""
    found: list[PurePosixPath] = []
    pending = [PurePosixPath()]
    while pending:
        inside = pending.pop()
        if len(inside.parts) > _MAX_DEPTH:
            raise RequestError(f"The folders in {folder} nest deeper than {_MAX_DEPTH}; those of sources never do.")
        for path in (inside / name for name in os.listdir(folder / inside)):
            if not is_source(path):
                continue
            is_folder = (folder / path).is_dir() and not (folder / path).is_symlink()
            (pending if is_folder else found).append(path)
    return sorted(found)


def is_source(path: PurePosixPath) -> bool:
    """Whether a build can depend on a file of that name: it is neither hidden nor bytecode.

    Args:
        path: Relative to the source folder.

    Example:
        >>> is_source(PurePosixPath("tests/__pycache__/test_relu.pyc"))
        False
    """
    hidden = any(part.startswith(".") or part == "__pycache__" for part in path.parts)
    return not hidden and path.suffix != ".pyc"


def source_fault(folder: Path, path: str) -> str | None:
    """Why a path is no source; None if it is one."""
    inside = path_inside(folder, path)
    if inside is None:
        return "leads out of the folder"
    try:
        there = inside.is_file()
    except OSError:  # a name that is too long
        there = False
    if not there:
        return "does not exist"
    if not path.isprintable():
        return "has a name that not every system can have"
    plain = PurePosixPath(os.path.normpath(path))
    if not is_source(plain) or plain.parts[0] == BUILD_FOLDER:
        # Its changes would not be seen.
        return f"is hidden, or lies in {BUILD_FOLDER}/, where builds go"
    return None


def path_inside(folder: Path, path: str) -> Path | None:
    """Where a path of a `build.toml` leads to; None if that is not inside the folder."""
    try:
        # As the compiler is given it: `link/..` is not where the link leads to.
        resolved = (folder / os.path.normpath(path)).resolve()
    except (OSError, ValueError, RuntimeError):  # too long, a null byte, a loop of links
        return None
    return resolved if not Path(path).is_absolute() and resolved.is_relative_to(folder) else None
