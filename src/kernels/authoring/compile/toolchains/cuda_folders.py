"""Where CUDA's headers and libraries are: as nvcc says, and in NVIDIA's Python packages."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernels.authoring.compile.toolchains.places import existing_folders
from kernels.support.version import MajorMinor

__all__ = ["NvccFolders", "header_version", "nvcc_folders", "package_folders", "package_headers", "package_libraries"]

#: The time limit for nvcc's answer, in seconds.
_SECONDS = 60

#: Folders of the packages for CUDA 12 and older, one for each part of the toolkit.
_APART = re.compile(r"cuda_\w+|cublas|cufft|cufile|curand|cusolver|cusparse|nvjitlink|nvtx|npp|nvjpeg")

#: In CUDA's own headers: 13000 is 13.0.
_CUDART_VERSION = re.compile(rb"^#define\s+CUDART_VERSION\s+([0-9]{4,6})\b", re.MULTILINE)


@dataclass(frozen=True)
class NvccFolders:
    """Where nvcc looks.

    Attributes:
        root: The folder of the toolkit.
        include: Folders of headers.
        libraries: Folders of libraries, the stubs of the driver's first.
    """

    root: Path
    include: tuple[Path, ...]
    libraries: tuple[Path, ...]


@cache
def nvcc_folders(command: tuple[str, ...]) -> NvccFolders:
    """The folders in which nvcc looks, from its own answer; without one, those of the usual layout.

    Args:
        command: The command that runs nvcc.
    """
    said = _said(command)
    here = Path(os.path.realpath(command[0])).parent
    top = said.get("TOP", [])
    root = Path(os.path.realpath(top[0])) if top and os.path.isdir(top[0]) else here.parent
    # INCLUDES="-I/x/include", SYSTEM_INCLUDES="-isystem" "/x/include/cccl", LIBRARIES="-L/x/lib/stubs" "-L/x/lib"; on
    # Windows LIBRARIES="/LIBPATH:C:\\x\\lib\\x64".
    include = [word for name in ("INCLUDES", "SYSTEM_INCLUDES") for word in said.get(name, [])]
    headers = existing_folders(word.removeprefix("-I") for word in include if word != "-isystem")
    libraries = existing_folders(re.sub("^(?:-L|/LIBPATH:)", "", word) for word in said.get("LIBRARIES", []))
    layout = [root, *sorted(root.glob(f"targets/{platform.machine()}-*"))]
    if not headers:
        headers = existing_folders(folder / name for folder in layout for name in ("include", "include/cccl"))
    if not libraries:
        names = ("lib64/stubs", "lib/stubs", "lib64", "lib/x64", "lib")
        libraries = existing_folders(folder / name for name in names for folder in layout)
    return NvccFolders(root, headers, libraries)


def _said(command: tuple[str, ...]) -> dict[str, list[str]]:
    """The settings that `nvcc --dryrun` prints to standard error: `#$ NAME=value`."""
    try:
        done = subprocess.run(
            [*command, "--dryrun", "-E", "-x", "cu", os.devnull],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    found = {}
    for name, value in re.findall(r"^#\$ ([A-Z_]+)=(.*)$", done.stderr, re.MULTILINE):
        try:
            found[name] = shlex.split(value)
        except ValueError:
            continue
    return found


def header_version(include: Sequence[Path]) -> MajorMinor | None:
    """The version of CUDA's headers in these folders; None if they are not there."""
    for folder in include:
        try:
            with (folder / "cuda_runtime_api.h").open("rb") as file:
                match = _CUDART_VERSION.search(file.read(1024 * 1024))
        except OSError:
            continue
        if match is not None:
            return MajorMinor(int(match[1]) // 1000, int(match[1]) % 1000 // 10)
    return None


def package_folders(packages: Path | None) -> list[Path]:
    """The folders in which NVIDIA's Python packages are installed.

    Args:
        packages: The folder of the packages beside Torch; None for those of this Python.
    """
    if packages is not None and os.path.realpath(packages) not in map(os.path.realpath, sys.path):
        return [packages / "nvidia"]
    spec = importlib.util.find_spec("nvidia")
    return [] if spec is None else [Path(folder) for folder in spec.submodule_search_locations or ()]


def package_headers(folders: Sequence[Path], major: int) -> tuple[Path, ...]:
    """The folders of the headers in NVIDIA's packages for a major version of CUDA.

    Args:
        folders: From `package_folders`.
        major: CUDA's major version: packages for CUDA 13 are in `nvidia/cu13`, older ones each in a folder of its own.
    """
    roots = _roots(folders, major)
    return existing_folders(root / name for root in roots for name in ("include", "include/cccl"))


def package_libraries(folders: Sequence[Path], major: int) -> tuple[Path, ...]:
    """The folders of the libraries in NVIDIA's packages for a major version of CUDA; the arguments are the same."""
    return existing_folders(root / "lib" for root in _roots(folders, major))


def _roots(folders: Sequence[Path], major: int) -> list[Path]:
    every = [root for folder in folders for root in sorted(folder.glob("*")) if root.is_dir()]
    own = [root for root in every if root.name == f"cu{major}"]
    apart = [root for root in every if _APART.fullmatch(root.name)]
    version = header_version([root / "include" for root in apart])
    if major > 12 or (version is not None and version.major != major):
        apart = []
    # Libraries that are not part of the toolkit, such as cuDNN, are beside it.
    others = [root for root in every if not _APART.fullmatch(root.name) and not re.fullmatch(r"cu[0-9]+", root.name)]
    return own + apart + others
