"""Intel's compiler for SYCL."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernels.authoring.compile.toolchains.commands import (
    compiler_output,
    compiler_version,
    find_command,
    present_libraries,
    version_in_answer,
)
from kernels.authoring.compile.toolchains.interface import Toolkit
from kernels.authoring.compile.toolchains.places import existing_folders
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
_WITH_VALUE = re.compile(r"-Xs|-Xsycl-target-(?:backend|frontend|linker)(?:=.*)?|-Xspirv-translator(?:=.*)?")
_FOR_DEVICE_CODE = ("-fsycl", "-fno-sycl", "-Xs", "--offload", "-foffload", "-ftarget")

_TARGETS = "-fsycl-targets="

#: The target that is compiled for GPUs in advance, and those GPUs if nothing names any: Torch's own
#: (huggingface/kernels, preamble.cmake).
_IN_ADVANCE, _DEVICES = "spir64_gen", "pvc,xe-lpg,ats-m150"


@dataclass(frozen=True)
class Icpx:
    """Intel's compiler, from `$ICPX`, a oneAPI folder or the path; C++ sources of a SYCL kernel are its own too.

    Attributes:
        wanted: The version that Torch was built with.
        packages: The folder of the Python packages beside Torch.
    """

    suffixes = frozenset({".cpp", ".cc", ".cxx", ".sycl"})
    language = "sycl"
    device = True
    embeds = None
    reads_cxx_flags = True
    reads_device_flags = True
    spelling = GNU

    wanted: MajorMinor | None = None
    packages: Path | None = None

    def preferring(self, version: MajorMinor | None, packages: Path | None = None) -> Icpx:
        return Icpx(version, packages)

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
        flags = ["-x", "c++", "-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden", "-fsycl"]
        flags.append(_TARGETS + ",".join(_targets(extra)))
        # By default this compiler takes it that there are no NaNs, and reorders sums. Torch is compiled so, too
        # (torch-xpu-ops, cmake/BuildFlags.cmake).
        flags += ["-fhonor-nans", "-fhonor-infinities", "-fno-associative-math", "-fno-approx-func"]
        return [*flags, "-fno-sycl-instrument-device-code", *(flag for flag in extra if not flag.startswith(_TARGETS))]

    def link_flags(self, torch_lib: Path | None, compiled_with: Sequence[Sequence[str]] = ()) -> list[str]:
        device_code = dict.fromkeys(words for flags in compiled_with for words in _of_device_code(flags))
        chosen = [word for words in device_code for word in self._with_default_extensions(words)]
        libraries = present_libraries(torch_lib, "c10_xpu", "torch_xpu")
        onednn = _onednn(self.packages)
        if onednn is not None and (onednn / "lib").is_dir():
            libraries += [f"-L{onednn / 'lib'}", "-Wl,--push-state,--as-needed", "-ldnnl", "-Wl,--pop-state"]
        return ["-shared", "-fsycl", *_linked_targets(compiled_with), *chosen, "-Wl,-z,noexecstack", *libraries]

    def _with_default_extensions(self, flags: Sequence[str]) -> list[str]:
        """Flags with the extensions of SPIR-V that the compiler uses anyway: a list of them takes the place of its own.

        `sycl_tla` needs further ones, as `-spirv-ext=+SPV_INTEL_split_barrier`.
        """
        marker = "-spirv-ext=+"
        return [
            f"-spirv-ext={_default_extensions(*self.command())},+{flag.removeprefix(marker)}"
            if flag.startswith(marker)
            else flag
            for flag in flags
        ]

    def toolkit(self) -> Toolkit:
        command = self.command()
        version, folder = version_in_answer(command, _VERSION), _folder(command)
        onednn = _onednn(self.packages)
        return Toolkit(
            name="oneAPI",
            version=version,
            folder=folder,
            found_by=_found_by(command),
            compiler=tuple(command),
            include=existing_folders([folder / "include", folder / "include" / "sycl"]),
            libraries=existing_folders([folder / "lib"]),
            packages=() if onednn is None else (onednn / "include",),
        )


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


def _targets(flags: Sequence[str]) -> list[str]:
    """What the device code of a source is compiled for: what the author names, else for the driver to compile.

    `$TORCH_XPU_ARCH_LIST`, which Torch's own extensions read, names GPUs to compile for in advance as well.
    """
    asked = [flag.partition("=")[2].split(",") for flag in flags if flag.startswith(_TARGETS)]
    if asked:
        return asked[-1]
    return [_IN_ADVANCE, "spir64"] if os.environ.get("TORCH_XPU_ARCH_LIST") else ["spir64"]


def _linked_targets(compiled_with: Sequence[Sequence[str]]) -> list[str]:
    """The flags that link the device code of every source: an image whose target is not named would be left out."""
    targets = list(dict.fromkeys(target for flags in compiled_with or [()] for target in _targets(flags)))
    named = [_TARGETS + ",".join(targets)]
    if _IN_ADVANCE not in targets or any("-device " in flag for flags in compiled_with for flag in flags):
        return named
    devices = os.environ.get("TORCH_XPU_ARCH_LIST") or _DEVICES
    return [*named, f"-Xsycl-target-backend={_IN_ADVANCE}", f"-device {devices}"]


def _of_device_code(flags: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The flags that the linker needs too, each with its value."""
    rest = iter(flags)
    for flag in rest:
        if _WITH_VALUE.fullmatch(flag):
            yield flag, next(rest, "")
        elif flag.startswith(_FOR_DEVICE_CODE) and not flag.startswith(_TARGETS):
            yield (flag,)


@cache
def _default_extensions(*command: str) -> str:
    """The extensions of SPIR-V that the compiler allows by itself, from the commands that it would run."""
    asked = (*command, "-fsycl", f"{_TARGETS}{_IN_ADVANCE}", "-###", "-x", "c++", "/dev/null", "-o", "/dev/null")
    found = re.search(r'-spirv-ext=([^"\s]+)', compiler_output(*asked))
    if found is None:
        raise CompilerNotFound(f"`{shlex.join(asked)}` does not say which extensions of SPIR-V the compiler allows.")
    return found[1]


def _onednn(packages: Path | None) -> Path | None:
    """The folder of oneDNN's `include` and `lib`: kernels use it without a word about it in `build.toml`."""
    oneapi = [Path(top, "dnnl", "latest") for top in (os.environ.get("ONEAPI_ROOT"), "/opt/intel/oneapi") if top]
    given = [Path(root) for root in (os.environ.get("DNNLROOT"),) if root]
    # The package onednn-devel is installed into the environment's own folders.
    environment = Path(sys.prefix) if packages is None else packages.parents[2]
    for folder in (*given, *oneapi, environment):
        if (folder / "include" / "oneapi" / "dnnl" / "dnnl.hpp").is_file():
            return folder
    return None
