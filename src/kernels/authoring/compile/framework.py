"""What a source is compiled against: the installed Torch, or the installed tvm-ffi, and the toolkit that goes with it.

Neither is imported where its files tell enough: that takes seconds.
"""

from __future__ import annotations

import importlib.util
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kernels.authoring.compile.build_toml.reader import KernelSource
from kernels.authoring.compile.compilers import Toolchain, is_header, toolchain_for
from kernels.backends import Backend, find
from kernels.backends.torch_build import cxx11_abi, installed_torch, torch_builds
from kernels.errors import CompilerNotFound
from kernels.resolver.target import Target
from kernels.resolver.variant import Variant
from kernels.support.version import MajorMinor

__all__ = ["InstalledFramework", "against", "compiled_sources", "own_backends"]

#: The oldest CPython whose stable ABI an extension is compiled for: 3.10.
_LIMITED_API = "0x030A0000"

_INCLUDE = Path(__file__).parent / "include"

#: How the libraries are called that tvm-ffi loads; elsewhere `.so`.
_SUFFIXES = {"darwin": ".dylib", "windows": ".dll"}

_INSTALL_TVM_FFI = "pip install apache-tvm-ffi"


@dataclass(frozen=True)
class InstalledFramework:
    """A framework as it is installed here, for one backend.

    Attributes:
        variant: The variant that is built against it.
        version: Its name and version: what was compiled against another one is of no use.
        defines: Flags with macros, and with what comes before every source.
        include: Folders of its headers.
        libraries: Flags for the linker.
        torch_lib: The folder of Torch's libraries; None where Torch has no part in it.
        id_macro: The macro that carries a build's id into its sources.
        suffix: How the file name of an extension ends, after the id.
        hip: Whether its device language is HIP, also in sources that end in `.cu`.
    """

    variant: Variant
    version: str
    defines: tuple[str, ...]
    include: tuple[Path, ...]
    libraries: tuple[str, ...]
    torch_lib: Path | None
    id_macro: str
    suffix: str
    hip: bool


def against(source: KernelSource, backend: Backend) -> InstalledFramework:
    """What a source is compiled against for one of its backends.

    Args:
        source: The source; a compiled one.
        backend: The backend.

    Returns:
        Torch or tvm-ffi, as the source says.

    Raises:
        CompilerNotFound: It is not installed, not for that backend, or not of an allowed version; or for tvm-ffi, which
            is the same for every backend, the backend's own compiler is not there.
    """
    return _against_tvm_ffi(source, backend) if source.framework == "tvm-ffi" else _against_torch(source, backend)


def own_backends(source: KernelSource) -> tuple[str, ...]:
    """The backends of a compiled source that can be built for with what is installed here.

    Args:
        source: The source.

    Returns:
        Those that Torch is built for; for tvm-ffi, those whose compiler is here.

    Raises:
        CompilerNotFound: The framework itself is not installed.
    """
    if source.framework == "tvm-ffi":
        _tvm_ffi(source)
        return tuple(name for name in source.backends if _has_toolkit(source, name))
    _torch(source)
    built = torch_builds()
    return tuple(name for name in source.backends if name in built)


def compiled_sources(paths: Iterable[str]) -> list[str]:
    """Of a section's sources those that are compiled: all but headers.

    Example:
        >>> compiled_sources(["a.cpp", "a.h"])
        ['a.cpp']
    """
    return [path for path in paths if not is_header(path)]


def _torch(source: KernelSource) -> Any:
    torch = installed_torch()
    if torch is None:
        raise CompilerNotFound(f"{source.name} is compiled against Torch, which is not installed: pip install torch")
    return torch


def _against_torch(source: KernelSource, backend: Backend) -> InstalledFramework:
    torch, built = _torch(source), torch_builds()
    if backend.name not in built:
        raise CompilerNotFound(f"Torch {torch.__version__} is not built for {backend.name}.")
    version, spec = MajorMinor.parse(torch.__version__), importlib.util.find_spec("torch")
    if version is None or spec is None or spec.origin is None:
        raise CompilerNotFound(f"Torch {torch.__version__} is not a version that a build can be named for.")
    _check_version(f"Torch {torch.__version__}", version, source.minver, source.maxver, "torch")
    toolkit = built[backend.name]
    _check_toolkit(f"{backend.name} {toolkit}, that of Torch,", toolkit, source, backend)
    target = Target.current()
    # Of Torch's wheels for Linux those before 2.7 had the old ABI.
    abi: Literal["cxx11", "cxx98"] = "cxx98" if cxx11_abi() is False else "cxx11"
    stable = source.stable_abi.get(backend.name)
    if stable is None:
        variant = Variant.compiled("torch", version, backend.name, toolkit, cpu=target.cpu, os=target.os, abi=abi)
    else:
        _check_version(f"Torch {torch.__version__}", version, stable, None, "torch.stable-abi")
        variant = Variant.compiled("torch-stable-abi", stable, backend.name, toolkit, cpu=target.cpu, os=target.os)
    folder = Path(spec.origin).parent
    return InstalledFramework(
        variant=variant,
        version=f"torch {torch.__version__}",
        defines=(
            f"-DPy_LIMITED_API={_LIMITED_API}",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(abi == 'cxx11')}",
            *_stable_abi(stable),
        ),
        include=(_INCLUDE, folder / "include", folder / "include/torch/csrc/api/include", *_python_include()),
        libraries=(f"-L{folder / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10"),
        torch_lib=folder / "lib",
        id_macro="TORCH_EXTENSION_NAME",
        suffix=".abi3.so",
        hip=getattr(torch.version, "hip", None) is not None,
    )


