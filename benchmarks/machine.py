"""Processes that measure against one local Hub: made ready together, measured one after the other."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from local_hub import SlowHub, SlowServer
from side_by_side import Client, Failed, Results, Sample, Started, environment

__all__ = ["BATCH", "Begin", "Machine", "measure", "measured"]

#: Processes that are made ready together. Importing Torch takes longest, and one process imports it on one core.
BATCH = 8

#: What begins a measurement: it starts a process and returns what lets it measure.
Begin = Callable[[], "Begun"]


@dataclass
class Begun:
    """A process that is ready, or soon will be, and what lets it measure."""

    run: Callable[[], Sample]
    processes: list[Started] = field(default_factory=list)


@dataclass
class Machine:
    """What the processes run in: the Hub, and the folder that caches are made in."""

    hub: SlowHub
    folder: Path
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def empty_cache(self) -> Path:
        """A folder that no process has used."""
        return self.folder / f"cache-{next(self.numbers)}"

    def warm_cache(self, client: Client, **which: Any) -> Path:
        """The folder in which a client has a kernel already, and knows what it learned when it got it."""
        place = self.folder / f"warm-{client.name}-{'-'.join(str(part).replace('/', '-') for part in which.values())}"
        if not place.exists():
            self.begin(client, "get", place, latency=0.0, **which).run()
        return place

    def begin(
        self,
        client: Client,
        workload: str,
        cache: Path | None = None,
        *,
        latency: float,
        processes: int = 1,
        flags: tuple[str, ...] = (),
        variables: dict[str, str] | None = None,
        **arguments: Any,
    ) -> Begun:
        """Start processes that measure a workload at the same time.

        Args:
            client: Whose.
            workload: A function of `workloads.py`.
            cache: The folder of kernels; a process that has none asks no Hub.
            latency: Seconds that the Hub waits before each answer.
            processes: How many.
            flags: Of the Python.
            variables: Environment variables that are set.
            arguments: Of the workload.

        Returns:
            What lets them measure. Its sample is that of the process that took longest, with what the Hub saw.
        """
        place = {"HF_ENDPOINT": self.hub.url, **(variables or {})}
        env = environment(self.folder, cache or self.folder / "unused", **place)
        started = [Started(client, workload, arguments, flags, env=env, cwd=self.folder) for _ in range(processes)]
        return Begun(lambda: measured(started, self.hub, latency), started)


def measured(started: Sequence[Started], server: SlowServer, latency: float, rate: float = float("inf")) -> Sample:
    """Let processes measure at once, and add what the server saw to the sample of the slowest."""
    for process in started:
        process.wait()
    server.latency, server.rate = latency, rate
    server.requests.clear()
    for process in started:
        process.go()
    samples = [process.sample() for process in started]
    slowest = max(samples, key=lambda sample: sample.get("seconds", 0.0))
    return {
        **slowest,
        "requests": len(server.requests),
        "depth": server.depth(),
        "at_once": server.at_once(),
        "bytes": slowest.get("bytes", server.sent),
        "asked": [request.target for request in server.requests],
    }


def measure(results: Results, name: str, begins: dict[str, Begin], rounds: int, batch: int = BATCH) -> None:
    """Measure a few columns in turn, each as often as `rounds` says.

    Args:
        results: Where the samples go.
        name: Of the measurement.
        begins: What begins it, for each column.
        rounds: How often.
        batch: How many processes are made ready before the first of them measures.
    """
    turns = [column for _ in range(rounds) for column in begins]
    for part in range(0, len(turns), batch):
        ready = []
        for column in turns[part : part + batch]:
            if (name, column) in results.failures or results.enough(name, column):
                continue
            try:
                ready.append((column, begins[column]()))
            except (Failed, OSError, ValueError) as error:
                ready.append((column, Begun(_failing(error))))
        for _, begun in ready:
            for process in begun.processes:
                process.wait()
        for column, begun in ready:
            if results.enough(name, column):
                for process in begun.processes:
                    process.stop()
            else:
                results.add(name, column, begun.run)


def _failing(error: Exception) -> Callable[[], Sample]:
    def fail() -> Sample:
        raise error

    return fail


def project_with_lock(hub: SlowHub, folder: Path, repo_ids: Sequence[str]) -> Path:
    """Write a project whose lockfile, in the format that both clients read, has these kernels; return its folder."""
    import json

    entries = []
    for repo_id in repo_ids:
        commit = hub.server.catalog.commit(repo_id, "v1").id
        entries.append({"dependency": {"repo-id": repo_id, "version": 1}, "lock": {"commit": commit}})
    folder.mkdir(exist_ok=True)
    (folder / "pyproject.toml").touch()
    (folder / "kernels.lock").write_text(json.dumps(entries))
    return folder


def remove(folder: Path) -> None:
    """Remove a cache, read-only files and all."""
    import subprocess

    subprocess.run(["rm", "-rf", os.fspath(folder)], check=True)
