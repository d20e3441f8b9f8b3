"""The compilers: which one a source's suffix needs, its command and its flags."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Protocol

from kernels.errors import BuildError, CompilerNotFound
from kernels.support.formatting import format_value
from kernels.support.version import MajorMinor

__all__ = ["Toolchain", "compiled_sources", "compiler_version", "toolchain_for"]

#: The time limit for a compiler's `--version`.
_VERSION_SECONDS = 60

_HEADERS = frozenset({".h", ".hh", ".hpp", ".hxx", ".cuh", ".inl"})


class Toolchain(Protocol):
    """A compiler. Every method but `flags` and `link_flags` raises `CompilerNotFound` if it is not installed.

    Attributes:
        suffixes: Suffixes of the sources it compiles, with the dot.
        device: Whether it compiles for an accelerator; then it also links.
    """

    suffixes: frozenset[str]
    device: bool

    def compiled_archs(self, archs: Sequence[str]) -> tuple[str, ...]:
        """The device architectures to compile for: the supported ones of `archs`, or all if `archs` is empty."""
        ...

    def command(self) -> list[str]:
        """The command that runs the compiler."""
        ...

    def flags(self, archs: Sequence[str], extra: Sequence[str]) -> list[str]:
        """The flags to compile a source as position-independent code for some device architectures."""
        ...

    def link_flags(self, torch_lib: Path | None) -> list[str]:
        """The flags to link a shared library: its own libraries, and Torch's if their folder `torch_lib` is given."""
        ...

    def toolkit_version(self) -> MajorMinor:
        """The version of the accelerator's toolkit that the compiler belongs to."""
        ...


class Cxx:
    """The host's C++ compiler: `$CXX`, else the first of the usual names."""

    suffixes = frozenset({".cpp", ".cc", ".cxx"})
    device = False

    def compiled_archs(self, archs: Sequence[str]) -> tuple[str, ...]:
        return tuple(archs)

    def command(self) -> list[str]:
        return _find_command("CXX", ("c++", "g++", "clang++"), "a C++ compiler (Debian: apt-get install g++)")

    def flags(self, archs: Sequence[str], extra: Sequence[str]) -> list[str]:
        return ["-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", *extra]

    def link_flags(self, torch_lib: Path | None) -> list[str]:
        if torch_lib is None:
            return ["-shared", "-Wl,--as-needed", "-fopenmp"] if sys.platform == "linux" else ["-shared"]
        # Torch brings its own OpenMP runtime. A second one would have threads of its own that fight over the cores.
        runtime = sorted(torch_lib.glob("libgomp*.so*"))
        return ["-shared", *([str(runtime[0])] if runtime else ["-fopenmp"])]

    def toolkit_version(self) -> MajorMinor:
        raise CompilerNotFound("The C++ compiler of the host does not belong to an accelerator's toolkit.")


class Nvcc:
    """NVIDIA's compiler, from `$CUDA_HOME` or the path."""

    suffixes = frozenset({".cu"})
    device = True

    def compiled_archs(self, archs: Sequence[str]) -> tuple[str, ...]:
        known = _nvcc_archs(tuple(self.command()))
        if not archs:
            return known
        _generated_code(archs)  # rejects what is not a capability
        # nvcc lists no suffixes: if it supports 9.0, it supports 9.0a.
        found = tuple(arch for arch in archs if re.split("[af+]", arch)[0] in known)
        if not found:
            raise CompilerNotFound(
                f"{self.command()[0]} supports none of {', '.join(archs)}; it supports {', '.join(known)}."
            )
        return found

    def command(self) -> list[str]:
        home = os.environ.get("CUDA_HOME")
        names = (str(Path(home, "bin", "nvcc")), "nvcc") if home else ("nvcc", "/usr/local/cuda/bin/nvcc")
        return _find_command("NVCC", names, "the CUDA toolkit, or CUDA_HOME if it is not in the usual place")

    def flags(self, archs: Sequence[str], extra: Sequence[str]) -> list[str]:
        flags = ["-std=c++20", "-O3", "--threads=0", "-Xcompiler=-fPIC,-fvisibility=hidden", *_generated_code(archs)]
        return [*flags, *extra]

    def link_flags(self, torch_lib: Path | None) -> list[str]:
        # Torch has the shared runtime loaded already; without Torch its place is not known.
        runtime = "static" if torch_lib is None else "shared"
        return ["-shared", f"-cudart={runtime}", *_present(torch_lib, "c10_cuda", "torch_cuda")]

    def toolkit_version(self) -> MajorMinor:
        # "Cuda compilation tools, release 13.0, V13.0.48"
        return _toolkit_version(self.command(), r"release ([0-9]+\.[0-9]+)")


