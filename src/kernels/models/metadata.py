"""`metadata.json`, a build's description of itself, parsed strictly: it comes from a repository and may be hostile."""

from __future__ import annotations

import builtins
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from kernels.errors import InvalidMetadata, MissingMetadata, RequestError
from kernels.models.requirement import Requirement
from kernels.support.files import FileTooLarge, read_bounded
from kernels.support.formatting import format_text, format_value
from kernels.support.record_file import decode_json

if TYPE_CHECKING:
    from packaging.version import Version
else:  # `inspect.signature` and `help` evaluate the types of a struct's fields
    Version = Any

__all__ = [
    "MAX_KERNEL_DEPENDS",
    "MAX_METADATA_BYTES",
    "BackendInfo",
    "Digest",
    "GitState",
    "KernelBuilder",
    "KernelName",
    "Metadata",
    "Provenance",
]

#: The largest `metadata.json` that is read. A digest of 10,000 files takes about 1 MB; published files up to 100 kB.
MAX_METADATA_BYTES = 4 * 1024 * 1024

#: The most dependencies of one kernel; published kernels have a handful.
MAX_KERNEL_DEPENDS = 256

# Bounds far above what is published. Linux accepts paths of up to 4,096 bytes.
Name = Annotated[str, Meta(max_length=255)]
Text = Annotated[str, Meta(max_length=2048)]
FilePath = Annotated[str, Meta(max_length=4096)]

_NAME = r"[a-z][-a-z0-9]*[a-z0-9]"
_NAME_RULE = "lower-case letters, digits and dashes, starting with a letter"
_MINVER = r"[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9}"
_BACKEND_TYPE = r"[A-Za-z][A-Za-z0-9_]*"


class KernelName(str):
    """A kernel's name, `^[a-z][-a-z0-9]*[a-z0-9]$`.

    Args:
        name: The text.

    Raises:
        RequestError: The text is not a kernel's name (a `ValueError`).

    Example:
        >>> KernelName("rms-norm").python_name
        'rms_norm'
    """

    __slots__ = ()

    def __new__(cls, name: str) -> KernelName:
        if not cls.allows(name):
            raise RequestError(f"A kernel's name has {_NAME_RULE}; got {format_value(name)}.")
        return super().__new__(cls, name)

    @property
    def python_name(self) -> str:
        """The name of the Python package in the sources: with underscores for dashes."""
        return self.replace("-", "_")

    @staticmethod
    def allows(text: str) -> bool:
        """Whether a text is a valid kernel name.

        Args:
            text: The text.

        Example:
            >>> KernelName.allows("rms-norm"), KernelName.allows("rms_norm")
            (True, False)
        """
        return re.fullmatch(_NAME, text) is not None


class BackendInfo(msgspec.Struct, frozen=True):
    """The backend of a build.

    Attributes:
        type: The backend's name.
        archs: The device architectures that the build was compiled for, or None if they are not listed.
    """

    type: Name
    archs: Annotated[list[Name], Meta(max_length=1000)] | None = None

    @property
    def backend_type(self) -> str:
        """`type`, under the name that other clients use."""
        return self.type

    def __hash__(self) -> int:  # a list has none
        return hash(self.type)


class Digest(msgspec.Struct, frozen=True):
    """Digest of a build's files.

    Attributes:
        algorithm: `sha256` or `sha512`.
        files: The digest of each file in base64, by its POSIX path in the build's folder.
    """

    algorithm: Name
    files: dict[FilePath, Name]


class GitState(msgspec.Struct, frozen=True):
    """A state of a Git repository.

    Attributes:
        commit: The commit.
        dirty: Whether the working tree differed from it.
    """

    commit: str
    dirty: bool = False


class KernelBuilder(msgspec.Struct, frozen=True):
    """The builder of a kernel, as far as it is known.

    Attributes:
        version: Its version.
        git: The commit of its sources.
    """

    version: str | None = None
    git: GitState | None = None


class Provenance(msgspec.Struct, frozen=True):
    """What a build was made from, and by what, as far as it is known.

    Attributes:
        builder: The commit of the builder's sources.
        builder_version: The builder's version.
        kernel: The commit of the kernel's sources.
    """

    builder: GitState | None = None
    builder_version: str | None = None
    kernel: GitState | None = None

    @property
    def kernel_builder(self) -> KernelBuilder:
        """`builder` and `builder_version`, as other clients have them."""
        return KernelBuilder(self.builder_version, self.builder)

    @property
    def dirty(self) -> bool:
        """Whether the builder or the kernel's sources had uncommitted changes."""
        return any(state is not None and state.dirty for state in (self.builder, self.kernel))


