"""The compilers, one module each: which one a source's suffix needs, its command and its flags."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from kernels.authoring.compile.toolchains.commands import compiler_version
from kernels.authoring.compile.toolchains.cxx import Cxx
from kernels.authoring.compile.toolchains.hipcc import Hipcc
from kernels.authoring.compile.toolchains.interface import Toolchain
from kernels.authoring.compile.toolchains.nvcc import Nvcc
from kernels.errors import CompilerNotFound

__all__ = ["Toolchain", "compiled_sources", "compiler_version", "toolchain_for"]

_HEADERS = frozenset({".h", ".hh", ".hpp", ".hxx", ".cuh", ".inl"})

_TOOLCHAINS: tuple[Toolchain, ...] = (Cxx(), Nvcc(), Hipcc())


def compiled_sources(paths: Iterable[str]) -> list[str]:
    """The paths that are not headers.

    Example:
        >>> compiled_sources(["a.cpp", "a.h"])
        ['a.cpp']
    """
    return [path for path in paths if Path(path).suffix not in _HEADERS]


def toolchain_for(path: str, *, hip: bool = False) -> Toolchain:
    """The toolchain for a source, by its suffix.

    Args:
        path: The source.
        hip: Whether the device language is HIP: `.cu` sources are then compiled by hipcc.

    Raises:
        CompilerNotFound: No toolchain compiles files with that suffix.

    Example:
        >>> toolchain_for("kernel.cpp").device
        False
    """
    suffix = Path(path).suffix
    for toolchain in _TOOLCHAINS:
        if suffix in toolchain.suffixes:
            return Hipcc() if hip and toolchain.device else toolchain
    known = ", ".join(sorted(each for toolchain in _TOOLCHAINS for each in toolchain.suffixes))
    raise CompilerNotFound(f"No compiler is known for {path}; expected a source that ends in {known}.")
