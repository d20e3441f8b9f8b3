"""What will be built: the variants of a source, their names, ids and compiler runs, before anything runs."""

from __future__ import annotations

import importlib.util
import os
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kernels.backends import Backend, MajorMinor, find
from kernels.backends.torch_build import cxx11_abi, installed_torch, torch_builds
from kernels.build.compile import Compilation, Unit
from kernels.build.contents import Contents, read_contents
from kernels.build.dependencies import dependency_includes
from kernels.build.provenance import git_state, provenance
from kernels.build.source import KernelSection, KernelSource
from kernels.build.toolchains import Toolchain, is_header, toolchain_for
from kernels.errors import CompilerNotFound, RequestError
from kernels.target import Target
from kernels.variant import Variant

__all__ = ["Plan", "SourceState", "default_backends", "plan_build", "plan_builds", "source_state"]

#: The oldest CPython whose stable ABI an extension is compiled for: 3.10.
_LIMITED_API = "0x030A0000"

_INCLUDE = Path(__file__).parent / "include"


@dataclass(frozen=True)
class SourceState:
    """The state of a source folder, which all of its variants share.

    Attributes:
        contents: Its files.
        unique: What tells its builds from those of other states, the end of their ids.
        provenance: As metadata has it, or None where the folder is in no git repository.
    """

    contents: Contents
    unique: str
    provenance: Mapping[str, Any] | None


@dataclass(frozen=True)
class Plan:
    """One variant to build.

    Attributes:
        source: Where it comes from.
        state: The state that the source is in.
        backend: The backend it is for.
        variant: The name of its folder.
        id: The name of its module and of its operators' namespace.
        archs: The device architectures that it covers, or None where it does not say.
        compilation: The compiler's work, or None when noarch.
    """

    source: KernelSource
    state: SourceState
    backend: Backend
    variant: str
    id: str
    archs: tuple[str, ...] | None
    compilation: Compilation | None

    @property
    def extension_file(self) -> str:
        """The file name of the compiled extension."""
        return f"{self.id}.abi3.so"


def source_state(source: KernelSource) -> SourceState:
    """Look at the files of a source, and at what git knows of them.

    Args:
        source: The source.

    Returns:
        Its state. The ids of builds end in the first seven digits of the folder's tree in git. Where its files are not
        those of the last commit, they end in seven of the files' own hash and `_dirty`, so that one change can be
        loaded beside the next; and where git does not know them, in seven of that hash.
    """
    contents, git = read_contents(source.folder), git_state(source.folder)
    unique = contents.id[:7] if git is None else f"{contents.id[:7]}_dirty" if git.dirty else git.tree[:7]
    return SourceState(contents, unique, provenance(git))


def plan_builds(source: KernelSource, backends: Iterable[str] | None = None) -> list[Plan]:
    """Plan the variants of a source that can be built here.

    Args:
        source: The source.
        backends: As for `build_kernel`.

    Returns:
        A plan for each, in the order of `build.toml`'s backends.

    Raises:
        RequestError: A backend is not one that `build.toml` names, or two sections compile one file.
        CompilerNotFound: There is no Torch to compile against, none for that backend, or no compiler.
    """
    wanted = default_backends(source) if backends is None else tuple(backends)
    for name in wanted:
        if name not in source.backends:
            raise RequestError(
                f"`backends` has {name!r}; allowed are those of {source.name}: {', '.join(source.backends)}."
            )
    state = source_state(source)
    return [plan_build(source, state, name) for name in source.backends if name in wanted]


def plan_build(source: KernelSource, state: SourceState, backend: str, *, this_gpu: bool = False) -> Plan:
    """Plan one variant of a source.

    Args:
        source: The source.
        state: Its state.
        backend: One of its backends.
        this_gpu: Compile for the architectures of the visible devices only.

    Returns:
        The plan.

    Raises:
        RequestError: No registered backend has that name, two sections compile one file, or no device is visible that
            the sources cover.
        CompilerNotFound: There is no Torch to compile against, none for that backend or of an allowed version; or a
            compiler or another dependency is missing.
    """
    found = find(backend)
    id = f"_{source.name.python_name}_{backend}_{state.unique}"
    if source.framework == "tvm-ffi":
        raise CompilerNotFound(f"{source.name} is written against tvm-ffi, which this builder does not compile for.")
    if not source.compiled:
        return Plan(source, state, found, Variant.for_noarch(backend).name, id, source.archs.get(backend), None)
    variant, torch_dir, abi = _compiled_variant(source, found)
    kernels = [kernel for kernel in source.kernels if kernel.backend == backend]
    sections = [*([source.binding] if source.binding else []), *kernels]
    _check_objects(source, sections)
    archs = {section.name: _archs(section, found, this_gpu) for section in sections}
    compilation = _compilation(source, state, found, sections, archs, id, torch_dir, abi)
    every = tuple(dict.fromkeys(arch for each in archs.values() for arch in each))
    return Plan(source, state, found, variant.name, id, every or None, compilation)


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
    _torch(source)
    built = torch_builds()
    return tuple(name for name in source.backends if name in built)


def _torch(source: KernelSource) -> Any:
    torch = installed_torch()
    if torch is None:
        raise CompilerNotFound(f"{source.name} is compiled against Torch, which is not installed: pip install torch")
    return torch


