"""How compilers are told their input and output: as GCC is, or as Microsoft's compiler is."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["GNU", "MSVC", "NVCC", "Spelling"]

#: GCC's options that kernels pass, and Microsoft's that do the same. `cl` warns of others and passes them over.
_OPTIONS = {
    "-O3": "/O2",
    "-Ofast": "/O2",
    "-fopenmp": "/openmp:experimental",
    "-ffast-math": "/fp:fast",
    "-mavx2": "/arch:AVX2",
    "-mavx512f": "/arch:AVX512",
    "-w": "/w",
    "-cudart=shared": "cudart.lib",
    "-cudart=static": "cudart_static.lib",
}

#: What only GCC and its kind need, or what the options above say already.
_LEFT_OUT = re.compile(r"-shared|-f(?:PIC|pic|visibility.*)|-m(?:fma|f16c|avx512.*|sse.*)|-W.*|-Wl,.*|-fno-.*")


@dataclass(frozen=True)
class Spelling:
    """A manner of command lines.

    Attributes:
        microsoft: Whether it is that of `cl` and `link`; else that of GCC, Clang and their kind.
        object_suffix: The end of an object's name.
        reads_files: Whether arguments can be passed in a file, as `@file`.
    """

    microsoft: bool = False
    object_suffix: str = ".o"
    reads_files: bool = True

    @property
    def version_arguments(self) -> tuple[str, ...]:
        """The arguments that make the compiler say its version: Microsoft's says it without any."""
        return () if self.microsoft else ("--version",)

    def arguments(self, flags: Sequence[str]) -> list[str]:
        """Flags that are spelled as for GCC, as this compiler or linker takes them.

        Args:
            flags: The flags: folders, macros, libraries, and options of a kernel's author.

        Example:
            >>> MSVC.arguments(["-isystem", "include", "-DONE=1", "-std=c++17", "-fPIC", "-Llib", "-lc10"])
            ['/external:I', 'include', '-DONE=1', '/std:c++17', '/LIBPATH:lib', 'c10.lib']
        """
        return _microsofts(flags) if self.microsoft else list(flags)

    def compiled(self, source: str, output: Path) -> list[str]:
        """The arguments that compile a source to an object.

        Example:
            >>> GNU.compiled("a.cpp", Path("a.o")), MSVC.compiled("a.cpp", Path("a.obj"))
            (['-c', 'a.cpp', '-o', 'a.o'], ['/c', 'a.cpp', '/Foa.obj'])
        """
        return ["/c", source, f"/Fo{output}"] if self.microsoft else ["-c", source, "-o", str(output)]

    def linked(self, output: Path) -> list[str]:
        """The arguments that name a library to link."""
        return [f"/OUT:{output}"] if self.microsoft else ["-o", str(output)]

    def listing_headers(self, output: Path) -> list[str]:
        """The arguments that make a compiler list the headers that it reads, for ninja."""
        return ["/showIncludes"] if self.microsoft else ["-MD", "-MF", f"{output}.d"]

    def ninja_deps(self, file: str) -> list[str]:
        """The lines of a ninja rule that read that list; `file` is escaped already."""
        return ["deps = msvc"] if self.microsoft else [f"depfile = {file}", "deps = gcc"]


#: GCC, Clang, icpx, hipcc, and Apple's Metal compiler.
GNU = Spelling()

#: Microsoft's compiler and linker.
MSVC = Spelling(microsoft=True, object_suffix=".obj")

#: NVIDIA's compiler, which reads no such files.
NVCC = Spelling(reads_files=False, object_suffix=".obj" if sys.platform == "win32" else ".o")


def _microsofts(flags: Sequence[str]) -> list[str]:
    translated: list[str] = []
    rest = iter(flags)
    for flag in rest:
        if flag in ("-isystem", "-include"):
            translated += ["/external:I" if flag == "-isystem" else "/FI", next(rest, "")]
        elif flag.startswith("-isystem"):
            translated += ["/external:I", flag.removeprefix("-isystem")]
        elif flag.startswith("-L"):
            translated.append(f"/LIBPATH:{flag[2:]}")
        elif flag.startswith("-l"):
            translated.append(f"{flag[2:]}.lib")
        elif flag.startswith("-std="):
            translated.append(f"/std:{flag[5:].replace('gnu++', 'c++')}")
        elif _LEFT_OUT.fullmatch(flag) is None or flag in _OPTIONS:
            translated.append(_OPTIONS.get(flag, flag))
    return translated
