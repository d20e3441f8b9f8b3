"""Measure how costs grow, and write the curves of docs/benchmarks.md.

    python benchmarks/growth.py [--existing PYTHON] [--rounds 3] [--only NAME ...]

Requests and time over the files of a build, the builds of a repository, the kernels of a lockfile, the processes that
load at once, and the layers of a model; this client and the existing one in turn, each sample in a process of its own,
against a local Hub that waits before every answer. What takes longer than 10 seconds is measured once.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from client import columns, wire
from client_page import LATENCY
from growth_page import GROWTHS, IMAGES, Growth, report, sample_name, write_pictures
from local_hub import SlowHub, write_kernel, write_many_builds
from machine import BATCH, Begun, Machine, measure, project_with_lock
from side_by_side import EXISTING, OUTPUT, SOURCE, Client, Results, existing_client, machine_load, write_section

LARGE = 63  # files of the kernel that processes load at once


def files(machine: Machine, client: Client, count: int) -> Begun:
    return get(machine, client, f"bench/files-{count}")


def builds(machine: Machine, client: Client, count: int) -> Begun:
    return get(machine, client, f"bench/builds-{count}")


def kernels(machine: Machine, client: Client, count: int) -> Begun:
    names = [f"bench/locked-{index:02}" for index in range(count)]
    project = project_with_lock(machine.hub, machine.folder / f"project-{count}", names)
    variables = {"KERNELS_BACKEND": "cpu"}
    return machine.begin(
        client, "lockfile", machine.empty_cache(), latency=LATENCY, session=True, variables=variables,
        project=str(project),
    )  # fmt: skip


def processes(machine: Machine, client: Client, count: int) -> Begun:
    which = {"repo_id": "bench/large", "version": 1}
    cache = machine.empty_cache()
    return machine.begin(client, "get", cache, latency=LATENCY, processes=count, session=True, **which)


def layers(machine: Machine, client: Client, count: int) -> Begun:
    cache = machine.warm_cache(client, repo_id="bench/files-3", version=1)
    arguments = {"repo_id": "bench/files-3", "counts": [count], "repeats": 3}
    return machine.begin(client, "kernelize_modules", cache, latency=0.0, **arguments)


def get(machine: Machine, client: Client, repo_id: str) -> Begun:
    cache = machine.empty_cache()
    return machine.begin(client, "get", cache, latency=LATENCY, session=True, repo_id=repo_id, version=1)


BEGIN: dict[str, Callable[..., Begun]] = {
    "files": files,
    "builds": builds,
    "kernels": kernels,
    "processes": processes,
    "layers": layers,
}


def write_hub(root: Path, growths: list[Growth]) -> None:
    """Write the repositories that a measurement of these needs."""
    wanted = {growth.name: growth.counts for growth in growths}
    for count in {3, *wanted.get("files", ())}:
        write_kernel(root, f"bench/files-{count}", count)
    for count in wanted.get("builds", ()):
        write_many_builds(root, f"bench/builds-{count}", count)
    for index in range(max(wanted.get("kernels", (0,)))):
        write_kernel(root, f"bench/locked-{index:02}", 3)
    if "processes" in wanted:
        write_kernel(root, "bench/large", LARGE)


def measure_growth(results: Results, machine: Machine, clients: list[Client], growth: Growth, rounds: int) -> None:
    """Measure all points of a growth."""
    connections = 0  # the most that this client uses at once
    if growth.name == "files":
        connections = files(machine, clients[-1], growth.counts[-1]).run()["at_once"]
    for count in growth.counts:
        print(f"{growth.name} {count:,}, {rounds} rounds", file=sys.stderr)
        shown = [client for client in clients if client.name == "ours" or count in growth.of_existing]
        begins = columns(partial(BEGIN[growth.name], count=count), machine, shown)
        if connections:
            asked = files(machine, clients[-1], count).run()["asked"]
            begins |= columns(wire(asked, connections), machine, [Client("the wire", clients[-1].python)])
        alone = growth.name in ("processes", "layers")
        measure(results, sample_name(growth, count), begins, rounds, 1 if alone else BATCH)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--existing", metavar="PYTHON", help=f"a Python that has {EXISTING}; default: make one")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each measurement (default 3)")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=BEGIN, help="print these, write no file")
    parser.add_argument("--output", type=Path, default=OUTPUT, help=f"default {OUTPUT.name} in docs/")
    arguments = parser.parse_args()
    growths = [growth for growth in GROWTHS if growth.name in (arguments.only or BEGIN)]
    load = machine_load()

    with tempfile.TemporaryDirectory(prefix="kernels-bench-") as temporary:
        folder = Path(temporary)
        write_hub(folder / "hub", growths)
        clients = [Client("ours", sys.executable, str(SOURCE))]
        existing = existing_client(arguments.existing, folder)
        if existing is not None:
            clients.insert(0, existing)
        results = Results()
        with SlowHub(folder / "hub", LATENCY) as hub:
            machine = Machine(hub, folder)
            for client in clients:  # bytecode, the page cache, what huggingface_hub fetches once a day
                files(machine, client, 3).run()
            for growth in growths:
                measure_growth(results, machine, clients, growth, arguments.rounds)
        text = report(results, growths, clients, load, arguments.rounds)
        if not arguments.only:
            write_pictures(results, growths, arguments.output.parent / IMAGES)
            write_section(arguments.output, "growth", text)
        print(text)


if __name__ == "__main__":
    main()
