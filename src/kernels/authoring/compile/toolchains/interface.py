"""What the builder asks of a compiler, and of the toolkit that it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kernels.authoring.compile.toolchains.spelling import Spelling
from kernels.support.version import MajorMinor

__all__ = ["Embedding", "Toolchain", "Toolkit"]


@dataclass(frozen=True)
class Toolkit:
    """An accelerator's toolkit as it is installed: its compiler, headers and libraries.

    The C++ sources of a kernel are compiled with its headers too, by the host's compiler.

    Attributes:
        name: What it is called: `CUDA`.
        version: Its version.
        folder: Where it is.
        found_by: How it was found, in words: `$CUDA_HOME`, `nvcc on the path`.
        compiler: The command of its compiler; empty if it has only headers and libraries.
        include: The folders of its headers, for the host's compiler: its own compiler knows them.
        libraries: The folders of its libraries, for the linker.
        defines: Flags that its headers need in C++ sources.
        packages: Folders with more of its headers, from Python packages: its own compiler does not know them.
        environment: Environment variables that its compiler needs.
        remarks: What does not quite fit, such as another minor version than Torch's.
    """

    name: str
    version: MajorMinor
    folder: Path
    found_by: str
    compiler: tuple[str, ...]
    include: tuple[Path, ...] = ()
    libraries: tuple[Path, ...] = ()
    defines: tuple[str, ...] = ()
    packages: tuple[Path, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    remarks: tuple[str, ...] = ()

    def header_flags(self, *, device: bool = False) -> list[str]:
        """The flags with which sources find its headers.

        Args:
            device: Whether its own compiler compiles them, which knows its own headers.

        Example:
            >>> toolkit = Toolkit("CUDA", MajorMinor(13, 0), Path("/x"), "", (), include=(Path("/x/include"),))
            >>> toolkit.header_flags(), toolkit.header_flags(device=True)
            (['-isystem', '/x/include'], [])
        """
        own = [] if device else [*self.defines, *_system(self.include)]
        return [*own, *_system(self.packages)]


def _system(folders: Sequence[Path]) -> list[str]:
    return [flag for folder in folders for flag in ("-isystem", str(folder))]


@dataclass(frozen=True)
class Embedding:
    """How the other sources of a kernel embed a library of its device code.

    Attributes:
        file: The name of the library.
        header: The name of the header with its bytes.
        namespace: The C++ namespace in that header.
        defines: The flags by which the other sources learn of it.
        linker: The command that makes the library.
    """

    file: str
    header: str
    namespace: str
    defines: tuple[str, ...]
    linker: Callable[[], list[str]]


class Toolchain(Protocol):
    """A compiler. Every method but `flags`, `link_flags` and `preferring` raises `CompilerNotFound` without it.

    Attributes:
        suffixes: Suffixes of the sources it compiles, with the dot.
        language: The backends' `device_language` that it compiles; "" for the host's C++ compiler.
        device: Whether it compiles for an accelerator; then it also links, unless its objects are embedded.
        embeds: The library that its objects become if the other sources embed it; else they are linked.
        reads_cxx_flags: Whether its sources are C++ for the host too: flags for C++ are for them.
        reads_device_flags: Whether flags for the device language are for its sources.
        spelling: How it is told its input and output.
    """

    suffixes: frozenset[str]
    language: str
    device: bool
    reads_cxx_flags: bool
    reads_device_flags: bool
    spelling: Spelling

    @property
    def embeds(self) -> Embedding | None: ...

    def preferring(self, version: MajorMinor | None, packages: Path | None = None) -> Toolchain:
        """The same toolchain, of the toolkit that fits Torch if several are installed and no variable names one.

        Args:
            version: The version of the toolkit that Torch was built with; None if there is none.
            packages: The folder of the Python packages beside Torch, which may have parts of the toolkit.
        """
        ...

    def compiled_archs(self, archs: Sequence[str]) -> tuple[str, ...]:
        """The device architectures to compile for: the supported ones of `archs`, or all if `archs` is empty."""
        ...

    def command(self) -> list[str]:
        """The command that runs the compiler."""
        ...

    def flags(self, archs: Sequence[str], extra: Sequence[str]) -> list[str]:
        """The flags to compile a source as position-independent code for some device architectures."""
        ...

    def link_flags(self, torch_lib: Path | None, compiled_with: Sequence[Sequence[str]] = ()) -> list[str]:
        """The flags to link a shared library.

        Args:
            torch_lib: The folder of Torch's libraries, if those of the accelerator are linked too.
            compiled_with: The flags that device sources were compiled with, each set of them once.

        Returns:
            Flags as for GCC, libraries among them.
        """
        ...

    def toolkit(self) -> Toolkit | None:
        """The accelerator's toolkit that the compiler belongs to; None for the host's compiler."""
        ...