class Metadata(msgspec.Struct, frozen=True):
    """The parsed `metadata.json` of one build.

    Attributes:
        id: The module's name: a Python identifier, unique to a commit and backend.
        name: The kernel's name.
        backend: Backend and device architectures.
        version: Major version, or None in builds from before versions.
        license: SPDX identifier.
        python_depends: Python dependencies, by the names that backends define.
        kernel_depends: The kernels that this one depends on.
        kernels_minver: Oldest version of this package that may load the build.
        upstream: URL of the project that the kernel comes from.
        source: URL of the kernel's sources.
        digest: Digest of the build's files.
        provenance: The builder and the sources' commit.

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
    python_depends: list[str] = []
    kernel_depends: list[Requirement] = []
    kernels_minver: Version | None = None
    upstream: str | None = None
    source: str | None = None
    digest: Digest | None = None
    provenance: Provenance | None = None

    def __hash__(self) -> int:  # lists and the digest have none
        return hash((self.id, self.name))

    @staticmethod
    def from_bytes(bytes: bytes, *, where: str = "metadata.json") -> Metadata:
        """Parse metadata from JSON.

        Args:
            bytes: The file's content, at most `MAX_METADATA_BYTES`.
            where: The file's name in error messages.

        Raises:
            TypeError: `bytes` is not bytes.
            InvalidMetadata: The bytes are not JSON, are too large or nest too deep, or a field is missing, of the
                wrong type, too long or invalid.
        """
        data = bytes
        if not isinstance(data, (builtins.bytes, bytearray)):
            raise TypeError(f"`bytes` is {format_value(data)} ({type(data).__name__}); expected bytes.")
        if len(data) > MAX_METADATA_BYTES:
            raise _too_large(where)
        try:
            return _metadata(decode_json(data, _File), where)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidMetadata(f"{where} is not valid metadata: {format_text(error)}") from None

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
            "python-depends": self.python_depends,
            "kernel-depends": self.kernel_depends or None,
            "kernels-minver": None if self.kernels_minver is None else str(self.kernels_minver),
            "backend": _present(msgspec.structs.asdict(self.backend)),
            "digest": self.digest,
            "provenance": self.provenance and _provenance_fields(self.provenance),
        }
        return json.dumps(msgspec.to_builtins(_present(fields)), indent=2, ensure_ascii=False).encode() + b"\n"

    @staticmethod
    def read_from_file(metadata_path: os.PathLike[str] | str) -> Metadata:
        """Parse the `metadata.json` at a path.

        Args:
            metadata_path: The file.

        Raises:
            MissingMetadata: There is no such file (a `FileNotFoundError`).
            InvalidMetadata: It cannot be read, or is not valid metadata.
        """
        path = Path(metadata_path)
        try:
            data = read_bounded(path, MAX_METADATA_BYTES)
        except FileTooLarge:
            raise _too_large(str(path)) from None
        except FileNotFoundError as error:
            raise MissingMetadata(f"Cannot read {path}: {error.strerror}") from error
        except OSError as error:
            raise InvalidMetadata(f"Cannot read {path}: {error.strerror or error}") from error
        return Metadata.from_bytes(data, where=str(path))


# The file


class _Git(msgspec.Struct):
    commit: Name | None = None
    sha: Name | None = None  # older builds spell `commit` as `sha`
    dirty: bool = False
    version: Name | None = None


class _Provenance(msgspec.Struct, rename="kebab"):
    kernel_builder: _Git | None = None
    kernel: _Git | None = None


class _File(msgspec.Struct, rename="kebab"):
    id: Name
    name: Name
    backend: BackendInfo
    version: int | None = None
    license: Text | None = None
    upstream: Text | None = None
    source: Text | None = None
    python_depends: Annotated[list[Name], Meta(max_length=1000)] = []
    kernel_depends: Annotated[list[Requirement], Meta(max_length=MAX_KERNEL_DEPENDS)] = []
    kernels_minver: Name | None = None
    digest: Digest | None = None
    provenance: _Provenance | None = None


def _metadata(file: _File, where: str) -> Metadata:
    def require(valid: bool, field: str, value: Any, expected: str) -> None:
        if not valid:
            raise InvalidMetadata(f"{where}: `{field}` is {format_value(value)}; expected {expected}.")

    name, id, backend, minver, digest = file.name, file.id, file.backend.type, file.kernels_minver, file.digest
    require(KernelName.allows(name), "name", name, _NAME_RULE)
    require(id.isascii() and id.isidentifier(), "id", id, "a Python identifier")
    require(file.version is None or file.version >= 0, "version", file.version, "0 or a positive integer")
    require(re.fullmatch(_BACKEND_TYPE, backend) is not None, "backend.type", backend, "a backend's name")
    require(minver is None or re.fullmatch(_MINVER, minver) is not None, "kernels-minver", minver, "X.Y.Z")
    algorithm = "sha256" if digest is None else digest.algorithm
    require(algorithm in ("sha256", "sha512"), "digest.algorithm", algorithm, "sha256 or sha512")
    asked: set[str] = set()
    for depend in file.kernel_depends:
        named = depend.branch is not None
        require(named, "kernel-depends", depend.repo_id, "a repo-id with either a version or a revision")
        # `get_kernel_dep` names a dependency by its repository alone.
        require(depend.repo_id not in asked, "kernel-depends", depend.repo_id, "each repository once")
        asked.add(depend.repo_id)
    fields = msgspec.structs.asdict(file) | {
        "name": KernelName(name),
        "kernels_minver": _version(minver),
        "provenance": file.provenance and _provenance(file.provenance),
    }
    return Metadata(**fields)


def _version(text: str | None) -> Version | None:
    if text is None:
        return None
    from packaging.version import Version

    return Version(text)


def _provenance(file: _Provenance) -> Provenance:
    builder = file.kernel_builder
    return Provenance(_state(builder), None if builder is None else builder.version, _state(file.kernel))


def _state(git: _Git | None) -> GitState | None:
    commit = None if git is None else git.commit or git.sha
    return None if git is None or commit is None else GitState(commit, git.dirty)


def _provenance_fields(provenance: Provenance) -> dict[str, Any]:
    builder = {"version": provenance.builder_version} | msgspec.to_builtins(provenance.builder or {})
    return _present({"kernel-builder": _present(builder) or None, "kernel": provenance.kernel})


def _present(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def _too_large(where: str) -> InvalidMetadata:
    return InvalidMetadata(f"{where} is larger than {MAX_METADATA_BYTES // 2**20} MiB; no metadata is.")
