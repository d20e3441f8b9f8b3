"""The compilers, one module each: which one a source's suffix needs, its command and its flags."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernels.authoring.compile.toolchains.c import C
from kernels.authoring.compile.toolchains.commands import compiler_version
from kernels.authoring.compile.toolchains.cxx import Cxx
from kernels.authoring.compile.toolchains.hipcc import Hipcc
from kernels.authoring.compile.toolchains.icpx import Icpx
from kernels.authoring.compile.toolchains.interface import Toolchain, Toolkit
from kernels.authoring.compile.toolchains.metal import MetalCompiler, ObjectiveC, ObjectiveCxx
from kernels.authoring.compile.toolchains.msvc import Msvc
from kernels.authoring.compile.toolchains.nvcc import Nvcc
from kernels.authoring.compile.toolchains.spelling import Spelling
from kernels.errors import CompilerNotFound
from kernels.support.version import MajorMinor

__all__ = [
    "Linking",
    "Toolchain",
    "Toolkit",
    "compiled_sources",
    "compiler_version",
    "device_toolchain",
    "link_extension",
    "toolchain_for",
    "toolkit_for",
]

_HEADERS = frozenset({".h", ".hh", ".hpp", ".hxx", ".cuh", ".inl"})

#: The compiler of this system's C++ sources.
_HOST: Toolchain = Msvc() if sys.platform == "win32" else Cxx()

#: Microsoft's compiler takes C as well as C++.
_C: tuple[Toolchain, ...] = () if sys.platform == "win32" else (C(),)

_METAL: tuple[Toolchain, ...] = (ObjectiveCxx(), ObjectiveC(), MetalCompiler())

_TOOLCHAINS: tuple[Toolchain, ...] = (_HOST, *_C, Nvcc(), Hipcc(), Icpx(), *_METAL)


@dataclass(frozen=True)
class Linking:
    """How an extension is linked.

    Attributes:
        command: The linker, without objects and output.
        arguments: The arguments after the objects.
        spelling: How it is told these.
        environment: Environment variables that the compilers and the linker need.
    """

    command: tuple[str, ...]
    arguments: tuple[str, ...]
    spelling: Spelling
    environment: tuple[tuple[str, str], ...] = ()


def link_extension(
    used: Iterable[Toolchain],
    libraries: Sequence[str],
    torch_lib: Path | None,
    compiled_with: Sequence[Sequence[str]] = (),
) -> Linking:
    """How an extension is linked: by the compiler of its device sources, else by that of its C++ sources.

    Args:
        used: The toolchains of its sources.
        libraries: Flags for the framework's libraries, as for GCC.
        torch_lib: The folder of Torch's libraries; None if they are not linked.
        compiled_with: The flags that device sources were compiled with, each set of them once.

    Raises:
        CompilerNotFound: The linker is not installed.
    """
    device = [toolchain for toolchain in used if toolchain.device]
    # Objects that are embedded have a compiler that links no extension: another one of that language does.
    linker = next((each for each in device if each.embeds is None), None) or next(
        (each for each in _TOOLCHAINS if device and each.language == device[0].language and each.embeds is None), _HOST
    )
    toolkit = linker.toolkit()
    environment = () if toolkit is None else toolkit.environment
    if not isinstance(_HOST, Msvc):
        arguments = (*libraries, *linker.link_flags(torch_lib, compiled_with))
        return Linking(tuple(linker.command()), arguments, linker.spelling, environment)
    folders = [f"-L{folder}" for folder in (() if toolkit is None else toolkit.libraries)]
    others = [] if linker is _HOST else linker.link_flags(torch_lib, compiled_with)
    arguments = (*_HOST.link_flags(torch_lib), *_HOST.spelling.arguments([*libraries, *folders, *others]))
    environment = (*_HOST.environment().items(), *environment)
    return Linking(tuple(_HOST.linker()), arguments, _HOST.spelling, environment)


def compiled_sources(paths: Iterable[str]) -> list[str]:
    """The paths that are not headers.

    Example:
        >>> compiled_sources(["a.cpp", "a.h"])
        ['a.cpp']
    """
    return [path for path in paths if Path(path).suffix not in _HEADERS]


def toolchain_for(
    path: str, language: str = "", version: MajorMinor | None = None, packages: Path | None = None
) -> Toolchain:
    """The toolchain for a source, by its suffix and the backend's device language.

    Args:
        path: The source.
        language: The backend's `device_language`, which decides where two compilers take one suffix: `.cu` is HIP for
            AMD's GPUs.
        version: The toolkit's version that Torch was built with: one that fits it is preferred.
        packages: The folder of the Python packages beside Torch, which may have parts of the toolkit.

    Raises:
        CompilerNotFound: No toolchain compiles files with that suffix.

    Example:
        >>> toolchain_for("kernel.cpp").device
        False
    """
    # A source of another device language is a mistake, not one for another compiler.
    known = [each for each in _TOOLCHAINS if not language or not each.device or each.language == language]
    fitting = [toolchain for toolchain in known if Path(path).suffix in toolchain.suffixes]
    if not fitting:
        suffixes = ", ".join(sorted({each for toolchain in known for each in toolchain.suffixes}))
        raise CompilerNotFound(f"No compiler is known for {path}; expected a source that ends in {suffixes}.")
    return next((each for each in fitting if each.language == language), fitting[0]).preferring(version, packages)


def toolkit_for(language: str, version: MajorMinor | None = None, packages: Path | None = None) -> Toolkit | None:
    """The toolkit of a device language; None if the language has none.

    Args:
        language: A backend's `device_language`.
        version: As for `toolchain_for`.
        packages: As for `toolchain_for`.

    Raises:
        CompilerNotFound: The toolkit is not installed.

    Example:
        >>> toolkit_for("") is None
        True
    """
    found = device_toolchain(language, version, packages)
    return None if found is None else found.toolkit()


def device_toolchain(
    language: str, version: MajorMinor | None = None, packages: Path | None = None
) -> Toolchain | None:
    """The toolchain of a device language, whatever its sources are; None if the language has none.

    Args:
        language: A backend's `device_language`.
        version: As for `toolchain_for`.
        packages: As for `toolchain_for`.

    Example:
        >>> device_toolchain("cuda").device, device_toolchain("")
        (True, None)
    """
    found = next((each for each in _TOOLCHAINS if each.device and each.language == language), None)
    return None if found is None else found.preferring(version, packages)
