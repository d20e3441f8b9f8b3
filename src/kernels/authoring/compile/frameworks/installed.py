"""The framework that a source is compiled against: the installed Torch or tvm-ffi, and the backend's toolkit.

Neither is imported where its files say enough: an import takes seconds.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kernels.authoring.compile.build_toml.model import KernelSource
from kernels.authoring.compile.frameworks.torch_installation import TorchInstallation, this_torch
from kernels.authoring.compile.toolchains import compiled_sources, toolchain_for
from kernels.backends import Backend, find
from kernels.errors import CompilerNotFound
from kernels.resolver.target import Target
from kernels.support.version import MajorMinor

__all__ = ["InstalledFramework", "default_backends", "installed_framework"]

#: The oldest CPython whose stable ABI an extension is compiled for: 3.10.
_LIMITED_API = "0x030A0000"

_INCLUDE = Path(__file__).parent.parent / "include"

#: The suffixes of the libraries that tvm-ffi loads; elsewhere `.so`.
_SUFFIXES = {"darwin": ".dylib", "windows": ".dll"}

_INSTALL_TVM_FFI = "pip install apache-tvm-ffi"


@dataclass(frozen=True)
class InstalledFramework:
    """A framework as it is installed here, for one backend.

    Attributes:
        name: The framework.
        version: Its version, as in a variant's name.
        full_version: Its name and full version: objects compiled against another one are not reused.
        toolkit: The version of the backend's toolkit; None if the backend has none.
        abi: The C++ ABI of Torch.
        defines: Compiler flags: macros, and a header that is included first.
        include: Folders of its headers.
        libraries: Flags for the linker.
        torch_lib: The folder of Torch's libraries; None for tvm-ffi.
        id_macro: The macro that passes a build's id to its sources.
        suffix: The end of an extension's file name, after the id.
        language: The language of the backend's device sources.
    """

    name: Literal["torch", "tvm-ffi"]
    version: MajorMinor
    full_version: str
    toolkit: MajorMinor | None
    abi: Literal["cxx11", "cxx98"] | None
    defines: tuple[str, ...]
    include: tuple[Path, ...]
    libraries: tuple[str, ...]
    torch_lib: Path | None
    id_macro: str
    suffix: str
    language: str

    @property
    def packages(self) -> Path | None:
        """The folder of the Python packages beside Torch; None for those of this Python."""
        return None if self.torch_lib is None else self.torch_lib.parent.parent


def installed_framework(
    source: KernelSource, backend: Backend, torch: TorchInstallation | None = None
) -> InstalledFramework:
    """The framework that a compiled source needs, for one of its backends.

    Args:
        source: The source.
        backend: The backend.
        torch: The Torch to compile against. Default: this Python's.

    Raises:
        CompilerNotFound: It is not installed, is not built for that backend, or its version is not allowed; or, for
            tvm-ffi, which is the same for every backend, the backend's compiler is not installed.
    """
    if source.framework == "tvm-ffi":
        return _tvm_ffi(source, backend)
    return _torch(source, backend, _require_torch(source) if torch is None else torch)


def default_backends(source: KernelSource) -> tuple[str, ...]:
    """The backends that a source is built for by default.

    Args:
        source: The source, as `read_source` reads it.

    Returns:
        All that `build.toml` lists for a noarch source; else those that the installed Torch is built for, or, for
        tvm-ffi, those whose compiler is installed.

    Raises:
        CompilerNotFound: Torch or tvm-ffi is not installed.
    """
    if not source.compiled:
        return source.backends
    if source.framework == "torch":
        builds = _require_torch(source).builds
        return tuple(name for name in source.backends if name in builds)
    _find_tvm_ffi(source)
    found = []
    for name in source.backends:
        try:
            _tvm_ffi(source, find(name))
        except CompilerNotFound:
            continue
        found.append(name)
    return tuple(found)


def _require_torch(source: KernelSource) -> TorchInstallation:
    torch = this_torch()
    if torch is None:
        raise CompilerNotFound(f"{source.name} is compiled against Torch, which is not installed: pip install torch")
    return torch


def _torch(source: KernelSource, backend: Backend, torch: TorchInstallation) -> InstalledFramework:
    built = torch.builds
    if backend.name not in built:
        missing = _missing_compiler(source, backend)
        raise CompilerNotFound(f"Torch {torch.version} is not built for {backend.name}.{missing}")
    version = MajorMinor.parse(torch.version)
    if version is None:
        raise CompilerNotFound(f"Torch {torch.version} has no version X.Y for the variant's name.")
    _check_version(f"Torch {torch.version}", version, source.minver, source.maxver, "torch")
    toolkit = built[backend.name]
    _check_toolkit(f"{backend.name} {toolkit}, Torch's toolkit,", toolkit, source, backend)
    stable = source.stable_abi.get(backend.name)
    _check_version(f"Torch {torch.version}", version, stable, None, "torch.stable-abi")
    # Torch's wheels for Linux before 2.7 have the old ABI; elsewhere there is no such choice.
    abi: Literal["cxx11", "cxx98"] | None = None
    if torch.cxx11_abi is not None:
        abi = "cxx11" if torch.cxx11_abi else "cxx98"
    # Many machines have Python without its headers; registration.h does not need them.
    python_include, folder = torch.python_include, torch.folder
    return InstalledFramework(
        name="torch",
        version=version,
        full_version=f"torch {torch.version}",
        toolkit=toolkit,
        abi=abi,
        defines=(
            f"-DPy_LIMITED_API={_LIMITED_API}",
            *([f"-D_GLIBCXX_USE_CXX11_ABI={int(abi == 'cxx11')}"] if abi else []),
            # Torch's headers then offer only what that version has: major, minor and patch are the top three of eight
            # bytes (torch/headeronly/version.h, TORCH_ABI_VERSION).
            *([f"-DTORCH_TARGET_VERSION=0x{stable[0]:02x}{stable[1]:02x}{0:012x}ULL"] if stable else []),
        ),
        include=(
            _INCLUDE,
            folder / "include",
            folder / "include/torch/csrc/api/include",
            *([python_include] if (python_include / "Python.h").is_file() else []),
        ),
        libraries=(f"-L{folder / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10"),
        torch_lib=folder / "lib",
        id_macro="TORCH_EXTENSION_NAME",
        # Python for Windows has no suffix for extensions of its stable ABI (PEP 3149).
        suffix=".pyd" if Target.current().os == "windows" else ".abi3.so",
        language=backend.device_language,
    )


def _missing_compiler(source: KernelSource, backend: Backend) -> str:
    """Why the device sources cannot be compiled here whatever Torch is installed, or ""."""
    paths = [path for section in source.kernels if section.backend == backend.name for path in section.src]
    for path in compiled_sources(paths):
        try:
            toolchain = toolchain_for(path, backend.device_language)
            if toolchain.device:
                toolchain.command()
        except CompilerNotFound as error:
            return f" {error}"
    return ""


def _find_tvm_ffi(source: KernelSource) -> tuple[str, MajorMinor, Path]:
    """The full version of tvm-ffi, its version as in a variant's name, and the folder with `include` and `lib`."""
    full, spec = Target.current().tvm_ffi, importlib.util.find_spec("tvm_ffi")
    if full is None or spec is None or spec.origin is None:
        raise CompilerNotFound(f"{source.name} is compiled against tvm-ffi, which is not installed: {_INSTALL_TVM_FFI}")
    version, folder = MajorMinor.parse(full), Path(spec.origin).parent
    if version is None:
        raise CompilerNotFound(f"tvm-ffi {full} has no version X.Y for the variant's name: {_INSTALL_TVM_FFI}")
    if not (folder / "include/tvm/ffi/c_api.h").is_file() or not any(folder.glob("lib/*tvm_ffi.*")):
        raise CompilerNotFound(
            f"tvm-ffi {full} was installed without its headers or libraries: "
            "pip install --force-reinstall apache-tvm-ffi"
        )
    return full, version, folder


