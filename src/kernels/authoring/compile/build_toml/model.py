"""What a `build.toml` says, whatever edition it is of: one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from kernels.models.metadata import Digest, KernelName, Metadata

__all__ = ["PYEXT", "Framework", "KernelSection", "KernelSource", "option", "spellings"]

#: Suffixes of the Python package's files where a file names none.
PYEXT = ("py", "pyi")

#: What a kernel's sources are written against.
Framework = Literal["torch", "torch-noarch", "tvm-ffi"]


@dataclass(frozen=True)
class KernelSection:
    """A `[kernel.<name>]`: sources compiled for one backend with the same flags.

    Attributes:
        name: What follows `kernel.`.
        backend: The backend it is compiled for.
        src: Paths of sources and headers, relative to the source folder.
        include: Include folders, relative to the source folder.
        cxx_flags: Flags for the C++ compiler.
        options: The options that belong to one backend, by their name in the file (`<backend>-flags`).
        depends: What it is compiled against: `torch`, `cutlass_4_0`, `sycl_tla`, `metal-cpp`.
        archs: The device architectures it is for, as the file lists them.
        device_flags: Flags for the backend's own compiler.
        minver: The oldest version of the backend's toolkit that compiles it.
    """

    name: str
    backend: str
    src: tuple[str, ...]
    include: tuple[str, ...] = ()
    cxx_flags: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    depends: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    device_flags: tuple[str, ...] = ()
    minver: tuple[int, int] | None = None


@dataclass(frozen=True)
class KernelSource:
    """A source folder, as its `build.toml` describes it.

    Attributes:
        folder: The folder.
        name: The kernel's name.
        version: Its major version.
        license: SPDX identifier; None only in files of edition 3, which may leave it out.
        upstream: URL of the project the kernel comes from.
        source: URL of the sources.
        backends: The backends it can be built for.
        python_depends: Python dependencies, by backend.
        kernel_depends: Other kernels it needs, as `metadata.json` lists them, by backend.
        compiled: Whether there is something to compile; otherwise the build is noarch.
        pyext: Suffixes of the Python package's files, without the dot.
        archs: Device architectures that a noarch build covers, by backend.
        binding: The sources that are compiled for every backend; None when noarch.
        kernels: The sources that are compiled for one backend.
        framework: What the sources are written against.
        edition: The edition the file was written in.
        stable_abi: By backend, the Torch whose stable ABI it is compiled against.
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
        """The folder of the framework's own sources: the Python package and the binding."""
        return self.folder / ("tvm-ffi-ext" if self.framework == "tvm-ffi" else "torch-ext")

    @property
    def package_dir(self) -> Path:
        """The folder of the Python package."""
        return self.extension_dir / self.name.python_name

    def metadata(
        self,
        id: str,
        backend: str,
        *,
        archs: Sequence[str] | None = None,
        digest: Digest | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> Metadata:
        """The metadata of a build for one backend.

        Args:
            id: The build's id.
            backend: The backend's name.
            archs: The device architectures that were compiled. Default: those listed for this backend.
            digest: The digest of the build's files.
            provenance: The builder and the sources' commit, as the file has them.

        Raises:
            InvalidMetadata: A field is one that a reader of the file would refuse.
        """
        covered = self.archs.get(backend) if archs is None else archs
        return Metadata.from_fields(
            {
                "id": id,
                "name": str(self.name),
                "backend": {"type": backend, "archs": list(covered) if covered else None},
                "version": self.version,
                "license": self.license,
                "upstream": self.upstream,
                "source": self.source,
                "python-depends": list(self.python_depends[backend]),
                "kernel-depends": [dict(each) for each in self.kernel_depends[backend]],
                "kernels-minver": self.kernels_minver,
                "digest": None if digest is None else {"algorithm": digest.algorithm, "files": digest.files},
                "provenance": None if provenance is None else dict(provenance),
            }
        )


def option(table: Mapping[str, Any], backend: str, *names: str) -> tuple[str, ...]:
    """The list of strings under `<backend>-<name>`, or under its underscored spelling.

    Args:
        table: A section's options.
        backend: The backend's name.
        names: What may follow it; the first that is there counts.

    Example:
        >>> option({"cuda_capabilities": ["9.0"]}, "cuda", "capabilities", "archs")
        ('9.0',)
    """
    for key in spellings(backend, *names):
        if key in table:
            return tuple(msgspec.convert(table[key], list[str]))
    return ()


def spellings(backend: str, *names: str) -> tuple[str, ...]:
    """The keys under which a backend's option stands in files: with a dash, and with an underscore.

    Example:
        >>> spellings("cuda", "flags")
        ('cuda-flags', 'cuda_flags')
    """
    return tuple(f"{backend}{joint}{name}" for name in names for joint in "-_")
