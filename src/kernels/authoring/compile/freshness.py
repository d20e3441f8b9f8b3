"""Whether a build is up to date: its stamp beside the objects, and its id compared with the sources."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from kernels.authoring.compile.plan.build_plan import BuildPlan, source_state
from kernels.authoring.compile.sources.source_files import hash_sources
from kernels.authoring.compile.sources.workspace import Workspace, source_folders
from kernels.errors import InvalidMetadata, KernelsError, RequestError
from kernels.models.metadata import MAX_METADATA_BYTES, Metadata
from kernels.models.snapshot import BUILD_FOLDER, METADATA_FILE
from kernels.support.files import read_bounded
from kernels.support.formatting import shell_word
from kernels.trust.content import BuildContent

__all__ = [
    "WORK_FOLDER",
    "built_dirty",
    "digest_remedy",
    "inputs_hash",
    "is_current",
    "rebuild_advice",
    "refuse_stale",
    "stale_builds",
    "stamp_file",
    "stamped_code",
    "write_stamp",
]

#: The folder of objects, logs and stamps, beside `build/`.
WORK_FOLDER = ".kernels-build"


def stamp_file(work: Path, variant: str) -> Path:
    """The path of a variant's stamp: not in the variant's folder, because everything there is published."""
    return work / f"{variant}.stamp"


def inputs_hash(plan: BuildPlan) -> str:
    """SHA-256, in hexadecimal, of everything that a build depends on: sources, git, builder, compilers and flags.

    Raises:
        CompilerNotFound: A compiler cannot be run.
    """
    state = plan.state
    inputs = [plan.id, plan.variant, state.contents.id, _builder_hash()]
    inputs.append(json.dumps([state.provenance, plan.archs], sort_keys=True))
    if plan.compilation is not None:
        inputs += plan.compilation.fingerprint()
    return hashlib.sha256("\0".join(inputs).encode()).hexdigest()


@cache
def _builder_hash() -> str:
    return hash_sources(Path(__file__).parent).id


def is_current(inputs: str, variant_dir: Path, stamp: Path) -> bool:
    """Whether a variant was built from these inputs (`inputs_hash`) and its files still match its digest."""
    metadata = variant_dir / METADATA_FILE
    try:
        if _read_stamp(stamp)[:2] != [inputs, _hash(metadata)]:
            return False
        digest = Metadata.read_from_file(metadata).digest
        if digest is not None:
            BuildContent(variant_dir).check_digest(digest)
    except (OSError, ValueError, KernelsError):
        return False
    return digest is not None


def write_stamp(inputs: str, code: str, variant_dir: Path, stamp: Path) -> None:
    """Record what a finished variant was built from.

    Args:
        inputs: The hash of the build's inputs.
        code: The hash of the sources that go into builds (`SourceHashes.code`).
        variant_dir: The variant.
        stamp: Its stamp.
    """
    stamp.write_text(f"{inputs} {_hash(variant_dir / METADATA_FILE)} {code}\n", encoding="utf-8")


def stamped_code(variant_dir: Path, stamp: Path) -> str | None:
    """The `SourceHashes.code` that a variant was built from; None if its stamp is missing or of another build."""
    try:
        _, metadata, code = _read_stamp(stamp)
        return code if metadata == _hash(variant_dir / METADATA_FILE) else None
    except (OSError, ValueError):  # missing, or written by an older builder
        return None


def _read_stamp(stamp: Path) -> list[str]:
    return read_bounded(stamp, 4096).decode().split()


def _hash(metadata: Path) -> str:
    return hashlib.sha256(read_bounded(metadata, MAX_METADATA_BYTES)).hexdigest()


def stale_builds(workspace: Workspace) -> dict[str, str]:
    """The builds of a kernel that were not made from its current sources.

    A build's `id` ends in the state of its sources. If only files that do not go into builds have changed
    (`SourceHashes.code`), the id differs, and the stamp's code hash still matches: the build is fresh.

    Returns:
        The reason, by variant name.

    Raises:
        RequestError: The sources could not be built.
    """
    states = [source_state(source) for source in workspace.sources]
    stale = {}
    for path in sorted(workspace.folder.glob(f"{BUILD_FOLDER}/*/{METADATA_FILE}")):
        try:
            metadata = Metadata.read_from_file(path)
        except InvalidMetadata:
            continue  # reported where the build is read
        code = stamped_code(path.parent, stamp_file(workspace.folder / WORK_FOLDER, path.parent.name))
        if not any(metadata.id.endswith(f"_{state.unique}") or state.contents.code == code for state in states):
            stale[path.parent.name] = _stale_reason(workspace, metadata)
    return stale


def _stale_reason(workspace: Workspace, metadata: Metadata) -> str:
    source = workspace.sources[0]
    if metadata.version != source.version:
        return f"of version {metadata.version}, while build.toml has version {source.version}"
    if metadata.backend.type not in workspace.backends:
        return f"for {metadata.backend.type}, which build.toml does not list"
    return "the sources have changed since this build"


def refuse_stale(workspace: Workspace, stale: Mapping[str, str], also: str) -> None:
    """Raise if builds are stale.

    Args:
        workspace: The kernel.
        stale: What `stale_builds` returned.
        also: Alternatives to rebuilding, for the message.

    Raises:
        RequestError: There is a stale build.
    """
    if not stale:
        return
    names: dict[str, list[str]] = {}
    for name, reason in stale.items():
        names.setdefault(reason, []).append(name)
    each = "; ".join(f"{', '.join(found)}: {reason}" for reason, found in names.items())
    raise RequestError(f"{each}. {rebuild_advice(workspace)}, {also}.")


def rebuild_advice(workspace: Workspace) -> str:
    """How to bring builds up to date, as a sentence without its full stop."""
    return f"`kernels build {shell_word(workspace.folder)}` rebuilds what this machine can build"


def digest_remedy(variant_dir: Path) -> str:
    """What to do about a build whose files do not match its digest."""
    home = variant_dir.parent.parent
    if variant_dir.parent.name == BUILD_FOLDER and source_folders(home):
        return f"`kernels build {shell_word(home)}` rebuilds it; changes belong in the sources."
    return "Delete the folder and download it again, or ask the publisher for a new build."


def built_dirty(variant_dir: Path) -> bool:
    """Whether a build was made from sources with uncommitted changes."""
    provenance = Metadata.read_from_file(variant_dir / METADATA_FILE).provenance
    return provenance is not None and provenance.dirty
