"""What benchmarks of two clients share: the other client, its samples, and the page that they are written to."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "EXISTING",
    "OUTPUT",
    "SECTIONS",
    "SOURCE",
    "WORKLOADS",
    "Client",
    "Failed",
    "Results",
    "Sample",
    "Started",
    "commit_of",
    "cores",
    "cpu_name",
    "environment",
    "existing_client",
    "machine_load",
    "marker",
    "medians",
    "version_of",
    "write_section",
]

EXISTING = "kernels==0.17.2"
WORKLOADS = Path(__file__).with_name("workloads.py")
OUTPUT = Path(__file__).parent.parent / "docs" / "benchmarks.md"

#: The scripts that write a part of the page, in the order of their parts.
SECTIONS = ("client", "growth", "mirror", "gpu_kernels", "gpu_model", "autotune")

#: A measurement is repeated until its runs took this long together.
SLOW_SECONDS = 10.0

#: The source beside these scripts: what they measure, whatever is installed.
SOURCE = Path(__file__).parent.parent / "src"

Sample = dict[str, Any]


class Failed(Exception):
    """A process that measures ended with an error."""


@dataclass(frozen=True)
class Client:
    """One of those that are compared: what it is called in the table, and the Python that has it.

    Attributes:
        name: The column.
        python: The Python.
        source: The folder of its source, if it is not installed in that Python.
    """

    name: str
    python: str
    source: str = ""


class Started:
    """A process of `workloads.py` that becomes ready, and waits for its turn to measure."""

    def __init__(self, client: Client, workload: str, arguments: Sample, flags: tuple[str, ...] = (), **how: Any):
        self._ready = False
        # A file, as nobody reads a pipe while the process becomes ready.
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        environment = {**how.pop("env"), "PYTHONPATH": client.source}
        self._process = subprocess.Popen(
            [client.python, *flags, os.fspath(WORKLOADS), workload, json.dumps(arguments)],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, **how,
        )  # fmt: skip

    def wait(self) -> None:
        """Wait until it is ready, or has ended."""
        assert self._process.stdout is not None
        if not self._ready:
            self._process.stdout.readline()
            self._ready = True

    def go(self) -> None:
        """Let it measure, without waiting for the end."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it ended early: `sample` tells why
            self._process.stdin.write("\n")
            self._process.stdin.flush()

    def sample(self) -> Sample:
        """What it measured; with the times of imports, if it was started to write them."""
        output, _ = self._process.communicate(timeout=600)
        self._errors.seek(0)
        errors = self._errors.read()
        self._errors.close()
        if self._process.returncode:
            raise Failed((errors.strip() or f"exit status {self._process.returncode}").splitlines()[-1])
        sample: Sample = json.loads(output.splitlines()[-1])
        return {**sample, **imports(errors.partition("ready\n")[2])}

    def stop(self) -> None:
        """End it, if it has not ended."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()


def imports(written: str) -> Sample:
    """Milliseconds of imports, and how many, from what `python -X importtime` wrote; nothing if it wrote nothing."""
    found = [(int(own), name.strip()) for own, name in _IMPORT.findall(written)]
    if not found:
        return {}
    own = [microseconds for microseconds, name in found if name.partition(".")[0] == "kernels"]
    return {
        "imports": len(found),
        "imports_ms": sum(microseconds for microseconds, _ in found) / 1e3,
        "own_imports": len(own),
        "own_imports_ms": sum(own) / 1e3,
    }


_IMPORT = re.compile(r"^import time:\s+(\d+) \|\s+\d+ \|(.*)$", re.MULTILINE)


class Results:
    """The samples of all clients, and their medians."""

    def __init__(self) -> None:
        self.samples: dict[tuple[str, str], list[Sample]] = {}
        self.failures: dict[tuple[str, str], str] = {}

    def add(self, measurement: str, column: str, measure: Callable[[], Sample]) -> None:
        """Add what `measure` returns, or write down why it could not be measured."""
        key = measurement, column
        if key in self.failures:
            return
        try:
            self.samples.setdefault(key, []).append(measure())
        except (Failed, subprocess.TimeoutExpired, OSError, ValueError) as error:
            self.failures[key] = str(error)[:300]
            print(f"{measurement}, {column}: {error}", file=sys.stderr)

    def enough(self, measurement: str, column: str, figure: str = "seconds") -> bool:
        """Whether more runs would tell nothing new: they are slow, and what varies is some hundredths of a second."""
        samples = self.samples.get((measurement, column), [])
        return sum(sample.get(figure, 0.0) for sample in samples) > SLOW_SECONDS

    def failed(self) -> list[str]:
        """Lines of the page about what could not be measured."""
        failures = [f"- {measurement}, {column}: {error}" for (measurement, column), error in self.failures.items()]
        return ["", "Failed:", "", *failures] if failures else []

    def median(self, measurement: str, client: str, what: str) -> float | None:
        """The median of a figure; None when it could not be measured."""
        key = measurement, client
        figures = [sample[what] for sample in self.samples.get(key, ()) if what in sample]
        return None if key in self.failures or not figures else float(statistics.median(figures))

    def runs(self, measurement: str, client: str) -> int:
        """How many samples there are."""
        return len(self.samples.get((measurement, client), []))

    def last(self, measurement: str, client: str, what: str) -> Any:
        samples = self.samples.get((measurement, client))
        return samples[-1].get(what) if samples else None


def environment(folder: Path, cache: Path, **variables: str) -> dict[str, str]:
    """The environment of a process that measures: nothing of this one's settings.

    Args:
        folder: Where huggingface_hub keeps what it fetches once a day: one place for all processes.
        cache: The folder of kernels.
        variables: What is set beside that.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "KERNELS_", "PYTHON"))}
    return {
        **kept,
        "HF_HOME": os.fspath(folder / "home"),
        "HF_HUB_CACHE": os.fspath(cache),
        "KERNELS_CACHE": os.fspath(cache),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": "127.0.0.1",
        **variables,
    }


