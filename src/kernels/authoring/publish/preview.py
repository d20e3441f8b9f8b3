"""A kernel's card before it is published, without a Hub."""

from __future__ import annotations

import os

from kernels.authoring.compile.sources.workspace import find_workspace
from kernels.authoring.publish.card import Card, make_card, read_facts
from kernels.authoring.publish.local_builds import read_builds
from kernels.authoring.publish.upload import publish_target

__all__ = ["preview_card"]

#: The repository of a card that is shown before one was chosen.
_PLACEHOLDER = "org/name"


def preview_card(folder: os.PathLike[str] | str, repo_id: str | None = None, *, branch: str | None = None) -> Card:
    """The card that `upload_kernel` would publish, if the page on the Hub was not edited. No code of the folder is run.

    Args:
        folder: The folder that has `build/<variant>`, or one of several source folders of a kernel.
        repo_id: The repository, `org/name`. Default: that of `build.toml`, else `org/name`.
        branch: The branch. Default: that of `build.toml`, else `v<version>` of the builds.

    Returns:
        The card; its `text` is what `README.md` would have.

    Raises:
        RequestError: The folder, a name, or the author's `CARD.md` is not valid.
        InvalidVariant, InvalidMetadata, InvalidRepository, DigestMismatch: A build is not valid.
    """
    workspace = find_workspace(folder)
    builds = read_builds(folder) if workspace is None else read_builds(workspace.folder, workspace.folders)
    if repo_id is None and (workspace is None or workspace.repo_id is None):
        repo_id = _PLACEHOLDER
    repo_id, branch = publish_target(builds, workspace, repo_id, branch)
    return make_card(read_facts(builds, workspace, repo_id, branch), builds.template, builds.readme)
