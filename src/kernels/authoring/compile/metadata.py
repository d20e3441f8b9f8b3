"""Write a build's `metadata.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kernels.authoring.compile.build_toml.model import KernelSource
from kernels.authoring.compile.sources.git_tree import GitTree, git_tree
from kernels.models.metadata import Digest, Metadata

__all__ = ["build_metadata", "provenance"]


def build_metadata(
    source: KernelSource,
    id: str,
    backend: str,
    *,
    archs: Sequence[str] | None = None,
    digest: Digest | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Metadata:
    """The metadata of a source's build for one of its backends.

    Args:
        source: The source.
        id: The build's id.
        backend: The backend's name.
        archs: The device architectures that were compiled. Default: those that `build.toml` lists for this backend.
        digest: The digest of the build's files.
        provenance: The commits of builder and sources, as in the file.

    Raises:
        InvalidMetadata: A reader of the file would reject it.
    """
    covered = source.archs.get(backend) if archs is None else archs
    fields = {
        "id": id,
        "name": str(source.name),
        "backend": {"type": backend, "archs": covered or None},
        "version": source.version,
        "license": source.license,
        "upstream": source.upstream,
        "source": source.source,
        "python-depends": source.python_depends[backend],
        "kernel-depends": source.kernel_depends[backend],
        "kernels-minver": source.kernels_minver,
        "digest": None if digest is None else {"algorithm": digest.algorithm, "files": digest.files},
        "provenance": provenance,
    }
    return Metadata.from_bytes(msgspec.json.encode(fields))


def provenance(sources: GitTree | None) -> dict[str, Any] | None:
    """The field `provenance`: the last commits of builder and sources, and whether there are uncommitted changes.

    Args:
        sources: The state of the source folder in git.

    Returns:
        The field, or None if the sources are not in a git repository. A builder from an installed package is left out.
    """
    if sources is None:
        return None
    from kernels._version import __version__

    builder = git_tree(Path(__file__).parent)
    return {
        **({} if builder is None else {"kernel-builder": {"version": __version__, **_commit(builder)}}),
        "kernel": _commit(sources),
    }


def _commit(tree: GitTree) -> dict[str, Any]:
    return {"commit": tree.commit, "dirty": tree.dirty}
