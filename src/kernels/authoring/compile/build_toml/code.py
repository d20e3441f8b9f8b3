"""The sections of `build.toml` that say what is compiled: the framework's, and those of the kernels.

Each function reads one part and raises `RequestError`, with file and line, if it is missing or wrong.
"""

from __future__ import annotations

from pathlib import Path

from kernels.authoring.compile.build_toml.keys import KernelKeys, TorchKeys, TorchNoarchKeys
from kernels.authoring.compile.build_toml.model import Framework, KernelSection
from kernels.authoring.compile.frameworks.header_dependencies import allowed_depends, is_dependency
from kernels.authoring.compile.sources.source_files import is_file, path_inside, source_problem
from kernels.backends import all_backends, arch_of_build, known
from kernels.support.formatting import did_you_mean
from kernels.support.toml import Section
from kernels.support.version import MajorMinor

__all__ = ["binding_section", "kernel_sections", "noarch_archs", "stable_abi"]


def noarch_archs(code: Section, backends: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """The device architectures of a noarch source, by backend."""
    archs = {
        each.name: _archs(TorchNoarchKeys, code, each.name)
        for each in all_backends()
        if each.checks_archs or each.name in backends
    }
    # Of `gfx942:xnack-`, a processor and its features, the processor: readers of metadata compare no features.
    return {
        name: tuple(dict.fromkeys(arch.split(":")[0] for arch in listed))
        for name in backends
        if (listed := archs[name])
    }


def _archs(keys: type[KernelKeys] | type[TorchNoarchKeys], section: Section, backend: str) -> tuple[str, ...]:
    # One vendor calls them capabilities, the other architectures.
    fields = keys.capabilities.of(backend), keys.archs.of(backend)
    listed = {key: field.read(section) for field in fields for key in field.spellings if key in section.table}
    if len(listed) > 1:
        first, second = listed
        raise section.error((second,), f"`{section.name()}` has both `{first}` and `{second}`; expected one of them.")
    for field in fields:
        field.read(section)  # so that the section knows the key
    key, archs = next(iter(listed.items()), ("", ()))
    _check_archs(section, key, archs, backend)
    return archs


def _check_archs(section: Section, key: str, archs: tuple[str, ...], name: str) -> None:
    """Raise if an architecture is unknown: a build that declares it would fit no device, or every one."""
    backend = known(name)
    if backend is None or not backend.checks_archs:
        return
    for index, arch in enumerate(archs):
        if ":" in arch and (processor := backend.parse_arch(arch)) and arch.startswith(f"{processor}:"):
            continue  # a processor with features: `gfx942:sramecc+:xnack-`
        # A tool's own name for it, such as sm_90, is an alias for requests and not allowed in a list.
        if not arch.startswith(arch_of_build(backend, arch) or "\0"):
            spelled = (arch_of_build(backend, each) for each in (arch, f"{arch[:-1]}.{arch[-1]}", f"{arch}.0"))
            near = next(filter(None, spelled), None)
            hint = "." if near is None else f"; did you mean {near!r}?"
            raise section.error(
                (key, index), f"`{section.name(key, index)}` is {arch[:80]!r}, an unknown architecture of {name}{hint}"
            )


def stable_abi(code: Section, backends: tuple[str, ...]) -> dict[str, MajorMinor]:
    """The version of Torch whose stable ABI is compiled against, by backend."""
    value = TorchKeys.stable_abi.read(code)
    if not isinstance(value, Section):
        return {} if value is None else dict.fromkeys(backends, value)
    versions = {each.name: version for each in all_backends() if (version := value.version(each.name))}
    value.refuse_unknown()
    return {name: versions[name] for name in backends if name in versions}


def binding_section(folder: Path, framework: Framework, code: Section) -> KernelSection:
    """The framework's section: what is compiled for every backend."""
    return KernelSection(
        name=framework,
        backend="",
        src=_sources(folder, code),
        include=_includes(folder, code),
        cxx_flags=TorchKeys.cxx_flags.read(code),
    )


def kernel_sections(
    folder: Path, framework: Framework, backends: tuple[str, ...], kernels: Section | None
) -> tuple[KernelSection, ...]:
    """The sections `[kernel.<name>]`, in the order of the file."""
    if kernels is None:
        return ()
    if kernels.table and framework == "torch-noarch":
        problem = "`[torch-noarch]` cannot have `[kernel]` sections; use `[torch]` or `[tvm-ffi]`."
        raise kernels.error((next(iter(kernels.table)),), problem)
    return tuple(
        _kernel(folder, backends, Section(kernels.file, ("kernel", name), kernels.table[name]))
        for name in kernels.table
    )


def _kernel(folder: Path, backends: tuple[str, ...], section: Section) -> KernelSection:
    allowed = f"one of {', '.join(backends)}, which are `general.backends`"
    key = KernelKeys.backend.key
    backend = section.text(key, allowed)
    if backend is None:
        raise section.missing(key, allowed)
    # Published files keep sections of backends that they no longer list; other builders skip them.
    registered = known(backend)
    if registered is None:
        raise section.wrong(key, backend, allowed, did_you_mean(backend, backends))
    depends = KernelKeys.depends.read(section)
    for index, each in enumerate(depends):
        if not is_dependency(each):
            raise section.wrong((KernelKeys.depends.key, index), each, allowed_depends())
    languages = [name for name in (backend, registered.device_language) if name]
    flags = [KernelKeys.flags.of(name).read(section) for name in dict.fromkeys(languages)]
    kernel = KernelSection(
        name=str(section.path[-1]),
        backend=backend,
        src=_sources(folder, section),
        include=_includes(folder, section),
        cxx_flags=KernelKeys.cxx_flags.read(section),
        depends=depends,
        archs=_archs(KernelKeys, section, backend),
        device_flags=tuple(flag for each in flags for flag in each),
        minver=KernelKeys.minver.of(backend).read(section),
    )
    section.refuse_unknown()
    if KernelKeys.src.key not in section.table:  # last: an unknown key can be a mistyped one
        raise section.missing(KernelKeys.src.key, KernelKeys.src.expected)
    return kernel


def _sources(folder: Path, section: Section) -> tuple[str, ...]:
    key = KernelKeys.src.key
    paths = KernelKeys.src.read(section)
    for index, path in enumerate(paths):
        problem = source_problem(folder, path)
        if problem is not None:
            raise section.error(
                (key, index),
                f"`{section.name(key)}` has {path[:200]!r}, which {problem}; expected files inside the folder.",
            )
    return paths


def _includes(folder: Path, section: Section) -> tuple[str, ...]:
    key = KernelKeys.include.key
    paths = KernelKeys.include.read(section)
    for index, path in enumerate(paths):
        inside = path_inside(folder, path)
        if inside is None or is_file(inside):
            problem = "leads out of the folder" if inside is None else "is a file; expected a folder"
            raise section.error((key, index), f"`{section.name(key)}` has {path[:200]!r}, which {problem}.")
    return paths