def _tvm_ffi(source: KernelSource, backend: Backend) -> InstalledFramework:
    full, version, folder = _find_tvm_ffi(source)
    target = Target.current()
    reason = backend.platform_reason(target)
    if reason:
        raise CompilerNotFound(f"This machine cannot build for {backend.name}: {reason}.")
    return InstalledFramework(
        name="tvm-ffi",
        version=version,
        full_version=f"tvm-ffi {full}",
        toolkit=_compiler_toolkit(source, backend) if backend.versioned else None,
        abi=None,
        # tvm-ffi sources include no header of this package.
        defines=("-include", str(_INCLUDE / "older_glibc.h")),
        include=(folder / "include",),
        libraries=(f"-L{folder / 'lib'}", "-ltvm_ffi"),
        torch_lib=None,
        id_macro="TVM_FFI_EXTENSION_NAME",
        suffix=_SUFFIXES.get(target.os, ".so"),
        language=backend.device_language,
    )


def _compiler_toolkit(source: KernelSource, backend: Backend) -> MajorMinor:
    """The toolkit's version for the variant's name: the version of the compiler of the device sources."""
    paths = (path for section in source.kernels if section.backend == backend.name for path in section.src)
    for toolchain in (toolchain_for(path, backend.device_language) for path in compiled_sources(paths)):
        toolkit = toolchain.toolkit()
        if toolkit is not None:
            what = f"{backend.name} {toolkit.version}, from {toolkit.compiler[0]},"
            _check_toolkit(what, toolkit.version, source, backend)
            return toolkit.version
    raise CompilerNotFound(
        f"{source.name} has no device sources for {backend.name}, and its variant is named after the version of their "
        "compiler."
    )


def _check_toolkit(what: str, version: tuple[int, int] | None, source: KernelSource, backend: Backend) -> None:
    bounds = source.backend_minver.get(backend.name), source.backend_maxver.get(backend.name)
    _check_version(what, version, *bounds, f"general.{backend.name}")


def _check_version(
    what: str,
    version: tuple[int, int] | None,
    oldest: tuple[int, int] | None,
    newest: tuple[int, int] | None,
    where: str,
) -> None:
    if version is None:
        return
    if oldest is not None and version < oldest:
        raise CompilerNotFound(f"{what} is older than the oldest that `{where}` allows: {oldest[0]}.{oldest[1]}.")
    if newest is not None and version > newest:
        raise CompilerNotFound(f"{what} is newer than the newest that `{where}` allows: {newest[0]}.{newest[1]}.")
