"""Publish a folder of builds: `upload_kernel` has the steps in a row.

The folder's code is never imported.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from kernels.authoring.compile import build_variants
from kernels.authoring.compile.workspace import Workspace, find_workspace, read_sources
from kernels.authoring.publish.build_checks import check_builds
from kernels.authoring.publish.hub_client import CommitChanges, PublishClient, RemoteBranch, open_hub, same_file
from kernels.authoring.publish.local_builds import BENCHMARK_FILES, BENCHMARKS, LocalBuilds, read_builds
from kernels.authoring.publish.model_card import CARD_FILE, kernel_card
from kernels.errors import BuildError, InvalidVariant, RequestError
from kernels.models.requirement import check_repo_id, check_revision, is_commit
from kernels.models.snapshot import BUILD_FOLDER
from kernels.resolver.variant import Variant, parse_variant
from kernels.support.files import read_bounded

__all__ = ["Upload", "upload_kernel"]

#: The largest `README.md` that is read.
_MAX_PAGE_BYTES = 4 * 1024 * 1024

_VERSION_BRANCH = re.compile(r"v([0-9]+)")


@dataclass(frozen=True)
class Upload:
    """The result of an upload.

    Attributes:
        repo_id: The repository.
        branch: Its branch.
        commit: The commit with the builds: a new one, or the head if nothing changed.
        variants: The builds that were uploaded.
        sent: Paths of the new and changed files.
        deleted: Deleted paths; a folder's ends in `/`.
        pull_request: URL of the pull request, if one was opened.
    """

    repo_id: str
    branch: str
    commit: str
    variants: tuple[str, ...]
    sent: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    pull_request: str | None = None

    @property
    def changed(self) -> bool:
        """Whether a commit was made; False if the Hub had everything already."""
        return bool(self.sent or self.deleted)


def upload_kernel(
    folder: os.PathLike[str] | str,
    repo_id: str | None = None,
    *,
    branch: str | None = None,
    private: bool = False,
    create_pr: bool = False,
    keep_variants: bool = False,
    remove_variants: bool = False,
    build: bool = False,
    check: bool = True,
    hub: str | None = None,
    token: str | None = None,
    report: Callable[[str], None] | None = None,
) -> Upload:
    """Publish a folder's builds on a Hub, in one commit.

    Everything is checked before anything is sent, without running the folder's code. A build on the branch that is not
    in the folder is removed if the folder has another build for its backend, or `build.toml` no longer lists it. It
    stays if no `build.toml` here has sources of its framework. A missing repository or branch is created, and has no
    builds until the commit. Run an interrupted upload again.

    Args:
        folder: The folder that has `build/<variant>`, or one of several source folders of a kernel.
        repo_id: The repository, `org/name`. Default: `general.hub.repo-id` of the folder's `build.toml`.
        branch: The branch. Default: `general.hub.branch` of that `build.toml`, else `v<version>` of the builds.
        private: Whether a new repository is private.
        create_pr: Open a pull request against the branch instead of changing it.
        keep_variants: Keep the branch's other builds, such as those from another machine.
        remove_variants: Remove all of the branch's other builds. By default the upload is refused if that would remove
            the only build for a backend that `build.toml` lists.
        build: First build what this machine can build.
        check: Whether stale builds, and builds that fail `kernels check --static`, are refused.
        hub: The Hub's URL. Default: `KERNELS_HUB`, else `HF_ENDPOINT`.
        token: The token. Default: `KERNELS_HUB_TOKEN` for `KERNELS_HUB`, huggingface_hub's own for its own Hub.
        report: Called with a line for each step.

    Returns:
        The result.

    Raises:
        RequestError: The folder, name or branch is wrong; builds are stale or cannot be used; no token is found, or the
            Hub refuses it; the branch changed meanwhile.
        InvalidVariant, InvalidMetadata, InvalidRepository, DigestMismatch: A build is not valid.
        MissingPythonDependency: There are native files to check, and pyelftools is not installed.
        BuildError: A build failed.
        HubUnavailable: The Hub did not answer, or the connection broke.
        RepositoryNotFound, RevisionNotFound: The target of a pull request does not exist.
    """
    say = report or (lambda line: None)
    if keep_variants and remove_variants:
        raise RequestError("--keep-variants and --remove-variants exclude each other.")
    workspace = find_workspace(folder)
    if build:
        _build(folder, workspace)
    builds = read_builds(folder) if workspace is None else read_builds(workspace.folder, workspace.folders)
    repo_id, branch = _target(builds, workspace, repo_id, branch)
    client = open_hub(hub, token)
    if check:
        check_builds(builds, workspace)
    for note in _notes(builds, workspace):
        say(note)
    say(f"{repo_id}, branch {branch}, at {client.url}: {_count(len(builds.builds), 'build')}")
    head = _head(client, repo_id, branch, private=private, create_pr=create_pr)
    remote = client.remote(repo_id, head)
    others = _other_builds(builds, remote)
    kept = list(others) if keep_variants else []
    if not keep_variants and not remove_variants:
        kept = _without_sources(others, workspace)
        if kept:
            say(f"Kept: {', '.join(kept)}: no build.toml here makes such builds; --remove-variants removes them")
        _refuse_loss(others, builds, workspace, f"{repo_id}, branch {branch},")
    card = _card(builds, repo_id, branch, kept)
    changes = _changes(builds, remote, card, [name for name in others if name not in kept])
    variants = tuple(builds.builds)
    if not changes.files and not changes.deleted:
        return Upload(repo_id, branch, head, variants)
    say(f"Sending {_count(len(changes.files), 'file')}, deleting {_count(len(changes.deleted), 'path')}")
    for path in changes.deleted:
        say(f"  deleted: {path}")
    message = f"Builds of {builds.metadata.name}: {', '.join(variants)}"
    commit, pull_request = client.commit(
        repo_id, branch, changes, message=message[:200], parent=head, create_pr=create_pr
    )
    return Upload(repo_id, branch, commit, variants, tuple(changes.files), tuple(changes.deleted), pull_request)


def _build(folder: os.PathLike[str] | str, workspace: Workspace | None) -> None:
    if workspace is None:
        read_sources(folder)  # raises: there are none
        return
    failed = [each for each in build_variants(workspace.folder, workspace.folder) if each.state == "failed"]
    if failed:
        reasons = "\n".join(f"{each.variant or each.backend}: {each.reason}\n{each.detail}".rstrip() for each in failed)
        raise BuildError(f"Nothing was published. {reasons}")


def _notes(builds: LocalBuilds, workspace: Workspace | None) -> Iterator[str]:
    """Notes on builds that can be published."""
    dirty = [name for name, build in builds.builds.items() if (made := build.metadata.provenance) and made.dirty]
    if dirty:
        yield (
            f"Note: {', '.join(dirty)}: built from sources with uncommitted changes, so that the commit does not "
            "identify them; commit, and build again"
        )
    if workspace is not None:
        built = {build.metadata.backend.type for build in builds.builds.values()}
        lacking = [name for name in workspace.backends if name not in built]
        if lacking:
            yield f"Note: no build here for {', '.join(lacking)}, which build.toml lists"


def _target(
    builds: LocalBuilds, workspace: Workspace | None, repo_id: str | None, branch: str | None
) -> tuple[str, str]:
    """The repository and the branch, from the arguments, `build.toml` and the builds."""
    if workspace is not None:
        repo_id = workspace.repo_id if repo_id is None else repo_id
        branch = workspace.branch if branch is None else branch
    if repo_id is None:
        raise RequestError(
            f"No repository to publish to, and no build.toml in {builds.folder} has one: give --repo-id org/name, or "
            'set `repo-id = "org/name"` in the section [general.hub].'
        )
    check_repo_id(repo_id)
    version = builds.metadata.version
    if branch is None and version is None:
        raise RequestError("No branch to publish to, and the builds have no version: give one, --branch v1.")
    branch = f"v{version}" if branch is None else branch
    try:
        check_revision(branch)
        allowed = not is_commit(branch) and "/" not in branch
    except RequestError:
        allowed = False
    if not allowed:
        raise RequestError(f"`branch` is {branch[:200]!r}; expected a branch's name without slashes, not a commit.")
    match = _VERSION_BRANCH.fullmatch(branch)
    if match is not None and match[1] != str(version):
        raise RequestError(f"`branch` is {branch!r}, but the builds have version {version}: expected v{version}.")
    return repo_id, branch


def _head(client: PublishClient, repo_id: str, branch: str, *, private: bool, create_pr: bool) -> str:
    """The commit at the head of the branch, which is created if missing."""
    branches = client.branches(repo_id)
    if create_pr and branch not in (branches or {}):
        missing = f"{repo_id} has no branch {branch!r}" if branches is not None else f"{repo_id} does not exist"
        raise RequestError(
            f"{missing} at {client.url}: a pull request needs it. Publish without one first, or ask the repository's "
            "owner for the branch."
        )
    if branches is None:
        client.create_repository(repo_id, private=private)
    elif private and not client.private(repo_id):
        raise RequestError(f"`private` is set, but {repo_id} is public at {client.url}: make it private there first.")
    if branch not in (branches or {}):
        client.create_branch(repo_id, branch)
        branches = client.branches(repo_id)
    head = (branches or {}).get(branch)
    if head is None:
        raise RequestError(f"{client.url} does not list the new branch {branch!r} of {repo_id}.")
    return head


def _other_builds(builds: LocalBuilds, remote: RemoteBranch) -> dict[str, Variant | None]:
    """The builds on the branch that are not in the folder: their names, and variants if the names are valid."""
    there = {path.split("/")[1] for path in remote.files if path.startswith(f"{BUILD_FOLDER}/") and path.count("/") > 1}
    return {name: _parsed(name) for name in sorted(there - builds.builds.keys())}


def _without_sources(others: dict[str, Variant | None], workspace: Workspace | None) -> list[str]:
    """The builds of a framework that has no sources here: only the folder with its sources replaces them."""
    if workspace is None:
        return []
    here = {source.framework for source in workspace.sources}
    return [name for name, variant in others.items() if variant is not None and _kind(variant)[0] not in here]


def _refuse_loss(
    others: dict[str, Variant | None], builds: LocalBuilds, workspace: Workspace | None, where: str
) -> None:
    """Raise if the upload would remove a build that `build.toml` lists and nothing here replaces."""
    if workspace is None:
        return
    listed = {(source.framework, backend) for source in workspace.sources for backend in source.backends}
    missing = listed - {_kind(build.variant) for build in builds.builds.values()}
    lost = [name for name, variant in others.items() if variant is not None and _kind(variant) in missing]
    if lost:
        raise RequestError(
            f"{where} has builds that build.toml lists and this folder does not have: {', '.join(lost)}. Give "
            "--keep-variants to keep them, or --remove-variants to remove them."
        )


def _kind(variant: Variant) -> tuple[str, str]:
    """The framework and the backend of a build, as in `build.toml`."""
    return variant.kind.replace("torch-stable-abi", "torch"), variant.backend


def _card(builds: LocalBuilds, repo_id: str, branch: str, kept: list[str]) -> str:
    variants = [*builds.builds, *(name for name in kept if _parsed(name) is not None)]
    readme = None if builds.readme is None else _page(builds.readme)
    return kernel_card(repo_id, branch, builds.metadata, variants, readme)


def _changes(builds: LocalBuilds, remote: RemoteBranch, card: str, removed: list[str]) -> CommitChanges:
    """The changes after which the branch has the builds and the card."""
    wanted: dict[str, bytes | Path] = {**builds.files, CARD_FILE: card.encode()}
    replaced = tuple(f"{BUILD_FOLDER}/{name}/" for name in builds.builds)
    ours = [path for path in sorted(remote.files) if path.startswith(replaced) or _is_benchmark(path)]
    folders = [f"{BUILD_FOLDER}/{name}/" for name in removed]
    changed = {path: content for path, content in wanted.items() if not same_file(remote.files.get(path), content)}
    return CommitChanges(changed, [*folders, *(path for path in ours if path not in wanted)])


def _page(file: Path) -> str:
    try:
        # Some editors begin a file with a byte order mark.
        return read_bounded(file, _MAX_PAGE_BYTES).decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise RequestError(f"{file} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise RequestError(f"{file} is not UTF-8, which a Hub needs to show it.") from None


def _is_benchmark(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return folder == BENCHMARKS and fnmatchcase(name, BENCHMARK_FILES)


def _parsed(name: str) -> Variant | None:
    try:
        return parse_variant(name)
    except InvalidVariant:
        return None


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
