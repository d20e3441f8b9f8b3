"""Read and check `build.toml`, and the files that it names."""

from __future__ import annotations

import os
from pathlib import Path

from kernels.authoring.compile.build_toml.editions import EDITION, FRAMEWORKS, edition_of, upgraded
from kernels.authoring.compile.build_toml.general import (
    backend_needs,
    hub,
    kernel_backends,
    kernel_name,
    kernel_version,
)
from kernels.authoring.compile.build_toml.model import BUILD_TOML, PYEXT, Framework, KernelSection, KernelSource
from kernels.authoring.compile.header_dependencies import DEPENDS, is_dependency
from kernels.authoring.compile.metadata import build_metadata
from kernels.authoring.compile.source_files import path_inside, source_problem
from kernels.backends import all_backends, arch_of_build, known
from kernels.errors import InvalidMetadata, RequestError
from kernels.models.spdx import license_problem
from kernels.support.formatting import did_you_mean
from kernels.support.logs import logger
from kernels.support.toml import Section, TomlFile, read_toml
from kernels.support.version import MajorMinor
from kernels.support.warn import warn_once

__all__ = ["parse_source", "read_source"]

_log = logger(__name__)

#: Device languages with their own key for compiler flags, for every backend.
_LANGUAGES = ("hip", "sycl")


def read_source(source_dir: os.PathLike[str] | str) -> KernelSource:
    """Read and check a source folder's `build.toml`.

    Args:
        source_dir: The folder.

    Returns:
        The file's content; every path in it is a file inside the folder. A file of edition 4 or older is upgraded in
        memory, with a warning.

    Raises:
        RequestError: The file is missing, is not TOML, is of an unsupported edition, or a key is unknown, missing or
            wrong; the message has the file, the line and what is expected.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> (folder / "torch-ext" / "twice").mkdir(parents=True)
        >>> _ = (folder / "torch-ext" / "twice" / "__init__.py").write_text("")
        >>> general = 'name = "twice"\\nversion = 1\\nlicense = "MIT"\\nedition = 5\\nbackends = ["cpu"]'
        >>> _ = (folder / "build.toml").write_text(f"[general]\\n{general}\\n[torch-noarch]\\n")
        >>> read_source(folder).framework
        'torch-noarch'
    """
    folder = Path(source_dir).resolve()
    try:
        file = read_toml(folder / BUILD_TOML)
    except OSError as error:
        raise RequestError(_no_sources(folder)) from error
    source = parse_source(file)
    if source.edition != EDITION:
        warn_once(
            _log,
            f"{file.path} has edition {source.edition} and was read as edition {EDITION}; "
            "`kernels build --update` upgrades the file.",
        )
    problem = license_problem(source.license) if source.license else None
    if problem is not None:
        warn_once(_log, f"{file.path}: {problem}.")
    for kernel in source.kernels:
        if kernel.backend not in source.backends:
            warn_once(
                _log,
                f"{file.path}: `kernel.{kernel.name}` is not built: `general.backends` does not list {kernel.backend}.",
            )
    return source


def _no_sources(folder: Path) -> str:
    """The error for a folder without `build.toml`, with the folders near it that have one."""
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "does not exist"
        return f"{folder} {problem}; expected a folder with build.toml."
    near = [path.parent for path in (*folder.parent.glob(BUILD_TOML), *sorted(folder.glob(f"*/{BUILD_TOML}")))]
    hint = f"did you mean {' or '.join(map(str, near[:5]))}?" if near else "`kernels init NAME` makes a new kernel."
    return f"{folder} has no build.toml, so it is not a kernel's source folder; {hint}"


def parse_source(file: TomlFile) -> KernelSource:
    """As `read_source`, for a file that is parsed already, without warnings."""
    edition = edition_of(file)
    top = Section(file, (), upgraded(file.data, edition))
    general = top.section("general")
    framework, code = _framework(top)
    kernels = top.section("kernel")
    top.refuse_unknown()
    assert general is not None, "`edition_of` requires it"
    source = _source(file.path.parent.resolve(), edition, general, framework, code, kernels)
    _check_metadata(general, source)
    return source


def _framework(top: Section) -> tuple[Framework, Section]:
    found: list[tuple[Framework, Section]] = []
    for name in FRAMEWORKS:
        section = top.section(name)
        if section is not None:
            found.append((name, section))  # type: ignore[arg-type]  # FRAMEWORKS are its values
    expected = "expected exactly one of " + ", ".join(f"`[{name}]`" for name in FRAMEWORKS)
    if not found:
        top.get("kernel")
        top.refuse_unknown()  # it can be a mistyped one
        raise top.error((), f"build.toml has no framework section; {expected}.")
    if len(found) > 1:
        both = " and ".join(f"`[{name}]`" for name, _ in found)
        raise found[1][1].error((), f"build.toml has {both}; {expected}.")
    return found[0]


