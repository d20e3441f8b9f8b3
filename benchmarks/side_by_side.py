"""What benchmarks of two clients share: the other client, its samples, and the page that they are written to."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "EXISTING",
    "OUTPUT",
    "SECTIONS",
    "WORKLOADS",
    "Client",
    "Failed",
    "Results",
    "Sample",
    "cores",
    "cpu_name",
    "finish",
    "machine_load",
    "make_existing",
    "marker",
    "version_of",
    "write_section",
]

EXISTING = "kernels==0.17.2"
WORKLOADS = Path(__file__).with_name("workloads.py")
OUTPUT = Path(__file__).parent.parent / "docs" / "benchmarks.md"

#: The scripts that write a part of the page, in the order of their parts.
SECTIONS = ("client", "growth", "mirror", "gpu_kernels", "gpu_model")

Sample = dict[str, Any]


class Failed(Exception):
    """A process that measures ended with an error."""


@dataclass(frozen=True)
class Client:
    """One of the two: what it is called in the table, and the Python that has it."""

    name: str
    python: str


def finish(process: subprocess.Popen[str]) -> Sample:
    output, errors = process.communicate(timeout=600)
    if process.returncode:
        raise Failed((errors.strip() or f"exit status {process.returncode}").splitlines()[-1])
    sample: Sample = json.loads(output.splitlines()[-1])
    return sample


class Results:
    """The samples of both clients, and their medians."""

    def __init__(self) -> None:
        self.samples: dict[tuple[str, str], list[Sample]] = {}
        self.failures: dict[tuple[str, str], str] = {}

    def add(self, measurement: str, client: Client, measure: Callable[[], Sample]) -> None:
        key = measurement, client.name
        if key in self.failures:
            return
        try:
            self.samples.setdefault(key, []).append(measure())
        except (Failed, subprocess.TimeoutExpired, OSError, ValueError) as error:
            self.failures[key] = str(error)[:300]
            print(f"{measurement}, {client.name}: {error}", file=sys.stderr)

    def median(self, measurement: str, client: str, what: str) -> float | None:
        """The median of a figure; None when it could not be measured."""
        key = measurement, client
        if key in self.failures or key not in self.samples:
            return None
        return float(statistics.median(sample[what] for sample in self.samples[key]))

    def last(self, measurement: str, client: str, what: str) -> Any:
        samples = self.samples.get((measurement, client))
        return samples[-1].get(what) if samples else None


def version_of(client: Client | None, package: str) -> str:
    if client is None:
        return "not measured"
    command = f"import importlib.metadata as metadata; print(metadata.version({package!r}))"
    done = subprocess.run([client.python, "-c", command], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def machine_load() -> str:
    if not hasattr(os, "getloadavg"):
        return "load unknown"
    return f"load average before the start {os.getloadavg()[0]:.1f}"


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def make_existing(folder: Path) -> str:
    """Make an environment that has the existing client and borrows all else from this one; return its Python."""
    venv.create(folder, with_pip=True, symlinks=os.name != "nt")
    python = str(folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
    query = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run([python, "-c", query], check=True, capture_output=True, text=True).stdout.strip()
    # Last on the path, so that the environment's own packages come first.
    borrowed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    Path(site, "borrowed.pth").write_text("\n".join(sorted(borrowed)) + "\n")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", EXISTING], check=True)
    return python


def write_section(path: Path, name: str, text: str) -> None:
    """Replace the part of a page that one of the scripts writes, and keep those of the others.

    Args:
        path: The page; made if it is not there.
        name: The script's, one of `SECTIONS`. It is the order of the page, and a part without text is left out.
        text: Markdown, which begins with a heading.

    Raises:
        ValueError: The name is none of `SECTIONS`.
    """
    if name not in SECTIONS:
        raise ValueError(f"expected one of {', '.join(SECTIONS)}, got {name!r}")
    written = path.read_text(encoding="utf-8") if path.exists() else ""
    _, *pieces = _MARKER.split(written)
    parts = dict(zip(pieces[::2], pieces[1::2], strict=True))
    parts[name] = text
    path.parent.mkdir(parents=True, exist_ok=True)
    page = [f"{marker(each)}\n{parts[each].strip()}" for each in SECTIONS if parts.get(each, "").strip()]
    path.write_text("\n\n".join(page) + "\n", encoding="utf-8")


def marker(name: str) -> str:
    """The line, which readers do not see, that begins a script's part of the page."""
    return f"<!-- written by benchmarks/{name}.py; do not edit by hand -->"


_MARKER = re.compile(marker("([a-z_]+)").replace(".py", "[.]py"))
