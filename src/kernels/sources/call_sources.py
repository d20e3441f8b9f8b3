"""The sources of one call: folders of the user first, then Hubs, mirrors and folders of repositories, in order."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kernels.errors import RepositoryNotFound

if TYPE_CHECKING:
    from kernels.settings import Verify
    from kernels.sources.base import Source
else:  # `inspect.signature` and `help` evaluate the types of a struct's fields
    Verify = Source = Any

__all__ = ["Sources"]


class Sources(msgspec.Struct, frozen=True):
    """The sources of one call.

    Attributes:
        default: The source of every repository that is not in `overrides`: the one that is asked first.
        overrides: The folders of the user (`LOCAL_KERNELS`), by repository.
        verify: When the content of the overrides is checked.
        following: The sources of what the first one does not have, in the order in which they are asked.
    """

    default: Source
    overrides: Mapping[str, Path] = {}
    verify: Verify | None = None
    following: tuple[Source, ...] = ()

    def all_of(self, repo_id: str) -> tuple[Source, ...]:
        """The sources of a repository, in the order in which they are asked.

        Raises:
            RepositoryNotFound: As for `of`.
        """
        first = self.of(repo_id)
        return (first,) if repo_id in self.overrides else (first, *self.following)

    def of(self, repo_id: str) -> Source:
        """The source of a repository that is asked first.

        Raises:
            RepositoryNotFound: `LOCAL_KERNELS` names a folder for it that holds no kernel.
        """
        path = self.overrides.get(repo_id)
        if path is None:
            return self.default
        try:
            from kernels.sources.folder import PathSource

            return PathSource(path, verify=self.verify)
        except RepositoryNotFound as error:
            raise RepositoryNotFound(f"`LOCAL_KERNELS` names {path} for {repo_id}. {error}") from None
