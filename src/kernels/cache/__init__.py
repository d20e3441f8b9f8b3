"""What this project put on disk: shown, cleared away, and checked; what other tools put there is left alone."""

from __future__ import annotations

from kernels.cache.inventory import CacheContents, CachedBuild, CachedCommit, frees, look
from kernels.cache.prune import Kept, Plan, Pruned, plan, prune
from kernels.cache.scrub import Checked, check_contents

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
