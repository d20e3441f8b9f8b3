"""Whether builds are those of the sources beside them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kernels.authoring.compile.build_plan import source_state
from kernels.authoring.compile.up_to_date import WORK_FOLDER, made_from, stamp_file
from kernels.authoring.compile.workspace import Workspace, source_folders
from kernels.errors import InvalidMetadata, RequestError
from kernels.models.metadata import Metadata
from kernels.models.snapshot import BUILD_FOLDER, METADATA_FILE

__all__ = ["built_dirty", "digest_remedy", "rebuild_advice", "refuse_stale", "stale_builds"]


def stale_builds(project: Workspace) -> dict[str, str]:
    """The builds of a kernel that are not those of its sources as they are now.

    A build's `id` ends in the state of the sources that it was made from. Where only tests, benchmarks or Markdown
    have changed since, what the builder noted beside its objects says so.

    Args:
        project: The kernel.

    Returns:
        What is wrong, by the variant's name.

    Raises:
        RequestError: The sources could not be built.
    """
    states = [source_state(source) for source in project.sources]
    stale = {}
    for path in sorted(project.folder.glob(f"{BUILD_FOLDER}/*/{METADATA_FILE}")):
        try:
            metadata = Metadata.read_from_file(path)
        except InvalidMetadata:
            continue  # whoever reads it says so
        code = made_from(path.parent, stamp_file(project.folder / WORK_FOLDER, path.parent.name))
        if not any(metadata.id.endswith(f"_{state.unique}") or state.contents.code == code for state in states):
            stale[path.parent.name] = _reason(project, metadata)
    return stale


def refuse_stale(project: Workspace, stale: Mapping[str, str], also: str) -> None:
    """Refuse builds that are not those of the sources.

    Args:
        project: The kernel.
        stale: Those builds, as `stale_builds` gives them.
        also: What else can be done about it.

    Raises:
        RequestError: There is one.
    """
    if not stale:
        return
    names: dict[str, list[str]] = {}
    for name, reason in stale.items():
        names.setdefault(reason, []).append(name)
    each = "; ".join(f"{', '.join(found)}: {reason}" for reason, found in names.items())
    raise RequestError(f"{each}. {rebuild_advice(project)}, {also}.")


def rebuild_advice(project: Workspace) -> str:
    """What brings builds up to date, as a sentence without its end."""
    return f"`kernels build {project.folder}` builds again what this machine can build"


def _reason(project: Workspace, metadata: Metadata) -> str:
    source = project.sources[0]
    if metadata.version != source.version:
        return f"of version {metadata.version}, while build.toml says {source.version}"
    if metadata.backend.type not in project.backends:
        return f"for {metadata.backend.type}, which build.toml does not list"
    return "the sources have changed since this build"


def digest_remedy(variant_dir: Path) -> str:
    """What is to be done about a build whose files are not those that were built.

    Args:
        variant_dir: The variant.
    """
    home = variant_dir.parent.parent
    if variant_dir.parent.name == BUILD_FOLDER and source_folders(home):
        return f"`kernels build {home}` makes it again; what is to stay belongs in the sources."
    return "Delete the folder and download it again, or ask the publisher for a new build."


def built_dirty(variant_dir: Path) -> bool:
    """Whether a build was made from sources with changes that are not committed: its commit does not say what it is."""
    provenance = Metadata.read_from_file(variant_dir / METADATA_FILE).provenance
    return provenance is not None and provenance.dirty
