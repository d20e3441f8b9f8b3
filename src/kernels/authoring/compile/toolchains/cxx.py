"""The host's C++ compiler."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from kernels.authoring.compile.toolchains.commands import find_command
from kernels.support.version import MajorMinor

__all__ = ["Cxx"]


class Cxx:
    """The host's C++ compiler: `$CXX`, else the first of the usual names."""

    suffixes = frozenset({".cpp", ".cc", ".cxx"})
    language = ""
    device = False

    def preferring(self, version: MajorMinor | None) -> Cxx:
        return self

    def compiled_archs(self, archs: Sequence[str]) -> tuple[str, ...]:
        return tuple(archs)

    def command(self) -> list[str]:
        return find_command("CXX", ("c++", "g++", "clang++"), "a C++ compiler (Debian: apt-get install g++)")

    def flags(self, archs: Sequence[str], extra: Sequence[str]) -> list[str]:
        return ["-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", *extra]

    def link_flags(self, torch_lib: Path | None) -> list[str]:
        if torch_lib is None:
            return ["-shared", "-Wl,--as-needed", "-fopenmp"] if sys.platform == "linux" else ["-shared"]
        # Torch brings its own OpenMP runtime. A second one would have threads of its own that fight over the cores.
        runtime = sorted(torch_lib.glob("libgomp*.so*"))
        return ["-shared", *([str(runtime[0])] if runtime else ["-fopenmp"])]

    def toolkit(self) -> None:
        return None
