"""`build.toml` and the files beside it: what there is to build."""

from __future__ import annotations

import os
import re
from pathlib import Path

from kernels.authoring.compile.build_toml.editions import EDITION, FRAMEWORKS, edition_of, upgraded
from kernels.authoring.compile.build_toml.general import by_backend, hub, kernel_backends, kernel_name, kernel_version
from kernels.authoring.compile.build_toml.model import PYEXT, Framework, KernelSection, KernelSource, option, spellings
from kernels.authoring.compile.source_files import path_inside, source_fault
from kernels.backends import all_backends, arch_of_build, known
from kernels.errors import InvalidMetadata, RequestError
from kernels.models.spdx import license_problem
from kernels.support.formatting import did_you_mean
from kernels.support.toml import Section, TomlFile, TomlPath, read_toml
from kernels.support.version import MajorMinor
from kernels.support.warn import warn_once

__all__ = [
    "EDITION",
    "KernelSection",
    "KernelSource",
    "option",
    "parse_source",
    "read_source",
]

#: What sources may be compiled against: other builders know CUTLASS from 2.10 to 4.5, each minor by its own name.
_DEPENDS = re.compile(r"torch|cutlass_[2-4]_[0-9]{1,2}|sycl_tla|metal-cpp")

#: Device languages whose compilers' flags have a key of their own, whatever the backend is called.
_LANGUAGES = ("hip", "sycl")


def read_source(source_dir: os.PathLike[str] | str) -> KernelSource:
    """Read and check a source folder's `build.toml`.

    Args:
        source_dir: The folder.

    Returns:
        What the file says, with every path that it names checked to be a file inside the folder. A file of edition 4
        or older is upgraded in memory, which a warning tells once.

    Raises:
        RequestError: The file is missing, is not TOML, is of an edition that is not read, or a key is unknown,
            missing or wrong; the message has the file, the line and what is allowed.

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
        file = read_toml(folder / "build.toml")
    except OSError as error:
        raise RequestError(_no_sources(folder)) from error
    source = parse_source(file)
    if source.edition != EDITION:
        warn_once(
            f"{file.path} is of edition {source.edition} and was read as edition {EDITION}; "
            "`kernels build --update` writes it so."
        )
    problem = license_problem(source.license) if source.license else None
    if problem is not None:
        warn_once(f"{file.path}: {problem}.")
    for kernel in source.kernels:
        if kernel.backend not in source.backends:
            warn_once(
                f"{file.path}: `kernel.{kernel.name}` is for {kernel.backend}, which `general.backends` does not list: "
                "it is not built."
            )
    return source


def _no_sources(folder: Path) -> str:
    """Why a folder is no kernel's sources, and where they may be instead."""
    if not folder.is_dir():
        what = "no folder" if folder.exists() else "not there"
        return f"{folder} is {what}; a kernel's sources are a folder with build.toml."
    near = [path.parent for path in (*folder.parent.glob("build.toml"), *sorted(folder.glob("*/build.toml")))]
    hint = (
        f"did you mean {' or '.join(map(str, near[:5]))}?"
        if near
        else "`kernels init NAME` makes a new kernel's folder."
    )
    return f"{folder} holds no build.toml, so it is no kernel's sources; {hint}"


def parse_source(file: TomlFile) -> KernelSource:
    """Check what a `build.toml` says, against the files beside it.

    Args:
        file: The file, in the source folder.

    Returns:
        What it says.

    Raises:
        RequestError: As for `read_source`.
    """
    edition = edition_of(file)
    top = Section(file, (), upgraded(file.data, edition))
    general = top.section("general")
    framework, code = _framework(top)
    kernels = top.section("kernel")
    top.refuse_unknown()
    if general is None:  # `edition_of` saw it
        raise top.missing("general", "a section")
    source = _source(file.path.parent.resolve(), edition, general, framework, code, kernels)
    _check_metadata(general, source)
    return source


