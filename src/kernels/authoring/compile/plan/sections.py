"""What of a source's sections is compiled for a backend: which sections, for which architectures, each file's flags."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernels.authoring.compile.build_toml.model import KernelSection, KernelSource
from kernels.authoring.compile.frameworks.header_dependencies import dependency_flags
from kernels.authoring.compile.frameworks.installed import InstalledFramework
from kernels.authoring.compile.toolchains import Toolchain, compiled_sources, toolchain_for
from kernels.backends import Backend, Device
from kernels.errors import CompilerNotFound, RequestError
from kernels.resolver.target import Target
from kernels.support.logs import logger, warn_once
from kernels.support.version import MajorMinor

__all__ = ["PlannedFile", "PlannedSection", "declared_archs", "plan_files", "plan_sections"]

_log = logger(__name__)

#: A folder of headers that other builders search without being asked (huggingface/kernels, `utils.cmake`).
_USUAL_INCLUDE = "csrc"

#: Flags for a processor's instructions: GCC's and Clang's, and Microsoft's.
_INSTRUCTIONS = re.compile(r"-m(?!macos)|/arch:")


@dataclass(frozen=True)
class PlannedSection:
    """A section that is compiled.

    Attributes:
        section: The section.
        device: Whether it has sources for the accelerator's compiler.
        archs: The device architectures that it is compiled for; those that it declares if it has no device sources.
    """

    section: KernelSection
    device: bool
    archs: tuple[str, ...]


@dataclass(frozen=True)
class PlannedFile:
    """A file that is compiled.

    Attributes:
        path: Its path, relative to the source folder.
        toolchain: Its compiler.
        archs: The device architectures that it is compiled for.
        flags: The flags of its sections.
        includes: The flags for the folders of headers, and the macros of dependencies.
    """

    path: str
    toolchain: Toolchain
    archs: tuple[str, ...]
    flags: tuple[str, ...]
    includes: tuple[str, ...]

    def together_with(self, other: PlannedFile) -> PlannedFile:
        """The same file with the architectures and flags of another section too."""
        return replace(
            self,
            archs=tuple(dict.fromkeys([*self.archs, *other.archs])),
            flags=self.flags if self.flags == other.flags else (*self.flags, *other.flags),
            includes=tuple(dict.fromkeys([*self.includes, *other.includes])),
        )


def plan_sections(
    source: KernelSource, backend: Backend, framework: InstalledFramework, this_gpu: bool
) -> list[PlannedSection]:
    """The sections of a source that are compiled for a backend: the framework's, then the kernels'.

    A section that needs a newer toolkit than the installed one is left out, with a warning: published sources have
    sections for new devices that older toolkits cannot compile.

    Args:
        source: The source.
        backend: The backend.
        framework: The framework.
        this_gpu: Compile for the architectures of the visible devices only. A section that covers none of them keeps
            its own: the others may call it.

    Raises:
        RequestError: `this_gpu` is set, and no section covers a visible device.
        CompilerNotFound: A compiler is not installed, or compiles for none of a section's architectures; or every
            section was left out.
    """
    every = [kernel for kernel in source.kernels if kernel.backend == backend.name]
    older = {kernel.name: version for kernel in every if (version := _older_toolkit(kernel, framework)) is not None}
    kept = [kernel for kernel in every if kernel.name not in older]
    for kernel in every:
        if kernel.name in older:
            says = f"`kernel.{kernel.name}` needs {backend.name} {kernel.minver}; {older[kernel.name]} is installed"
            if not kept:
                raise CompilerNotFound(f"{source.folder / 'build.toml'}: {says}, and no other section is left.")
            warn_once(_log, f"{source.folder / 'build.toml'}: {says}. The section is left out.")
    if this_gpu:
        _check_covered([kernel for kernel in kept if _device_toolchain(kernel, framework) is not None], backend)
    kernels = [_plan_section(kernel, kernel.archs, backend, framework, this_gpu) for kernel in kept]
    if source.binding is None:
        return kernels
    # It declares no architectures of its own: it is compiled for those of the kernels that it calls.
    archs = tuple(dict.fromkeys(arch for kernel in kernels if kernel.device for arch in kernel.archs))
    return [_plan_section(source.binding, archs, backend, framework, this_gpu and not archs), *kernels]


def declared_archs(sections: Sequence[PlannedSection]) -> tuple[str, ...]:
    """The device architectures that a build declares in its metadata.

    Those that were compiled; if only C++ was, those that the sections declare. Of `gfx942:sramecc+:xnack-`, a processor
    with features that the code needs, the processor: readers of metadata compare no features.
    """
    device = [section for section in sections if section.device]
    return tuple(dict.fromkeys(arch.split(":")[0] for section in device or sections for arch in section.archs))


def plan_files(
    source: KernelSource, sections: Sequence[PlannedSection], framework: InstalledFramework
) -> list[PlannedFile]:
    """The files to compile, each once, in the order in which they are linked.

    Of an inline function that several files contain, the linker keeps the first copy: files that only some processors
    run, as their flags choose instructions (`-mavx512f`), come last. Otherwise the order is that of the sections.

    A file of several sections is compiled for the architectures of all, with the flags of each in order, as other
    builders do; a warning says so if they differ.
    """
    files: dict[str, PlannedFile] = {}
    owners: dict[str, str] = {}
    for planned in sections:
        section = planned.section
        includes = _include_flags(source, section)
        for path in dict.fromkeys(map(os.path.normpath, compiled_sources(section.src))):
            toolchain = _toolchain(path, framework)
            cxx_flags = section.cxx_flags if toolchain.reads_cxx_flags else ()
            own = (*cxx_flags, *(section.device_flags if toolchain.reads_device_flags else ()))
            file = PlannedFile(path, toolchain, planned.archs, own, includes)
            before = files.get(path)
            if before is not None:
                file = before.together_with(file)
                if (own, planned.archs) != (before.flags, before.archs):
                    warn_once(
                        _log,
                        f"{source.folder / 'build.toml'}: `src` of {owners[path]} and of {section.name} both have "
                        f"{path}; it is compiled once, with the flags and architectures of both.",
                    )
            files[path] = file
            owners.setdefault(path, section.name)
    return sorted(files.values(), key=lambda file: any(_INSTRUCTIONS.match(flag) for flag in file.flags))


def _older_toolkit(section: KernelSection, framework: InstalledFramework) -> MajorMinor | None:
    """The installed toolkit's version if it is older than a section needs."""
    if section.minver is None:
        return None
    toolkits = (_toolchain(path, framework).toolkit() for path in compiled_sources(section.src))
    version = next((toolkit.version for toolkit in toolkits if toolkit is not None), framework.toolkit)
    return version if version is not None and version < section.minver else None


