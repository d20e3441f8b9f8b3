"""NVIDIA's compiler, and the CUDA toolkit that it belongs to."""

from __future__ import annotations

import os
import platform
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernels.authoring.compile.toolchains import cuda_folders
from kernels.authoring.compile.toolchains.commands import compiler_output, present_libraries, version_in_answer
from kernels.authoring.compile.toolchains.interface import Toolkit
from kernels.authoring.compile.toolchains.places import Place, best_place, check_fit, compiler_places, newest_first
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

#: What Torch's own build system adds for extensions, and their sources rely on: `constexpr` functions of the host and
#: lambdas in device code (torch/share/cmake/Caffe2/public/cuda.cmake).
_AS_TORCH = ("--expt-relaxed-constexpr", "--expt-extended-lambda")

#: Whether the host's code for a template's kernel has internal linkage: published sources choose with it, and say
#: nothing about older toolkits, which have one way only (CUDA 12.8 release notes, "NVCC").
#: The flags are searched with null bytes between them: the value may be in the next one.
_STUB_FLAG = re.compile(r"(?:^|\0)--?static-global-template-stub(?:[=\0](?:true|false))?(?=\0|$)")
_STUB_SINCE = MajorMinor(12, 8)

#: "Cuda compilation tools, release 13.0, V13.0.48"
_VERSION = r"release ([0-9]+\.[0-9]+)"

#: Where installers put the toolkit: NVIDIA's, Debian's, Arch's. NVIDIA's link comes before its versions.
_NVIDIA, _DISTRIBUTIONS = Path("/usr/local"), (Path("/usr/lib/nvidia-cuda-toolkit"), Path("/opt/cuda"))

#: Libraries of the toolkit and of the driver that kernels call without a word about them in `build.toml`.
_LIBRARIES = ("cuda", "nvrtc", "cublas", "cublasLt", "cusparse", "cusolver", "cufft", "curand", "nvJitLink")

#: Where the driver's own library is; the toolkit has a stub of it, NVIDIA's Python packages have none.
_DRIVER = tuple(
    Path(folder, "libcuda.so.1")
    for folder in (
        f"/usr/lib/{platform.machine()}-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/nvidia/lib64",
        "/usr/lib/wsl/lib",
    )
)


@dataclass(frozen=True)
class Nvcc:
    """NVIDIA's compiler: `$NVCC`, that of `$CUDA_HOME` or `$CUDA_PATH`, or the one that fits Torch of those installed.

    Attributes:
        wanted: The version of CUDA that Torch was built with.
        packages: The folder of the Python packages beside Torch.
    """

    suffixes = frozenset({".cu"})
    language = "cuda"
    device = True
    embeds = None
    reads_cxx_flags = False
    reads_device_flags = True
    spelling = NVCC

    wanted: MajorMinor | None = None
    packages: Path | None = None

    def preferring(self, version: MajorMinor | None, packages: Path | None = None) -> Nvcc:
        return Nvcc(version, packages)

    def compiled_archs(self, archs: Sequence[str]) -> tuple[str, ...]:
        known = _nvcc_archs(tuple(self.command()))
        if not archs:
            # Without PTX nothing would run on the next generation of devices.
            return (*known[:-1], f"{known[-1]}+PTX")
        _generated_code(archs)  # rejects what is not a capability
        # nvcc lists no suffixes: if it supports 9.0, it supports 9.0a.
        found = tuple(arch for arch in archs if re.split("[af+]", arch)[0] in known)
        if not found:
            raise CompilerNotFound(
                f"{self.command()[0]} supports none of {', '.join(archs)}; it supports {', '.join(known)}."
            )
        return found

    def command(self) -> list[str]:
        return list(self._place().command)

    def _place(self) -> Place:
        usual = _usual_folders(cuda_folders.package_folders(self.packages))
        places = compiler_places("nvcc", "NVCC", ("CUDA_HOME", "CUDA_PATH"), usual, "the CUDA toolkit")
        return best_place(places, self.wanted, _VERSION)

    def flags(self, archs: Sequence[str], extra: Sequence[str]) -> list[str]:
        host = f"-Xcompiler={','.join(_HOST_FLAGS)}"
        extra = self._known_flags(extra)
        return ["-std=c++20", "-O3", *_AS_TORCH, host, *_generated_code(archs), *extra]

    def _known_flags(self, extra: Sequence[str]) -> Sequence[str]:
        """The flags of a section without those that this nvcc is too old for, and compiles the same code without."""
        joined = "\0".join(extra)
        rest = _STUB_FLAG.sub("", joined)
        if rest != joined:
            with suppress(CompilerNotFound):
                if version_in_answer(self.command(), _VERSION) < _STUB_SINCE:
                    return [flag for flag in rest.split("\0") if flag]
        return extra

    def link_flags(self, torch_lib: Path | None, compiled_with: Sequence[Sequence[str]] = ()) -> list[str]:
        folders: tuple[Path, ...] = ()
        with suppress(CompilerNotFound):
            folders = self.toolkit().libraries
        own = present_libraries(torch_lib, "c10_cuda", "torch_cuda")
        return ["-shared", *_runtime(folders, torch_lib), *own, *_used_libraries(folders)]

    def toolkit(self) -> Toolkit:
        place = self._place()
        version, said = version_in_answer(place.command, _VERSION), cuda_folders.nvcc_folders(place.command)
        fit = check_fit("CUDA", version, f"{said.root} ({place.found_by})", self.wanted, "CUDA_HOME")
        installed = cuda_folders.package_folders(self.packages)
        more = cuda_folders.package_headers(installed, version.major)
        if any((folder / "cub").is_dir() for folder in said.include):
            # Those of another version would be found first: nvcc puts its own behind all that it is given.
            more = tuple(folder for folder in more if not (folder / "cub").is_dir())
        libraries = cuda_folders.package_libraries(installed, version.major)
        return Toolkit(
            name="CUDA",
            version=version,
            folder=said.root,
            found_by=place.found_by,
            compiler=place.command,
            include=said.include,
            libraries=tuple(dict.fromkeys((*said.libraries, *libraries))),
            packages=tuple(folder for folder in more if folder not in said.include),
            remarks=(*fit, *_check_headers(version, said)),
        )


