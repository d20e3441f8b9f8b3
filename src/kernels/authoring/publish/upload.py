"""Publish a folder of builds: `upload_kernel` has the steps in a row.

The folder's code is never imported.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from kernels.authoring.compile.builder import build_here
from kernels.authoring.compile.sources.workspace import Workspace, find_workspace, read_sources
from kernels.authoring.publish.build_checks import check_builds
from kernels.authoring.publish.hub_client import PublishClient, open_hub
from kernels.authoring.publish.local_builds import LocalBuilds, read_builds
from kernels.authoring.publish.publishing import Publishing
from kernels.authoring.publish.result import Upload
from kernels.errors import BuildError, RequestError
from kernels.models.requirement import check_repo_id, check_revision, is_commit
from kernels.support.formatting import plural

__all__ = ["publish_target", "upload_kernel"]

_VERSION_BRANCH = re.compile(r"v([0-9]+)")


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
    replace_card: bool = False,
    dry_run: bool = False,
    hub: str | None = None,
    token: str | None = None,
    report: Callable[[str], None] | None = None,
) -> Upload:
    """Publish a folder's builds on a Hub, in one commit.

    Everything is checked before anything is sent, without running the folder's code. A build on the branch that is not
    in the folder is removed if `build.toml` no longer lists its backend. It stays if no `build.toml` here has sources
    of its framework. About others the caller decides. A missing repository or branch is created, and has no
    builds until the commit. Run an interrupted upload again: only what the Hub does not have is sent. If someone else
    commits to other files meanwhile, the builds are published on top of that.

    Args:
        folder: The folder that has `build/<variant>`, or one of several source folders of a kernel.
        repo_id: The repository, `org/name`. Default: `general.hub.repo-id` of the folder's `build.toml`.
        branch: The branch. Default: `general.hub.branch` of that `build.toml`, else `v<version>` of the builds.
        private: Whether a new repository is private.
        create_pr: Open a pull request against the branch instead of changing it.
        keep_variants: Keep the branch's other builds, such as those from another machine or for another version of
            Torch, and its other benchmarks.
        remove_variants: Remove all of the branch's other builds. By default the upload is refused if it would remove
            one for a backend that `build.toml` lists, or if there is no `build.toml`.
        build: First build what this machine can build.
        check: Whether stale builds, and builds that fail `kernels check --static`, are refused.
        replace_card: Whether the folder's `CARD.md` or `README.md` replaces a page that was edited on the Hub.
        dry_run: Only say what would be done: nothing is created, sent or changed.
        hub: The Hub's URL. Default: `KERNELS_HUB`, else `HF_ENDPOINT`.
        token: The token. Default: `KERNELS_HUB_TOKEN` for `KERNELS_HUB`, huggingface_hub's own for its own Hub.
        report: Called with a line for each step.

    Returns:
        The result.

    Raises:
        RequestError: The folder, name or branch is wrong; builds are stale or cannot be used; no token is found, or the
            Hub refuses it; the branch changed meanwhile.
        InvalidVariant, InvalidMetadata, InvalidRepository, DigestMismatch: A build is not valid.
        MissingPythonDependency: There are native files and what reads them is not installed.
        BuildError: A build failed.
        HubUnavailable: The Hub did not answer, or the connection broke; `NotInCache` with `HF_HUB_OFFLINE=1`.
        RepositoryNotFound, RevisionNotFound: The target of a pull request does not exist.
    """
    say = report or (lambda line: None)
    if keep_variants and remove_variants:
        raise RequestError("--keep-variants and --remove-variants exclude each other.")
    workspace = find_workspace(folder)
    if build:
        _build(folder, workspace)
    builds = read_builds(folder) if workspace is None else read_builds(workspace.folder, workspace.folders)
    repo_id, branch = publish_target(builds, workspace, repo_id, branch)
    client = open_hub(hub, token, writing=not dry_run)
    if check:
        check_builds(builds, workspace)
    notes = tuple(_notes(builds, workspace))
    for note in notes:
        say(f"Note: {note}")
    say(f"{repo_id}, branch {branch}, at {client.url}: {plural(len(builds.builds), 'build')}")
    publishing = Publishing(
        client,
        builds,
        workspace,
        repo_id,
        branch,
        create_pr=create_pr,
        keep_variants=keep_variants,
        remove_variants=remove_variants,
        replace_card=replace_card,
        say=say,
    )
    if dry_run:
        done = publishing.plan(client.branches(repo_id) or {})
    else:
        done = publishing.publish(_branches(client, repo_id, branch, private=private, create_pr=create_pr))
    return replace(done, notes=(*notes, *done.notes))


def _build(folder: os.PathLike[str] | str, workspace: Workspace | None) -> None:
    if workspace is None:
        read_sources(folder)  # raises: there are none
        return
    try:
        build_here(workspace.folder)
    except BuildError as error:
        raise BuildError(f"Nothing was published. {error}") from error


def _notes(builds: LocalBuilds, workspace: Workspace | None) -> Iterator[str]:
    """Notes on builds that can be published."""
    dirty = [name for name, build in builds.builds.items() if (made := build.metadata.provenance) and made.dirty]
    if dirty:
        yield (
            f"{', '.join(dirty)}: built from sources with uncommitted changes, so that the commit does not "
            "identify them; commit, and build again"
        )
    if workspace is not None:
        built = {build.metadata.backend.type for build in builds.builds.values()}
        lacking = [name for name in workspace.backends if name not in built]
        if lacking:
            yield f"no build here for {', '.join(lacking)}, which build.toml lists"


def publish_target(
    builds: LocalBuilds, workspace: Workspace | None, repo_id: str | None, branch: str | None
) -> tuple[str, str]:
    """The repository and the branch, from the arguments, `build.toml` and the builds.

    Raises:
        RequestError: None is given, or one is not valid.
    """
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


def _branches(client: PublishClient, repo_id: str, branch: str, *, private: bool, create_pr: bool) -> dict[str, str]:
    """The repository's branches and their heads, after what is missing was created."""
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
    if branch not in (branches or {}):
        raise RequestError(f"{client.url} does not list the new branch {branch!r} of {repo_id}.")
    return branches or {}
