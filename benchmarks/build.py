"""How long `kernels build` takes: `python benchmarks/build.py [--json FILE]`.

For each of the example kernels' source folders: a full build into an empty folder, once, and a build with nothing to
do, the median of several. Each is a process of its own; what Python alone takes to start stands beside them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPEATS = 9
SOURCES = Path(__file__).parents[1] / "examples" / "kernels"


def main() -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures to a file, too")
    options = parser.parse_args()
    start = statistics.median(_seconds("-c", "pass") for _ in range(REPEATS))
    print(f"Python's own start: {start:.3f} s\n")
    print(f"{'sources':28} {'full':>8} {'no change':>10} {'beyond Python':>14}")
    builds: dict[str, Any] = {}
    for build_toml in sorted(SOURCES.glob("*/*/build.toml")):
        name = build_toml.parent.relative_to(SOURCES).as_posix()
        full, unchanged = measure(build_toml.parent)
        builds[name] = {"full": full, "no_change": unchanged}
        print(f"{name:28} {full:7.3f}s {unchanged:9.3f}s {unchanged - start:13.3f}s")
    if options.json is not None:
        options.json.write_text(json.dumps({"python_start": start, "builds": builds}, indent=2) + "\n")
    return 0


def measure(source: Path) -> tuple[float, float]:
    """Seconds of a full build of a source folder, and of one with nothing to do.

    Args:
        source: The folder with `build.toml`.

    Returns:
        Both times.
    """
    with tempfile.TemporaryDirectory() as out:
        command = ("-m", "kernels", "build", str(source), "--out", out)
        full = _seconds(*command)
        return full, statistics.median(_seconds(*command) for _ in range(REPEATS))


def _seconds(*arguments: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
