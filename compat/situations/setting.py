"""Where a situation takes place, and the list of all."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Each situation by its name, in the order of this file.
SITUATIONS: dict[str, Callable[[Any], object]] = {}


def situation(name: str) -> Callable[[Callable[[Any], object]], Callable[[Any], object]]:
    def register(function: Callable[[Any], object]) -> Callable[[Any], object]:
        assert name not in SITUATIONS, name
        SITUATIONS[name] = function
        return function

    return register


@dataclass
class Setting:
    """Where a situation takes place."""

    url: str
    folder: Path
    commits: dict[str, str]
    repositories: Path
    own: Path = field(default_factory=Path)

    def offline(self) -> None:
        from huggingface_hub import constants

        constants.HF_HUB_OFFLINE = True

    def write(self, name: str, content: str) -> Path:
        path = self.own / name
        path.write_text(content, encoding="utf-8")
        return path

    def lock(self, repo_id: str = "acme/relu", version: int = 1, **changes: Any) -> Path:
        """A lockfile that pins one kernel."""
        entry = {
            "dependency": {"repo-id": repo_id, "version": version},
            "lock": {"commit": self.commits[f"{repo_id}@v{version}"]},
        }
        return self.write("kernels.lock", json.dumps([{**entry, **changes}]))

    def local(self, repo_id: str, revision: str = "v1") -> Path:
        """A repository's folder."""
        return self.repositories / repo_id / revision
