"""Ranks of a `torch.distributed` job, each a process: one commit for all, one download for each cache."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hub import TestHub

START = """
import os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from kernels import get_kernel, install_kernel

rank, world, shared = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])

def begin(name):
    # The first rank holds the store, on a port that is free.
    port = shared / f"{name}.port"
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, world, is_master=True, wait_for_workers=False)
        (shared / "port.tmp").write_text(str(store.port))
        os.replace(shared / "port.tmp", port)
    else:
        wait_for(port)
        store = dist.TCPStore("127.0.0.1", int(port.read_text()), world, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)

def wait_for(path):
    while not path.exists():
        time.sleep(0.02)

def say(word):
    print(word, flush=True)

def commit(module_or_folder):
    return Path(str(getattr(module_or_folder, "__file__", module_or_folder))).as_posix().split("/snapshots/")[1][:40]
"""


class Job:
    """Processes that are ranks, two of which share a node's cache."""

    def __init__(self, shared: Path, caches: Path) -> None:
        self.shared, self.caches = shared, caches
        self.ranks: list[subprocess.Popen[str]] = []

    def start(self, code: str, world: int) -> None:
        for rank in range(world):
            environment = {**os.environ, "KERNELS_CACHE": str(self.caches / f"node{rank // 2}"), "OMP_NUM_THREADS": "1"}
            arguments = [sys.executable, "-c", START + code, str(rank), str(world), str(self.shared)]
            self.ranks.append(subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, text=True))

    def let(self, name: str) -> None:
        """Let ranks that wait for a file go on."""
        (self.shared / name).touch()

    def said(self, rank: int) -> str:
        """The next line of a rank."""
        stdout = self.ranks[rank].stdout
        assert stdout is not None
        return stdout.readline().strip()

    def kill(self, rank: int) -> None:
        self.ranks[rank].send_signal(signal.SIGKILL)
        self.ranks[rank].wait(timeout=30)


@pytest.fixture
def job(isolated_env: Path, tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path / "job", isolated_env)
    job.shared.mkdir()
    yield job
    for rank in job.ranks:
        rank.kill()
        rank.communicate(timeout=30)


def move_on(hub: TestHub) -> None:
    """The branch gets another commit; the Hub still has the one before."""
    branch = hub.root / "acme" / "relu" / "v1"
    shutil.copytree(branch, branch.with_name(hub.commit()))
    hub.make_repo("acme/relu", seed="later")


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert condition()


def test_ranks_of_two_nodes_use_one_commit_and_download_once_a_node(hub: TestHub, job: Job) -> None:
    hub.make_repo("acme/relu")
    asked_first = hub.commit()
    job.start(
        """
class SiluAndMul(torch.nn.Module):
    def forward(self, input):
        return input

begin("first")
if rank == 0:
    say(commit(get_kernel("acme/relu", version=1)))
elif rank != 2:  # which never asks, and nobody waits for it
    wait_for(shared / "moved")
    from kernels import LayerRepository, kernelize, replace_kernel_forward_from_hub, use_kernel_mapping, Mode
    replace_kernel_forward_from_hub(SiluAndMul, "Silu")
    model = torch.nn.Sequential(SiluAndMul())
    repository = LayerRepository("acme/relu", layer_name="SiluAndMul", version=1)
    with use_kernel_mapping({"Silu": {"cpu": repository}}):
        kernelize(model, mode=Mode.INFERENCE, device="cpu")
    say(model[0].forward.__func__.__globals__["__file__"].split("/snapshots/")[1][:40])
wait_for(shared / "again")
dist.destroy_process_group()
begin("second")
say(commit(get_kernel("acme/relu", version=1)))
dist.barrier()
dist.destroy_process_group()
say(commit(install_kernel("acme/relu", version=1)))
""",
        world=4,
    )
    assert job.said(0) == asked_first
    assert hub.count("/resolve/") == 3
    move_on(hub)
    assert hub.commit() != asked_first
    job.let("moved")
    assert [job.said(rank) for rank in (1, 3)] == [asked_first] * 2
    # Each node once: the other one asks whether a branch leads to the commit that it was given.
    assert (hub.count("/refs$"), hub.count("/commits/")) == (2, 1), hub.asked()
    assert hub.count("/resolve/") == 6  # once for each node, not for each rank
    assert hub.count("/tree/") == 2

    job.let("again")  # another job of the same processes agrees anew
    answers = [job.said(rank) for rank in range(4)]
    assert len(set(answers)) == 1
    assert answers[0] in (asked_first, hub.commit())
    assert all(job.said(rank) for rank in range(4))
    assert [rank.wait(timeout=60) for rank in job.ranks] == [0] * 4


def test_a_rank_that_dies_takes_no_other_with_it(hub: TestHub, job: Job) -> None:
    hub.make_repo("acme/relu")
    asked_first = hub.commit()
    hub.hang("layers.py")
    job.start(
        """
begin("job")
if rank != 0:
    wait_for(shared / f"ask{rank}")
    say(commit(get_kernel("acme/relu", version=1)))
    wait_for(shared / f"more{rank}")
    say(commit(get_kernel("acme/gelu", version=1)))
    os._exit(0)  # the rank that holds the store is gone: there is nothing to take leave of
time.sleep(600)
""",
        world=4,
    )
    job.let("ask1")
    until(lambda: hub.count("layers.py") > 0)
    job.kill(1)  # while it downloads, with the lock and the word on the commit
    move_on(hub)
    hub.heal()
    job.let("ask2")
    assert job.said(2) == asked_first

    job.kill(0)  # and the store with it
    hub.make_repo("acme/gelu")
    job.let("ask3")
    job.let("more2")
    assert job.said(2) == hub.commit("acme/gelu")
    job.let("more3")
    assert [job.said(3) for _ in range(2)] == [hub.commit(), hub.commit("acme/gelu")]
    assert [job.ranks[rank].wait(timeout=60) for rank in (2, 3)] == [0, 0]
