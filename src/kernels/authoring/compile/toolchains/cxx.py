"""The host's C++ compiler."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from kernels.authoring.compile.toolchains.commands import find_command
from kernels.authoring.compile.toolchains.spelling import GNU
from kernels.support.version import MajorMinor

__all__ = ["Cxx"]


class Cxx:
    """The host's C++ compiler: `$CXX`, else the first of the usual names."""

    suffixes = frozenset({".cpp", ".cc", ".cxx"})
    language = ""
    device = False
    embeds = None
    reads_cxx_flags = True
    reads_device_flags = False
    spelling = GNU

    def preferring(self, version: MajorMinor | None, packages: Path | None = None) -> Cxx:
        return self

    def compiled_archs(self, archs: Sequence[str]) -> tuple[str, ...]:
        return tuple(archs)

    def command(self) -> list[str]:
        return find_command("CXX", ("c++", "g++", "clang++"), "a C++ compiler (Debian: apt-get install g++)")

    def flags(self, archs: Sequence[str], extra: Sequence[str]) -> list[str]:
        # Published builds for macOS are for 15.0 and newer (huggingface/kernels, preamble.cmake).
        oldest = ["-mmacosx-version-min=15.0"] if sys.platform == "darwin" else []
        return ["-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", *oldest, *extra]

    def link_flags(self, torch_lib: Path | None, compiled_with: Sequence[Sequence[str]] = ()) -> list[str]:
        if sys.platform == "darwin":
            # Apple's compiler has no OpenMP. What Python and Torch have loaded already is looked up when it is loaded.
            return ["-dynamiclib"] if torch_lib is None else ["-bundle", "-undefined", "dynamic_lookup"]
        if torch_lib is None:
            return ["-shared", "-Wl,--as-needed", "-fopenmp"] if sys.platform == "linux" else ["-shared"]
        # Torch brings its own OpenMP runtime. A second one would have threads of its own that fight over the cores.
        runtime = sorted(torch_lib.glob("libgomp*.so*"))
        return ["-shared", *([str(runtime[0])] if runtime else ["-fopenmp"])]

    def toolkit(self) -> None:
        return None
