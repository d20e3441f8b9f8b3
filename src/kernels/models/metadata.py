"""metadata.json: what a build says about itself.

Parsing is strict and bounded: the bytes come from a repository and are hostile until checked.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import msgspec

from kernels.errors import InvalidMetadata, RequestError
from kernels.models.requirement import Requirement
from kernels.support.documents import TooComplex, check_json
from kernels.support.files import FileTooLarge, read_bounded
from kernels.support.formatting import format_text, format_value

if TYPE_CHECKING:
    from packaging.version import Version

__all__ = [
    "MAX_KERNEL_DEPENDS",
    "MAX_METADATA_BYTES",
    "BackendInfo",
    "BuildDescription",
    "Digest",
    "GitState",
    "KernelName",
    "Metadata",
    "Provenance",
]

#: The largest `metadata.json` that is read. A digest of 10,000 files needs about 1 MB; no published one passes 100 kB.
MAX_METADATA_BYTES = 4 * 1024 * 1024

#: Kernels that one kernel may name as dependencies; published ones name a handful.
MAX_KERNEL_DEPENDS = 256

_NAME = re.compile(r"[a-z][-a-z0-9]*[a-z0-9]")
_MINVER = re.compile(r"[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9}")
_BACKEND_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


class KernelName(str):
    """A kernel's name, `^[a-z][-a-z0-9]*[a-z0-9]$`.

    Example:
        >>> KernelName("rms-norm").python_name
        'rms_norm'
    """

    __slots__ = ()

    @property
    def python_name(self) -> str:
        """The name with dashes replaced by underscores: the package's folder in the sources."""
        return self.replace("-", "_")

    @staticmethod
    def allows(text: str) -> bool:
        """Whether a text can be a kernel's name.

        Example:
            >>> KernelName.allows("rms-norm"), KernelName.allows("rms_norm")
            (True, False)
        """
        return _NAME.fullmatch(text) is not None


@dataclass(frozen=True)
class BackendInfo:
    """The backend a build is for: its `type`, and the device architectures it was compiled for, if it says so."""

    type: str
    archs: tuple[str, ...] | None = None

    @property
    def backend_type(self) -> str:
        """The same as `type`, under the name other clients use."""
        return self.type


@dataclass(frozen=True)
class Digest:
    """Digest of a variant's files: `algorithm` is `sha256` or `sha512`, `files` maps POSIX path to base64 digest."""

    algorithm: str
    files: dict[str, str]


@dataclass(frozen=True)
class GitState:
    """A commit and whether the working tree differed from it."""

    commit: str
    dirty: bool = False


@dataclass(frozen=True)
class Provenance:
    """What built the kernel (`builder`, with `builder_version`) and from which sources (`kernel`)."""

    builder: GitState | None = None
    builder_version: str | None = None
    kernel: GitState | None = None

    @property
    def dirty(self) -> bool:
        """Whether the builder or the kernel's sources had uncommitted changes."""
        return any(state is not None and state.dirty for state in (self.builder, self.kernel))


