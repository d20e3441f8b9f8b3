"""How compilers are told their input and output: as GCC is, or as Microsoft's compiler is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["GNU", "MSVC", "NVCC", "Spelling"]


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
    def linker_has_version(self) -> bool:
        """Whether the linker answers `--version`."""
        return not self.microsoft

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

    def system_include(self, folder: Path | str) -> list[str]:
        """The arguments for a folder of headers that are not the kernel's: no warnings in them."""
        return ["/external:I", str(folder)] if self.microsoft else ["-isystem", str(folder)]

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
NVCC = Spelling(reads_files=False)
