"""What this project put on disk: shown, cleared away, and checked; what other tools put there is left alone."""

from __future__ import annotations

from kernels.cached.clearing import Kept, Plan, Pruned, plan, prune
from kernels.cached.content_check import Checked, check_contents
from kernels.cached.contents import CacheContents, CachedBuild, CachedCommit, frees, look

__all__ = [
    "CacheContents",
    "CachedBuild",
    "CachedCommit",
    "Checked",
    "Kept",
    "Plan",
    "Pruned",
    "check_contents",
    "frees",
    "look",
    "plan",
    "prune",
]