def _plan_section(
    section: KernelSection, declared: tuple[str, ...], backend: Backend, framework: InstalledFramework, this_gpu: bool
) -> PlannedSection:
    device = _device_toolchain(section, framework)
    if device is None:
        return PlannedSection(section, False, declared)
    if this_gpu:
        declared = _for_visible_devices(backend, declared) or declared
    return PlannedSection(section, True, device.compiled_archs(declared))


def _device_toolchain(section: KernelSection, framework: InstalledFramework) -> Toolchain | None:
    toolchains = (_toolchain(path, framework) for path in compiled_sources(section.src))
    return next((toolchain for toolchain in toolchains if toolchain.device), None)


def _toolchain(path: str, framework: InstalledFramework) -> Toolchain:
    return toolchain_for(path, framework.language, framework.toolkit, framework.packages)


def _visible_devices(backend: Backend) -> list[Device]:
    devices = [device for device in Target.current().backend_devices(backend.name) if device.arch]
    if not devices:
        raise RequestError(f"`this_gpu` is set, but no device of {backend.name} is visible.")
    return devices


def _check_covered(sections: Sequence[KernelSection], backend: Backend) -> None:
    if sections and not any(_for_visible_devices(backend, section.archs) for section in sections):
        listed = ", ".join(f"`kernel.{section.name}` lists {', '.join(section.archs)}" for section in sections)
        devices = ", ".join(device.arch for device in _visible_devices(backend))
        raise RequestError(f"`this_gpu` is set, but {listed}, none of which covers {devices}.")


def _for_visible_devices(backend: Backend, declared: tuple[str, ...]) -> tuple[str, ...]:
    """Those of a section's architectures that cover a visible device; the devices' own if it declares none."""
    devices = _visible_devices(backend)
    if not declared:
        # Of "gfx942:sramecc+:xnack-" the processor's name.
        return tuple(dict.fromkeys(device.arch.split(":")[0] for device in devices))
    return tuple(
        arch
        for arch in declared
        if any(backend.arch_reason((arch.split(":")[0],), device) is None for device in devices)
    )


def _include_flags(source: KernelSource, section: KernelSection) -> tuple[str, ...]:
    usual = [_USUAL_INCLUDE] if (source.folder / _USUAL_INCLUDE).is_dir() else []
    folders = dict.fromkeys([".", *section.include, *usual])
    return (*(f"-I{folder}" for folder in folders), *dependency_flags(section.name, section.depends))
