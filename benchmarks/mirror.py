"""Measure a mirror side by side with a Hub, and write the part of docs/benchmarks.md about it.

    python benchmarks/mirror.py [--existing PYTHON] [--library FILE] [--rounds 3]

The same kernels, from a local Hub by the existing client, from that Hub by this one, and from a mirror of it that a
plain web server serves. Each figure comes from processes of their own, in turn; both servers are the same program, and
wait before every answer. Nothing here fails a build: what cannot be measured is written down as that.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import itertools
import json
import os
import platform
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from local_hub import SlowFiles, SlowHub, SlowServer, write_builds, write_kernel
from machine import Begun, measure, measured, project_with_lock, remove
from side_by_side import (
    EXISTING,
    OUTPUT,
    SOURCE,
    Client,
    Results,
    Sample,
    Started,
    cores,
    cpu_name,
    environment,
    existing_client,
    machine_load,
    medians,
    version_of,
    write_section,
)

SMALL, LARGE = 3, 63  # files in a build
COMPILED_BYTES = 200 * 10**6
LOCKED = 50  # kernels of a lockfile
LOCKED_REPOSITORIES = [f"bench/locked-{index:02}" for index in range(LOCKED)]
LATENCIES = (0.01, 0.05, 0.2)  # seconds
GIGABIT = 125_000_000  # bytes per second
REPOSITORIES = 10_000  # of the index
BUILDS = 20  # of each of them

#: Who reads from where, in the order of the columns.
COLUMNS = ("existing, Hub", "ours, Hub", "ours, mirror")


@dataclass(frozen=True)
class Case:
    """What is loaded, and how."""

    name: str
    workload: str
    warm: bool = False
    rate: float = float("inf")  # bytes per second of the server's line
    latencies: tuple[float, ...] = LATENCIES

    @property
    def key(self) -> str:
        return f"{self.name}, {'warm' if self.warm else 'cold'}"


CASES = (
    Case(f"{SMALL} files", "small"),
    Case(f"{SMALL} files", "small", warm=True),
    Case(f"{LARGE} files", "large"),
    Case(f"{LARGE} files", "large", warm=True),
    Case("200 MB build", "compiled"),
    Case("200 MB build, 1 Gbit/s", "compiled", rate=GIGABIT, latencies=(0.05,)),
    Case("200 MB build, 100 Mbit/s", "compiled", rate=GIGABIT / 10, latencies=(0.05,)),
    Case("200 MB build", "compiled", warm=True, latencies=(0.05,)),
    Case(f"{LOCKED} kernels of a lockfile", "locked"),
    Case(f"{LOCKED} kernels of a lockfile", "locked", warm=True),
)


@dataclass
class Place:
    """Where one column reads from."""

    client: Client
    server: SlowServer
    variables: dict[str, str]


@dataclass
class Bench:
    """The two servers, and the folder of caches."""

    folder: Path
    places: dict[str, Place]
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def begin(self, case: Case, column: str, latency: float) -> Begun:
        """Start a process that measures a case."""
        place = self.places[column]
        cache = self.folder / f"cache-{next(self.numbers)}"
        if case.warm:
            cache = self.folder / f"warm-{case.workload}-{column.replace(', ', '-')}"
            if not cache.exists():
                measured([self._start(place, case, cache)], place.server, 0.0)
        started = self._start(place, case, cache)

        def run() -> Sample:
            sample = measured([started], place.server, latency, case.rate)
            if not case.warm:
                remove(cache)
            return sample

        return Begun(run, [started])

    def _start(self, place: Place, case: Case, cache: Path) -> Started:
        workload, arguments = "get", {"repo_id": f"bench/{case.workload}", "version": 1, "session": True}
        if case.workload == "locked":
            workload, arguments = "lockfile", {"project": os.fspath(self.folder / "project"), "session": True}
        env = environment(self.folder, cache, KERNELS_BACKEND="cpu", **place.variables)
        return Started(place.client, workload, arguments, env=env, cwd=self.folder)


# What is served


def write_hub(root: Path, library: Path) -> list[str]:
    """Write the kernels; return the repositories."""
    write_kernel(root, "bench/small", SMALL)
    write_kernel(root, "bench/large", LARGE)
    with library.open("rb") as file:
        write_kernel(root, "bench/compiled", SMALL, file.read(COMPILED_BYTES))
    write_builds(root, "bench/unsigned", BUILDS, signed=False)
    write_builds(root, "bench/signed", BUILDS, signed=True)
    for repo_id in LOCKED_REPOSITORIES:
        write_kernel(root, repo_id, SMALL)
    return ["bench/small", "bench/large", "bench/compiled", "bench/unsigned", "bench/signed", *LOCKED_REPOSITORIES]


def default_library() -> Path | None:
    """Torch's largest library: compiled code that is there wherever this runs."""
    folder = Path(sysconfig.get_path("purelib"), "torch", "lib")
    found = sorted(folder.glob("lib*.so"), key=lambda path: path.stat().st_size) if folder.is_dir() else []
    return found[-1] if found and found[-1].stat().st_size >= COMPILED_BYTES else None