def _source(
    folder: Path, edition: int, general: Section, framework: Framework, code: Section, kernels: Section | None
) -> KernelSource:
    name = kernel_name(general)
    version = kernel_version(general)
    license = general.text("license", "an SPDX identifier")
    if license is None and edition > 3:
        raise general.missing("license", 'an SPDX identifier such as "apache-2.0"')
    backends = kernel_backends(general)
    general.integer("edition", str(EDITION))
    repo_id, branch = hub(general)
    needs = backend_needs(general, backends)
    source = KernelSource(
        folder=folder,
        name=name,
        version=version,
        license=license,
        upstream=general.text("upstream", "a git URL"),
        source=general.text("source", "a git URL"),
        backends=backends,
        python_depends=needs.python_depends,
        kernel_depends=needs.kernel_depends,
        compiled=framework != "torch-noarch",
        pyext=code.texts("pyext") or PYEXT,
        archs=_noarch_archs(code, backends) if framework == "torch-noarch" else {},
        binding=None if framework == "torch-noarch" else _binding(folder, framework, code),
        kernels=_kernels(folder, framework, backends, kernels),
        framework=framework,
        edition=edition,
        stable_abi=_stable_abi(code, backends) if framework == "torch" else {},
        minver=code.version("minver") if framework == "torch" else None,
        maxver=code.version("maxver") if framework == "torch" else None,
        backend_minver=needs.minver,
        backend_maxver=needs.maxver,
        repo_id=repo_id,
        branch=branch,
        kernels_minver=general.text("minver", 'a version such as "0.17.0"'),
    )
    general.refuse_unknown()
    code.refuse_unknown()
    _check_package(general, source)
    return source


def _noarch_archs(code: Section, backends: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    archs = {
        each.name: _archs(code, each.name) for each in all_backends() if each.checks_archs or each.name in backends
    }
    # Of `gfx942:xnack-`, a processor and its features, the processor: readers of metadata compare no features.
    return {
        name: tuple(dict.fromkeys(arch.split(":")[0] for arch in listed))
        for name in backends
        if (listed := archs[name])
    }


def _archs(section: Section, backend: str) -> tuple[str, ...]:
    # One vendor calls them capabilities, the other architectures.
    for keys in (_keys(backend, "capabilities"), _keys(backend, "archs")):
        if archs := section.texts(*keys):
            _check_archs(section, next(each for each in keys if each in section.table), archs, backend)
            return archs
    return ()


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


def _stable_abi(code: Section, backends: tuple[str, ...]) -> dict[str, MajorMinor]:
    key = "stable-abi"
    if not isinstance(code.table.get(key), dict):
        version = code.version(key)
        return {} if version is None else dict.fromkeys(backends, version)
    table = code.section(key)
    versions = {each.name: version for each in all_backends() if table and (version := table.version(each.name))}
    if table is not None:
        table.refuse_unknown()
    return {name: versions[name] for name in backends if name in versions}


def _binding(folder: Path, framework: Framework, code: Section) -> KernelSection:
    return KernelSection(
        name=framework,
        backend="",
        src=_sources(folder, code),
        include=_includes(folder, code),
        cxx_flags=code.texts("cxx-flags"),
    )


def _kernels(
    folder: Path, framework: Framework, backends: tuple[str, ...], kernels: Section | None
) -> tuple[KernelSection, ...]:
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
    backend = section.text("backend", allowed)
    if backend is None:
        raise section.missing("backend", allowed)
    # Published files keep sections of backends that they no longer list; other builders skip them.
    if backend not in backends and known(backend) is None:
        raise section.wrong("backend", backend, allowed, did_you_mean(backend, backends))
    depends = section.texts("depends")
    for index, each in enumerate(depends):
        if not is_dependency(each):
            raise section.wrong(("depends", index), each, DEPENDS)
    archs = _archs(section, backend)
    minver = section.version(*_keys(backend, "minver"))
    flags = [section.texts(*_keys(each, "flags")) for each in (backend, *_LANGUAGES)]
    kernel = KernelSection(
        name=str(section.path[-1]),
        backend=backend,
        src=_sources(folder, section),
        include=_includes(folder, section),
        cxx_flags=section.texts("cxx-flags"),
        depends=depends,
        archs=archs,
        device_flags=tuple(flag for each in flags for flag in each),
        minver=minver,
    )
    section.refuse_unknown()
    if "src" not in section.table:  # last: an unknown key can be a mistyped one
        raise section.missing("src", "a list of files inside the folder")
    return kernel


def _keys(backend: str, name: str) -> tuple[str, str]:
    """The two spellings of a backend's key: `cuda-flags` and `cuda_flags`."""
    return f"{backend}-{name}", f"{backend}_{name}"


def _sources(folder: Path, section: Section) -> tuple[str, ...]:
    paths = section.texts("src")
    for index, path in enumerate(paths):
        problem = source_problem(folder, path)
        if problem is not None:
            raise section.error(
                ("src", index),
                f"`{section.name('src')}` has {path[:200]!r}, which {problem}; expected files inside the folder.",
            )
    return paths


def _includes(folder: Path, section: Section) -> tuple[str, ...]:
    paths = section.texts("include")
    for index, path in enumerate(paths):
        if path_inside(folder, path) is None:
            raise section.error(
                ("include", index), f"`{section.name('include')}` has {path[:200]!r}, which leads out of the folder."
            )
    return paths


def _check_package(general: Section, source: KernelSource) -> None:
    package = source.package_dir
    if not package.resolve().is_relative_to(source.folder):
        raise general.error(
            ("name",), f"`general.name` is {source.name!r}, and its package, {package}, is a link out of the folder."
        )
    if (package / "__init__.py").is_file():
        return
    wanted = (package / "__init__.py").relative_to(source.folder).as_posix()
    there = sorted(path.parent.name for path in source.extension_dir.glob("*/__init__.py"))
    found = f"has {', '.join(there[:10])}" if there else "has no package"
    raise general.error(
        ("name",),
        f"`general.name` is {source.name!r}, but {wanted} is missing ({source.extension_dir.name} {found}); "
        "the package has the kernel's name, with underscores for dashes.",
    )


def _check_metadata(general: Section, source: KernelSource) -> None:
    """Raise if readers would reject the builds' metadata, before anything is built."""
    for backend in source.backends:
        try:
            build_metadata(source, "_id", backend)
        except InvalidMetadata as error:
            raise general.error((), f"the metadata for {backend} would be rejected: {error}") from None
