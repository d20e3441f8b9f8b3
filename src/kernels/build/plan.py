"""What will be built: the variants of a source, their names, ids and compiler runs, before anything runs."""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kernels.backends import Backend, MajorMinor, find
from kernels.build.compile import Compilation, Unit
from kernels.build.source import KernelSection, KernelSource, option, source_files
from kernels.build.toolchains import is_header, toolchain_for
from kernels.errors import CompilerNotFound, RequestError
from kernels.target import Target
from kernels.variant import Variant

__all__ = ["Plan", "default_backends", "plan_builds", "source_hash"]

#: The oldest CPython whose stable ABI an extension is compiled for: 3.10.
_LIMITED_API = "0x030A0000"

_INCLUDE = Path(__file__).parent / "include"


@dataclass(frozen=True)
class Plan:
    """One variant to build.

    Attributes:
        source: Where it comes from.
        backend: The backend it is for.
        variant: The name of its folder.
        id: The name of its module and of its operators' namespace.
        archs: The device architectures that it covers, or None where it does not say.
        compilation: The compiler's work, or None when noarch.
    """

    source: KernelSource
    backend: Backend
    variant: str
    id: str
    archs: tuple[str, ...] | None
    compilation: Compilation | None

    @property
    def extension_file(self) -> str:
        """The file name of the compiled extension."""
        return f"{self.id}.abi3.so"


def plan_builds(source: KernelSource, backends: Iterable[str] | None = None) -> list[Plan]:
    """Plan the variants of a source that can be built here.

    Args:
        source: The source.
        backends: As for `build_kernel`.

    Returns:
        A plan for each, in the order of `build.toml`'s backends.

    Raises:
        RequestError: A backend is not one that `build.toml` names.
        CompilerNotFound: There is no Torch to compile against, or none for that backend.
    """
    wanted = default_backends(source) if backends is None else tuple(backends)
    for name in wanted:
        if name not in source.backends:
            raise RequestError(f"`backends` has {name!r}; allowed are those of {source.name}: {source.backends}.")
    unique = source_hash(source.folder)[:7]
    make = _compiled_plan if source.compiled else _noarch_plan
    return [
        make(source, find(name), f"_{source.name.python_name}_{name}_{unique}")
        for name in source.backends
        if name in wanted
    ]


def default_backends(source: KernelSource) -> tuple[str, ...]:
    """The backends that a source is built for when none is named.

    Args:
        source: The source.

    Returns:
        All of its backends when noarch; when compiled, those that the installed Torch is built for.

    Raises:
        CompilerNotFound: There is no Torch to compile against.
    """
    if not source.compiled:
        return source.backends
    torch = _torch(source)
    return tuple(name for name in source.backends if find(name).torch_build(torch) is not None)


def source_hash(folder: Path) -> str:
    """SHA-256, in hexadecimal, of a source folder's files and their names.

    Example:
        >>> len(source_hash(Path(__file__).parent))
        64
    """
    digest = hashlib.sha256()
    for name, path in source_files(folder):
        digest.update(f"{name}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _torch(source: KernelSource) -> Any:
    try:
        import torch
    except ImportError as error:
        raise CompilerNotFound(f"{source.name} is compiled against Torch, which is not installed.") from error
    return torch


def _noarch_plan(source: KernelSource, backend: Backend, id: str) -> Plan:
    return Plan(source, backend, Variant.for_noarch(backend.name).name, id, source.archs.get(backend.name), None)


def _compiled_plan(source: KernelSource, backend: Backend, id: str) -> Plan:
    torch = _torch(source)
    built_for = backend.torch_build(torch)
    if built_for is None:
        raise CompilerNotFound(f"`backends` has {backend.name!r}, and Torch {torch.__version__} is not built for it.")
    version = MajorMinor.parse(torch.__version__)
    if version is None:
        raise CompilerNotFound(f"Torch {torch.__version__} is not a version that a build can be named for.")
    target = Target.current()
    # Of Torch's wheels for Linux those before 2.7 had the old ABI.
    abi: Literal["cxx11", "cxx98"] = "cxx11" if torch.compiled_with_cxx11_abi() else "cxx98"
    variant = Variant.compiled("torch", version, backend.name, built_for.version, cpu=target.cpu, os=target.os, abi=abi)
    kernels = [kernel for kernel in source.kernels if kernel.backend == backend.name]
    archs = tuple(dict.fromkeys(arch for kernel in kernels for arch in _archs(kernel)))
    compilation = _compilation(source, backend, kernels, id, Path(torch.__file__).parent, abi)
    return Plan(source, backend, variant.name, id, archs or None, compilation)


def _archs(kernel: KernelSection) -> tuple[str, ...]:
    return option(kernel.options, kernel.backend, "capabilities", "archs")


def _compilation(
    source: KernelSource, backend: Backend, kernels: list[KernelSection], id: str, torch_dir: Path, abi: str
) -> Compilation:
    binding = source.binding
    sections = [*([binding] if binding else []), *kernels]
    defines = [
        f"-DTORCH_EXTENSION_NAME={id}",
        f"-D{backend.name.upper()}_KERNEL",
        f"-DPy_LIMITED_API={_LIMITED_API}",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(abi == 'cxx11')}",
    ]
    system = (_INCLUDE, torch_dir / "include", torch_dir / "include/torch/csrc/api/include", *_python_include())
    headers = [flag for folder in system for flag in ("-isystem", str(folder))]
    units, linker = [], toolchain_for("binding.cpp")
    for section in sections:
        archs = _archs(section)
        includes = [f"-I{folder}" for folder in (".", *section.include)]
        for path in section.src:
            if is_header(path):
                continue
            toolchain = toolchain_for(path)
            linker = toolchain if toolchain.device else linker
            extra = option(section.options, backend.name, "flags") if toolchain.device else section.cxx_flags
            flags = [*toolchain.flags(archs, extra), *defines, *includes, *headers]
            units.append(Unit(path, (*toolchain.command(), *flags)))
    libraries = (f"-L{torch_dir / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10", *linker.link_flags(torch_dir / "lib"))
    return Compilation(source.folder, tuple(units), tuple(linker.command()), libraries)


def _python_include() -> list[Path]:
    # Many machines have Python without its headers; registration.h does without them.
    include = Path(sysconfig.get_path("include"))
    return [include] if (include / "Python.h").is_file() else []
