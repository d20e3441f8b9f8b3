"""The headers of a section's `depends`, such as CUTLASS: where they are, and the flags to compile with them."""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kernels.errors import CompilerNotFound
from kernels.support.files import read_bounded

__all__ = ["allowed_depends", "dependency_flags", "is_dependency"]

#: What a section's `depends` can have, for people.
_ALLOWED = ("torch", "cutlass_<major>_<minor>", "sycl_tla", "metal-cpp")

#: Other builders have CUTLASS from 2.10 to 4.5, each minor version by its own name.
_CUTLASS = re.compile(r"cutlass_([2-9])_([0-9]{1,2})")
_CUTLASS_PACKAGE = "nvidia-cutlass"
_CUTLASS_FOLDERS = "CUTLASS_PATH"

#: The folders of CUTLASS's own headers and of its utilities.
_CUTLASS_INCLUDES = ("include", "tools/util/include")

#: Where the package has CUTLASS's sources.
_IN_PACKAGE = "cutlass_library/source"

#: The largest header that is read for its version: CUTLASS's has 3 kB.
_MAX_HEADER_BYTES = 64 * 1024


@dataclass(frozen=True)
class _Checkout:
    """Headers that no package has: they come from a folder that an environment variable names."""

    variable: str
    header: str
    includes: tuple[str, ...]
    defines: tuple[str, ...] = ()


_SPIRV_EXTENSIONS = ",".join(
    f"+SPV_INTEL_{name}" for name in ("split_barrier", "2d_block_io", "subgroup_matrix_multiply_accumulate")
)

_CHECKOUTS = {
    # Other builders read this variable, and define these macros (sycl-tla, CMakeLists.txt).
    "sycl_tla": _Checkout(
        "SYCL_TLA_SRC_DIR",
        "include/cutlass/cutlass.h",
        _CUTLASS_INCLUDES,
        # Its barriers and block loads are extensions of SPIR-V.
        ("-DCUTLASS_ENABLE_SYCL=1", "-DSYCL_INTEL_TARGET=1", "-Xspirv-translator", f"-spirv-ext={_SPIRV_EXTENSIONS}"),
    ),
    "metal-cpp": _Checkout("METAL_CPP_PATH", "Metal/Metal.hpp", (".",)),
}
# Its name in early files of edition 3.
_CHECKOUTS["cutlass_sycl"] = _CHECKOUTS["sycl_tla"]


def allowed_depends(quote: str = "") -> str:
    """What a section's `depends` can have, in words.

    Args:
        quote: What stands before and after each name.

    Example:
        >>> allowed_depends()
        'torch, cutlass_<major>_<minor>, sycl_tla or metal-cpp'
    """
    *others, last = (f"{quote}{each}{quote}" for each in _ALLOWED)
    return f"{', '.join(others)} or {last}"


def is_dependency(name: str) -> bool:
    """Whether a section's `depends` can have a name.

    Example:
        >>> is_dependency("cutlass_4_0"), is_dependency("cutlass")
        (True, False)
    """
    return name == "torch" or name in _CHECKOUTS or _CUTLASS.fullmatch(name) is not None


def dependency_flags(section: str, depends: Iterable[str]) -> list[str]:
    """The compiler flags for a section's dependencies: include folders and macros, without Torch's.

    Args:
        section: The section's name, for errors.
        depends: Names from `depends`: `torch`, `cutlass_4_0`.

    Raises:
        CompilerNotFound: A dependency is not installed, or in another version.

    Example:
        >>> dependency_flags("relu", ["torch"])
        []
    """
    flags: list[str] = []
    for name in depends:
        what = f"`kernel.{section}` depends on {name}"
        match = _CUTLASS.fullmatch(name)
        if match is not None:
            root = _cutlass(what, (int(match[1]), int(match[2])))
            flags += _includes(root, _CUTLASS_INCLUDES)
        elif name in _CHECKOUTS:
            checkout = _CHECKOUTS[name]
            flags += [*_includes(_checkout(what, checkout), checkout.includes), *checkout.defines]
    return flags


def _includes(root: Path, folders: Iterable[str]) -> list[str]:
    # Not `-isystem`: nvcc takes it only as an argument of its own.
    return [f"-I{root / folder}" for folder in folders if (root / folder).is_dir()]


def _checkout(what: str, checkout: _Checkout) -> Path:
    given = os.environ.get(checkout.variable)
    if not given:
        raise CompilerNotFound(f"{what}; set {checkout.variable} to the folder of its sources.")
    root = Path(given).absolute()
    if not (root / checkout.header).is_file():
        raise CompilerNotFound(f"{what}; {checkout.variable} is {given!r}, which has no {checkout.header}.")
    return root


def _cutlass(what: str, wanted: tuple[int, int]) -> Path:
    """The folder of the wanted version's sources: one of `$CUTLASS_PATH`, else the installed package's."""
    found: list[str] = []
    for place, root in _cutlass_folders():
        version = _cutlass_version(root)
        if version == wanted:
            return root
        found.append(f"{place} has {'no CUTLASS' if version is None else 'version {}.{}'.format(*version)}")
    dotted = "{}.{}".format(*wanted)
    have = "; ".join(found) or f"{_CUTLASS_PACKAGE} is not installed"
    raise CompilerNotFound(
        f"{what}; {have}. Install it (pip install '{_CUTLASS_PACKAGE}=={dotted}.*'), or set {_CUTLASS_FOLDERS} to a "
        f"checkout of its tag v{dotted}.0."
    )


def _cutlass_folders() -> Iterator[tuple[str, Path]]:
    """The folders that can have CUTLASS, each with its name for people."""
    for given in filter(None, os.environ.get(_CUTLASS_FOLDERS, "").split(os.pathsep)):
        folder = Path(given).absolute()
        # A folder of `pip install --target`, by which several versions can be installed side by side.
        packaged = folder / _IN_PACKAGE
        yield f"{given} (from ${_CUTLASS_FOLDERS})", packaged if packaged.is_dir() else folder
    try:
        package = importlib.metadata.distribution(_CUTLASS_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return
    yield f"{_CUTLASS_PACKAGE} {package.version}", Path(str(package.locate_file(_IN_PACKAGE)))


def _cutlass_version(root: Path) -> tuple[int, int] | None:
    """The version in a CUTLASS's own header; None if it is not there."""
    try:
        text = read_bounded(root / "include/cutlass/version.h", _MAX_HEADER_BYTES).decode(errors="replace")
    except (OSError, ValueError):
        return None
    major, minor = (re.search(rf"#define\s+CUTLASS_{part}\s+([0-9]+)", text) for part in ("MAJOR", "MINOR"))
    return None if major is None or minor is None else (int(major[1]), int(minor[1]))
