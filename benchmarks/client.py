"""Measure this client side by side with the existing one, and write docs/benchmarks.md.

    python benchmarks/client.py [--existing PYTHON] [--rounds 5]

Each figure comes from processes of their own, one client after the other in turn, against one local Hub that waits
50 ms before every answer. The existing client gets an environment of its own, which borrows Torch and everything else
from this one; `--existing` names a Python that has it already. Nothing here fails a build: what cannot be measured is
written down as that.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from local_hub import SlowHub, write_kernel
from side_by_side import (
    EXISTING,
    OUTPUT,
    WORKLOADS,
    Client,
    Results,
    Sample,
    cores,
    cpu_name,
    finish,
    machine_load,
    make_existing,
    version_of,
    write_section,
)

SMALL, LARGE = 3, 63  # files in a build
REPOSITORIES = 8  # that one model needs
PROCESSES = 8
COUNTS = (1_000, 10_000, 100_000)  # modules
DIGEST_FILES, DIGEST_BYTES = 8, 64 * 2**20

_IMPORT = """
import sys, time
start = time.perf_counter()
{statement}
seconds = time.perf_counter() - start
heavy = sorted({{"torch", "huggingface_hub"}} & set(sys.modules))
import resource
try:
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * resource.getpagesize()
except OSError:  # not Linux: the peak, which an import hardly differs from
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
import json
print(json.dumps({{"ms": seconds * 1e3, "mb": resident / 1e6, "heavy": heavy}}))
"""

_CONSTRUCT = """
from kernels import LayerRepository

def make():
    return LayerRepository("bench/small", layer_name="Answer", version=1)
