"""`build.toml` and the files beside it: what there is to build."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from kernels.errors import RequestError
from kernels.metadata import Digest, KernelName, Metadata

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["EDITION", "KernelSection", "KernelSource", "metadata_json", "option", "read_source", "source_files"]

#: The edition of `build.toml` that is read.
EDITION = 5

_PYEXT = ("py", "pyi")


@dataclass(frozen=True)
class KernelSection:
    """A `[kernel.<name>]`: sources compiled for one backend with the same flags.

    Attributes:
        name: What follows `kernel.`.
        backend: The backend it is compiled for.
        src: Paths of sources and headers, relative to the source folder.
        include: Include folders, relative to the source folder.
        cxx_flags: Flags for the C++ compiler.
        options: The options that belong to one backend, by their name in the file (`<backend>-flags`).
    """

    name: str
    backend: str
    src: tuple[str, ...]
    include: tuple[str, ...] = ()
    cxx_flags: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class KernelSource:
    """A source folder, as its `build.toml` describes it.

    Attributes:
        folder: The folder.
        name: The kernel's name.
        version: Its major version.
        license: SPDX identifier.
        upstream: URL of the project the kernel comes from.
        source: URL of the sources.
        backends: The backends it can be built for.
        python_depends: Python dependencies, by backend.
        kernel_depends: Other kernels it needs, as `metadata.json` lists them, by backend.
        compiled: Whether there is something to compile; otherwise the build is noarch.
        pyext: Suffixes of the Python package's files, without the dot.
        archs: Device architectures that a noarch build covers, by backend.
        binding: The sources that are compiled for every backend; None when noarch.
        kernels: The sources that are compiled for one backend.
    """

    folder: Path
    name: KernelName
    version: int
    license: str
    upstream: str | None
    source: str | None
    backends: tuple[str, ...]
    python_depends: Mapping[str, tuple[str, ...]]
    kernel_depends: Mapping[str, tuple[Mapping[str, Any], ...]]
    compiled: bool
    pyext: tuple[str, ...]
    archs: Mapping[str, tuple[str, ...]]
    binding: KernelSection | None
    kernels: tuple[KernelSection, ...]

    @property
    def package_dir(self) -> Path:
        """The folder of the Python package."""
        return self.folder / "torch-ext" / self.name.python_name


class _General(msgspec.Struct, rename="kebab"):
    name: str
    version: int
    license: str
    backends: list[str]
    edition: int
    upstream: str | None = None
    source: str | None = None
    python_depends: list[str] = []
    kernel_depends: list[dict[str, Any]] = []


class _Torch(msgspec.Struct, rename="kebab", forbid_unknown_fields=True):
    src: list[str] = []
    include: list[str] = []
    pyext: list[str] = msgspec.field(default_factory=lambda: list(_PYEXT))
    cxx_flags: list[str] = []
    minver: str | None = None
    maxver: str | None = None


class _Noarch(msgspec.Struct, rename="kebab"):
    pyext: list[str] = msgspec.field(default_factory=lambda: list(_PYEXT))


class _Kernel(msgspec.Struct, rename="kebab"):
    backend: str
    src: list[str]
    depends: list[str] = []
    include: list[str] = []
    cxx_flags: list[str] = []


class _BackendGeneral(msgspec.Struct, rename="kebab"):
    python_depends: list[str] = []
    kernel_depends: list[dict[str, Any]] = []


class _File(msgspec.Struct, rename="kebab", forbid_unknown_fields=True):
    general: dict[str, Any]
    torch: _Torch | None = None
    torch_noarch: dict[str, Any] | None = None
    kernel: dict[str, dict[str, Any]] = {}


def read_source(source_dir: os.PathLike[str] | str) -> KernelSource:
    """Read and check a source folder's `build.toml`.

    Args:
        source_dir: The folder.

    Returns:
        What the file says, with every path that it names checked to be a file inside the folder.

    Raises:
        RequestError: The file is missing, is not TOML, is of another edition, or a field is missing or wrong.
    """
    folder = Path(source_dir).resolve()
    path = folder / "build.toml"
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        _check_edition(data, path)
        file = msgspec.convert(data, _File)
        general = msgspec.convert(file.general, _General)
        source = _source(folder, file, general)
    except OSError as error:
        raise RequestError(
            f"`source_dir` is {os.fspath(source_dir)!r}; allowed is a folder with build.toml."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError, ValueError) as error:
        raise RequestError(f"{path} is not a valid build.toml: {error}") from None
    return source


def _check_edition(data: dict[str, Any], path: Path) -> None:
    general = data.get("general")
    edition = general.get("edition") if isinstance(general, dict) else None
    if edition != EDITION:
        raise ValueError(f"`general.edition` is {edition!r}; allowed is {EDITION}")


def _source(folder: Path, file: _File, general: _General) -> KernelSource:
    if (file.torch is None) == (file.torch_noarch is None):
        raise ValueError("it has both or neither of `[torch]` and `[torch-noarch]`; allowed is exactly one framework")
    if not general.backends:
        raise ValueError("`general.backends` is empty; allowed are names of backends")
    by_backend = {each: msgspec.convert(file.general.get(each, {}), _BackendGeneral) for each in general.backends}
    noarch = file.torch_noarch or {}
    source = KernelSource(
        folder=folder,
        name=KernelName(general.name),
        version=general.version,
        license=general.license,
        upstream=general.upstream,
        source=general.source,
        backends=tuple(dict.fromkeys(general.backends)),
        python_depends={each: (*general.python_depends, *own.python_depends) for each, own in by_backend.items()},
        kernel_depends={each: (*general.kernel_depends, *own.kernel_depends) for each, own in by_backend.items()},
        compiled=file.torch is not None,
        pyext=tuple(msgspec.convert(noarch, _Noarch).pyext if file.torch is None else file.torch.pyext),
        archs={each: archs for each in general.backends if (archs := option(noarch, each, "capabilities", "archs"))},
        binding=None if file.torch is None else _binding(file.torch),
        kernels=tuple(_kernel(each, section) for each, section in file.kernel.items()),
    )
    _check_source(source)
    return source


def option(table: Mapping[str, Any], backend: str, *names: str) -> tuple[str, ...]:
    """The list of strings under `<backend>-<name>`, or under its underscored spelling, which other builders read.

    Example:
        >>> option({"cuda_capabilities": ["9.0"]}, "cuda", "capabilities", "archs")
        ('9.0',)
    """
    for name in names:
        for key in (f"{backend}-{name}", f"{backend}_{name}"):
            if key in table:
                return tuple(msgspec.convert(table[key], list[str]))
    return ()


def _binding(torch: _Torch) -> KernelSection:
    return KernelSection("torch", "", tuple(torch.src), tuple(torch.include), tuple(torch.cxx_flags))


def _kernel(name: str, section: dict[str, Any]) -> KernelSection:
    kernel = msgspec.convert(section, _Kernel)
    options = {key: value for key, value in section.items() if key.startswith(kernel.backend)}
    unknown = section.keys() - set(_Kernel.__struct_encode_fields__) - options.keys()
    if unknown:
        raise ValueError(f"`kernel.{name}` has the unknown fields {', '.join(sorted(unknown))}")
    if unmet := [each for each in kernel.depends if each != "torch"]:
        raise ValueError(f"`kernel.{name}.depends` has {', '.join(unmet)}; allowed is torch")
    return KernelSection(
        name, kernel.backend, tuple(kernel.src), tuple(kernel.include), tuple(kernel.cxx_flags), options
    )


def _check_source(source: KernelSource) -> None:
    for backend in source.backends:
        # What a reader of the finished metadata would refuse is refused here, before anything is built.
        Metadata.from_bytes(metadata_json(source, backend, "_id"), where="its metadata")
    if not (source.package_dir / "__init__.py").is_file():
        raise ValueError(f"{source.package_dir.relative_to(source.folder)}/__init__.py is missing")
    if source.kernels and not source.compiled:
        raise ValueError("`[kernel]` sections stand beside `[torch-noarch]`; allowed is `[torch]` with them")
    for kernel in source.kernels:
        if kernel.backend not in source.backends:
            raise ValueError(
                f"`kernel.{kernel.name}.backend` is {kernel.backend!r}; allowed is one of {', '.join(source.backends)}"
            )
    for kernel in (*source.kernels, *([source.binding] if source.binding else [])):
        for path in kernel.src:
            inside = (source.folder / path).resolve()
            if not inside.is_relative_to(source.folder) or not inside.is_file():
                raise ValueError(f"`src` of {kernel.name} has {path!r}; allowed are files inside the folder")


def metadata_json(
    source: KernelSource,
    backend: str,
    id: str,
    *,
    archs: tuple[str, ...] | None = None,
    digest: Digest | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> bytes:
    """The `metadata.json` of a build.

    Args:
        source: What is built.
        backend: The backend's name.
        id: The build's id.
        archs: The device architectures that it covers.
        digest: The digest of its files.
        provenance: What it was built with and from, as the file has it.

    Returns:
        JSON, the same bytes for the same arguments.
    """
    fields = {
        "name": str(source.name),
        "id": id,
        "version": source.version,
        "license": source.license,
        "upstream": source.upstream,
        "source": source.source,
        "python-depends": list(source.python_depends[backend]),
        "kernel-depends": list(source.kernel_depends[backend]) or None,
        "backend": {"type": backend, **({"archs": list(archs)} if archs else {})},
        "digest": digest and {"algorithm": digest.algorithm, "files": digest.files},
        "provenance": provenance,
    }
    present = {key: value for key, value in fields.items() if value is not None}
    return json.dumps(present, indent=2, ensure_ascii=False).encode() + b"\n"


def source_files(folder: Path) -> Iterator[tuple[PurePosixPath, Path]]:
    """The files of a source folder that a build can depend on, sorted: none that are hidden, nor bytecode.

    Args:
        folder: The source folder.

    Returns:
        Each file's path relative to the folder, and the file.
    """
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        hidden = any(part.startswith(".") or part == "__pycache__" for part in relative.parts)
        if path.is_file() and not hidden and path.suffix != ".pyc":
            yield PurePosixPath(relative.as_posix()), path