def version_of(client: Client | None, package: str) -> str:
    if client is None:
        return "not measured"
    command = f"import importlib.metadata as metadata; print(metadata.version({package!r}))"
    if client.source and package == "kernels":
        command = "import kernels; print(kernels.__version__)"
    environment = {**os.environ, "PYTHONPATH": client.source}
    done = subprocess.run([client.python, "-c", command], capture_output=True, text=True, env=environment)
    return done.stdout.strip() or "unknown"


def commit_of(client: Client) -> str:
    """The commit of a client's source and its date, if git knows them; else where the source is."""
    command = ["git", "-C", client.source, "log", "-1", "--format=commit %h of %cs"]
    with contextlib.suppress(OSError):  # no git
        done = subprocess.run(command, capture_output=True, text=True)
        if not done.returncode:
            return done.stdout.strip()
    return Path(client.source).parent.name


def medians(rounds: int) -> str:
    """How figures come from runs, for the page."""
    return "one run" if rounds == 1 else f"medians of {rounds} runs"


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


def existing_client(python: str | None, folder: Path) -> Client | None:
    """The existing client; None, with the reason printed, where it cannot be installed.

    Args:
        python: A Python that has it.
        folder: Where an environment is made for it otherwise, in a folder of its own.
    """
    try:
        return Client("existing", python or _make_existing(folder / "existing"))
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"The existing client is not measured: {error}", file=sys.stderr)
        return None


def _make_existing(folder: Path) -> str:
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
    parts[name] = _FIGURE.sub("\\1\N{NO-BREAK SPACE}\\2", text)
    path.parent.mkdir(parents=True, exist_ok=True)
    page = [f"{marker(each)}\n{parts[each].strip()}" for each in SECTIONS if parts.get(each, "").strip()]
    path.write_text("\n\n".join(page) + "\n", encoding="utf-8")


def marker(name: str) -> str:
    """The line, which readers do not see, that begins a script's part of the page."""
    return f"<!-- written by benchmarks/{name}.py; do not edit by hand -->"


#: A figure and its unit in a table, which are not to be on two lines.
_FIGURE = re.compile(r"(?<=\| )(-?[\d.,]+) (s|ms|µs|ns|[kM]B|GB/s)(?= \|)")

_MARKER = re.compile(marker("([a-z_]+)").replace(".py", "[.]py"))
