"""Read and check `build.toml`, and the files that it names."""

from __future__ import annotations

import os
from pathlib import Path

from kernels.authoring.compile.build_toml.code import binding_section, kernel_sections, noarch_archs, stable_abi
from kernels.authoring.compile.build_toml.editions import edition_of, upgraded
from kernels.authoring.compile.build_toml.general import (
    backend_needs,
    hub,
    kernel_backends,
    kernel_name,
    kernel_version,
)
from kernels.authoring.compile.build_toml.keys import EDITION, FRAMEWORKS, FileKeys, GeneralKeys, TorchKeys
from kernels.authoring.compile.build_toml.model import BUILD_TOML, PYEXT, Framework, KernelSource
from kernels.authoring.compile.metadata import build_metadata
from kernels.authoring.compile.sources.source_files import resolve_folder
from kernels.authoring.spdx import license_problem
from kernels.errors import InvalidMetadata, RequestError
from kernels.support.logs import logger, warn_once
from kernels.support.toml import Section, TomlFile, read_toml

__all__ = ["parse_source", "read_build_toml", "read_source"]

_log = logger(__name__)


def read_source(source_dir: os.PathLike[str] | str) -> KernelSource:
    """Read and check a source folder's `build.toml`.

    Args:
        source_dir: The folder.

    Returns:
        The file's content; every path in it is a file inside the folder. A file of edition 4 or older is upgraded in
        memory, with a warning; one of edition 6 is read as it is.

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
    file = read_build_toml(source_dir)
    source = parse_source(file)
    if source.edition < EDITION:
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


def read_build_toml(source_dir: os.PathLike[str] | str) -> TomlFile:
    """Parse a source folder's `build.toml`, whatever its content.

    Raises:
        RequestError: The file is missing, cannot be read, or is not TOML.
    """
    folder = resolve_folder(source_dir)
    path = folder / BUILD_TOML
    try:
        return read_toml(path)
    except OSError as error:
        if path.exists():
            problem = "it is a folder" if path.is_dir() else error.strerror or "it is not a regular file"
            raise RequestError(f"{path} cannot be read: {problem}.") from error
        raise RequestError(_no_sources(folder)) from error


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
    general = FileKeys.general.read(top)
    framework, code = _framework(top)
    kernels = FileKeys.kernel.read(top)
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
            found.append((name, section))
    expected = "expected exactly one of " + ", ".join(f"`[{name}]`" for name in FRAMEWORKS)
    if not found:
        top.get(FileKeys.kernel.key)
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
    license = GeneralKeys.license.require(general) if edition > 3 else GeneralKeys.license.read(general)
    backends = kernel_backends(general)
    GeneralKeys.edition.read(general)
    repo_id, branch = hub(general)
    needs = backend_needs(general, backends)
    source = KernelSource(
        folder=folder,
        name=name,
        version=version,
        license=license,
        upstream=GeneralKeys.upstream.read(general),
        source=GeneralKeys.source.read(general),
        backends=backends,
        python_depends=needs.python_depends,
        kernel_depends=needs.kernel_depends,
        compiled=framework != "torch-noarch",
        pyext=TorchKeys.pyext.read(code) or PYEXT,
        archs=noarch_archs(code, backends) if framework == "torch-noarch" else {},
        binding=None if framework == "torch-noarch" else binding_section(folder, framework, code),
        kernels=kernel_sections(folder, framework, backends, kernels),
        framework=framework,
        edition=edition,
        stable_abi=stable_abi(code, backends) if framework == "torch" else {},
        minver=TorchKeys.minver.read(code) if framework == "torch" else None,
        maxver=TorchKeys.maxver.read(code) if framework == "torch" else None,
        backend_minver=needs.minver,
        backend_maxver=needs.maxver,
        repo_id=repo_id,
        branch=branch,
        kernels_minver=GeneralKeys.minver.read(general),
    )
    general.refuse_unknown()
    code.refuse_unknown()
    _check_package(general, source)
    return source


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