class Hipcc:
    """AMD's compiler, from `$ROCM_PATH` or the path; where Torch is HIP's it compiles `.cu` as well."""

    suffixes = frozenset({".hip"})
    device = True

    def compiled_archs(self, archs: Sequence[str]) -> tuple[str, ...]:
        # Without any, hipcc would compile for the visible devices, or for a default that may be wrong.
        if not archs:
            raise CompilerNotFound("hipcc needs architectures: set rocm-archs, or give --this-gpu.")
        for arch in archs:
            if re.fullmatch(r"gfx[0-9a-f]+", arch) is None:
                raise BuildError(f"hipcc cannot compile for {arch!r}; expected an architecture such as gfx942.")
        return tuple(archs)

    def command(self) -> list[str]:
        home = os.environ.get("ROCM_PATH")
        names = (str(Path(home, "bin", "hipcc")), "hipcc") if home else ("hipcc", "/opt/rocm/bin/hipcc")
        return _find_command("HIPCC", names, "ROCm, or set ROCM_PATH if it is not in the usual place")

    def flags(self, archs: Sequence[str], extra: Sequence[str]) -> list[str]:
        # A `.cu` source is HIP here; Torch's headers need to know which of the two device languages it is.
        flags = ["-x", "hip", "-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden"]
        defines = ["-D__HIP_PLATFORM_AMD__=1", "-DUSE_ROCM=1"]
        return [*flags, *defines, *(f"--offload-arch={arch}" for arch in archs), *extra]

    def link_flags(self, torch_lib: Path | None) -> list[str]:
        return ["-shared", *_present(torch_lib, "c10_hip", "torch_hip"), "-lamdhip64"]

    def toolkit_version(self) -> MajorMinor:
        # "HIP version: 7.0.51831-a3e329ad8"
        return _toolkit_version(self.command(), r"HIP version: ([0-9]+\.[0-9]+)")


_TOOLCHAINS: tuple[Toolchain, ...] = (Cxx(), Nvcc(), Hipcc())


def compiled_sources(paths: Iterable[str]) -> list[str]:
    """The paths that are not headers.

    Example:
        >>> compiled_sources(["a.cpp", "a.h"])
        ['a.cpp']
    """
    return [path for path in paths if Path(path).suffix not in _HEADERS]


def _present(torch_lib: Path | None, *names: str) -> list[str]:
    return [f"-l{name}" for name in names if torch_lib is not None and (torch_lib / f"lib{name}.so").is_file()]


def toolchain_for(path: str, *, hip: bool = False) -> Toolchain:
    """The toolchain for a source, by its suffix.

    Args:
        path: The source.
        hip: Whether the device language is HIP: `.cu` sources are then compiled by hipcc.

    Raises:
        CompilerNotFound: No toolchain compiles files with that suffix.

    Example:
        >>> toolchain_for("kernel.cpp").device
        False
    """
    suffix = Path(path).suffix
    for toolchain in _TOOLCHAINS:
        if suffix in toolchain.suffixes:
            return Hipcc() if hip and toolchain.device else toolchain
    known = ", ".join(sorted(each for toolchain in _TOOLCHAINS for each in toolchain.suffixes))
    raise CompilerNotFound(f"No compiler is known for {path}; expected a source that ends in {known}.")


@cache
def compiler_version(*command: str) -> str:
    """The output of a compiler's `--version`.

    Raises:
        CompilerNotFound: The compiler cannot be run.
    """
    return _output(*command, "--version")


def _toolkit_version(command: Sequence[str], pattern: str) -> MajorMinor:
    answer = compiler_version(*command)
    match = re.search(pattern, answer)
    version = None if match is None else MajorMinor.parse(match[1])
    if version is None:
        asked = shlex.join([*command, "--version"])
        raise CompilerNotFound(f"`{asked}` has no version in its output: {format_value(answer.strip(), 200)}.")
    return version


@cache
def _nvcc_archs(command: tuple[str, ...]) -> tuple[str, ...]:
    """The compute capabilities that nvcc supports: a line such as `compute_90` each (nvcc --help)."""
    answer = _output(*command, "--list-gpu-arch")
    known = sorted(int(number) for number in re.findall(r"^compute_([0-9]{2,4})$", answer, re.MULTILINE))
    if not known:
        raise CompilerNotFound(f"`{shlex.join(command)} --list-gpu-arch` lists no architectures.")
    return tuple(f"{number // 10}.{number % 10}" for number in known)


def _output(*command: str) -> str:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=_VERSION_SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise CompilerNotFound(f"`{shlex.join(command)}` failed: {error}") from error
    return done.stdout


def _find_command(variable: str, names: Iterable[str], install: str) -> list[str]:
    given = shlex.split(os.environ.get(variable, ""))
    for name in given[:1] or names:
        found = shutil.which(name)
        if found is not None:
            return [found, *given[1:]]
    looked_for = given[0] + f" (from ${variable})" if given else ", ".join(names)
    raise CompilerNotFound(f"Compiler not found: looked for {looked_for}. Install {install}.")


def _generated_code(archs: Sequence[str]) -> list[str]:
    flags = []
    for arch in archs:
        match = re.fullmatch(r"(\d+)\.(\d)([af]?)(\+PTX)?", arch)
        if match is None:
            raise BuildError(f"nvcc cannot compile for {arch!r}; expected an architecture such as 9.0a or 9.0+PTX.")
        number = match[1] + match[2] + match[3]
        flags.append(f"-gencode=arch=compute_{number},code=sm_{number}")
        if match[4]:
            flags.append(f"-gencode=arch=compute_{number},code=compute_{number}")
    return flags
