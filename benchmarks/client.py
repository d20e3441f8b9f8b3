"""Measure this client side by side with the existing one, and write the first part of docs/benchmarks.md.

    python benchmarks/client.py [--existing PYTHON] [--before CHECKOUT] [--rounds 5] [--only NAME ...]

Each figure comes from processes of their own, one client after the other in turn, against one local Hub that waits
before every answer, and so does the wire: the same requests, sent by a bare script over huggingface_hub's session. The
existing client gets an environment of its own, which borrows Torch and everything else from this one; `--existing`
names a Python that has it already. `--before` names an older checkout of this repository, whose processor time is
measured, too. Nothing here fails a build: what cannot be measured is written down as that.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from client_page import (
    CASES,
    COUNTS,
    DIGEST_BYTES,
    DIGEST_FILES,
    LATENCIES,
    LATENCY,
    OTHER_ROUNDS,
    PROCESSES,
    REPOSITORIES,
    Case,
    report,
    timed,
)
from local_hub import SlowHub, write_kernel
from machine import Begun, Machine, measure, project_with_lock
from side_by_side import (
    EXISTING,
    OUTPUT,
    SOURCE,
    Client,
    Results,
    Sample,
    existing_client,
    machine_load,
    write_section,
)

Begins = Callable[[Machine, Client], Begun]

#: Sets that `--only` takes beside the names of measurements.
GROUPS = ("time",)

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


# What is measured: each begins one sample of one client.


def import_only(machine: Machine, client: Client) -> Begun:
    def run(statement: str) -> Sample:
        done = subprocess.run(
            [client.python, "-c", _IMPORT.format(statement=statement)],
            env={**os.environ, "PYTHONPATH": client.source},
            cwd=machine.folder,
            capture_output=True,
            text=True,
            check=True,
        )
        sample: Sample = json.loads(done.stdout.splitlines()[-1])
        return sample

    return Begun(lambda: {**run("import kernels"), "bare_mb": run("pass")["mb"]})


def cold(case: Case, latency: float = LATENCY, **how: Any) -> Begins:
    def begin(machine: Machine, client: Client) -> Begun:
        cache = machine.empty_cache()
        return machine.begin(client, "get", cache, latency=latency, repo_id=case.repo_id, version=1, **how)

    return begin


def warm(workload: str = "get", latency: float = LATENCY, **how: Any) -> Begins:
    def begin(machine: Machine, client: Client) -> Begun:
        which = {"repo_id": "bench/small", "version": 1}
        cache = machine.warm_cache(client, **which)
        return machine.begin(client, workload, cache, latency=latency, **which, **how)

    return begin


def pinned(machine: Machine, client: Client) -> Begun:
    commit = machine.hub.server.catalog.commit("bench/small", "v1").id
    which = {"repo_id": "bench/small", "revision": commit}
    return machine.begin(client, "get", machine.warm_cache(client, **which), latency=LATENCY, **which)


def locked(machine: Machine, client: Client) -> Begun:
    project = project_with_lock(machine.hub, machine.folder / "locked", ["bench/small"])
    return warm(variables={"KERNELS_LOCKFILE": str(project / "kernels.lock")})(machine, client)


def construct(machine: Machine, client: Client) -> Begun:
    project = project_with_lock(machine.hub, machine.folder / "project", ["bench/small"])
    (project / "model.py").write_text(_CONSTRUCT)
    return machine.begin(client, "construct", latency=LATENCY, project=str(project), repeats=10_000)


def together(machine: Machine, client: Client) -> Begun:
    which = {"repo_id": "bench/large", "version": 1}
    return machine.begin(client, "get", machine.empty_cache(), latency=LATENCY, processes=PROCESSES, **which)


def kernelize_cold(machine: Machine, client: Client) -> Begun:
    repositories = [f"bench/layer-{index}" for index in range(REPOSITORIES)]
    cache = machine.empty_cache()
    return machine.begin(client, "kernelize_repositories", cache, latency=LATENCY, repo_ids=repositories)


def on_warm_cache(workload: str, **arguments: Any) -> Begins:
    def begin(machine: Machine, client: Client) -> Begun:
        cache = machine.warm_cache(client, repo_id="bench/small", version=1)
        return machine.begin(client, workload, cache, latency=LATENCY, **arguments)

    return begin


def digest(machine: Machine, client: Client) -> Begun:
    folder = machine.folder / "digest"
    if not folder.exists():
        folder.mkdir()
        for index in range(DIGEST_FILES):
            (folder / f"{index}.so").write_bytes(os.urandom(DIGEST_BYTES))
    size = DIGEST_FILES * DIGEST_BYTES
    return machine.begin(client, "digest", latency=LATENCY, path=str(folder), size=size, repeats=5)


def digest_one(machine: Machine, client: Client) -> Begun:
    file = machine.folder / "one.so"
    if not file.exists():
        file.write_bytes(os.urandom(DIGEST_BYTES) * DIGEST_FILES)
    return machine.begin(client, "digest_one", latency=LATENCY, path=str(file), repeats=5)


def bare(workload: str, **arguments: Any) -> Begins:
    return lambda machine, client: machine.begin(client, workload, latency=LATENCY, **arguments)


#: By name. The times of row 5 are in `time_of`.
MEASUREMENTS: dict[str, Begins] = {
    "import": import_only,
    "warm pinned": pinned,
    "warm offline": warm(variables={"HF_HUB_OFFLINE": "1"}),
    "warm locked": locked,
    "warm refresh": warm(variables={"KERNELS_REFRESH": "3600"}),
    "first byte": warm("first_byte", session=True),
    "imports warm": warm(session=True, flags=("-X", "importtime")),
    "imports cold": cold(CASES[0], session=True, flags=("-X", "importtime")),
    "hub parts": bare("hub_parts"),
    "together": together,
    "kernelize cold": kernelize_cold,
    "modules": on_warm_cache("kernelize_modules", repo_id="bench/small", counts=COUNTS, repeats=1),
    "mapping": on_warm_cache("enter_mapping", layers=500, repeats=101),
    "call": on_warm_cache("call_layer", repo_id="bench/small", calls=2_000, repeats=100),
    "compile": on_warm_cache("compile_layer", repo_id="bench/small"),
    "digest": digest,
    "construct": construct,
    "builds": bare("choose_listed", builds=10_000, files=2),
    "kinds": bare("plan_kinds", kinds=1_000, layers=100_000, repeats=1),
    "digest one": digest_one,
}

#: These exist in this client only, or ask nothing of a client.
OURS_ONLY = {"imports warm", "imports cold", "hub parts", "builds", "kinds", "digest one"}

#: Only what they count is shown, which does not vary: these runs are enough.
COUNTED = {"warm pinned", "warm offline", "warm locked", "warm refresh", "imports warm", "imports cold", "compile"}
COUNTED_ROUNDS = 2

#: Each of their processes uses all cores, or as many of them as there are: none waits beside them.
ALONE = {"together", "modules", "call", "compile", "digest", "digest one", "kinds", "mapping"}


def time_of(case: Case, latency: float, session: bool) -> Begins:
    """What begins a measurement of row 5."""
    if case.warm:
        return warm(latency=latency, session=session)
    return cold(case, latency, session=session)


def wire(asked: list[str], connections: int, latency: float = LATENCY) -> Begins:
    """The requests that a call needs, without the call.

    Args:
        asked: What a client requested.
        connections: The most that it uses at once.
        latency: Seconds before each answer.
    """
    arguments = {"rounds": necessary(asked), "connections": connections}
    return lambda machine, client: machine.begin(client, "wire", latency=latency, **arguments)


def necessary(asked: list[str]) -> list[list[str]]:
    """The requests of a call in as few round trips as they can have.

    Args:
        asked: Paths and queries of what a client requested.

    Returns:
        The branches and the publisher, then the commit's files, then the contents of the build.
    """
    trips: list[list[str]] = [[], [], []]
    for target in dict.fromkeys(asked):
        trips[2 if "/resolve/" in target else 1 if "/tree/" in target else 0].append(target)
    return [trip for trip in trips if trip]


def columns(begin: Begins, machine: Machine, clients: list[Client]) -> dict[str, Callable[[], Begun]]:
    """What begins a measurement, for each client."""

    def of(client: Client) -> Callable[[], Begun]:
        return lambda: begin(machine, client)

    return {client.name: of(client) for client in clients}


def measure_times(results: Results, machine: Machine, clients: list[Client], rounds: int) -> None:
    """Measure row 5: each case at each latency, with huggingface_hub's session made before, and without."""
    [ours] = [client for client in clients if client.name == "ours"]
    seen = {case.name: time_of(case, LATENCY, True)(machine, ours).run() for case in CASES}
    connections = max(sample["at_once"] for sample in seen.values())
    for case in CASES:
        for latency in LATENCIES:
            for session in (True, False):
                name = timed(case, session, latency)
                runs = rounds if latency == LATENCY else min(rounds, OTHER_ROUNDS)
                print(f"{name}, {runs} rounds", file=sys.stderr)
                # The processor time of an older version is asked once, where the table shows it.
                shown = [client for client in clients if client.name != "before" or (session and latency == LATENCY)]
                begins = columns(time_of(case, latency, session), machine, shown)
                if session:
                    begins |= columns(
                        wire(seen[case.name]["asked"], connections, latency), machine, [Client("wire", ours.python)]
                    )
                measure(results, name, begins, runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--existing", metavar="PYTHON", help=f"a Python that has {EXISTING}; default: make one")
    parser.add_argument("--ours", metavar="PYTHON", help="a Python that has this client; default: the source here")
    parser.add_argument("--before", metavar="CHECKOUT", type=Path, help="an older checkout of this repository")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each measurement (default 5)")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", choices=[*GROUPS, *MEASUREMENTS], help="print these, write no file"
    )
    parser.add_argument("--output", type=Path, default=OUTPUT, help=f"default {OUTPUT.name} in docs/")
    arguments = parser.parse_args()
    names = arguments.only or [*GROUPS, *MEASUREMENTS]
    load = machine_load()

    with tempfile.TemporaryDirectory(prefix="kernels-bench-") as temporary:
        folder = Path(temporary)
        for case in CASES[:2]:
            write_kernel(folder / "hub", case.repo_id, case.files)
        for index in range(REPOSITORIES):
            write_kernel(folder / "hub", f"bench/layer-{index}", CASES[0].files)
        ours = Client("ours", arguments.ours or sys.executable, "" if arguments.ours else str(SOURCE))
        clients = [ours]
        if arguments.before is not None:
            clients.insert(0, Client("before", ours.python, str(arguments.before.resolve() / "src")))
        existing = existing_client(arguments.existing, folder)
        if existing is not None:
            clients.insert(0, existing)
        results = Results()
        with SlowHub(folder / "hub", LATENCY) as hub:
            machine = Machine(hub, folder)
            for client in clients:  # bytecode, the page cache, what huggingface_hub fetches once a day
                for begin in (import_only, warm()):
                    Results().add("", client.name, lambda begin=begin, client=client: begin(machine, client).run())
            compared = [client for client in clients if client.name != "before"]
            for name in names:
                if name in GROUPS:
                    measure_times(results, machine, clients, arguments.rounds)
                    continue
                rounds = min(arguments.rounds, COUNTED_ROUNDS) if name in COUNTED else arguments.rounds
                print(f"{name}, {rounds} rounds", file=sys.stderr)
                shown = [ours] if name in OURS_ONLY else compared
                begins = columns(MEASUREMENTS[name], machine, shown)
                measure(results, name, begins, rounds, **({"batch": 1} if name in ALONE else {}))
        if arguments.only:
            for key, samples in results.samples.items():
                print(*key, *[json.dumps({**sample, "asked": len(sample.get("asked", []))}) for sample in samples],
                      sep="\n  ")  # fmt: skip
            for line in results.failed():
                print(line)
            return
        by_name = {client.name: client for client in clients}
        text = report(results, by_name, load, arguments.rounds)
        write_section(arguments.output, "client", text)
        print(text)


if __name__ == "__main__":
    main()
