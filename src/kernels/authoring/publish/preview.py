"""A kernel's card before it is published, without a Hub."""

from __future__ import annotations

import os
from contextlib import suppress

from kernels.authoring.compile.sources.workspace import find_workspace
from kernels.authoring.publish.card import Card, make_card, read_facts
from kernels.authoring.publish.card.unwritten import note_on_new_page
from kernels.authoring.publish.local_builds import CARD_FILE, read_builds
from kernels.authoring.publish.upload import publish_target
from kernels.errors import RequestError
from kernels.support.files import FileTooLarge, read_bounded

__all__ = ["note_on_page", "preview_card"]

#: The repository of a card that is shown before one was chosen.
_PLACEHOLDER = "org/name"

#: The most of a page that is read for the sentence of a new kernel, which stands at its beginning.
_MAX_PAGE_BYTES = 4 * 1024 * 1024


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


def note_on_page(folder: os.PathLike[str] | str) -> str | None:
    """A note if the `README.md` beside a kernel's sources still has what `kernels init` wrote for its author.

    Args:
        folder: A source folder, or the parent of a kernel's source folders. Another folder has no note.
    """
    with suppress(RequestError, OSError, FileTooLarge, UnicodeDecodeError):
        workspace = find_workspace(folder)
        if workspace is not None:
            page = read_bounded(workspace.folder / CARD_FILE, _MAX_PAGE_BYTES).decode("utf-8")
            return note_on_new_page(page, CARD_FILE)
    return None
