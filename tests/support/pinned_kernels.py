"""The kernel set of GPU runs, pinned in lockfiles/kernels-gpu.lock: the example kernels that need no compiler.

What a commit of them contains follows from their sources alone, so the lock says exactly what a GPU run tested. Run
`make lock-kernels` after a change to the sources.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from example_kernels import SOURCES, example_builder

from kernels.lockfile import Lock
from kernels.serve import HubServer

__all__ = ["LOCK", "build_kernel_set", "lock_kernel_set", "locked_commits"]

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
    pins = Lock.read(LOCK).pins
    return {(pin.requirement.repo_id, pin.requirement.version or 0): pin.commit for pin in pins}


def lock_kernel_set(hub: Path, lock: Path, *options: str) -> str:
    """Lock what lockfiles/pyproject.toml asks for, from the repositories below a folder; returns what was printed."""
    publishers = {path.name for path in hub.iterdir()}
    with tempfile.TemporaryDirectory() as folder, HubServer(hub, trusted=publishers) as server:
        environment = os.environ | {"KERNELS_HUB": server.url, "KERNELS_CACHE": str(Path(folder) / "cache")}
        command = [sys.executable, "-m", "kernels", "lock", str(LOCK.parent), "--lockfile", str(lock), *options]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return done.stdout


def main() -> None:
    """Write the lock."""
    with tempfile.TemporaryDirectory() as folder:
        sys.stdout.write(lock_kernel_set(build_kernel_set(Path(folder)), LOCK, "--upgrade"))


if __name__ == "__main__":
    main()
