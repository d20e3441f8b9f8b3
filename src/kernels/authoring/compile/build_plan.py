"""What will be built: the variants of a source, their names, ids and compiler runs, before anything runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernels.authoring.compile.build_toml.reader import KernelSection, KernelSource
from kernels.authoring.compile.compilers import Toolchain, toolchain_for
from kernels.authoring.compile.contents import SourceHashes, check_python, read_contents
from kernels.authoring.compile.framework import InstalledFramework, against, compiled_sources, own_backends
from kernels.authoring.compile.git_tree import git_state, provenance
from kernels.authoring.compile.header_dependencies import dependency_includes
from kernels.authoring.compile.run_compiler import Compilation, CompileUnit
from kernels.backends import Backend, find
from kernels.errors import RequestError
from kernels.resolver.target import Target
from kernels.resolver.variant import Variant

__all__ = ["BuildPlan", "SourceState", "default_backends", "plan_build", "plan_builds", "source_state"]


@dataclass(frozen=True)
class SourceState:
    """The state of a source folder, which all of its variants share.

    Attributes:
        contents: Its files.
        unique: What tells its builds from those of other states, the end of their ids.
        provenance: As metadata has it, or None where the folder is in no git repository.
    """

    contents: SourceHashes
    unique: str
    provenance: Mapping[str, Any] | None


@dataclass(frozen=True)
class BuildPlan:
    """One variant to build.

    Attributes:
        source: Where it comes from.
        state: The state that the source is in.
        backend: The backend it is for.
        variant: The name of its folder.
        id: The name of its module and of its operators' namespace.
        archs: The device architectures that it covers, or None where it does not say.
        compilation: The compiler's work, or None when noarch.
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
    """Look at the files of a source, and at what git knows of them.

    Args:
        source: The source.

    Returns:
        Its state. The ids of builds end in the first seven digits of the folder's tree in git. Where its files are not
        those of the last commit, they end in seven of the files' own hash and `_dirty`, so that one change can be
        loaded beside the next; and where git does not know them, in seven of that hash.

    Raises:
        RequestError: The package has a file that cannot be published, or that Python cannot compile.
    """
    check_python(source)  # before hours of compiling, not after
    contents, git = read_contents(source.folder), git_state(source.folder)
    unique = contents.id[:7] if git is None else f"{contents.id[:7]}_dirty" if git.dirty else git.tree[:7]
    return SourceState(contents, unique, provenance(git))


def plan_builds(source: KernelSource, backends: Iterable[str] | None = None) -> list[BuildPlan]:
    """BuildPlan the variants of a source that can be built here.

    Args:
        source: The source.
        backends: As for `build_kernel`.

    Returns:
        A plan for each, in the order of `build.toml`'s backends.

    Raises:
        RequestError: A backend is not one that `build.toml` names, or two sections compile one file.
        CompilerNotFound: There is no Torch or tvm-ffi to compile against, none for that backend, or no compiler.
    """
    wanted = default_backends(source) if backends is None else tuple(backends)
    for name in wanted:
        if name not in source.backends:
            raise RequestError(
                f"`backends` has {name!r}; allowed are those of {source.name}: {', '.join(source.backends)}."
            )
    state = source_state(source)
    return [plan_build(source, state, name) for name in source.backends if name in wanted]


def plan_build(source: KernelSource, state: SourceState, backend: str, *, this_gpu: bool = False) -> BuildPlan:
    """BuildPlan one variant of a source.

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
        CompilerNotFound: There is no Torch or tvm-ffi to compile against, none for that backend or of an allowed
            version; or a compiler or another dependency is missing.
    """
    found = find(backend)
    id = f"_{source.name.python_name}_{backend}_{state.unique}"
    if not source.compiled:
        return BuildPlan(source, state, found, Variant.for_noarch(backend).name, id, source.archs.get(backend), None)
    framework = against(source, found)
    kernels = [kernel for kernel in source.kernels if kernel.backend == backend]
    sections = [*([source.binding] if source.binding else []), *kernels]
    _check_objects(source, sections)
    archs = [_archs(section, found, framework, this_gpu) for section in sections]
    compilation = _compilation(source, state, found, sections, archs, id, framework)
    every = tuple(dict.fromkeys(arch for each in archs for arch in each))
    file = f"{id}{framework.suffix}"
    return BuildPlan(source, state, found, framework.variant.name, id, every or None, compilation, file)


def default_backends(source: KernelSource) -> tuple[str, ...]:
    """The backends that a source is built for when none is named.

    Args:
        source: The source.

    Returns:
        All of its backends when noarch; when compiled, those that the installed Torch is built for, or for tvm-ffi
        those whose compiler is here.

    Raises:
        CompilerNotFound: There is no Torch, or no tvm-ffi, to compile against.
    """
    return own_backends(source) if source.compiled else source.backends


def _check_objects(source: KernelSource, sections: Iterable[KernelSection]) -> None:
    """Refuse a file that two sections compile: of the two objects only one could be linked."""
    owners: dict[str, KernelSection] = {}
    for section in sections:
        for path in dict.fromkeys(map(os.path.normpath, compiled_sources(section.src))):
            other = owners.setdefault(path, section)
            if other is not section:
                raise RequestError(
                    f"{source.folder / 'build.toml'}: `src` of {other.name} and of {section.name} both have {path}, "
                    "which would make one object twice; allowed is one section a file."
                )


def _archs(section: KernelSection, backend: Backend, framework: InstalledFramework, this_gpu: bool) -> tuple[str, ...]:
    """The device architectures that a section is compiled for."""
    declared = section.archs
    toolchains = [toolchain_for(path, hip=framework.hip) for path in compiled_sources(section.src)]
    device = [toolchain for toolchain in toolchains if toolchain.device]
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
    # The id changes with every change of any file: where it went to all of them, all would be compiled each time.
    everywhere = not state.contents.naming <= sources
    for section, covered in zip(sections, archs, strict=True):
        includes = [f"-I{folder}" for folder in (".", *section.include)]
        includes += [f"-isystem{folder}" for folder in dependency_includes(section.name, section.depends)]
        for path in map(os.path.normpath, compiled_sources(section.src)):
            toolchain = toolchain_for(path, hip=framework.hip)
            linker = toolchain if toolchain.device else linker
            extra = section.device_flags if toolchain.device else section.cxx_flags
            named = [f"-D{framework.id_macro}={id}"] if everywhere or path in state.contents.naming else []
            flags = [*toolchain.flags(covered, extra), *named, *defines, *includes, *headers]
            units[path] = CompileUnit(path, (*toolchain.command(), *flags))
    libraries = (*framework.libraries, *linker.link_flags(framework.torch_lib))
    files = tuple(state.contents.hashes.items())
    link = tuple(linker.command())
    return Compilation(source.folder, tuple(units.values()), link, libraries, files, framework.version)
