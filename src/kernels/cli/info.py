"""`kernels info`: what a repository or folder contains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kernels.cli._arguments import AsJson, Kernel, Revision, Version
from kernels.cli._output import format_size, print_fields, print_json, print_line, print_table
from kernels.support.formatting import plural

if TYPE_CHECKING:
    from kernels.models.metadata import Metadata
    from kernels.operations.info import BuildInfo, RepositoryInfo

__all__ = ["info"]

#: The most architectures of a build that are shown; published kernels have about 20 at most.
_MAX_ARCHS = 40


def info(
    kernel: Kernel,
    version: Version = None,
    revision: Revision = None,
    as_json: AsJson = False,
) -> None:
    """Describe a kernel: licence, sources, dependencies, builds, and the build that fits this machine.

    Examples:
        $ kernels info org/my-kernel --version 1
        $ kernels info ./my-kernel
    """
    from kernels.operations import info

    found = info.repository_info(kernel, version=version, revision=revision)
    if as_json:
        print_json(_plain(found))
        return
    print_fields(_fields(found), plain=True)
    if found.builds:
        print_line()
        print_table(
            ("Build", "Backend", "Torch", "Architectures", "Fits here", ">Size"),
            [_row(build, found) for build in found.builds],
        )


def _plain(found: RepositoryInfo) -> dict[str, Any]:
    """The JSON. The first ten keys are those of the existing client, so that programs written for it work."""
    metadata = found.metadata
    where = {"path": found.path} if found.repo_id is None else {"repo_id": found.repo_id, "revision": found.revision}
    return {
        **where,
        "name": None if metadata is None else metadata.name,
        "version": None if metadata is None else metadata.version,
        "kernels_minver": _minver(metadata),
        "license": None if metadata is None else metadata.license,
        "upstream": None if metadata is None else metadata.upstream,
        "source": None if metadata is None else metadata.source,
        "python_depends": _python_depends(found),
        "backends": found.backends,
        "commit": found.commit,
        "lock": found.lock,
        "from": found.source,
        "kernel_depends": [
            {"repo_id": depend.repo_id, "version": depend.version, "revision": depend.revision}
            for depend in (() if metadata is None else metadata.kernel_depends)
        ],
        "torch_versions": found.torch_versions,
        "archs": found.archs,
        "size": found.size,
        "fits": found.fits,
        "builds": [
            {
                "variant": build.name,
                "fits": build.reason is None,
                "reason": build.reason,
                "archs": _archs(build),
                "size": build.size,
            }
            for build in found.builds
        ],
    }


def _fields(found: RepositoryInfo) -> dict[str, str | list[str]]:
    metadata = found.metadata
    fields: dict[str, str | list[str]] = {
        "Repository": found.repo_id or "",
        "Path": "" if found.path is None else str(found.path),
        "Revision": found.revision or "",
        "Commit": found.commit if found.commit and found.commit != found.revision else "",
        "Pinned by": found.lock or "",
        "From": [found.source or "", *found.passed] if found.passed else "",
    }
    if metadata is not None:
        fields |= {
            "Name": metadata.name,
            "Version": "-" if metadata.version is None else str(metadata.version),
            "License": metadata.license or "-",
            "Upstream": metadata.upstream or "",
            "Source": metadata.source or "",
            "Minimum client": _minver(metadata) or "",
            "Python packages": ", ".join(_python_depends(found)) or "none",
            "Kernels": [str(depend) for depend in metadata.kernel_depends] or "none",
        }
    return fields | {
        "Backends": ", ".join(found.backends) or "none",
        "Torch": ", ".join(found.torch_versions) or "any",
        "Architectures": [f"{backend}: {_format_archs(archs, ', ')}" for backend, archs in found.archs.items()],
        "Size": f"{format_size(found.size)} in {plural(len(found.builds), 'build')}",
        "Fits here": found.fits or "none (`kernels explain` says why)",
    }


def _row(build: BuildInfo, found: RepositoryInfo) -> tuple[str, ...]:
    variant = build.variant
    version = "" if variant is None or variant.framework_version is None else str(variant.framework_version)
    stable = "+" * (variant is not None and variant.kind == "torch-stable-abi")
    tvm_ffi = "tvm-ffi " * (variant is not None and variant.kind == "tvm-ffi")
    fits = "chosen" if build.name == found.fits else "yes" if build.reason is None else "no"
    backend = "?" if variant is None else variant.backend
    archs = _format_archs(_archs(build), " ")
    return build.name, backend, f"{tvm_ffi}{version}{stable}", archs, fits, format_size(build.size)


def _format_archs(archs: Sequence[str], separator: str) -> str:
    rest = len(archs) - _MAX_ARCHS
    return separator.join(archs[:_MAX_ARCHS]) + (f" and {rest} more" if rest > 0 else "")


def _archs(build: BuildInfo) -> Sequence[str]:
    return () if build.metadata is None else build.metadata.backend.archs or ()


def _python_depends(found: RepositoryInfo) -> list[str]:
    """The packages that any build needs: builds for different backends may need different ones."""
    named = (name for build in found.builds if build.metadata is not None for name in build.metadata.python_depends)
    return list(dict.fromkeys(named))


def _minver(metadata: Metadata | None) -> str | None:
    return None if metadata is None or metadata.kernels_minver is None else str(metadata.kernels_minver)
