"""AMD's compiler, and the ROCm that it belongs to."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernels.authoring.compile.toolchains.commands import (
    compiler_complaints,
    compiler_output,
    present_libraries,
    version_in_answer,
)
from kernels.authoring.compile.toolchains.interface import Toolkit
from kernels.authoring.compile.toolchains.places import (
    Place,
    best_place,
    check_fit,
    compiler_places,
    existing_folders,
    newest_first,
)
from kernels.authoring.compile.toolchains.spelling import GNU
from kernels.errors import BuildError, CompilerNotFound
from kernels.support.logs import logger, warn_once
from kernels.support.version import MajorMinor

__all__ = ["Hipcc"]

_log = logger(__name__)

#: Where it finds nvcc and no clang++ of its own, as on Debian, it would compile for NVIDIA's GPUs.
_ENVIRONMENT = (("HIP_PLATFORM", "amd"),)

#: What Torch's own build system defines for extensions, and their sources rely on: hipBLAS with the names of its second
#: version, and warp functions with a mask, such as `__shfl_xor_sync` (torch/utils/cpp_extension.py, COMMON_HIP_FLAGS).
_AS_TORCH = ("-DHIPBLAS_V2", "-DCUDA_HAS_FP16=1", "-DHIP_ENABLE_WARP_SYNC_BUILTINS=1")

#: The processors that Torch's wheels for ROCm are compiled for, of several releases.
_USUAL_ARCHS = (
    *("gfx906", "gfx908", "gfx90a", "gfx942", "gfx950"),
    *("gfx1030", "gfx1100", "gfx1101", "gfx1102", "gfx1150", "gfx1151", "gfx1200", "gfx1201"),
)

#: What clang says of a processor that it does not know: all versions, and those of 20 and later for some.
_UNKNOWN = r"(?:invalid target ID|unsupported HIP gpu architecture:) '?(gfx[0-9a-f]+(?::[a-z]+[+-])*)"

#: "HIP version: 7.0.51831-a3e329ad8"
_VERSION = r"HIP version: ([0-9]+\.[0-9]+)"

#: Where AMD's installer puts ROCm: a link, and its versions beside it.
_AMD = Path("/opt")

#: Python packages with hipcc, by the names that they are imported by.
_PACKAGES = {"_rocm_sdk_devel": "rocm-sdk-devel", "_rocm_sdk_core": "rocm-sdk-core"}


@dataclass(frozen=True)
class Hipcc:
    """AMD's compiler: `$HIPCC`, that of `$ROCM_PATH`, `$ROCM_HOME` or `$HIP_PATH`, or the one that fits Torch.

    Where Torch is HIP's it compiles `.cu` as well.

    Attributes:
        wanted: The version of HIP that Torch was built with.
        packages: The folder of the Python packages beside Torch.
    """

    suffixes = frozenset({".hip", ".cu"})
    language = "hip"
    device = True
    embeds = None
    reads_cxx_flags = False
    reads_device_flags = True
    spelling = GNU

    wanted: MajorMinor | None = None
    packages: Path | None = None

    def preferring(self, version: MajorMinor | None, packages: Path | None = None) -> Hipcc:
        return Hipcc(version, packages)

    def compiled_archs(self, archs: Sequence[str]) -> tuple[str, ...]:
        # Without any, hipcc would compile for the visible devices, or for a default that may be wrong.
        asked = archs or _environment_archs()
        archs = asked or _USUAL_ARCHS
        for arch in archs:
            if re.fullmatch(r"gfx[0-9a-f]+(:[a-z]+[+-])*", arch) is None:
                raise BuildError(f"hipcc cannot compile for {arch!r}; expected an architecture such as gfx942.")
        command = self.command()
        unknown = _unknown_archs(tuple(command), tuple(dict.fromkeys(archs)))
        known = tuple(arch for arch in archs if arch not in unknown)
        if not known:
            raise CompilerNotFound(f"{command[0]} supports none of {', '.join(archs)}.")
        if unknown and asked:
            warn_once(_log, f"{command[0]} does not support {', '.join(unknown)}: left out of the build.")
        return known

    def command(self) -> list[str]:
        return list(self._place().command)

    def _place(self) -> Place:
        homes = ("ROCM_PATH", "ROCM_HOME", "HIP_PATH")
        places = compiler_places("hipcc", "HIPCC", homes, _usual_folders(self.packages), "ROCm")
        return best_place(places, self.wanted, _VERSION)

    def flags(self, archs: Sequence[str], extra: Sequence[str]) -> list[str]:
        # A `.cu` source is HIP here; Torch's headers need to know which of the two device languages it is.
        flags = ["-x", "hip", "-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden"]
        defines = ["-D__HIP_PLATFORM_AMD__=1", "-DUSE_ROCM=1", *_AS_TORCH]
        return [*flags, *defines, *(f"--offload-arch={arch}" for arch in archs), *extra]

    def link_flags(self, torch_lib: Path | None, compiled_with: Sequence[Sequence[str]] = ()) -> list[str]:
        return ["-shared", *present_libraries(torch_lib, "c10_hip", "torch_hip"), "-lamdhip64"]

    def toolkit(self) -> Toolkit:
        place = self._place()
        version, folder = version_in_answer(place.command, _VERSION), _rocm_folder(place.command)
        fit = check_fit("ROCm", version, f"{folder} ({place.found_by})", self.wanted, "ROCM_PATH")
        return Toolkit(
            name="ROCm",
            version=version,
            folder=folder,
            found_by=place.found_by,
            compiler=place.command,
            include=existing_folders([folder / "include"]),
            libraries=existing_folders([folder / "lib", folder / "lib64"]),
            defines=("-D__HIP_PLATFORM_AMD__=1", "-DHIPBLAS_V2"),
            environment=_ENVIRONMENT,
            remarks=fit,
        )


@cache
def _unknown_archs(command: tuple[str, ...], archs: tuple[str, ...]) -> tuple[str, ...]:
    """Those of some processors that hipcc does not know: older ones, such as gfx940, are removed from newer ROCms.

    hipcc has no list of them. Asked how it would compile an empty file for all, it names each that it does not know.
    """
    asked = [*command, "-###", "-x", "hip", "-nogpulib", "-nogpuinc", *(f"--offload-arch={arch}" for arch in archs)]
    said = compiler_complaints([*asked, "-c", os.devnull, "-o", os.devnull], dict(_ENVIRONMENT))
    named = set(re.findall(_UNKNOWN, said))
    return tuple(arch for arch in archs if arch in named)


def _environment_archs() -> list[str]:
    """The processors that Torch's own builds of extensions are for, if the user says so."""
    return os.environ.get("PYTORCH_ROCM_ARCH", "").replace(";", " ").replace(",", " ").split()


def _usual_folders(packages: Path | None) -> Iterator[tuple[Path, str]]:
    """The folders where ROCm usually is, each with its name: the newest of several versions first."""
    for folder in (_AMD / "rocm", *newest_first(_AMD, "rocm-")):
        yield folder, str(folder)
    for module, package in _PACKAGES.items():
        spec = importlib.util.find_spec(module) if packages is None else None
        found = (spec.submodule_search_locations or []) if spec is not None else []
        for folder in [packages / module] if packages is not None else map(Path, found):
            yield folder, f"the package {package}"


def _rocm_folder(command: Sequence[str]) -> Path:
    """ROCm's folder: as `hipconfig` beside the compiler says, else the one above the compiler's."""
    beside = Path(command[0]).parent / "hipconfig"
    if beside.is_file():
        try:
            said = Path(compiler_output(str(beside), "--rocmpath").strip())
        except CompilerNotFound:
            pass
        else:
            if said.is_absolute() and said.is_dir():
                return said
    return Path(os.path.realpath(command[0])).parent.parent