class BuildDescription(Protocol):
    """What is said of a kernel once, for all backends it is built for: `KernelSource` is one."""

    @property
    def name(self) -> str:
        """The kernel's name."""
        ...

    @property
    def version(self) -> int:
        """Major version."""
        ...

    @property
    def license(self) -> str | None:
        """SPDX identifier."""
        ...

    @property
    def upstream(self) -> str | None:
        """URL of the project the kernel comes from."""
        ...

    @property
    def source(self) -> str | None:
        """URL of the kernel's sources."""
        ...

    @property
    def kernels_minver(self) -> str | None:
        """Oldest version of this package that may load the builds."""
        ...

    @property
    def python_depends(self) -> Mapping[str, Sequence[str]]:
        """Python dependencies, by backend."""
        ...

    @property
    def kernel_depends(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Kernel dependencies as `metadata.json` lists them, by backend."""
        ...

    @property
    def archs(self) -> Mapping[str, Sequence[str]]:
        """The device architectures that are listed, by backend."""
        ...


@dataclass(frozen=True)
class Metadata:
    """The parsed `metadata.json` of one build.

    Attributes:
        id: The module's name: a Python identifier, unique to a commit and backend.
        name: The kernel's name.
        version: Major version, or None in builds from before versions.
        license: SPDX identifier, if given.
        python_depends: Names of Python dependencies, from the set the backends allow.
        kernel_depends: Other kernels this one needs.
        kernels_minver: Oldest version of this package that may load the build.
        upstream: URL of the project the kernel comes from.
        source: URL of the kernel's sources.
        backend: Backend and architectures.
        digest: Digest of the build's files.
        provenance: What it was built with and from.

    Example:
        >>> text = b'{"name": "relu", "id": "_relu_cpu_1234567", "version": 1, "backend": {"type": "cpu"}}'
        >>> Metadata.from_bytes(text).backend.type
        'cpu'
    """

    id: str
    name: KernelName
    backend: BackendInfo
    version: int | None = None
    license: str | None = None
    python_depends: tuple[str, ...] = ()
    kernel_depends: tuple[Requirement, ...] = ()
    kernels_minver: Version | None = None
    upstream: str | None = None
    source: str | None = None
    digest: Digest | None = None
    provenance: Provenance | None = None

    @staticmethod
    def from_bytes(data: bytes, *, where: str = "metadata.json") -> Metadata:
        """Parse metadata from JSON.

        Args:
            data: The file's bytes, at most `MAX_METADATA_BYTES`.
            where: What to call the file in an error message.

        Raises:
            TypeError: `data` is not bytes.
            InvalidMetadata: The bytes are not JSON, are too large or nest too deep, or a field is missing, of the
                wrong type or too long.
        """
        given: Any = data
        if not isinstance(given, (bytes, bytearray)):
            raise TypeError(f"`data` is {format_value(given)}, a {type(given).__name__}; allowed is bytes.")
        return _parse(data, where)

    @staticmethod
    def for_backend(
        build: BuildDescription,
        id: str,
        backend: str,
        *,
        archs: Sequence[str] | None = None,
        digest: Digest | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> Metadata:
        """The metadata of a kernel's build for one backend: noarch and compiled builds have theirs from here.

        Args:
            build: What is built.
            id: The build's id.
            backend: The backend's name.
            archs: The device architectures that were compiled. Default: those that `build` lists for this backend.
            digest: The digest of the build's files.
            provenance: What it was built with and from, as the file has it.

        Raises:
            RequestError: The kernel is not built for that backend.
            InvalidMetadata: A field is one that a reader of the file would refuse.
        """
        if backend not in build.python_depends:
            raise RequestError(f"`backend` is {backend!r}; allowed are {', '.join(build.python_depends)}.")
        covered = build.archs.get(backend) if archs is None else archs
        fields = {
            "id": id,
            "name": str(build.name),
            "backend": {"type": backend, "archs": list(covered) if covered else None},
            "version": build.version,
            "license": build.license,
            "upstream": build.upstream,
            "source": build.source,
            "python-depends": list(build.python_depends[backend]),
            "kernel-depends": [dict(each) for each in build.kernel_depends[backend]],
            "kernels-minver": build.kernels_minver,
            "digest": None if digest is None else {"algorithm": digest.algorithm, "files": digest.files},
            "provenance": None if provenance is None else dict(provenance),
        }
        try:
            file = msgspec.convert(fields, _File)
        except msgspec.ValidationError as error:
            raise InvalidMetadata(f"The metadata of {build.name} is not valid: {format_text(error)}") from None
        return _check(file, "metadata.json")

    def to_bytes(self) -> bytes:
        """The JSON of the file, the same bytes for the same metadata.

        Example:
            >>> metadata = Metadata("_relu_cpu_1234567", KernelName("relu"), BackendInfo("cpu"), version=1)
            >>> Metadata.from_bytes(metadata.to_bytes()) == metadata
            True
        """
        fields = {
            "name": str(self.name),
            "id": self.id,
            "version": self.version,
            "license": self.license,
            "upstream": self.upstream,
            "source": self.source,
            "python-depends": list(self.python_depends),
            "kernel-depends": [_depend(each) for each in self.kernel_depends] or None,
            "kernels-minver": None if self.kernels_minver is None else str(self.kernels_minver),
            "backend": _present({"type": self.backend.type, "archs": self.backend.archs}),
            "digest": self.digest and {"algorithm": self.digest.algorithm, "files": self.digest.files},
            "provenance": self.provenance and _provenance_fields(self.provenance),
        }
        return json.dumps(_present(fields), indent=2, ensure_ascii=False).encode() + b"\n"

    @staticmethod
    def read_from_file(metadata_path: os.PathLike[str] | str) -> Metadata:
        """Parse the `metadata.json` at a path.

        Raises:
            InvalidMetadata: It cannot be read, or is not valid metadata.
        """
        path = Path(metadata_path)
        try:
            data = read_bounded(path, MAX_METADATA_BYTES)
        except FileTooLarge:
            raise _too_large(str(path)) from None
        except OSError as error:
            raise InvalidMetadata(f"Cannot read {path}: {error.strerror or error}") from error
        return _parse(data, str(path))


# Bounds on what is shown to people, far above what is published. A GPU has a few dozen architectures; a path that Linux
# accepts has 4,096 bytes at most.
_Name = Annotated[str, msgspec.Meta(max_length=255)]
_Text = Annotated[str, msgspec.Meta(max_length=2048)]
_Path = Annotated[str, msgspec.Meta(max_length=4096)]


class _Backend(msgspec.Struct):
    type: _Name
    archs: Annotated[list[_Name], msgspec.Meta(max_length=1000)] | None = None


class _Depend(msgspec.Struct, rename="kebab", forbid_unknown_fields=True):
    repo_id: _Name
    version: int | None = None
    revision: _Name | None = None


class _Digest(msgspec.Struct):
    algorithm: _Name
    files: dict[_Path, _Name]


class _Git(msgspec.Struct):
    commit: _Name | None = None
    sha: _Name | None = None  # older builds spell `commit` as `sha`
    dirty: bool = False
    version: _Name | None = None


class _Provenance(msgspec.Struct, rename="kebab"):
    kernel_builder: _Git | None = None
    kernel: _Git | None = None


class _File(msgspec.Struct, rename="kebab"):
    id: _Name
    name: _Name
    backend: _Backend
    version: int | None = None
    license: _Text | None = None
    upstream: _Text | None = None
    source: _Text | None = None
    python_depends: Annotated[list[_Name], msgspec.Meta(max_length=1000)] = []
    kernel_depends: Annotated[list[_Depend], msgspec.Meta(max_length=MAX_KERNEL_DEPENDS)] = []
    kernels_minver: _Name | None = None
    digest: _Digest | None = None
    provenance: _Provenance | None = None


_DECODER = msgspec.json.Decoder(_File)


def _parse(data: bytes, where: str) -> Metadata:
    if len(data) > MAX_METADATA_BYTES:
        raise _too_large(where)
    try:
        check_json(data)
        file = _DECODER.decode(data)
    except TooComplex as error:
        raise InvalidMetadata(f"{where} was not read: {error}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidMetadata(f"{where} is not valid metadata: {format_text(error)}") from None
    return _check(file, where)


def _too_large(where: str) -> InvalidMetadata:
    return InvalidMetadata(f"{where} is larger than {MAX_METADATA_BYTES // 2**20} MiB; metadata never is.")


def _check(file: _File, where: str) -> Metadata:
    def invalid(field: str, value: Any, allowed: str) -> InvalidMetadata:
        return InvalidMetadata(f"{where}: `{field}` is {format_value(value)}; allowed is {allowed}.")

    if not KernelName.allows(file.name):
        raise invalid("name", file.name, "lower-case letters, digits and dashes, starting with a letter")
    if not file.id.isascii() or not file.id.isidentifier():
        raise invalid("id", file.id, "a Python identifier")
    if file.version is not None and file.version < 0:
        raise invalid("version", file.version, "0 or a positive integer")
    if _BACKEND_TYPE.fullmatch(file.backend.type) is None:
        raise invalid("backend.type", file.backend.type, "a backend's name")
    if file.kernels_minver is not None and _MINVER.fullmatch(file.kernels_minver) is None:
        raise invalid("kernels-minver", file.kernels_minver, "X.Y.Z")
    if file.digest is not None and file.digest.algorithm not in ("sha256", "sha512"):
        raise invalid("digest.algorithm", file.digest.algorithm, "sha256 or sha512")

    depends: dict[str, Requirement] = {}
    for depend in file.kernel_depends:
        if (depend.version is None) == (depend.revision is None):
            raise invalid("kernel-depends", depend.repo_id, "a repo-id with either a version or a revision")
        if depend.repo_id in depends:
            # The kernel asks for it by the repository alone.
            raise invalid("kernel-depends", depend.repo_id, "each repository once")
        try:
            depends[depend.repo_id] = Requirement(depend.repo_id, version=depend.version, revision=depend.revision)
        except RequestError as error:
            raise InvalidMetadata(f"{where}: `kernel-depends`: {error}") from None

    return Metadata(
        id=file.id,
        name=KernelName(file.name),
        backend=BackendInfo(file.backend.type, None if file.backend.archs is None else tuple(file.backend.archs)),
        version=file.version,
        license=file.license,
        python_depends=tuple(file.python_depends),
        kernel_depends=tuple(depends.values()),
        kernels_minver=_version(file.kernels_minver),
        upstream=file.upstream,
        source=file.source,
        digest=None if file.digest is None else Digest(file.digest.algorithm, file.digest.files),
        provenance=_provenance(file.provenance),
    )


def _version(text: str | None) -> Version | None:
    if text is None:
        return None
    from packaging.version import Version

    return Version(text)


def _provenance(file: _Provenance | None) -> Provenance | None:
    if file is None:
        return None

    def state(git: _Git | None) -> GitState | None:
        commit = None if git is None else git.commit or git.sha
        return None if git is None or commit is None else GitState(commit, git.dirty)

    return Provenance(
        builder=state(file.kernel_builder),
        builder_version=None if file.kernel_builder is None else file.kernel_builder.version,
        kernel=state(file.kernel),
    )


def _present(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def _depend(depend: Requirement) -> dict[str, Any]:
    return _present({"repo-id": depend.repo_id, "version": depend.version, "revision": depend.revision})


def _provenance_fields(provenance: Provenance) -> dict[str, Any]:
    def state(git: GitState | None) -> dict[str, Any]:
        return {} if git is None else {"commit": git.commit, "dirty": git.dirty}

    builder = _present({"version": provenance.builder_version, **state(provenance.builder)})
    return _present({"kernel-builder": builder or None, "kernel": state(provenance.kernel) or None})
