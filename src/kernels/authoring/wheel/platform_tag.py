"""The Pythons and systems that a build runs on, as a wheel's name says it.

https://packaging.python.org/en/latest/specifications/platform-compatibility-tags/
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from packaging.tags import Tag

from kernels.authoring.check.elf_file import open_elf, require_pyelftools
from kernels.authoring.check.foreign_library import UnreadableLibrary, read_library, require_lief
from kernels.authoring.wheel.core_metadata import OLDEST_PYTHON
from kernels.errors import RequestError
from kernels.resolver.variant import Variant

__all__ = ["oldest_glibc", "oldest_macos", "wheel_tag"]

#: The oldest glibc that is named: no Torch runs on an older one.
_OLDEST_GLIBC = 17

#: The glibc, 2.X, of the oldest system that has a version of a symbol family, as auditwheel 6.8 lists them
#: (https://github.com/pypa/auditwheel/blob/main/src/auditwheel/policy/manylinux-policy.json).
_FAMILIES: Mapping[str, tuple[tuple[tuple[int, ...], int], ...]] = {
    "GLIBCXX": (
        ((3, 4, 19), 17), ((3, 4, 22), 24), ((3, 4, 24), 27), ((3, 4, 28), 31), ((3, 4, 29), 34), ((3, 4, 30), 35),
        ((3, 4, 33), 39),
    ),
    "CXXABI": (
        ((1, 3, 7), 17), ((1, 3, 10), 24), ((1, 3, 11), 27), ((1, 3, 12), 31), ((1, 3, 13), 34), ((1, 3, 15), 39),
    ),
    "GCC": (((4, 8, 0), 17), ((7, 0, 0), 27), ((12, 0, 0), 35), ((14, 0, 0), 39)),
}  # fmt: skip

#: Versions without a number.
_NAMED = {"GLIBC_ABI_DT_RELR": 36}

#: The most symbol versions that are read of one file.
_MAX_VERSIONS = 10_000

_LIBRARIES = (".so", ".dylib", ".dll", ".pyd")

#: Processors as pip calls them, where variants call them otherwise.
_MACOS_CPUS, _WINDOWS_CPUS = {"aarch64": "arm64"}, {"x86_64": "amd64", "aarch64": "arm64"}


def wheel_tag(variant: Variant, files: Mapping[str, Path]) -> Tag:
    """The tag of a build's wheel.

    Args:
        variant: The build's variant.
        files: Its files, by path in it.

    Raises:
        RequestError: A native file cannot be read, or there is none in a compiled build.
        MissingPythonDependency: pyelftools, or LIEF for macOS, is not installed.

    Example:
        >>> from kernels.resolver.variant import parse_variant
        >>> str(wheel_tag(parse_variant("torch-cuda"), {}))
        'py3-none-any'
    """
    if variant.noarch:
        return Tag("py3", "none", "any")
    native = [path for name, path in files.items() if name.endswith(_LIBRARIES)]
    if not native:
        raise RequestError(f"{variant.name} is a compiled build without a native file.")
    # A library of tvm-ffi is no Python extension.
    extension = any(".abi3." in path.name or path.suffix == ".pyd" for path in native)
    python, abi = (f"cp{OLDEST_PYTHON[0]}{OLDEST_PYTHON[1]}", "abi3") if extension else ("py3", "none")
    return Tag(python, abi, _platform(variant, native))


def _platform(variant: Variant, native: list[Path]) -> str:
    cpu = str(variant.cpu)
    if variant.os == "windows":
        return f"win_{_WINDOWS_CPUS.get(cpu, cpu)}"
    if variant.os == "darwin":
        major, minor = max(map(oldest_macos, native))
        # From macOS 11 on every minor version has the ABI of its major version.
        return f"macosx_{major}_{0 if major > 10 else minor}_{_MACOS_CPUS.get(cpu, cpu)}"
    needed = [oldest_glibc(path) for path in native]
    known = [each for each in needed if each is not None]
    return f"manylinux_2_{max(known)}_{cpu}" if len(known) == len(needed) else f"linux_{cpu}"


def oldest_glibc(path: Path) -> int | None:
    """The X of the oldest glibc 2.X with which a library loads; None if that is not known.

    Args:
        path: The library, for Linux.

    Raises:
        RequestError: It cannot be read as an ELF file.
        MissingPythonDependency: pyelftools is not installed.
    """
    newest = _OLDEST_GLIBC
    for version in _symbol_versions(path):
        family, _, number = version.partition("_")
        if version in _NAMED:
            newest = max(newest, _NAMED[version])
        elif re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}", number) is None:
            continue  # CXXABI_FLOAT128, GLIBC_PRIVATE
        elif family == "GLIBC":
            newest = max(newest, int(number.split(".")[1]))
        elif family in _FAMILIES:
            wanted = tuple(map(int, number.split(".")))
            glibc = next((glibc for has, glibc in _FAMILIES[family] if wanted <= has), None)
            if glibc is None:
                return None
            newest = max(newest, glibc)
    return newest


def _symbol_versions(path: Path) -> list[str]:
    require_pyelftools()
    try:
        with open_elf(path) as elf:
            every: Iterable[Any] = elf.iter_sections()
            sections = [each for each in every if each["sh_type"] == "SHT_GNU_verneed"]
            found = (each.name for section in sections for _, versions in section.iter_versions() for each in versions)
            # Entries of a hostile file may refer to themselves and never end.
            return list(islice(found, _MAX_VERSIONS))
    except Exception as error:  # noqa: BLE001 - pyelftools does not validate the file
        raise RequestError(f"{path} cannot be read as an ELF file ({type(error).__name__}).") from None


def oldest_macos(path: Path) -> tuple[int, int]:
    """The oldest macOS that loads a library.

    Args:
        path: The library, for macOS.

    Raises:
        RequestError: It cannot be read as a Mach-O file, or does not say it.
        MissingPythonDependency: LIEF is not installed.
    """
    require_lief()
    try:
        oldest = max((part.min_os for part in read_library(path, "Mach-O")), default=())
    except UnreadableLibrary as error:
        raise RequestError(f"{path} does not say which macOS it is for: {error}.") from None
    if len(oldest) < 2:
        raise RequestError(f"{path} does not say which macOS it is for.")
    return oldest[0], oldest[1]
