"""The kernel set of GPU runs, pinned in lockfiles/kernels-gpu.lock: the example kernels that need no compiler.

What a commit of them contains follows from their sources alone, so the lock says exactly what a GPU run tested. Run
`make lock-kernels` after a change to the sources.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from example_kernels import SOURCES, example_builder

from kernels.serve.catalog import Catalog

__all__ = ["LOCK", "build_kernel_set", "lock_text", "locked_commits"]

LOCK = Path(__file__).parents[2] / "lockfiles" / "kernels-gpu.lock"


def build_kernel_set(root: Path) -> Path:
    """Build the set below a folder that is in no git repository, and return the folder of repositories."""
    # Copied out of the repository: a build's metadata names the commit of its sources, where there is one, and would
    # differ from one commit to the next.
    sources = shutil.copytree(SOURCES, root / "sources", ignore=shutil.ignore_patterns("__pycache__", "build"))
    hub = root / "hub"
    example_builder().build_examples(hub, noarch_only=True, sources=sources)
    return hub


def locked_commits() -> dict[tuple[str, int], str]:
    """The lock's commits, by repository and version."""
    return {
        (entry["dependency"]["repo-id"], entry["dependency"]["version"]): entry["lock"]["commit"]
        for entry in json.loads(LOCK.read_text(encoding="utf-8"))
    }


def lock_text(hub: Path) -> str:
    """The lock of the repositories below a folder."""
    catalog = Catalog(hub)
    entries = [
        {
            "dependency": {"repo-id": repo_id, "version": int(branch.removeprefix("v"))},
            "lock": {"commit": commit},
        }
        for repo_id in sorted(path.relative_to(hub).as_posix() for path in hub.glob("*/*"))
        for branch, commit in sorted(catalog.branches(repo_id).items())
    ]
    return json.dumps(entries, indent=2) + "\n"


def main() -> None:
    """Write the lock."""
    with tempfile.TemporaryDirectory() as folder:
        LOCK.write_text(lock_text(build_kernel_set(Path(folder))), encoding="utf-8")
    sys.stdout.write(f"Wrote {LOCK.name}: {len(locked_commits())} kernels\n")


if __name__ == "__main__":
    main()