# The page


def cell(results: Results, key: str, column: str, figure: str, form: str = "{}") -> str:
    value = results.median(key, column, figure)
    if value is None:
        return "failed" if (key, column) in results.failures else "–"
    return size_of(value) if figure == "bytes" else form.format(value)


def requests_table(results: Results) -> list[str]:
    lines = [
        f"| at {LATENCIES[1] * 1e3:.0f} ms | {' | '.join(COLUMNS)} | target of the mirror | met |",
        "|---|" + "---|" * (len(COLUMNS) + 2),
    ]
    for case in CASES:
        if LATENCIES[1] not in case.latencies or case.rate != float("inf"):
            continue
        key = named(case, LATENCIES[1])
        cells = [
            f"{cell(results, key, column, 'requests', '{:.0f}')}"
            f" ({cell(results, key, column, 'depth', '{:.0f}')}),"
            f" {cell(results, key, column, 'bytes')}"
            for column in COLUMNS
        ]
        most = requests_target(case)
        ours = results.median(key, COLUMNS[2], "requests")
        met = "" if most is None else "–" if ours is None else "yes" if ours <= most else "**no**"
        lines.append(f"| {case.key} | {' | '.join(cells)} | {'' if most is None else most} | {met} |")
    return lines


def requests_target(case: Case) -> int | None:
    """Row 13 of the targets: the requests to a mirror. A large archive comes in ranges, side by side."""
    if case.workload == "compiled" and not case.warm:
        return None
    if case.workload == "locked":
        return 0 if case.warm else 2 * LOCKED
    return 1 if case.warm else 2


def times_table(results: Results, figure: str) -> list[str]:
    lines = [
        f"| | latency | {' | '.join(COLUMNS)} | mirror / existing | a third or less |",
        "|---|---|" + "---|" * len(COLUMNS) + "---|---|",
    ]
    for case in CASES:
        for latency in case.latencies:
            key = named(case, latency)
            cells = [cell(results, key, column, figure, "{:.2f} s") for column in COLUMNS]
            existing, mirror = (results.median(key, column, figure) for column in (COLUMNS[0], COLUMNS[2]))
            ratio, met = "–", "–"
            if existing and mirror is not None:
                ratio = f"{mirror / existing:.2f}"
                met = "yes" if mirror <= existing / 3 else "**no**"
            lines.append(
                f"| {case.key} | {latency * 1e3:.0f} ms | {' | '.join(cells)} | {ratio} | {'' if case.warm else met} |"
            )
    return lines


def named(case: Case, latency: float) -> str:
    return f"{case.key}, {latency * 1e3:.0f} ms"


def report(
    results: Results, places: dict[str, Place], load: str, arguments: argparse.Namespace, index: list[str], size: str
) -> str:
    existing = places[COLUMNS[0]].client if COLUMNS[0] in places else None
    ours = places[COLUMNS[2]].client
    now = datetime.datetime.now(datetime.timezone.utc)
    return "\n".join(
        [
            "## From a mirror",
            "",
            f"- date: {now:%Y-%m-%d %H:%M} UTC",
            f"- machine: {cpu_name()}, {cores()} cores, {platform.platform()}; {load}",
            f"- Python {platform.python_version()}, huggingface_hub "
            f"{version_of(existing, 'huggingface_hub')} (existing) and {version_of(ours, 'huggingface_hub')} (ours)",
            f"- existing: kernels {version_of(existing, 'kernels')}; ours: kernels {version_of(ours, 'kernels')}",
            f"- method: {medians(arguments.rounds)}, or of fewer where they took more than 10 s together, each "
            "a process of its own, in turn; one local Hub, and a mirror of it behind a plain web server, both the same "
            "program on the same machine, which waits before every answer",
            f"- the 200 MB build: {size}",
            "",
            "Requests (in brackets: one after the other), and bytes of the answers. A large archive comes in ranges, "
            "several at once:",
            "",
            *requests_table(results),
            "",
            "Time from before `import kernels` to the usable result, Torch imported and huggingface_hub's session made "
            "before. Without a rate, the line is as fast as the machine:",
            "",
            *times_table(results, "seconds"),
            "",
            "Where a mirror takes more than a third of the existing client's time: with few files and a short latency, "
            "most of the time is the client's own, which no source changes. A large build on a line as fast as the "
            "machine takes what its bytes cost: the existing client writes them as they come, a mirror's are hashed, "
            "decompressed, and hashed again; on a network's line, its fewer bytes count. Warm, it takes longer than a "
            "Hub: the request with a condition, which is answered with 304, leaves after the imports, that to a Hub "
            "before them.",
            "",
            f"The index of a mirror of {REPOSITORIES:,} repositories with {BUILDS} builds each:",
            "",
            *index,
            *results.failed(),
            "",
        ]
    )


