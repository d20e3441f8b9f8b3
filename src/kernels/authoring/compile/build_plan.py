"""Plan a source's builds before anything runs: the variants, their ids, and the compiler runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernels.authoring.compile.build_toml.model import KernelSection, KernelSource
from kernels.authoring.compile.framework import InstalledFramework, default_backends, installed_framework
from kernels.authoring.compile.git_tree import git_tree
from kernels.authoring.compile.header_dependencies import dependency_includes
from kernels.authoring.compile.metadata import provenance
from kernels.authoring.compile.python_files import check_python
from kernels.authoring.compile.run_compiler import Compilation, CompileUnit
from kernels.authoring.compile.source_files import SourceHashes, hash_sources
from kernels.authoring.compile.toolchains import Toolchain, Toolkit, compiled_sources, toolchain_for, toolkit_for
from kernels.authoring.compile.torch_installation import TorchInstallation
from kernels.authoring.compile.variant_name import variant_name
from kernels.backends import Backend, find
from kernels.errors import CompilerNotFound, RequestError
from kernels.resolver.target import Target

__all__ = ["BuildPlan", "SourceState", "plan_build", "plan_builds", "source_state"]


@dataclass(frozen=True)
class SourceState:
    """The current state of a source folder, the same for all of its variants.

    Attributes:
        contents: The hashes of its files.
        unique: The end of its builds' ids, different for each state.
        provenance: The field of the metadata, or None if the folder is not in a git repository.
    """

    contents: SourceHashes
    unique: str
    provenance: Mapping[str, Any] | None


@dataclass(frozen=True)
class BuildPlan:
    """One variant to build.

    Attributes:
        source: The source.
        state: The state of the source.
        backend: The backend that is built for.
        variant: The name of the variant.
        id: The name of its module and of its operators' namespace.
        archs: The device architectures that it covers, or None if not declared.
        compilation: The compiler runs, or None when noarch.
        extension_file: The file name of the compiled extension; "" when noarch.
    """

    source: KernelSource
    state: SourceState
    backend: Backend
    variant: str
    id: str
    archs: tuple[str, ...] | None
    compilation: Compilation | None
    extension_file: str = ""


def source_state(source: KernelSource) -> SourceState:
    """Read the state of a source from its files and git.

    Returns:
        The state. Its `unique` is the first seven digits of the folder's tree in git. If the files differ from the last
        commit, it is seven digits of their own hash and `_dirty`, so that each change can be loaded beside the others;
        without git, it is seven digits of that hash.

    Raises:
        RequestError: The package has a file that cannot be published, or that Python cannot compile.
    """
    check_python(source)  # before hours of compiling, not after
    contents, git = hash_sources(source.folder), git_tree(source.folder)
    unique = contents.id[:7] if git is None else f"{contents.id[:7]}_dirty" if git.dirty else git.tree[:7]
    return SourceState(contents, unique, provenance(git))


def plan_builds(source: KernelSource, backends: Iterable[str] | None = None) -> list[BuildPlan]:
    """Plan the variants of a source, for these backends or by default for all that can be built here.

    Raises:
        RequestError: Two sections compile one file.
        CompilerNotFound: Torch, tvm-ffi or a compiler is not installed, or not for that backend.
    """
    wanted = default_backends(source) if backends is None else tuple(backends)
    state = source_state(source)
    return [plan_build(source, state, name) for name in source.backends if name in wanted]


def plan_build(
    source: KernelSource,
    state: SourceState,
    backend: str,
    *,
    this_gpu: bool = False,
    torch: TorchInstallation | None = None,
) -> BuildPlan:
    """Plan one variant of a source.

    Args:
        source: The source.
        state: Its state.
        backend: One of its backends.
        this_gpu: Compile for the architectures of the visible devices only.
        torch: The Torch to compile against. Default: this Python's.

    Raises:
        RequestError: The backend is not registered, two sections compile one file, or the sources cover no visible
            device.
        CompilerNotFound: Torch, tvm-ffi, a compiler or another dependency is not installed, not for that backend, or
            not of an allowed version.
    """
    found = find(backend)
    id = f"_{source.name.python_name}_{backend}_{state.unique}"
    if not source.compiled:
        return BuildPlan(source, state, found, variant_name(source, found, None), id, source.archs.get(backend), None)
    framework = installed_framework(source, found, torch)
    kernels = [kernel for kernel in source.kernels if kernel.backend == backend]
    sections = [*([source.binding] if source.binding else []), *kernels]
    _check_compiled_once(source, sections)
    archs = [_archs(section, found, framework, this_gpu) for section in sections]
    compilation = _compilation(source, state, found, sections, archs, id, framework)
    every = tuple(dict.fromkeys(arch for each in archs for arch in each))
    name = variant_name(source, found, framework)
    return BuildPlan(source, state, found, name, id, every or None, compilation, f"{id}{framework.suffix}")


def _check_compiled_once(source: KernelSource, sections: Iterable[KernelSection]) -> None:
    """Raise if two sections compile one file: only one of the two objects could be linked."""
    owners: dict[str, KernelSection] = {}
    for section in sections:
        for path in dict.fromkeys(map(os.path.normpath, compiled_sources(section.src))):
            other = owners.setdefault(path, section)
            if other is not section:
                raise RequestError(
                    f"{source.folder / 'build.toml'}: `src` of {other.name} and of {section.name} both have {path}; "
                    "list it in one section only."
                )


def _archs(section: KernelSection, backend: Backend, framework: InstalledFramework, this_gpu: bool) -> tuple[str, ...]:
    """The device architectures that a section is compiled for."""
    declared = section.archs
    toolchains = (_toolchain(path, framework) for path in compiled_sources(section.src))
    device = [toolchain for toolchain in toolchains if toolchain.device]
    if not device:
        return declared
    if this_gpu:
        declared = _for_visible_devices(section, backend, declared)
    return device[0].compiled_archs(declared)


def _toolchain(path: str, framework: InstalledFramework) -> Toolchain:
    return toolchain_for(path, framework.language, framework.toolkit)


def _host_toolkit(paths: Iterable[str], framework: InstalledFramework) -> Toolkit | None:
    """The toolkit whose headers the C++ sources are compiled with; it must be there if device sources need it too."""
    try:
        return toolkit_for(framework.language, framework.toolkit)
    except CompilerNotFound:
        if any(_toolchain(path, framework).device for path in paths):
            raise
        return None


def _for_visible_devices(section: KernelSection, backend: Backend, declared: tuple[str, ...]) -> tuple[str, ...]:
    devices = [device for device in Target.current().backend_devices(backend.name) if device.arch]
    if not devices:
        raise RequestError(f"`this_gpu` is set, but no device of {backend.name} is visible.")
    if not declared:
        # Of "gfx942:sramecc+:xnack-" the processor's name.
        return tuple(dict.fromkeys(device.arch.split(":")[0] for device in devices))
    covering = tuple(
        arch for arch in declared if any(backend.arch_reason((arch,), device) is None for device in devices)
    )
    if not covering:
        raise RequestError(
            f"`this_gpu` is set, but `kernel.{section.name}` lists {', '.join(declared)}, none of which covers "
            f"{', '.join(device.arch for device in devices)}."
        )
    return covering


def _compilation(
    source: KernelSource,
    state: SourceState,
    backend: Backend,
    sections: Sequence[KernelSection],
    archs: Sequence[tuple[str, ...]],
    id: str,
    framework: InstalledFramework,
) -> Compilation:
    defines = [f"-D{backend.name.upper()}_KERNEL", *framework.defines]
    headers = [flag for folder in framework.include for flag in ("-isystem", str(folder))]
    units: dict[str, CompileUnit] = {}
    linker: Toolchain = toolchain_for("binding.cpp")
    sources = {os.path.normpath(path) for section in sections for path in compiled_sources(section.src)}
    # The id changes with every change of any file: passed to all of them, it would recompile all of them.
    everywhere = not state.contents.naming <= sources
    toolkit = _host_toolkit(sources, framework)
    for section, covered in zip(sections, archs, strict=True):
        includes = [f"-I{folder}" for folder in (".", *section.include)]
        includes += [f"-isystem{folder}" for folder in dependency_includes(section.name, section.depends)]
        for path in map(os.path.normpath, compiled_sources(section.src)):
            toolchain = _toolchain(path, framework)
            linker = toolchain if toolchain.device else linker
            extra = section.device_flags if toolchain.device else section.cxx_flags
            named = [f"-D{framework.id_macro}={id}"] if everywhere or path in state.contents.naming else []
            toolkit_flags = toolkit.header_flags() if toolkit is not None and not toolchain.device else []
            flags = [*toolchain.flags(covered, extra), *named, *defines, *includes, *headers, *toolkit_flags]
            units[path] = CompileUnit(path, (*toolchain.command(), *flags))
    libraries = (*framework.libraries, *linker.link_flags(framework.torch_lib))
    files = tuple(state.contents.hashes.items())
    return Compilation(
        source.folder, tuple(units.values()), tuple(linker.command()), libraries, files, framework.full_version
    )
