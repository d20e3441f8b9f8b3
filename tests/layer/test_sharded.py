"""A kernelized model runs in Torch's own wrappers for several devices, also if it is kernelized inside of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from forked import Interpreter, started

pytest.importorskip("torch")

_RUN = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from kernels import Mode, kernelize, kernelize_report
from layer_models import KernelNorm, Norm

order, wrapper, store = sys.argv[1:]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)

class Gives:
    def load(self):
        return KernelNorm

def kernelized(model):
    return kernelize(model, {"Norm": {"cpu": Gives()}}, mode=Mode.TRAINING)

def wrapped(model):
    if wrapper == "fully_shard":
        for layer in model:
            fully_shard(layer)
        return fully_shard(model)
    if wrapper == "FSDP":
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    return nn.parallel.DistributedDataParallel(model)

norm = Norm()
norm.weight.requires_grad_()
model, x = nn.Sequential(nn.Linear(1, 1), norm), torch.ones(2, 1)
expected = (model(x) + 100).detach()
for step in (kernelized, wrapped) if order == "before" else (wrapped, kernelized):
    model = step(model)
y = model(x)
y.sum().backward()
torch.testing.assert_close(y.detach(), expected)
[row] = kernelize_report(model)
assert row.kernelized
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def torch_process() -> Iterator[Interpreter]:
    """A process that has imported Torch, with what wraps models."""
    with started("import torch, torch.distributed.fsdp") as interpreter:
        yield interpreter


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("wrapper", ["fully_shard", "FSDP", "DDP"])
def test_a_kernelized_layer_runs_in_a_wrapper_for_several_devices(
    order: str, wrapper: str, torch_process: Interpreter, tmp_path: Path
) -> None:
    path = [Path(__file__).parents[1] / "fixtures"]
    done = torch_process.run(_RUN, tmp_path, order, wrapper, tmp_path / "store", path=path)
    assert done.returncode == 0, done.stderr
