"""The include folders of a section's `depends`, such as CUTLASS."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable
from pathlib import Path

from kernels.errors import CompilerNotFound

__all__ = ["dependency_includes"]

_CUTLASS = re.compile(r"cutlass_([0-9]+)_([0-9]+)")
_CUTLASS_PACKAGE = "nvidia-cutlass"


def dependency_includes(section: str, depends: Iterable[str]) -> list[Path]:
    """The include folders of a section's dependencies, without Torch's.

    Args:
        section: The section's name, for errors.
        depends: Names from `depends`: `torch`, `cutlass_4_0`.

    Raises:
        CompilerNotFound: A dependency is not installed, is installed in another version, or is not supported.

    Example:
        >>> dependency_includes("relu", ["torch"])
        []
    """
    folders: list[Path] = []
    for name in depends:
        match = _CUTLASS.fullmatch(name)
        if match is not None:
            folders += _cutlass(f"`kernel.{section}` depends on {name}", f"{match[1]}.{match[2]}")
        elif name != "torch":
            raise CompilerNotFound(
                f"`kernel.{section}` depends on {name}, which this builder cannot find; it supports torch and "
                f"cutlass_<major>_<minor> (from the package {_CUTLASS_PACKAGE})."
            )
    return folders


def _cutlass(depends: str, wanted: str) -> list[Path]:
    """The folders of CUTLASS's own headers and of its utilities, deep in the package."""
    install = f"pip install '{_CUTLASS_PACKAGE}=={wanted}.*'"
    try:
        package = importlib.metadata.distribution(_CUTLASS_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise CompilerNotFound(f"{depends}; {_CUTLASS_PACKAGE} is not installed: {install}") from None
    if package.version.split(".")[:2] != wanted.split("."):
        raise CompilerNotFound(f"{depends}; {_CUTLASS_PACKAGE} {package.version} is installed: {install}")
    found = {
        str(package.locate_file(str(file)[: -len(header)]))
        for file in package.files or ()
        for header in ("cutlass/cutlass.h", "cutlass/util/host_tensor.h")
        if str(file).endswith(f"include/{header}")
    }
    if not found:
        raise CompilerNotFound(f"{_CUTLASS_PACKAGE} {package.version} has no include/cutlass/cutlass.h: {install}")
    return [Path(folder) for folder in sorted(found)]
