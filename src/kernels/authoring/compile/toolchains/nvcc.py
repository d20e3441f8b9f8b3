"""NVIDIA's compiler."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from kernels.authoring.compile.toolchains.commands import (
    compiler_output,
    find_command,
    present_libraries,
    version_in_answer,
)
from kernels.authoring.compile.toolchains.interface import Toolkit
from kernels.authoring.compile.toolchains.spelling import NVCC
from kernels.errors import BuildError, CompilerNotFound
from kernels.support.version import MajorMinor

__all__ = ["Nvcc"]


#: Flags for the compiler of the host's code in a source.
_HOST_FLAGS = (
    ("/MD", "/EHsc", "/bigobj", "/Zc:__cplusplus", "/Zc:preprocessor")
    if sys.platform == "win32"
    else ("-fPIC", "-fvisibility=hidden")
)


class Nvcc:
    """NVIDIA's compiler, from `$CUDA_HOME` or the path."""

    suffixes = frozenset({".cu"})
    language = "cuda"
    device = True
    embeds = None
    reads_cxx_flags = False
    reads_device_flags = True
    spelling = NVCC

    def preferring(self, version: MajorMinor | None) -> Nvcc:
        return self

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
        return find_command("NVCC", names, "the CUDA toolkit, or CUDA_HOME if it is not in the usual place")

    def flags(self, archs: Sequence[str], extra: Sequence[str]) -> list[str]:
        flags = ["-std=c++20", "-O3", "--threads=0", f"-Xcompiler={','.join(_HOST_FLAGS)}", *_generated_code(archs)]
        return [*flags, *extra]

    def link_flags(self, torch_lib: Path | None, compiled_with: Sequence[str] = ()) -> list[str]:
        # Torch has the shared runtime loaded already; without Torch its place is not known.
        runtime = "static" if torch_lib is None else "shared"
        return ["-shared", f"-cudart={runtime}", *present_libraries(torch_lib, "c10_cuda", "torch_cuda")]

    def toolkit(self) -> Toolkit:
        command = self.command()
        # "Cuda compilation tools, release 13.0, V13.0.48"
        version = version_in_answer(command, r"release ([0-9]+\.[0-9]+)")
        folder = Path(command[0]).parent.parent
        include = folder / "include"
        return Toolkit("CUDA", version, folder, "", tuple(command), (include,) if include.is_dir() else ())


@cache
def _nvcc_archs(command: tuple[str, ...]) -> tuple[str, ...]:
    """The compute capabilities that nvcc supports: a line such as `compute_90` each (nvcc --help)."""
    answer = compiler_output(*command, "--list-gpu-arch")
    known = sorted(int(number) for number in re.findall(r"^compute_([0-9]{2,4})$", answer, re.MULTILINE))
    if not known:
        raise CompilerNotFound(f"`{shlex.join(command)} --list-gpu-arch` lists no architectures.")
    return tuple(f"{number // 10}.{number % 10}" for number in known)


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
