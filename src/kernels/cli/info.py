"""`kernels info`: what a repository or folder contains."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels.cli._arguments import AsJson, Kernel, Revision, Version, require_no_version
from kernels.cli._output import format_size, print_fields, print_json, print_line, print_table
from kernels.support.formatting import plural

if TYPE_CHECKING:
    from kernels.models.metadata import Metadata
    from kernels.resolver.build_choice import BuildChoice
    from kernels.resolver.decision import Decision
    from kernels.resolver.variant import Variant

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
    from kernels.operations import explain

    path = Path(kernel).expanduser() if explain.is_path(kernel) else None
    if path is not None:
        require_no_version(kernel, version, revision)
    found = explain.repository_info(kernel, version=version, revision=revision)
    if as_json:
        print_json(_plain(found, path))
        return
    print_fields(_fields(found, path), plain=True)
    decisions = found.resolution.decisions
    if decisions:
        print_line()
        print_table(
            ("Build", "Backend", "Torch", "Architectures", "Fits here", ">Size"),
            [_row(each, found) for each in decisions],
        )


def _plain(found: BuildChoice, path: Path | None) -> dict[str, Any]:
    """The JSON. The first ten keys are those of the existing client, so that programs written for it work."""
    metadata = _metadata(found)
    of_repository = {"repo_id": found.snapshot.repo_id, "revision": found.requirement.branch}
    return {
        **(of_repository if path is None else {"path": path}),
        "name": None if metadata is None else metadata.name,
        "version": None if metadata is None else metadata.version,
        "kernels_minver": _minver(metadata),
        "license": None if metadata is None else metadata.license,
        "upstream": None if metadata is None else metadata.upstream,
        "source": None if metadata is None else metadata.source,
        "python_depends": _python_depends(found),
        "backends": _backends(found),
        "commit": found.snapshot.commit or None,
        "lock": found.lock,
        "from": found.source.name,
        "kernel_depends": [
            {"repo_id": depend.repo_id, "version": depend.version, "revision": depend.revision}
            for depend in (() if metadata is None else metadata.kernel_depends)
        ],
        "torch_versions": _torch_versions(found),
        "archs": _archs(found),
        "size": _size(found),
        "fits": found.best,
        "builds": [
            {
                "variant": each.variant.name,
                "fits": each.verdict != "rejected",
                "reason": each.reason if each.verdict == "rejected" else None,
                "archs": _archs_of(each, found),
                "size": found.snapshot.size(each.variant.name),
            }
            for each in found.resolution.decisions
        ],
    }


def _fields(found: BuildChoice, path: Path | None) -> dict[str, str | list[str]]:
    from kernels.resolver.found import why_passed

    metadata, commit, revision = _metadata(found), found.snapshot.commit, found.requirement.branch or ""
    passed = [f"{why_passed(found.found.asked, *each)}." for each in found.found.passed]
    fields: dict[str, str | list[str]] = {
        "Repository": found.snapshot.repo_id if path is None else "",
        "Path": "" if path is None else str(path),
        "Revision": revision,
        "Commit": commit if commit != revision else "",
        "Pinned by": found.lock or "",
        "From": [found.source.name, *passed] if passed else "",
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
        "Backends": ", ".join(_backends(found)) or "none",
        "Torch": ", ".join(_torch_versions(found)) or "any",
        "Architectures": [f"{backend}: {_format_archs(archs, ', ')}" for backend, archs in _archs(found).items()],
        "Size": f"{format_size(_size(found))} in {plural(len(found.resolution.decisions), 'build')}",
        "Fits here": found.best or "none (`kernels explain` says why)",
    }


def _row(decision: Decision, found: BuildChoice) -> tuple[str, ...]:
    name, variant = decision.variant.name, _variant(decision)
    version = "" if variant is None or variant.framework_version is None else str(variant.framework_version)
    stable = "+" * (variant is not None and variant.kind == "torch-stable-abi")
    tvm_ffi = "tvm-ffi " * (variant is not None and variant.kind == "tvm-ffi")
    fits = "chosen" if name == found.best else "yes" if decision.verdict != "rejected" else "no"
    backend = "?" if variant is None else variant.backend
    archs = _format_archs(_archs_of(decision, found), " ")
    return name, backend, f"{tvm_ffi}{version}{stable}", archs, fits, format_size(found.snapshot.size(name))


def _metadata(found: BuildChoice) -> Metadata | None:
    """The metadata of the first build that has any."""
    read = (found.metadata.get(each.variant.name) for each in found.resolution.decisions)
    return next((metadata for metadata in read if metadata is not None), None)


def _variant(decision: Decision) -> Variant | None:
    """What a build's name says, None where it is not a variant's name."""
    from kernels.resolver.variant import Variant

    return decision.variant if isinstance(decision.variant, Variant) else None


def _variants(found: BuildChoice) -> list[Variant]:
    return [variant for each in found.resolution.decisions if (variant := _variant(each)) is not None]


def _backends(found: BuildChoice) -> list[str]:
    """The backends that there are builds for; a universal one has in its metadata what it was made on."""
    unnamed = [each.variant.name for each in found.resolution.decisions if _variant(each) is None]
    declared = {found.metadata[name].backend.type for name in unnamed if name in found.metadata}
    return sorted(declared | {each.backend for each in _variants(found)})


def _torch_versions(found: BuildChoice) -> list[str]:
    """The Torch versions that there are compiled builds for, oldest first; `2.9+` where newer ones fit as well."""
    versions = {
        (each.framework_version, "+" * (each.kind == "torch-stable-abi"))
        for each in _variants(found)
        if each.kind in ("torch", "torch-stable-abi") and each.framework_version is not None
    }
    return [f"{version}{newer}" for version, newer in sorted(versions)]


def _archs(found: BuildChoice) -> dict[str, list[str]]:
    """The device architectures that builds declare, by backend."""
    archs: dict[str, dict[str, None]] = {}
    for each in found.resolution.decisions:
        metadata = found.metadata.get(each.variant.name)
        if metadata is not None and metadata.backend.archs:
            archs.setdefault(metadata.backend.type, {}).update(dict.fromkeys(metadata.backend.archs))
    return {backend: list(names) for backend, names in sorted(archs.items())}


def _size(found: BuildChoice) -> int:
    return sum(found.snapshot.size(each.variant.name) for each in found.resolution.decisions)


def _format_archs(archs: Sequence[str], separator: str) -> str:
    rest = len(archs) - _MAX_ARCHS
    return separator.join(archs[:_MAX_ARCHS]) + (f" and {rest} more" if rest > 0 else "")


def _archs_of(decision: Decision, found: BuildChoice) -> Sequence[str]:
    metadata = found.metadata.get(decision.variant.name)
    return () if metadata is None else metadata.backend.archs or ()


def _python_depends(found: BuildChoice) -> list[str]:
    """The packages that any build needs: builds for different backends may need different ones."""
    read = (found.metadata.get(each.variant.name) for each in found.resolution.decisions)
    return list(dict.fromkeys(name for metadata in read if metadata for name in metadata.python_depends))


def _minver(metadata: Metadata | None) -> str | None:
    return None if metadata is None or metadata.kernels_minver is None else str(metadata.kernels_minver)
