"""The host's C compiler."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from kernels.authoring.compile.toolchains.commands import find_command
from kernels.authoring.compile.toolchains.spelling import GNU
from kernels.support.version import MajorMinor

__all__ = ["C"]


class C:
    """The host's C compiler: `$CC`, else the first of the usual names. Its objects are linked as C++ is."""

    suffixes = frozenset({".c"})
    language = ""
    device = False
    embeds = None
    reads_cxx_flags = False
    reads_device_flags = False
    spelling = GNU

    def preferring(self, version: MajorMinor | None, packages: Path | None = None) -> C:
        return self

    def compiled_archs(self, archs: Sequence[str]) -> tuple[str, ...]:
        return tuple(archs)

    def command(self) -> list[str]:
        return find_command("CC", ("cc", "gcc", "clang"), "a C compiler (Debian: apt-get install gcc)")

    def flags(self, archs: Sequence[str], extra: Sequence[str]) -> list[str]:
        oldest = ["-mmacosx-version-min=15.0"] if sys.platform == "darwin" else []
        return ["-std=gnu17", "-O2", "-fPIC", "-fvisibility=hidden", *oldest, *extra]

    def link_flags(self, torch_lib: Path | None, compiled_with: Sequence[Sequence[str]] = ()) -> list[str]:
        return ["-shared"]

    def toolkit(self) -> None:
        return None