def _check_headers(version: MajorMinor, said: cuda_folders.NvccFolders) -> tuple[str, ...]:
    """A remark if the headers are of another version: Python packages can be installed in several versions."""
    headers = cuda_folders.header_version(said.include)
    if headers is None or headers == version:
        return ()
    return (
        f"nvcc is of CUDA {version}, but the headers beside it are of CUDA {headers} ({said.root}). If compiling "
        f"fails, install one version of both: pip install 'nvidia-cuda-nvcc=={headers}.*' "
        f"'nvidia-cuda-crt=={headers}.*' 'nvidia-nvvm=={headers}.*'",
    )


def _usual_folders(packages: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """The folders where CUDA usually is, each with its name: the newest of several versions first."""
    conda = os.environ.get("CONDA_PREFIX")
    for folder in (
        _NVIDIA / "cuda",
        *newest_first(_NVIDIA, "cuda-"),
        *_DISTRIBUTIONS,
        *([Path(conda)] if conda else []),
    ):
        yield folder, str(folder)
    for package in packages:
        for folder in sorted(package.glob("cu[0-9]*"), reverse=True):
            yield folder, "the package nvidia-cuda-nvcc"


def _runtime(folders: Sequence[Path], torch_lib: Path | None) -> list[str]:
    """The flags that link CUDA's runtime: Torch has the shared one loaded; without Torch its place is not known."""
    if torch_lib is None:
        return ["-cudart=static"]
    found = _library(folders, "cudart")
    if found is None or found.name == "libcudart.so":
        return ["-cudart=shared"]
    # Python packages have `libcudart.so.13` alone, which `-lcudart` does not find.
    return ["-cudart=none", "-Xlinker", str(found)]


def _used_libraries(folders: Sequence[Path]) -> list[str]:
    """The flags that link those of the toolkit's libraries that a kernel calls, and no other."""
    found = [path for path in (_library(folders, name) for name in _LIBRARIES) if path is not None]
    if folders and not any(path.stem == "libcuda" for path in found):
        found += _driver()
    if not found:
        return []
    within = ["--push-state", "--as-needed", *map(str, found), "--pop-state"]
    return [flag for each in within for flag in ("-Xlinker", each)]


def _driver() -> list[Path]:
    """The driver's own library, where it usually is or where the system looks for libraries; nothing without it."""
    searched = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    usual = [*_DRIVER, *(Path(folder, "libcuda.so.1") for folder in searched if folder)]
    known = [path for path in usual if path.is_file()]
    if not known:
        with suppress(CompilerNotFound):
            # "libcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1"
            listed = re.findall(r"libcuda\.so\.1 \(.*64.*\) => (/.+)", compiler_output("/sbin/ldconfig", "-p"))
            known = [Path(path) for path in listed]
    return known[:1]


def _library(folders: Sequence[Path], name: str) -> Path | None:
    for folder in folders:
        for path in (folder / f"lib{name}.so", *sorted(folder.glob(f"lib{name}.so.[0-9]*"), reverse=True)):
            if path.is_file():
                return path
    return None


@cache
def _nvcc_archs(command: tuple[str, ...]) -> tuple[str, ...]:
    """The compute capabilities that nvcc supports: a line such as `compute_90` each (nvcc --help)."""
    answer = compiler_output(*command, "--list-gpu-arch")
    known = sorted(int(number) for number in re.findall(r"^compute_([0-9]{2,4})$", answer, re.MULTILINE))
    if not known:
        raise CompilerNotFound(f"`{shlex.join(command)} --list-gpu-arch` lists no architectures.")
    return tuple(f"{number // 10}.{number % 10}" for number in known)


def _generated_code(archs: Sequence[str]) -> list[str]:
    flags: dict[str, None] = {}  # of `9.0` and `9.0+PTX`, both from sections of one file, the first flag once
    for arch in archs:
        match = re.fullmatch(r"(\d+)\.(\d)([af]?)(\+PTX)?", arch)
        if match is None:
            raise BuildError(f"nvcc cannot compile for {arch!r}; expected an architecture such as 9.0a or 9.0+PTX.")
        number = match[1] + match[2] + match[3]
        flags[f"-gencode=arch=compute_{number},code=sm_{number}"] = None
        if match[4]:
            flags[f"-gencode=arch=compute_{number},code=compute_{number}"] = None
    return list(flags)