def _framework(top: Section) -> tuple[Framework, Section]:
    found: list[tuple[Framework, Section]] = []
    for name in FRAMEWORKS:
        section = top.section(name)
        if section is not None:
            found.append((name, section))  # type: ignore[arg-type]  # FRAMEWORKS are its values
    allowed = "allowed is exactly one framework of " + ", ".join(f"`[{name}]`" for name in FRAMEWORKS)
    if not found:
        top.get("kernel")
        top.refuse_unknown()  # it may be a mistyped one
        raise top.error((), f"build.toml has no framework section; {allowed}.")
    if len(found) > 1:
        both = " and ".join(f"`[{name}]`" for name, _ in found)
        raise found[1][1].error((), f"build.toml has {both}; {allowed}.")
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
    python_depends, kernel_depends, minver, maxver = by_backend(general, backends)
    source = KernelSource(
        folder=folder,
        name=name,
        version=version,
        license=license,
        upstream=general.text("upstream", "a git URL"),
        source=general.text("source", "a git URL"),
        backends=backends,
        python_depends=python_depends,
        kernel_depends=kernel_depends,
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
        backend_minver=minver,
        backend_maxver=maxver,
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
    return {name: listed for name in backends if (listed := archs[name])}


def _archs(section: Section, backend: str) -> tuple[str, ...]:
    # One vendor calls them capabilities, the other architectures.
    for key in (spellings(backend, "capabilities"), spellings(backend, "archs")):
        if archs := section.texts(*key):
            _check_archs(section, next(each for each in key if each in section.table), archs, backend)
            return archs
    return ()


def _check_archs(section: Section, key: str, archs: tuple[str, ...], name: str) -> None:
    """Refuse what no device is called: a build that declares it would fit none, or every one."""
    backend = known(name)
    if backend is None or not backend.checks_archs:
        return
    for index, arch in enumerate(archs):
        # A tool's own name for it, such as sm_90, is read where it is asked for, but stands in no list.
        if not arch.startswith(arch_of_build(backend, arch) or "\0"):
            meant = filter(
                None, (arch_of_build(backend, each) for each in (arch, f"{arch[:-1]}.{arch[-1]}", f"{arch}.0"))
            )
            hint = "".join(f"; did you mean {each!r}?" for each in [*meant][:1]) or "."
            raise section.error(
                (key, index),
                f"`{section.name(key, index)}` is {arch[:80]!r}, which is no architecture that {name} knows{hint}",
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
        first = next(iter(kernels.table))
        raise kernels.error(
            (first,),
            "`[kernel]` sections stand beside `[torch-noarch]`; allowed is `[torch]` or `[tvm-ffi]` with them.",
        )
    return tuple(
        _kernel(folder, backends, Section(kernels.file, ("kernel", name), kernels.table[name]))
        for name in kernels.table
    )


def _kernel(folder: Path, backends: tuple[str, ...], section: Section) -> KernelSection:
    allowed = f"one of {', '.join(backends)}, which are `general.backends`"
    backend = section.text("backend", allowed)
    if backend is None:
        raise section.missing("backend", allowed)
    # Published files keep sections of backends that they no longer list; other builders pass over them.
    if backend not in backends and known(backend) is None:
        raise section.wrong("backend", backend, allowed, did_you_mean(backend, backends))
    depends = section.texts("depends")
    for index, each in enumerate(depends):
        if _DEPENDS.fullmatch(each) is None:
            raise section.wrong(("depends", index), each, "torch, cutlass_<major>_<minor>, sycl_tla or metal-cpp")
    archs = _archs(section, backend)
    minver = section.version(*spellings(backend, "minver"))
    flags = [section.texts(*spellings(each, "flags")) for each in (backend, *_LANGUAGES)]
    own = [key for each in (backend, *_LANGUAGES) for key in section.table if re.match(rf"{re.escape(each)}[-_]", key)]
    kernel = KernelSection(
        name=str(section.path[-1]),
        backend=backend,
        src=_sources(folder, section),
        include=_includes(folder, section),
        cxx_flags=section.texts("cxx-flags"),
        options={key: section.table[key] for key in own},
        depends=depends,
        archs=archs,
        device_flags=tuple(flag for each in flags for flag in each),
        minver=minver,
    )
    section.refuse_unknown()
    if "src" not in section.table:  # after a key that is a mistyped one of it
        raise section.missing("src", "a list of files inside the folder")
    return kernel


def _sources(folder: Path, section: Section) -> tuple[str, ...]:
    paths = section.texts("src")
    for index, path in enumerate(paths):
        what = source_fault(folder, path)
        if what is not None:
            raise section.error(
                ("src", index),
                f"`{section.name('src')}` has {path[:200]!r}, which {what}; allowed are files inside the folder.",
            )
    return paths


def _includes(folder: Path, section: Section) -> tuple[str, ...]:
    paths = section.texts("include")
    for index, path in enumerate(paths):
        if path_inside(folder, path) is None:
            at: TomlPath = ("include", index)
            raise section.error(
                at,
                f"`{section.name('include')}` has {path[:200]!r}, which leads out of the folder; "
                "allowed are folders inside it.",
            )
    return paths


def _check_package(general: Section, source: KernelSource) -> None:
    if not source.package_dir.resolve().is_relative_to(source.folder):
        raise general.error(
            ("name",),
            f"`general.name` is {source.name!r}, and its package, {source.package_dir}, is a link that leads out of "
            "the folder; allowed is a package inside it.",
        )
    if (source.package_dir / "__init__.py").is_file():
        return
    wanted = (source.package_dir / "__init__.py").relative_to(source.folder).as_posix()
    there = sorted(path.parent.name for path in source.extension_dir.glob("*/__init__.py"))
    found = f"{source.extension_dir.name} has {', '.join(there[:10])}" if there else "there is no package beside it"
    raise general.error(
        ("name",),
        f"`general.name` is {source.name!r} and {wanted} is missing ({found}); "
        "allowed is a package of the kernel's name, with underscores for dashes.",
    )


def _check_metadata(general: Section, source: KernelSource) -> None:
    for backend in source.backends:
        # What a reader of the finished metadata would refuse is refused here, before anything is built.
        try:
            source.metadata("_id", backend)
        except InvalidMetadata as error:
            raise general.error((), f"the metadata for {backend} would be refused: {error}") from None
