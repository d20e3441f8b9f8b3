"""What pip reads about a wheel: its version, what it requires, its licence.

The format: https://packaging.python.org/en/latest/specifications/core-metadata/.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from packaging.metadata import ExceptionGroup, InvalidMetadata
from packaging.metadata import Metadata as CoreMetadata

from kernels.authoring.spdx import license_problem
from kernels.backends import GENERAL_PYTHON_DEPENDS, allowed_python_depends, find
from kernels.errors import MissingPythonDependency, RequestError
from kernels.models.metadata import Metadata
from kernels.resolver.variant import UNIVERSAL, Variant
from kernels.support.text import one_line

__all__ = ["OLDEST_PYTHON", "core_metadata", "local_version", "requirements"]

#: The oldest CPython that a compiled extension is for: the builder's `Py_LIMITED_API`.
OLDEST_PYTHON = (3, 10)


def local_version(variant: Variant) -> str:
    """What a build is for, as the local part of a version, after `+`.

    Example:
        >>> from kernels.resolver.variant import parse_variant
        >>> names = ("torch213-cxx11-cu130-x86_64-linux", "torch-stable-abi29-cpu-x86_64-linux", "torch-cuda")
        >>> [local_version(parse_variant(name)) for name in names]
        ['torch213.cu130', 'stable29.cpu', 'cuda']
    """
    accelerator = variant.accelerator.replace("_", ".")
    version = variant.framework_version
    if version is None:
        return accelerator
    kind = {"torch": "torch", "torch-stable-abi": "stable", "tvm-ffi": "tvmffi"}[variant.kind]
    # The other ABI is that of all packages since Torch 2.7.
    abi = ".cxx98" if variant.abi == "cxx98" else ""
    return f"{kind}{version.major}{version.minor}{abi}.{accelerator}"


def requirements(name: str, variant: Variant, metadata: Metadata) -> tuple[str, ...]:
    """The packages that a build needs.

    Args:
        name: The variant's name, for errors.
        variant: The variant.
        metadata: The build's `metadata.json`.

    Raises:
        RequestError: It depends on other kernels, or on a package that kernels cannot depend on.
    """
    if metadata.kernel_depends:
        needed = ", ".join(each.repo_id for each in metadata.kernel_depends)
        raise RequestError(
            f"{name} cannot be a wheel: it depends on the kernels {needed}, which `get_kernel` loads "
            "for it, and pip cannot install. Publish it with `kernels upload`."
        )
    backend = None if variant.backend == UNIVERSAL else find(variant.backend)
    allowed = GENERAL_PYTHON_DEPENDS if backend is None else allowed_python_depends(backend)
    found = dict.fromkeys([_framework(variant)])
    for each in metadata.python_depends:
        if each not in allowed:
            raise RequestError(f"{name}: `python-depends` has {each!r}; expected one of {', '.join(sorted(allowed))}.")
        if not any(one.startswith(allowed[each].package) for one in found):
            found[allowed[each].package] = None
    return tuple(found)


def _framework(variant: Variant) -> str:
    version = variant.framework_version
    if version is None:
        return "torch"
    if variant.kind == "torch-stable-abi":
        return f"torch>={version}"
    package = "torch" if variant.kind == "torch" else "apache-tvm-ffi"
    return f"{package}=={version}.*"


def core_metadata(
    metadata: Metadata,
    version: str,
    requires: Sequence[str],
    *,
    native: bool,
    licenses: Iterable[str] = (),
    description: str = "",
) -> bytes:
    """The content of a wheel's `METADATA`.

    Args:
        metadata: The build's `metadata.json`.
        version: The wheel's version.
        requires: The packages that it requires.
        native: Whether it has an extension for Python's stable ABI.
        licenses: The names of the licence's files.
        description: A longer text, in Markdown.

    Raises:
        MissingPythonDependency: packaging is too old for this version of the format.
    """
    spdx = metadata.license if metadata.license is not None and license_problem(metadata.license) is None else None
    python = ".".join(map(str, OLDEST_PYTHON))
    urls = {"Source": metadata.source, "Upstream": metadata.upstream}
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {metadata.name}",
        f"Version: {version}",
        f"Summary: Compute kernel {metadata.name} for {metadata.backend.type}",
        *([f"License-Expression: {_spdx(spdx)}"] if spdx else []),
        *([f"License: {metadata.license}"] if metadata.license and not spdx else []),
        *(f"License-File: {name}" for name in licenses),
        *(f"Project-URL: {label}, {url}" for label, url in urls.items() if url),
        *([f"Requires-Python: >={python}"] if native else []),
        *(f"Requires-Dist: {each}" for each in requires),
        *(["Description-Content-Type: text/markdown"] if description else []),
    ]
    # A line break in a value would begin another field.
    text = "\n".join(map(one_line, lines)) + "\n" + (f"\n{description}" if description else "")
    data = text.encode()
    try:
        CoreMetadata.from_email(data)
    except ExceptionGroup as group:
        if any(isinstance(each, InvalidMetadata) and each.field == "metadata-version" for each in group.exceptions):
            raise MissingPythonDependency(
                "Wheels need a newer packaging: pip install --upgrade 'packaging>=24.2'"
            ) from None
        problems = "; ".join(one_line(str(each)) for each in group.exceptions)
        raise RequestError(f"The wheel's metadata is not valid: {problems}.") from None
    return data


def _spdx(license: str) -> str:
    from packaging.licenses import canonicalize_license_expression

    return str(canonicalize_license_expression(license))