"""


@dataclass
class Machine:
    """What the processes run in: the Hub, and the folder that caches are made in."""

    hub: SlowHub
    folder: Path
    numbers: Any = field(default_factory=itertools.count)

    def empty_cache(self) -> Path:
        return self.folder / f"cache-{next(self.numbers)}"

    def environment(self, cache: Path | None, **variables: str) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "KERNELS_", "PYTHON"))}
        return {
            **kept,
            "HF_ENDPOINT": self.hub.server.url,
            # One for all: huggingface_hub keeps there what it fetches once a day.
            "HF_HOME": str(self.folder / "home"),
            "HF_HUB_CACHE": str(cache or self.folder / "unused"),
            "KERNELS_CACHE": str(cache or self.folder / "unused"),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_XET": "1",
            "NO_PROXY": "127.0.0.1",
            "PYTHONPATH": "",
            **variables,
        }

    def start(
        self, client: Client, workload: str, cache: Path | None = None, **arguments: Any
    ) -> subprocess.Popen[str]:
        variables = arguments.pop("variables", {})
        return subprocess.Popen(
            [client.python, str(WORKLOADS), workload, json.dumps(arguments)],
            env=self.environment(cache, **variables),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, client: Client, workload: str, cache: Path | None = None, **arguments: Any) -> Sample:
        """The sample of one process, with the requests it made and how many of them came one after the other."""
        self.hub.requests.clear()
        sample = finish(self.start(client, workload, cache, **arguments))
        return {**sample, "requests": len(self.hub.requests), "depth": self.hub.depth()}


# What is measured: each gives one sample of one client.


def import_only(machine: Machine, client: Client) -> Sample:
    def run(statement: str) -> Sample:
        return finish(
            subprocess.Popen(
                [client.python, "-c", _IMPORT.format(statement=statement)],
                env=machine.environment(None),
                cwd=machine.folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )

    return {**run("import kernels"), "bare_mb": run("pass")["mb"]}


def cold(repo_id: str) -> Callable[[Machine, Client], Sample]:
    return lambda machine, client: machine.run(client, "get", machine.empty_cache(), repo_id=repo_id, version=1)


def warm(**how: Any) -> Callable[[Machine, Client], Sample]:
    def measure(machine: Machine, client: Client) -> Sample:
        cache = machine.folder / f"warm-{client.name}"
        which = {"repo_id": "bench/small", "version": 1}
        if not cache.exists():
            machine.run(client, "get", cache, **which)
        if how.get("revision"):
            which = {"repo_id": "bench/small", "revision": machine.hub.server.catalog.commit("bench/small", "v1").id}
            machine.run(client, "get", cache, **which)
        return machine.run(client, "get", cache, **which, variables=how.get("variables", {}))

    return measure


def locked(machine: Machine, client: Client) -> Sample:
    cache = machine.folder / f"warm-{client.name}"
    return warm(variables={"KERNELS_LOCKFILE": str(write_lock(machine, cache.parent / "bench.lock"))})(machine, client)


def construct(machine: Machine, client: Client) -> Sample:
    project = machine.folder / "project"
    project.mkdir(exist_ok=True)
    (project / "pyproject.toml").touch()
    (project / "model.py").write_text(_CONSTRUCT)
    write_lock(machine, project / "kernels.lock")
    return machine.run(client, "construct", project=str(project), repeats=10_000)


def write_lock(machine: Machine, path: Path) -> Path:
    """A lock of `bench/small` as it is, in the format that both clients read."""
    commit = machine.hub.server.catalog.commit("bench/small", "v1").id
    entry = {"dependency": {"repo-id": "bench/small", "version": 1}, "lock": {"commit": commit}}
    path.write_text(json.dumps([entry]))
    return path


def together(machine: Machine, client: Client) -> Sample:
    cache = machine.empty_cache()
    machine.hub.requests.clear()
    arguments = {"repo_id": "bench/large", "version": 1}
    processes = [machine.start(client, "get", cache, **arguments) for _ in range(PROCESSES)]
    samples = [finish(process) for process in processes]
    return {"requests": len(machine.hub.requests), "seconds": max(sample["seconds"] for sample in samples)}


def kernelize_cold(machine: Machine, client: Client) -> Sample:
    repositories = [f"bench/layer-{index}" for index in range(REPOSITORIES)]
    return machine.run(client, "kernelize_repositories", machine.empty_cache(), repo_ids=repositories)


def on_warm_cache(workload: str, **arguments: Any) -> Callable[[Machine, Client], Sample]:
    def measure(machine: Machine, client: Client) -> Sample:
        cache = machine.folder / f"warm-{client.name}"
        return machine.run(client, workload, cache, **arguments)

    return measure


def digest(machine: Machine, client: Client) -> Sample:
    folder = machine.folder / "digest"
    if not folder.exists():
        folder.mkdir()
        for index in range(DIGEST_FILES):
            (folder / f"{index}.so").write_bytes(os.urandom(DIGEST_BYTES))
    return machine.run(client, "digest", path=str(folder), size=DIGEST_FILES * DIGEST_BYTES, repeats=5)


MEASUREMENTS: dict[str, Callable[[Machine, Client], Sample]] = {
    "import": import_only,
    "cold small": cold("bench/small"),
    "cold large": cold("bench/large"),
    "warm": warm(),
    "warm pinned": warm(revision=True),
    "warm offline": warm(variables={"HF_HUB_OFFLINE": "1"}),
    "warm locked": locked,
    "warm refresh": warm(variables={"KERNELS_REFRESH": "3600"}),
    "together": together,
    "kernelize cold": kernelize_cold,
    "modules": on_warm_cache("kernelize_modules", repo_id="bench/small", counts=COUNTS, repeats=3),
    "mapping": on_warm_cache("enter_mapping", layers=500, repeats=101),
    "call": on_warm_cache("call_layer", repo_id="bench/small", calls=2_000, repeats=100),
    "compile": on_warm_cache("compile_layer", repo_id="bench/small"),
    "digest": digest,
    "construct": construct,
}


@dataclass(frozen=True)
class Row:
    """One line of the table: a figure of both clients, and what it must be."""

    number: str
    what: str
    measurement: str
    figure: str
    format: str
    target: str
    met: Callable[[float, float | None], bool]  # ours, existing


def at_most(limit: float) -> Callable[[float, float | None], bool]:
    return lambda ours, existing: ours <= limit


def part_of_existing(limit: float) -> Callable[[float, float | None], bool]:
    return lambda ours, existing: existing is not None and ours <= limit * existing


def rows(results: Results) -> list[Row]:
    def light() -> bool:
        return not results.last("import", "ours", "heavy")

    def linear() -> bool:
        few, many = (results.median("modules", "ours", str(count)) for count in (COUNTS[1], COUNTS[2]))
        return few is not None and many is not None and many <= 12 and many <= 1.5 * few

    def within_noise(ours: float, existing: float | None) -> bool:
        noise = results.median("call", "ours", "noise") or 0.0
        # A nanosecond is less than one instruction of the interpreter.
        return ours <= max(noise, 0.01 * (results.median("call", "ours", "plain") or 0.0), 1.0)

    one_process = results.median("cold large", "ours", "requests") or 0.0
    half, third = part_of_existing(1 / 2), part_of_existing(1 / 3)
    modules = [
        Row("8", f"`kernelize` per module once loaded, {count:,} modules", "modules", str(count), "{:.1f} µs",
            "12 µs or less" + (", linear" if count == COUNTS[2] else ""),
            (lambda ours, existing: linear()) if count == COUNTS[2] else at_most(12))
        for count in COUNTS[1:]
    ]  # fmt: skip
    return [
        Row("1", "`import kernels`", "import", "ms", "{:.0f} ms", "25 ms or less; no torch, no huggingface_hub",
            lambda ours, existing: ours <= 25 and light()),
        Row("2", f"requests, cold, {SMALL} files", "cold small", "requests", "{:.0f}", f"{3 + SMALL} or fewer",
            at_most(3 + SMALL)),
        Row("2", "of them one after the other", "cold small", "depth", "{:.0f}", "4 or fewer", at_most(4)),
        Row("3", f"requests, cold, {LARGE} files", "cold large", "requests", "{:.0f}", f"{3 + LARGE} or fewer",
            at_most(3 + LARGE)),
        Row("4", "requests, warm, new process, `version=1`", "warm", "requests", "{:.0f}", "1", at_most(1)),
        Row("4", "the same, pinned to a commit", "warm pinned", "requests", "{:.0f}", "0", at_most(0)),
        Row("4", "the same, locked", "warm locked", "requests", "{:.0f}", "0", at_most(0)),
        Row("4", "the same, `HF_HUB_OFFLINE=1`", "warm offline", "requests", "{:.0f}", "0", at_most(0)),
        Row("4", "the same, within `KERNELS_REFRESH`", "warm refresh", "requests", "{:.0f}", "0", at_most(0)),
        Row("5", f"time, cold, {SMALL} files", "cold small", "seconds", "{:.2f} s", "half or less", half),
        Row("5", f"time, cold, {LARGE} files", "cold large", "seconds", "{:.2f} s", "half or less", half),
        Row("5", "time, warm", "warm", "seconds", "{:.2f} s", "a third or less", third),
        Row("6", f"requests, {PROCESSES} processes at once, cold, {LARGE} files", "together", "requests", "{:.0f}",
            f"those of one process plus {PROCESSES} ({one_process + PROCESSES:.0f}) or fewer",
            at_most(one_process + PROCESSES)),
        Row("7", f"`kernelize` of a model that needs {REPOSITORIES} repositories, cold", "kernelize cold", "seconds",
            "{:.2f} s", "a third or less", third),
        *modules,
        Row("9", "entering `use_kernel_mapping` over 500 layers", "mapping", "ms", "{:.4f} ms", "0.1 ms or less",
            at_most(0.1)),
        Row("10", "a kernelized layer's call over its plain call", "call", "ns", "{:.0f} ns", "0 (within the noise)",
            within_noise),
        Row("10", "graphs under `torch.compile(fullgraph=True)`, three calls", "compile", "graphs", "{:.0f}", "1",
            at_most(1)),
        Row("11", "checking a SHA-256 digest", "digest", "gb_s", "{:.2f} GB/s", "3 GB/s or more on two cores",
            lambda ours, existing: ours >= 3),
        Row("12", "resident memory after `import kernels`", "import", "mb", "{:.1f} MB", "16 MB or less", at_most(16)),
    ]  # fmt: skip


def table(results: Results) -> list[str]:
    lines = ["| # | what | existing | ours | ratio | target | met |", "|---|---|---|---|---|---|---|"]
    for row in rows(results):
        cells = {}
        values = {}
        for client in ("existing", "ours"):
            value = values[client] = results.median(row.measurement, client, row.figure)
            failed = "failed" if (row.measurement, client) in results.failures else "not measured"
            cells[client] = failed if value is None else row.format.format(value)
        ours, existing = values["ours"], values["existing"]
        ratio = f"{ours / existing:.2f}" if ours is not None and existing is not None and existing > 0 else "–"
        met = "yes" if ours is not None and row.met(ours, existing) else "**no**"
        lines.append(
            f"| {row.number} | {row.what} | {cells['existing']} | {cells['ours']} | {ratio} | {row.target} | {met} |"
        )
    return lines


def report(results: Results, existing: Client | None, ours: Client, load: str, arguments: argparse.Namespace) -> str:
    def figure(measurement: str, client: str, what: str, form: str) -> str:
        value = results.median(measurement, client, what)
        return "not measured" if value is None else form.format(value)

    torch = results.last("cold small", "ours", "torch")
    notes = [
        "Times of rows 5 and 7 run from before `import kernels` to the usable result, Torch imported before and its "
        "objects hidden from the garbage collector, whose run over them would fall into either client's time: the "
        "existing client imports huggingface_hub with itself, this one when it first needs it. The calls alone, "
        "existing and ours: "
        + "; ".join(
            f"{name} {figure(key, 'existing', 'call', '{:.2f} s')} and {figure(key, 'ours', 'call', '{:.2f} s')}"
            for name, key in (
                (f"{SMALL} files", "cold small"),
                (f"{LARGE} files", "cold large"),
                ("warm", "warm"),
                (f"{REPOSITORIES} repositories", "kernelize cold"),
            )
        )
        + ".",
        "huggingface_hub itself asks once a day for `/api/agent-harnesses`, which it puts into the user agent; that "
        "request is not counted for either client.",
        f"Row 6 took {figure('together', 'existing', 'seconds', '{:.1f} s')} and "
        f"{figure('together', 'ours', 'seconds', '{:.1f} s')} until the last process was done.",
        f"Row 8, {COUNTS[0]:,} modules: {figure('modules', 'existing', str(COUNTS[0]), '{:.1f} µs')} and "
        f"{figure('modules', 'ours', str(COUNTS[0]), '{:.1f} µs')}.",
        "Row 10 takes the fastest of 100 series of 2,000 calls. A plain call takes "
        f"{figure('call', 'ours', 'plain', '{:.0f} ns')}; two plain layers differ by "
        f"{figure('call', 'ours', 'noise', '{:.0f} ns')}. That is the noise; 1% of a plain call counts as noise too.",
        f"Row 11 checks {DIGEST_FILES} files of {DIGEST_BYTES // 2**20} MiB from the page cache, on "
        f"{cores()} cores. One file is hashed by one core.",
        "Making a `LayerRepository`, for which this client finds the lock of the module that makes it, takes "
        f"{figure('construct', 'existing', 'us', '{:.1f} µs')} (existing) and "
        f"{figure('construct', 'ours', 'us', '{:.1f} µs')} (ours).",
        f"Row 12 is the whole process: bare Python has {figure('import', 'ours', 'bare_mb', '{:.1f} MB')} of it.",
    ]
    failures = [f"{measurement}, {client}: {error}" for (measurement, client), error in results.failures.items()]
    return "\n".join(
        [
            "# Benchmarks",
            "",
            "Written by `make bench` (`benchmarks/client.py`); do not edit by hand.",
            "",
            f"- date: {datetime.datetime.now(datetime.timezone.utc).date().isoformat()}",
            f"- machine: {cpu_name()}, {cores()} cores, {platform.platform()}; {load}",
            f"- Python {platform.python_version()}, Torch {torch}, huggingface_hub "
            f"{version_of(existing, 'huggingface_hub')} (existing) and {version_of(ours, 'huggingface_hub')} (ours)",
            f"- existing: kernels {version_of(existing, 'kernels')}; ours: kernels {version_of(ours, 'kernels')}",
            f"- method: medians of {arguments.rounds} runs, each a process of its own, the two clients in turn; one "
            f"local Hub that waits {arguments.latency * 1e3:.0f} ms before every answer",
            "",
            *table(results),
            "",
            "Notes:",
            "",
            *[f"- {note}" for note in notes],
            *(["", "Failed:", "", *[f"- {failure}" for failure in failures]] if failures else []),
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--existing", metavar="PYTHON", help=f"a Python that has {EXISTING}; default: make one")
    parser.add_argument("--ours", metavar="PYTHON", default=sys.executable, help="a Python that has this client")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each measurement (default 5)")
    parser.add_argument("--latency", type=float, default=0.05, help="seconds before every answer (default 0.05)")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=MEASUREMENTS, help="print these, write no file")
    parser.add_argument("--output", type=Path, default=OUTPUT, help=f"default {OUTPUT.name} in docs/")
    arguments = parser.parse_args()
    names = arguments.only or list(MEASUREMENTS)
    load = machine_load()

    with tempfile.TemporaryDirectory(prefix="kernels-bench-") as temporary:
        folder = Path(temporary)
        write_kernel(folder / "hub", "bench/small", SMALL)
        write_kernel(folder / "hub", "bench/large", LARGE)
        for index in range(REPOSITORIES):
            write_kernel(folder / "hub", f"bench/layer-{index}", SMALL)
        clients = [Client("ours", arguments.ours)]
        try:
            clients.insert(0, Client("existing", arguments.existing or make_existing(folder / "existing")))
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"The existing client is not measured: {error}", file=sys.stderr)
        results = Results()
        with SlowHub(folder / "hub", arguments.latency) as hub:
            machine = Machine(hub, folder)
            for client in clients:  # bytecode, the page cache, what huggingface_hub fetches once a day
                for name in ("import", "warm"):
                    Results().add(name, client, lambda name=name, client=client: MEASUREMENTS[name](machine, client))
            for name in names:
                for number in range(arguments.rounds):
                    print(f"{name} {number + 1}/{arguments.rounds}", file=sys.stderr)
                    for client in clients:
                        results.add(name, client, lambda name=name, client=client: MEASUREMENTS[name](machine, client))
        if arguments.only:
            for key, samples in results.samples.items():
                print(*key, *[json.dumps(sample) for sample in samples], sep="\n  ")
            return
        text = report(results, clients[0] if len(clients) > 1 else None, clients[-1], load, arguments)
        write_section(arguments.output, "client", text)
        print(text)


if __name__ == "__main__":
    main()
