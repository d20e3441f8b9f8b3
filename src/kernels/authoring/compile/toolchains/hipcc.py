"""AMD's compiler."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from kernels.authoring.compile.toolchains.commands import find_command, present_libraries, version_in_answer
from kernels.authoring.compile.toolchains.interface import Toolkit
from kernels.authoring.compile.toolchains.spelling import GNU
from kernels.errors import BuildError, CompilerNotFound
from kernels.support.version import MajorMinor

__all__ = ["Hipcc"]


class Hipcc:
    """AMD's compiler, from `$ROCM_PATH` or the path; where Torch is HIP's it compiles `.cu` as well."""

    suffixes = frozenset({".hip", ".cu"})
    language = "hip"
    device = True
    embeds = None
    reads_cxx_flags = False
    reads_device_flags = True
    spelling = GNU

    def preferring(self, version: MajorMinor | None, packages: Path | None = None) -> Hipcc:
        return self

    def compiled_archs(self, archs: Sequence[str]) -> tuple[str, ...]:
        # Without any, hipcc would compile for the visible devices, or for a default that may be wrong.
        if not archs:
            raise CompilerNotFound("hipcc needs architectures: set rocm-archs, or give --this-gpu.")
        for arch in archs:
            if re.fullmatch(r"gfx[0-9a-f]+(:[a-z]+[+-])*", arch) is None:
                raise BuildError(f"hipcc cannot compile for {arch!r}; expected an architecture such as gfx942.")
        return tuple(archs)

    def command(self) -> list[str]:
        home = os.environ.get("ROCM_PATH")
        names = (str(Path(home, "bin", "hipcc")), "hipcc") if home else ("hipcc", "/opt/rocm/bin/hipcc")
        return find_command("HIPCC", names, "ROCm, or set ROCM_PATH if it is not in the usual place")

    def flags(self, archs: Sequence[str], extra: Sequence[str]) -> list[str]:
        # A `.cu` source is HIP here; Torch's headers need to know which of the two device languages it is.
        flags = ["-x", "hip", "-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden"]
        defines = ["-D__HIP_PLATFORM_AMD__=1", "-DUSE_ROCM=1"]
        return [*flags, *defines, *(f"--offload-arch={arch}" for arch in archs), *extra]

    def link_flags(self, torch_lib: Path | None, compiled_with: Sequence[str] = ()) -> list[str]:
        return ["-shared", *present_libraries(torch_lib, "c10_hip", "torch_hip"), "-lamdhip64"]

    def toolkit(self) -> Toolkit:
        command = self.command()
        # "HIP version: 7.0.51831-a3e329ad8"
        version = version_in_answer(command, r"HIP version: ([0-9]+\.[0-9]+)")
        folder = Path(command[0]).parent.parent
        include = folder / "include"
        return Toolkit("ROCm", version, folder, "", tuple(command), (include,) if include.is_dir() else ())
