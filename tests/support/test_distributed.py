"""Ranks of a job agree on one commit, over real stores."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from kernels.support import distributed
from kernels.support.distributed import agree

RANK = textwrap.dedent(
    """
    import sys
    import torch.distributed as dist
    from kernels.support.distributed import agree

    rank, world, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    asked = []
    if rank != 2:  # one rank never asks, and nobody waits for it
        answer = agree("org/relu@v1", lambda: asked.append(1) or f"commit-of-{rank}")
        print(answer, agree("org/relu@v1", lambda: "another"))
    dist.barrier()
    dist.destroy_process_group()
    """
)


def test_without_a_job_the_answer_is_ones_own() -> None:
    assert agree("key", lambda: "mine") == "mine"
    assert agree("key", lambda: "mine again") == "mine again"


def test_all_ranks_get_the_answer_of_the_first_that_asked(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), "3", str(tmp_path / "store")], stdout=subprocess.PIPE, text=True
        )
        for rank in range(3)
    ]
    outputs = [rank.communicate(timeout=120)[0].split() for rank in ranks]
    assert all(rank.returncode == 0 for rank in ranks)
    answers = {answer for output in outputs for answer in output}
    assert len(answers) == 1
    assert outputs[2] == []
    assert answers <= {"commit-of-0", "commit-of-1"}


@pytest.mark.parametrize("call", ["check", "get", "compare_set"])
def test_a_store_that_does_not_answer_in_time_costs_only_the_agreement(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    torch = pytest.importorskip("torch")
    store = torch.distributed.HashStore()
    if call == "get":
        store.set("kernels/key", "of another rank")

    class Late:
        def __getattr__(self, name: str) -> object:
            return late if name == call else getattr(store, name)

    def late(*_: object) -> None:
        raise torch.distributed.DistStoreError("wait timeout after 300000ms")

    monkeypatch.setattr(distributed, "_store", Late)
    asked: list[int] = []
    assert agree("key", lambda: asked.append(1) or "mine") == "mine"  # type: ignore[func-returns-value]
    assert asked == [1]
