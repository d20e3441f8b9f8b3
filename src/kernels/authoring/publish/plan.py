"""What an upload does to a branch, decided before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from kernels.authoring.compile.sources.workspace import Workspace
from kernels.authoring.publish.card import CARD_FILE, Card
from kernels.authoring.publish.hub_client import CommitChanges, RemoteBranch, same_file
from kernels.authoring.publish.local_builds import BENCHMARK_FILES, BENCHMARKS, LocalBuilds, LocalFile
from kernels.authoring.publish.result import ChangeKind, FileChange
from kernels.errors import InvalidVariant, RequestError
from kernels.models.snapshot import BUILD_FOLDER
from kernels.resolver.variant import Variant, parse_variant

__all__ = ["OtherBuilds", "ReleasePlan", "overlaps", "plan_release", "sort_other_builds"]


@dataclass(frozen=True)
class OtherBuilds:
    """The builds on the branch that are not in the folder: those that stay, with the reason, and those that go."""

    kept: Mapping[str, str]
    removed: tuple[str, ...]


@dataclass(frozen=True)
class ReleasePlan:
    """What is done: the changes of the commit, and what happens to each file."""

    remote: RemoteBranch
    changes: CommitChanges
    files: tuple[FileChange, ...]

    @property
    def empty(self) -> bool:
        """Whether the branch has everything already."""
        return not self.changes.files and not self.changes.deleted


def sort_other_builds(
    builds: LocalBuilds,
    workspace: Workspace | None,
    remote: RemoteBranch,
    where: str,
    *,
    keep: bool,
    remove: bool,
) -> OtherBuilds:
    """Which of the branch's other builds stay.

    Args:
        builds: The folder's builds.
        workspace: Their sources, if present.
        remote: The branch.
        where: Its name in messages.
        keep: Whether all stay.
        remove: Whether all go.

    Raises:
        RequestError: Another build would go than those that `build.toml` no longer lists, and neither was asked for.
    """
    others = other_builds(builds, remote)
    if keep:
        return OtherBuilds(dict.fromkeys(others, "--keep-variants"), ())
    if remove:
        return OtherBuilds({}, tuple(others))
    kept = _without_sources(others, workspace)
    _refuse_loss({name: variant for name, variant in others.items() if name not in kept}, workspace, where)
    return OtherBuilds(
        dict.fromkeys(kept, "no build.toml here makes such builds"), tuple(name for name in others if name not in kept)
    )


def other_builds(builds: LocalBuilds, remote: RemoteBranch) -> dict[str, Variant | None]:
    """The builds on the branch that are not in the folder: their names, and variants if the names are valid."""
    there = {path.split("/")[1] for path in remote.files if path.startswith(f"{BUILD_FOLDER}/") and path.count("/") > 1}
    return {name: _parsed(name) for name in sorted(there - builds.builds.keys())}


def plan_release(
    builds: LocalBuilds,
    remote: RemoteBranch,
    others: OtherBuilds,
    card: Card,
    read: Callable[[Path], LocalFile] = LocalFile.of,
    *,
    keep: bool = False,
) -> ReleasePlan:
    """The changes after which the branch has the builds and the card.

    Args:
        builds: The folder's builds.
        remote: The branch.
        others: What happens to its other builds.
        card: The card.
        read: Hashes the card's images.
        keep: Whether benchmarks that the folder does not have stay.
    """
    wanted: dict[str, bytes | LocalFile] = {
        **builds.files,
        **{path: read(file) for path, file in card.files.items()},
        CARD_FILE: card.text.encode(),
    }
    replaced = tuple(f"{BUILD_FOLDER}/{name}/" for name in builds.builds)
    ours = [path for path in sorted(remote.files) if path.startswith(replaced) or (not keep and _is_benchmark(path))]
    folders = [f"{BUILD_FOLDER}/{name}/" for name in others.removed]
    changed = {path: content for path, content in wanted.items() if not same_file(remote.files.get(path), content)}
    gone = [path for path in ours if path not in wanted]
    files = []
    for path, content in sorted(wanted.items()):
        kind: ChangeKind = "unchanged"
        if path in changed:
            kind = "changed" if path in remote.files else "added"
        files.append(FileChange(path, kind, len(content) if isinstance(content, bytes) else content.size))
    deleted = [*gone, *(path for path in sorted(remote.files) if path.startswith(tuple(folders)))]
    files += [FileChange(path, "deleted", remote.files[path][0]) for path in deleted]
    return ReleasePlan(remote, CommitChanges(changed, [*folders, *gone]), tuple(files))


def overlaps(before: ReleasePlan, after: ReleasePlan) -> list[str]:
    """The paths that someone else changed between two plans of one upload, and that the upload changes too.

    The card and its images are made anew from what the branch has now, so they are none of them.
    """
    there, now = before.remote.files, after.remote.files
    moved = {path for path in there.keys() | now.keys() if there.get(path) != now.get(path)}
    written = {*before.changes.files, *after.changes.files} - {CARD_FILE}
    equal = {each.path for each in after.files if each.kind == "unchanged"}
    deleted = tuple({*before.changes.deleted, *after.changes.deleted})
    return sorted(path for path in moved - equal if path in written or (deleted and path.startswith(deleted)))


def _without_sources(others: Mapping[str, Variant | None], workspace: Workspace | None) -> list[str]:
    """The builds of a framework that has no sources here: only the folder with its sources replaces them."""
    if workspace is None:
        return []
    here = {source.framework for source in workspace.sources}
    return [name for name, variant in others.items() if variant is not None and _kind(variant)[0] not in here]


def _refuse_loss(going: Mapping[str, Variant | None], workspace: Workspace | None, where: str) -> None:
    """Raise if a build would go that the folder's `build.toml` does not rule out: another machine may have made it."""
    listed = (
        {(source.framework, backend) for source in workspace.sources for backend in source.backends}
        if workspace
        else ()
    )
    lost = [name for name, variant in going.items() if variant is None or workspace is None or _kind(variant) in listed]
    if lost:
        raise RequestError(
            f"{where} has builds that this folder does not have: {', '.join(lost)}. Give --keep-variants to keep them, "
            "or --remove-variants to remove them."
        )


def _kind(variant: Variant) -> tuple[str, str]:
    """The framework and the backend of a build, as in `build.toml`."""
    return variant.kind.replace("torch-stable-abi", "torch"), variant.backend


def _is_benchmark(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return folder == BENCHMARKS and fnmatchcase(name, BENCHMARK_FILES)


def _parsed(name: str) -> Variant | None:
    try:
        return parse_variant(name)
    except InvalidVariant:
        return None
