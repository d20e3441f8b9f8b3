"""Intel's compiler for SYCL."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernels.authoring.compile.toolchains.commands import (
    compiler_version,
    find_command,
    present_libraries,
    version_in_answer,
)
from kernels.authoring.compile.toolchains.interface import Toolkit
from kernels.authoring.compile.toolchains.spelling import GNU
from kernels.errors import CompilerNotFound
from kernels.support.version import MajorMinor

__all__ = ["Icpx"]

_INSTALL = (
    "Intel's oneAPI DPC++/C++ Compiler (from Intel's Debian repository: apt-get install "
    "intel-oneapi-compiler-dpcpp-cpp), or set ONEAPI_ROOT if it is not in /opt/intel/oneapi"
)

#: "Intel(R) oneAPI DPC++/C++ Compiler 2025.3.2 (2025.3.2.20260112)"
_VERSION = r"Compiler ([0-9]{4}\.[0-9]+)"

#: Options with a value of their own that the linker needs too: the device code is compiled when it is linked.
_WITH_VALUE = re.compile(r"-Xs|-Xsycl-target-(?:backend|frontend|linker)(?:=.*)?")
_FOR_DEVICE_CODE = ("-fsycl", "-fno-sycl", "-Xs", "--offload", "-foffload", "-ftarget")


@dataclass(frozen=True)
class Icpx:
    """Intel's compiler, from `$ICPX`, a oneAPI folder or the path; C++ sources of a SYCL kernel are its own too.

    Attributes:
        wanted: The version that Torch was built with.
    """

    suffixes = frozenset({".cpp", ".cc", ".cxx", ".sycl"})
    language = "sycl"
    device = True
    embeds = None
    reads_cxx_flags = True
    reads_device_flags = True
    spelling = GNU

    wanted: MajorMinor | None = None

    def preferring(self, version: MajorMinor | None, packages: Path | None = None) -> Icpx:
        return Icpx(version)

    def compiled_archs(self, archs: Sequence[str]) -> tuple[str, ...]:
        return tuple(archs)

    def command(self) -> list[str]:
        if sys.platform != "linux":
            raise CompilerNotFound("SYCL sources can be compiled on Linux only.")
        found = [str(path) for path in _installed(self.wanted) if os.access(path, os.X_OK) and path.is_file()]
        if self.wanted is None or os.environ.get("ICPX"):
            return find_command("ICPX", [*found, "icpx"], _INSTALL)
        try:
            on_path = find_command("ICPX", ["icpx"], _INSTALL)
        except CompilerNotFound:
            if not found:
                raise
            on_path = []
        versions = {command: version_in_answer([command], _VERSION) for command in [*on_path, *found]}
        fitting = [command for command, version in versions.items() if _runs_with(version, self.wanted)]
        if not fitting:
            there = ", ".join(f"{command} is of {version}" for command, version in versions.items())
            raise CompilerNotFound(
                f"Torch was built with oneAPI {self.wanted}, and what another one compiles needs another SYCL runtime: "
                f"{there}. Install version {self.wanted} of the compiler beside it."
            )
        return [next((command for command in fitting if versions[command] == self.wanted), fitting[0])]

    def flags(self, archs: Sequence[str], extra: Sequence[str]) -> list[str]:
        flags = ["-x", "c++", "-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden", "-fsycl", *_targets(extra)]
        # By default this compiler takes it that there are no NaNs, and reorders sums. Torch is compiled so, too
        # (torch-xpu-ops, cmake/BuildFlags.cmake).
        flags += ["-fhonor-nans", "-fhonor-infinities", "-fno-associative-math", "-fno-approx-func"]
        return [*flags, "-fno-sycl-instrument-device-code", *extra]

    def link_flags(self, torch_lib: Path | None, compiled_with: Sequence[str] = ()) -> list[str]:
        device_code = [*_targets(compiled_with), *_of_device_code(compiled_with)]
        libraries = present_libraries(torch_lib, "c10_xpu", "torch_xpu")
        return ["-shared", "-fsycl", *dict.fromkeys(device_code), "-Wl,-z,noexecstack", *libraries]

    def toolkit(self) -> Toolkit:
        command = self.command()
        version, folder = version_in_answer(command, _VERSION), _folder(command)
        include = tuple(path for path in (folder / "include", folder / "include" / "sycl") if path.is_dir())
        return Toolkit("oneAPI", version, folder, _found_by(command), tuple(command), include, (folder / "lib",))


def _installed(wanted: MajorMinor | None) -> Iterator[Path]:
    """Where oneAPI's environment script and its installers put the compiler."""
    for name in ("CMPLR_ROOT", "SYCL_ROOT"):
        if root := os.environ.get(name):
            yield Path(root, "bin", "icpx")
    for top in filter(None, (os.environ.get("ONEAPI_ROOT"), "/opt/intel/oneapi", os.path.expanduser("~/intel/oneapi"))):
        for version in (*([str(wanted)] if wanted else []), "latest"):
            yield Path(top, "compiler", version, "bin", "icpx")


def _runs_with(version: MajorMinor, wanted: MajorMinor) -> bool:
    # A year's releases have one SYCL runtime, to which each adds functions (libsycl.so.8 is that of 2025).
    return version.major == wanted.major and version.minor <= wanted.minor


def _folder(command: Sequence[str]) -> Path:
    """The compiler's folder: a program on the path can be a link to it, or start it."""
    match = re.search(r"^InstalledDir: (.+?)/bin(?:/compiler)?$", compiler_version(*command), re.MULTILINE)
    return Path(match[1]) if match else Path(os.path.realpath(command[0])).parent.parent


def _found_by(command: Sequence[str]) -> str:
    for name in ("ICPX", "CMPLR_ROOT", "SYCL_ROOT", "ONEAPI_ROOT"):
        value = os.environ.get(name)
        if value and (name == "ICPX" or command[0].startswith(value)):
            return f"${name}"
    return f"icpx in {Path(command[0]).parent}"


def _targets(extra: Sequence[str]) -> list[str]:
    """Code that the driver compiles for its device, unless the author names other targets."""
    return [] if any(flag.startswith("-fsycl-targets=") for flag in extra) else ["-fsycl-targets=spir64"]


def _of_device_code(flags: Sequence[str]) -> list[str]:
    kept: list[str] = []
    rest = iter(flags)
    for flag in rest:
        if _WITH_VALUE.fullmatch(flag):
            kept += [flag, next(rest, "")]
        elif flag.startswith(_FOR_DEVICE_CODE):
            kept.append(flag)
    return kept