def _compiled_variant(source: KernelSource, backend: Backend) -> tuple[Variant, Path, Literal["cxx11", "cxx98"]]:
    """The variant, Torch's folder and its C++ ABI; Torch is not imported where its files tell enough."""
    torch, built = _torch(source), torch_builds()
    if backend.name not in built:
        raise CompilerNotFound(f"Torch {torch.__version__} is not built for {backend.name}.")
    version, spec = MajorMinor.parse(torch.__version__), importlib.util.find_spec("torch")
    if version is None or spec is None or spec.origin is None:
        raise CompilerNotFound(f"Torch {torch.__version__} is not a version that a build can be named for.")
    _check_version(f"Torch {torch.__version__}", version, source.minver, source.maxver, "torch")
    toolkit = built[backend.name]
    bounds = source.backend_minver.get(backend.name), source.backend_maxver.get(backend.name)
    _check_version(f"{backend.name} {toolkit}, that of Torch,", toolkit, *bounds, f"general.{backend.name}")
    target = Target.current()
    # Of Torch's wheels for Linux those before 2.7 had the old ABI.
    abi: Literal["cxx11", "cxx98"] = "cxx98" if cxx11_abi() is False else "cxx11"
    stable = source.stable_abi.get(backend.name)
    if stable is None:
        variant = Variant.compiled("torch", version, backend.name, toolkit, cpu=target.cpu, os=target.os, abi=abi)
    else:
        _check_version(f"Torch {torch.__version__}", version, stable, None, "torch.stable-abi")
        variant = Variant.compiled("torch-stable-abi", stable, backend.name, toolkit, cpu=target.cpu, os=target.os)
    return variant, Path(spec.origin).parent, abi


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


def _check_objects(source: KernelSource, sections: Iterable[KernelSection]) -> None:
    """Refuse a file that two sections compile: of the two objects only one could be linked."""
    owners: dict[str, str] = {}
    for section in sections:
        for path in dict.fromkeys(map(os.path.normpath, _units(section))):
            other = owners.setdefault(path, section.name)
            if other != section.name:
                raise RequestError(
                    f"{source.folder / 'build.toml'}: `src` of {other} and of {section.name} both have {path}, which "
                    "would make one object twice; allowed is one section a file."
                )


def _units(section: KernelSection) -> list[str]:
    return [path for path in section.src if not is_header(path)]


def _toolchain(path: str) -> Toolchain:
    return toolchain_for(path, hip=getattr(installed_torch().version, "hip", None) is not None)


def _archs(section: KernelSection, backend: Backend, this_gpu: bool) -> tuple[str, ...]:
    """The device architectures that a section is compiled for."""
    declared = section.archs
    device = [toolchain for toolchain in map(_toolchain, _units(section)) if toolchain.device]
    if not device:
        return declared
    if this_gpu:
        declared = _for_visible_devices(section, backend, declared)
    return device[0].compiled_archs(declared)


def _for_visible_devices(section: KernelSection, backend: Backend, declared: tuple[str, ...]) -> tuple[str, ...]:
    devices = [device for device in Target.current().backend_devices(backend.name) if device.arch]
    if not devices:
        raise RequestError(f"`this_gpu` is given, and no device of {backend.name} is visible.")
    if not declared:
        # Of "gfx942:sramecc+:xnack-" the processor's name.
        return tuple(dict.fromkeys(device.arch.split(":")[0] for device in devices))
    covering = tuple(
        arch for arch in declared if any(backend.arch_reason((arch,), device) is None for device in devices)
    )
    if not covering:
        raise RequestError(
            f"`this_gpu` is given, and `kernel.{section.name}` lists {', '.join(declared)}, none of which covers "
            f"{', '.join(device.arch for device in devices)}."
        )
    return covering


def _compilation(
    source: KernelSource,
    state: SourceState,
    backend: Backend,
    sections: Iterable[KernelSection],
    archs: Mapping[str, tuple[str, ...]],
    id: str,
    torch_dir: Path,
    abi: str,
) -> Compilation:
    defines = [
        f"-D{backend.name.upper()}_KERNEL",
        f"-DPy_LIMITED_API={_LIMITED_API}",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(abi == 'cxx11')}",
        *_stable_abi(source.stable_abi.get(backend.name)),
    ]
    system = (_INCLUDE, torch_dir / "include", torch_dir / "include/torch/csrc/api/include", *_python_include())
    headers = [flag for folder in system for flag in ("-isystem", str(folder))]
    units: dict[str, Unit] = {}
    linker: Toolchain = toolchain_for("binding.cpp")
    sources = {os.path.normpath(path) for section in sections for path in _units(section)}
    # The id changes with every change of any file: where it went to all of them, all would be compiled each time.
    everywhere = not state.contents.naming <= sources
    for section in sections:
        includes = [f"-I{folder}" for folder in (".", *section.include)]
        includes += [f"-isystem{folder}" for folder in dependency_includes(section.name, section.depends)]
        for path in map(os.path.normpath, _units(section)):
            toolchain = _toolchain(path)
            linker = toolchain if toolchain.device else linker
            extra = section.device_flags if toolchain.device else section.cxx_flags
            named = [f"-DTORCH_EXTENSION_NAME={id}"] if everywhere or path in state.contents.naming else []
            flags = [*toolchain.flags(archs[section.name], extra), *named, *defines, *includes, *headers]
            units[path] = Unit(path, (*toolchain.command(), *flags))
    libraries = (f"-L{torch_dir / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10", *linker.link_flags(torch_dir / "lib"))
    files = tuple(state.contents.hashes.items())
    return Compilation(source.folder, tuple(units.values()), tuple(linker.command()), libraries, files)


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
