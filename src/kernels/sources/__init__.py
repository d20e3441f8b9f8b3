"""Where kernels are found: overrides first, then the Hub or the folder that stands in for one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kernels import settings
from kernels.errors import RepositoryNotFound
from kernels.models.snapshot import Heads, RepoFile, Snapshot
from kernels.settings import Verify
from kernels.sources.base import Source
from kernels.sources.folder import FolderSource, PathSource

__all__ = ["FolderSource", "Heads", "PathSource", "RepoFile", "Snapshot", "Source", "Sources", "open_sources"]


@dataclass(frozen=True)
class Sources:
    """The sources of one call: `overrides` by repository, and `default` for every other one.

    `verify` says when the content of the overrides is checked.
    """

    default: Source
    overrides: Mapping[str, Path] = field(default_factory=dict)
    verify: Verify | None = None

    def of(self, repo_id: str) -> Source:
        """The source that answers for a repository.

        Raises:
            RepositoryNotFound: `LOCAL_KERNELS` names a folder for it that holds no kernel.
        """
        path = self.overrides.get(repo_id)
        if path is None:
            return self.default
        try:
            return PathSource(path, verify=self.verify)
        except RepositoryNotFound as error:
            raise RepositoryNotFound(f"`LOCAL_KERNELS` names {path} for {repo_id}. {error}") from None


def open_sources(
    *,
    user_agent: str | Mapping[str, str] | None = None,
    local_files_only: bool = False,
    overrides: bool = True,
    verify: Verify | None = None,
) -> Sources:
    """The sources that the settings name.

    Args:
        user_agent: What the caller adds to the `User-Agent` header of requests.
        local_files_only: Answer from the cache alone.
        overrides: Whether `LOCAL_KERNELS` counts.
        verify: When the content of builds is checked, the default as `KERNELS_VERIFY` says.
    """
    local = settings.local_kernels() if overrides else {}
    folder = settings.hub_folder()
    if folder is not None:
        return Sources(FolderSource(folder, verify=verify), local, verify)
    from kernels.sources.hub import HubSource

    hub = HubSource(settings.endpoint(), settings.cache_dir(), user_agent, offline=local_files_only, verify=verify)
    return Sources(hub, local, verify)