def _stable_abi(version: tuple[int, int] | None) -> list[str]:
    """Torch's headers then offer only what that version has: major, minor and patch are the top three of eight bytes.

    Source: torch/headeronly/version.h, TORCH_ABI_VERSION.
    """
    if version is None:
        return []
    return [f"-DTORCH_TARGET_VERSION=0x{version[0]:02x}{version[1]:02x}{0:012x}ULL"]


def _python_include() -> list[Path]:
    # Many machines have Python without its headers; registration.h does without them.
    include = Path(sysconfig.get_path("include"))
    return [include] if (include / "Python.h").is_file() else []


def _tvm_ffi(source: KernelSource) -> tuple[str, MajorMinor, Path]:
    """Its version as it says it, and as a build's name does; and its folder, with `include` and `lib`."""
    said, spec = Target.current().tvm_ffi, importlib.util.find_spec("tvm_ffi")
    if said is None or spec is None or spec.origin is None:
        raise CompilerNotFound(f"{source.name} is compiled against tvm-ffi, which is not installed: {_INSTALL_TVM_FFI}")
    version, folder = MajorMinor.parse(said), Path(spec.origin).parent
    if version is None:
        raise CompilerNotFound(f"tvm-ffi {said} is not a version that a build can be named for: {_INSTALL_TVM_FFI}")
    if not (folder / "include/tvm/ffi/c_api.h").is_file() or not any(folder.glob("lib/*tvm_ffi.*")):
        raise CompilerNotFound(
            f"tvm-ffi {said} was installed without its headers or libraries: "
            "pip install --force-reinstall apache-tvm-ffi"
        )
    return said, version, folder


def _against_tvm_ffi(source: KernelSource, backend: Backend) -> InstalledFramework:
    said, version, folder = _tvm_ffi(source)
    target = Target.current()
    reason = backend.platform_reason(target)
    if reason:
        raise CompilerNotFound(f"No build for {backend.name} is made on this machine: {reason}.")
    hip = _is_hip(backend)
    toolkit = _toolkit(source, backend, hip) if backend.versioned else None
    variant = Variant.compiled("tvm-ffi", version, backend.name, toolkit, cpu=target.cpu, os=target.os)
    return InstalledFramework(
        variant=variant,
        version=f"tvm-ffi {said}",
        # Its sources include nothing of ours.
        defines=("-include", str(_INCLUDE / "older_glibc.h")),
        include=(folder / "include",),
        libraries=(f"-L{folder / 'lib'}", "-ltvm_ffi"),
        torch_lib=None,
        id_macro="TVM_FFI_EXTENSION_NAME",
        suffix=_SUFFIXES.get(target.os, ".so"),
        hip=hip,
    )


def _is_hip(backend: Backend) -> bool:
    """Whether it is hipcc that compiles for a backend: no framework says so here, but how its devices are called does.

    The two compilers' architectures are spelled `gfx942` and `9.0`.
    """
    return backend.parse_arch("gfx942") is not None and backend.parse_arch("9.0") is None


def _toolkit(source: KernelSource, backend: Backend, hip: bool) -> MajorMinor:
    """The version that the build is named for: that of the compiler of its device sources."""
    for toolchain in _device_toolchains(source, backend, hip):
        version = toolchain.toolkit_version()
        _check_toolkit(f"{backend.name} {version}, that of {toolchain.command()[0]},", version, source, backend)
        return version
    raise CompilerNotFound(
        f"{source.name} has no sources for {backend.name} that a compiler known here makes device code from, and its "
        "build is named for that compiler's version."
    )


def _device_toolchains(source: KernelSource, backend: Backend, hip: bool) -> list[Toolchain]:
    paths = (path for section in source.kernels if section.backend == backend.name for path in section.src)
    found = [toolchain_for(path, hip=hip) for path in compiled_sources(paths)]
    return [toolchain for toolchain in found if toolchain.device]


def _has_toolkit(source: KernelSource, name: str) -> bool:
    try:
        _against_tvm_ffi(source, find(name))
    except CompilerNotFound:
        return False
    return True


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
    for bound, fits, word in (
        (oldest, version is None or oldest is None or version >= oldest, "older than the oldest"),
        (newest, version is None or newest is None or version <= newest, "newer than the newest"),
    ):
        if bound is not None and not fits:
            raise CompilerNotFound(f"{what} is {word} that `{where}` allows: {bound[0]}.{bound[1]}.")
