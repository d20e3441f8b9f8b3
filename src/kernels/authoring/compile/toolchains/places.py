"""Where a toolkit's compiler is: where a variable says, on the path, or in one of the usual places; and which fits."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernels.authoring.compile.toolchains.commands import version_in_answer
from kernels.errors import CompilerNotFound
from kernels.support.formatting import format_value
from kernels.support.version import MajorMinor

__all__ = ["Place", "best_place", "check_fit", "compiler_places", "existing_folders", "newest_first"]

#: Folders that compilers search anyway. Named with `-isystem`, they would hide the headers of the C++ library.
_SEARCHED_ANYWAY = ("/usr/include", "/usr/local/include")


@dataclass(frozen=True)
class Place:
    """A compiler that is installed.

    Attributes:
        command: The command that runs it.
        found_by: How it was found: `$CUDA_HOME`, `the path`, `/usr/local/cuda`.
    """

    command: tuple[str, ...]
    found_by: str


def compiler_places(
    program: str, variable: str, homes: Sequence[str], usual: Iterable[tuple[Path, str]], install: str
) -> list[Place]:
    """The places of a toolkit's compiler, the likeliest first; only the one that a variable names, if one is set.

    Args:
        program: The compiler: `nvcc`.
        variable: The environment variable with its command.
        homes: Environment variables with the folder of its toolkit.
        usual: The usual folders of its toolkit, each with its name in messages.
        install: What to install without it.

    Raises:
        CompilerNotFound: It is in none of these places, or not where a variable says.
    """
    given = shlex.split(os.environ.get(variable, ""))
    if given:
        found = shutil.which(given[0])
        if found is None:
            raise CompilerNotFound(f"${variable} is {given[0]}, which is not a program. Correct it, or unset it.")
        return [Place((found, *given[1:]), f"${variable}")]
    for home in homes:
        folder = os.environ.get(home)
        if folder:
            found = shutil.which(os.path.join(folder, "bin", program))
            if found is None:
                raise CompilerNotFound(
                    f"${home} is {format_value(folder)}, which has no bin/{program}. Correct or unset it, or install "
                    f"{install} there."
                )
            return [Place((found,), f"${home}")]
    candidates = [(shutil.which(program), "the path")]
    candidates += [(shutil.which(str(folder / "bin" / program)), name) for folder, name in usual]
    places: dict[str, Place] = {}
    for path, found_by in candidates:
        if path is not None:
            places.setdefault(os.path.realpath(path), Place((path,), found_by))
    if not places:
        raise CompilerNotFound(
            f"{program} was not found on the path or in the usual places. Install {install}, or set {homes[0]} to its "
            "folder."
        )
    return list(places.values())


def best_place(places: Sequence[Place], wanted: MajorMinor | None, pattern: str) -> Place:
    """The first place, or the one whose version fits best if a version is wanted.

    Args:
        places: At least one.
        wanted: The version that Torch was built with.
        pattern: Finds the version in the compiler's `--version`.
    """
    if wanted is None or len(places) == 1:
        return places[0]
    return min(places, key=lambda place: _distance(place, wanted, pattern))


def _distance(place: Place, wanted: MajorMinor, pattern: str) -> tuple[int, int]:
    """The same version, then the nearest older one of its major version, then the nearest newer one."""
    try:
        version = version_in_answer(place.command, pattern)
    except CompilerNotFound:
        return 4, 0
    if version.major != wanted.major:
        return 3, 0
    return (1 if version <= wanted else 2), abs(version.minor - wanted.minor)


def check_fit(name: str, version: MajorMinor, place: str, wanted: MajorMinor | None, home: str) -> tuple[str, ...]:
    """Check that what a toolkit compiles runs with the runtime that Torch was built with.

    Args:
        name: The toolkit's name.
        version: Its version.
        place: Where it is, in words.
        wanted: The version that Torch was built with; None if there is none.
        home: The environment variable that names another one.

    Returns:
        A remark if its minor version is another one.

    Raises:
        CompilerNotFound: Its major version is another one.
    """
    if wanted is None or version == wanted:
        return ()
    torch, here = f"Torch was built with {name} {wanted}", f"{name} {version} in {place}"
    if version.major != wanted.major:
        raise CompilerNotFound(
            f"{torch}, which {here} cannot compile for. Install {name} {wanted.major}, best {wanted}, or set {home} to "
            "it."
        )
    return (
        f"{torch}; {here} compiles for it, as it has the same major version. If that fails, install {name} {wanted}.",
    )


def newest_first(folder: Path, prefix: str) -> list[Path]:
    """The folders of a toolkit's versions beside each other, such as `cuda-13.0`."""
    versions = {path: MajorMinor.parse(path.name.removeprefix(prefix)) for path in folder.glob(f"{prefix}*.*")}
    return sorted((path for path, found in versions.items() if found), key=lambda path: versions[path] or (0, 0))[::-1]


def existing_folders(paths: Iterable[Path | str]) -> tuple[Path, ...]:
    """Those of some folders that exist and that no compiler searches anyway, each once, without links and `..`.

    Example:
        >>> existing_folders(["/usr/include", "/no/such/folder"])
        ()
    """
    real = dict.fromkeys(os.path.realpath(path) for path in paths)
    searched = {os.path.realpath(path) for path in _SEARCHED_ANYWAY}
    return tuple(Path(path) for path in real if os.path.isdir(path) and path not in searched)
