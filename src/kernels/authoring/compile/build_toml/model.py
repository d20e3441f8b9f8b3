"""The content of a `build.toml`, the same for every edition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kernels.models.metadata import KernelName

__all__ = ["BUILD_TOML", "PYEXT", "Framework", "KernelSection", "KernelSource"]

BUILD_TOML = "build.toml"

#: Suffixes of the Python package's files by default.
PYEXT = ("py", "pyi")

#: The framework that a kernel's sources use.
Framework = Literal["torch", "torch-noarch", "tvm-ffi"]


@dataclass(frozen=True)
class KernelSection:
    """A `[kernel.<name>]`: sources compiled for one backend with the same flags.

    Attributes:
        name: The name after `kernel.`.
        backend: The backend it is compiled for.
        src: Paths of sources and headers, relative to the source folder.
        include: Include folders, relative to the source folder.
        cxx_flags: Flags for the C++ compiler.
        depends: The dependencies of its sources: `torch`, `cutlass_4_0`, `sycl_tla`, `metal-cpp`.
        archs: The device architectures it is for.
        device_flags: Flags for the backend's own compiler.
        minver: The oldest version of the backend's toolkit that compiles it.
    """

    name: str
    backend: str
    src: tuple[str, ...]
    include: tuple[str, ...] = ()
    cxx_flags: tuple[str, ...] = ()
    depends: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    device_flags: tuple[str, ...] = ()
    minver: tuple[int, int] | None = None


@dataclass(frozen=True)
class KernelSource:
    """A source folder and its `build.toml`.

    Attributes:
        folder: The folder.
        name: The kernel's name.
        version: Its major version.
        license: SPDX identifier; None only in files before edition 4.
        upstream: URL of the project the kernel comes from.
        source: URL of the sources.
        backends: The backends it can be built for.
        python_depends: Python dependencies, by backend.
        kernel_depends: Other kernels it needs, as `metadata.json` lists them, by backend.
        compiled: Whether its builds are compiled; otherwise they are noarch.
        pyext: Suffixes of the Python package's files, without the dot.
        archs: Device architectures that a noarch build covers, by backend.
        binding: The sources that are compiled for every backend; None when noarch.
        kernels: The sources that are compiled for one backend.
        framework: The framework that the sources use.
        edition: The edition of the file.
        stable_abi: By backend, the version of Torch whose stable ABI it is compiled against.
        minver: The oldest Torch it is built for.
        maxver: The newest Torch it is built for.
        backend_minver: By backend, the oldest version of the backend's toolkit it is built for.
        backend_maxver: By backend, the newest.
        repo_id: The repository it is published to, `org/name`.
        branch: The branch it is published to.
        kernels_minver: The oldest version of this package that may load its builds, "X.Y.Z".
    """

    folder: Path
    name: KernelName
    version: int
    license: str | None
    upstream: str | None
    source: str | None
    backends: tuple[str, ...]
    python_depends: Mapping[str, tuple[str, ...]]
    kernel_depends: Mapping[str, tuple[Mapping[str, Any], ...]]
    compiled: bool
    pyext: tuple[str, ...]
    archs: Mapping[str, tuple[str, ...]]
    binding: KernelSection | None
    kernels: tuple[KernelSection, ...]
    framework: Framework
    edition: int
    stable_abi: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    minver: tuple[int, int] | None = None
    maxver: tuple[int, int] | None = None
    backend_minver: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    backend_maxver: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    repo_id: str | None = None
    branch: str | None = None
    kernels_minver: str | None = None

    @property
    def extension_dir(self) -> Path:
        """The folder of the Python package and the binding."""
        return self.folder / ("tvm-ffi-ext" if self.framework == "tvm-ffi" else "torch-ext")

    @property
    def package_dir(self) -> Path:
        """The folder of the Python package."""
        return self.extension_dir / self.name.python_name
