"""Apple's compilers for Metal: of shaders, and of the Objective-C++ sources that start them."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from kernels.authoring.compile.toolchains.commands import compiler_output, find_command
from kernels.authoring.compile.toolchains.interface import Embedding
from kernels.authoring.compile.toolchains.spelling import GNU
from kernels.errors import CompilerNotFound
from kernels.support.version import MajorMinor

__all__ = ["MetalCompiler", "ObjectiveC", "ObjectiveCxx"]

#: The oldest macOS that builds are for: the first with Metal 4, the language of the shaders.
_MACOS = "-mmacosx-version-min=26.0"

_XCODE = "Xcode 26 or newer from the App Store, then run `xcodebuild -downloadComponent MetalToolchain`"


#: Sources ask for their shaders with `#include EMBEDDED_METALLIB_HEADER`, then
#: `EMBEDDED_METALLIB_NAMESPACE::createLibrary(device, &error)` (huggingface/kernels, compile-metal.cmake).
_EMBEDDING = Embedding(
    file="kernels.metallib",
    header="kernels_metallib.h",
    namespace="kernels_metallib",
    defines=(
        '-DEMBEDDED_METALLIB_HEADER="kernels_metallib.h"',
        "-DEMBEDDED_METALLIB_NAMESPACE=kernels_metallib",
    ),
    linker=lambda: _xcrun("metallib"),
)


class MetalCompiler:
    """Apple's compiler of `.metal` shaders: they become one library, which the other sources embed."""

    suffixes = frozenset({".metal"})
    language = "metal"
    device = True
    embeds = _EMBEDDING
    reads_cxx_flags = False
    reads_device_flags = True
    spelling = GNU

    def preferring(self, version: MajorMinor | None, packages: Path | None = None) -> MetalCompiler:
        return self

    def compiled_archs(self, archs: Sequence[str]) -> tuple[str, ...]:
        return tuple(archs)

    def command(self) -> list[str]:
        command = _xcrun("metal")
        compiler_output(*command, "--version")  # Xcode has a `metal` that only says that the compiler is missing
        return command

    def flags(self, archs: Sequence[str], extra: Sequence[str]) -> list[str]:
        return ["-std=metal4.0", "-O2", _MACOS, *extra]

    def link_flags(self, torch_lib: Path | None, compiled_with: Sequence[Sequence[str]] = ()) -> list[str]:
        return []

    def toolkit(self) -> None:
        return None


class ObjectiveCxx:
    """Apple's compiler of Objective-C++; it also links a Metal kernel."""

    suffixes = frozenset({".mm"})
    language = "metal"
    device = True
    embeds = None
    reads_cxx_flags = True
    reads_device_flags = False
    spelling = GNU

    def preferring(self, version: MajorMinor | None, packages: Path | None = None) -> ObjectiveCxx:
        return self

    def compiled_archs(self, archs: Sequence[str]) -> tuple[str, ...]:
        return tuple(archs)

    def command(self) -> list[str]:
        return _xcrun("clang++")

    def flags(self, archs: Sequence[str], extra: Sequence[str]) -> list[str]:
        # Without automatic reference counting: published sources retain and release themselves.
        return ["-x", "objective-c++", "-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", _MACOS, *extra]

    def link_flags(self, torch_lib: Path | None, compiled_with: Sequence[Sequence[str]] = ()) -> list[str]:
        frameworks = [word for name in ("Foundation", "Metal") for word in ("-framework", name)]
        # An extension of Python has the names of Python and of what is loaded with it left open.
        kind = ["-dynamiclib"] if torch_lib is None else ["-bundle", "-undefined", "dynamic_lookup"]
        return [*kind, _MACOS, *frameworks]

    def toolkit(self) -> None:
        return None


class ObjectiveC(ObjectiveCxx):
    """Apple's compiler of Objective-C; flags for C++ are not for it."""

    suffixes = frozenset({".m"})
    reads_cxx_flags = False

    def preferring(self, version: MajorMinor | None, packages: Path | None = None) -> ObjectiveC:
        return self

    def flags(self, archs: Sequence[str], extra: Sequence[str]) -> list[str]:
        return ["-x", "objective-c", "-O2", "-fPIC", "-fvisibility=hidden", _MACOS, *extra]


def _xcrun(tool: str) -> list[str]:
    if sys.platform != "darwin" and shutil.which("xcrun") is None:
        raise CompilerNotFound(f"Metal sources are compiled on macOS, with `xcrun metal`. Install there {_XCODE}.")
    return [*find_command("XCRUN", ("xcrun",), _XCODE), "-sdk", "macosx", tool]