def measure_index(folder: Path, mirror: Path, ours: Client) -> list[str]:
    """What a client reads of a large mirror, and what that costs: lines of a table."""
    lines = ["| a client reads | plain | gzip | to read it and choose | memory |", "|---|---|---|---|---|"]
    for repo_id, what in (("bench/unsigned", "without signatures"), ("bench/signed", "signed builds")):
        document = mirror / "api" / "kernels" / repo_id / "refs"
        data = document.read_bytes()
        commit = json.loads(data)["content"]["branches"]["v1"]
        arguments = {"document": os.fspath(document), "repo_id": repo_id, "commit": commit}
        process = Started(ours, "choose", arguments, env=environment(folder, folder / "unused"), cwd=folder)
        process.go()
        sample = process.sample()
        lines.append(
            f"| the index of one repository, {BUILDS} builds, {what} | {kilobytes(data)} | "
            f"{kilobytes(gzip.compress(data))} | {sample['ms']:.1f} ms | {sample['mb']:.1f} MB |"
        )
    own = json.loads((mirror / "mirror.json").read_bytes())
    [entry] = [value for name, value in own["content"]["repositories"].items() if name == "bench/unsigned"]
    own["content"]["repositories"] = {
        f"org-{number // 50:03}/kernel-{number:05}": entry for number in range(REPOSITORIES)
    }
    data = json.dumps(own, separators=(",", ":")).encode()
    lines.append(
        f"| (not read: `mirror.json`, for writers) | {kilobytes(data)} | {kilobytes(gzip.compress(data))} | | |"
    )
    return lines


def size_of(value: float) -> str:
    """A number of bytes."""
    return f"{value / 1e6:.0f} MB" if value >= 1e6 else f"{value / 1e3:.1f} kB" if value else "0"


def kilobytes(data: bytes) -> str:
    return f"{len(data) / 1000:,.1f} kB"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--existing", metavar="PYTHON", help=f"a Python that has {EXISTING}; default: make one")
    parser.add_argument("--ours", metavar="PYTHON", help="a Python that has this client; default: the source here")
    parser.add_argument(
        "--library", metavar="FILE", type=Path, help="compiled code for the 200 MB build; default: Torch's"
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each measurement (default 3)")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="cases with such a word; print these, write no file")
    parser.add_argument("--output", type=Path, default=OUTPUT, help=f"default {OUTPUT.name} in docs/")
    arguments = parser.parse_args()
    library = arguments.library or default_library()
    if library is None or library.stat().st_size < COMPILED_BYTES:
        parser.error(f"expected --library FILE, a compiled library of {COMPILED_BYTES // 10**6} MB or more")
    load = machine_load()

    with tempfile.TemporaryDirectory(prefix="kernels-bench-") as temporary:
        folder = Path(temporary)
        mirror = folder / "mirror"
        repositories = write_hub(folder / "hub", library)
        ours = Client("ours", arguments.ours or sys.executable, "" if arguments.ours else os.fspath(SOURCE))
        with SlowHub(folder / "hub", 0.0) as hub:
            project_with_lock(hub, folder / "project", LOCKED_REPOSITORIES)
            command = [ours.python, "-m", "kernels", "mirror", os.fspath(mirror)]
            command += [f"--repo={repo_id}" for repo_id in repositories]
            variables = {"KERNELS_HUB": hub.url, "KERNELS_BACKEND": "cpu", "PYTHONPATH": ours.source}
            env = environment(folder, folder / "writer", **variables)
            subprocess.run(command, env=env, cwd=folder, check=True)
            with SlowFiles(mirror, 0.0) as files:
                places = {
                    COLUMNS[1]: Place(ours, hub, {"HF_ENDPOINT": hub.url}),
                    COLUMNS[2]: Place(ours, files, {"KERNELS_HUB": files.url}),
                }
                existing = existing_client(arguments.existing, folder)
                if existing is not None:
                    places = {COLUMNS[0]: Place(existing, hub, {"HF_ENDPOINT": hub.url}), **places}
                results = run(Bench(folder, places), arguments)
        if arguments.only:
            for key, samples in results.samples.items():
                print(*key, *[json.dumps(sample) for sample in samples], sep="\n  ")
            return
        size = f"the first 200 MB of {library.name}, {archive_size(mirror) / 1e6:.0f} MB in the mirror"
        text = report(results, places, load, arguments, measure_index(folder, mirror, ours), size)
        write_section(arguments.output, "mirror", text)
        print(text)


def archive_size(mirror: Path) -> int:
    """Bytes of the largest archive, that of the compiled build."""
    return max(path.stat().st_size for path in (mirror / "archives").rglob("*.zst"))


def run(bench: Bench, arguments: argparse.Namespace) -> Results:
    results = Results()
    for column in bench.places:  # bytecode, the page cache, what huggingface_hub fetches once a day
        bench.begin(CASES[0], column, 0.0).run()
    planned = [(case, latency) for case in CASES for latency in case.latencies]
    for case, latency in planned:
        name = named(case, latency)
        if arguments.only and not all(word in name for word in arguments.only):
            continue
        print(f"{name}, {arguments.rounds} rounds", file=sys.stderr)
        begins = {column: partial(bench.begin, case, column, latency) for column in bench.places}
        measure(results, name, begins, arguments.rounds)
    return results


if __name__ == "__main__":
    main()
