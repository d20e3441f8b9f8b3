"""The compilers, one module each: which one a source's suffix needs, its command and its flags."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from kernels.authoring.compile.toolchains.commands import compiler_version
from kernels.authoring.compile.toolchains.cxx import Cxx
from kernels.authoring.compile.toolchains.hipcc import Hipcc
from kernels.authoring.compile.toolchains.icpx import Icpx
from kernels.authoring.compile.toolchains.interface import Toolchain, Toolkit
from kernels.authoring.compile.toolchains.metal import MetalCompiler, ObjectiveCxx
from kernels.authoring.compile.toolchains.msvc import Msvc
from kernels.authoring.compile.toolchains.nvcc import Nvcc
from kernels.errors import CompilerNotFound
from kernels.support.version import MajorMinor

__all__ = ["Toolchain", "Toolkit", "compiled_sources", "compiler_version", "toolchain_for", "toolkit_for"]

_HEADERS = frozenset({".h", ".hh", ".hpp", ".hxx", ".cuh", ".inl"})

#: The compiler of this system's C++ sources.
_HOST: Toolchain = Msvc() if sys.platform == "win32" else Cxx()

_TOOLCHAINS: tuple[Toolchain, ...] = (_HOST, Nvcc(), Hipcc(), Icpx(), ObjectiveCxx(), MetalCompiler())


def compiled_sources(paths: Iterable[str]) -> list[str]:
    """The paths that are not headers.

    Example:
        >>> compiled_sources(["a.cpp", "a.h"])
        ['a.cpp']
    """
    return [path for path in paths if Path(path).suffix not in _HEADERS]


def toolchain_for(path: str, language: str = "", version: MajorMinor | None = None) -> Toolchain:
    """The toolchain for a source, by its suffix and the backend's device language.

    Args:
        path: The source.
        language: The backend's `device_language`, which decides where two compilers take one suffix: `.cu` is HIP for
            AMD's GPUs.
        version: The toolkit's version that Torch was built with: one that fits it is preferred.

    Raises:
        CompilerNotFound: No toolchain compiles files with that suffix.

    Example:
        >>> toolchain_for("kernel.cpp").device
        False
    """
    fitting = [toolchain for toolchain in _TOOLCHAINS if Path(path).suffix in toolchain.suffixes]
    if not fitting:
        known = ", ".join(sorted({each for toolchain in _TOOLCHAINS for each in toolchain.suffixes}))
        raise CompilerNotFound(f"No compiler is known for {path}; expected a source that ends in {known}.")
    return next((each for each in fitting if each.language == language), fitting[0]).preferring(version)


def toolkit_for(language: str, version: MajorMinor | None = None) -> Toolkit | None:
    """The toolkit of a device language; None if the language has none.

    Args:
        language: A backend's `device_language`.
        version: As for `toolchain_for`.

    Raises:
        CompilerNotFound: The toolkit is not installed.

    Example:
        >>> toolkit_for("") is None
        True
    """
    found = next((each for each in _TOOLCHAINS if each.language == language), None)
    return None if found is None else found.preferring(version).toolkit()
