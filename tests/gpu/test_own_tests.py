"""`kernels test` with tests that import the kernel by its name, on an NVIDIA GPU: Triton and compiled."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from kernels.authoring.compile import build_kernel, build_variants
from kernels.authoring.own_tests.run import run_tests
from kernels.authoring.scaffold import new_kernel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

ARGUMENTS = ("-q", "-p", "no:cacheprovider")

TRITON = {
    "build.toml": """
[general]
name = "tripled"
version = 1
license = "MIT"
backends = ["cuda"]

[general.hub]
repo-id = "org/tripled"

[torch-noarch]
""",
    "torch-ext/tripled/__init__.py": "from ._ops import ops\nfrom .kernel import tripled\n",
    "torch-ext/tripled/kernel.py": """
import torch
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton

from ._ops import add_op_namespace_prefix


@triton.jit
def _tripled(x, out, count, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < count
    tl.store(out + at, 3 * tl.load(x + at, mask=inside), mask=inside)


@triton_op(add_op_namespace_prefix("tripled"), mutates_args=())
def tripled(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    wrap_triton(_tripled)[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), 256)
    return out
""",
    "torch-ext/tripled/layers.py": """
from torch import nn

from .kernel import tripled


class Tripled(nn.Module):
    def forward(self, x):
        return tripled(x)
""",
    "tests/__init__.py": "",
    "tests/conftest.py": """
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "torch-ext"))
""",
    "tests/utils.py": "COUNT = 1000\n",
    "tests/test_tripled.py": """
import multiprocessing

import pytest
import torch
import tripled as ops
from tripled.layers import Tripled

import kernels

from .utils import COUNT


def in_a_process(count):
    x = torch.ones(count, device="cuda")
    return ops.tripled(x).sum().item()


@pytest.mark.kernels_ci
def test_by_name():
    x = torch.randn(COUNT, device="cuda")
    torch.testing.assert_close(ops.tripled(x), 3 * x)
    torch.testing.assert_close(Tripled()(x), 3 * x)
    torch.testing.assert_close(getattr(torch.ops, ops.__name__).tripled(x), 3 * x)
    assert kernels.get_kernel("org/tripled", version=1) is ops


def test_compiled():
    x = torch.randn(COUNT, device="cuda")
    torch.testing.assert_close(torch.compile(ops.tripled, fullgraph=True)(x), 3 * x)


def test_in_a_spawned_process():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(in_a_process, (COUNT,)) == 3 * COUNT
""",
}


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_a_triton_kernel_is_tested_by_its_name(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name, text in TRITON.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    build_kernel(tmp_path, tmp_path)
    assert run_tests(tmp_path, ARGUMENTS) == 0, capfd.readouterr().out
    assert "3 passed" in capfd.readouterr().out
    assert run_tests(tmp_path, ARGUMENTS, backend="cuda") == 0
    assert run_tests(tmp_path, ARGUMENTS, variant="torch-cuda") == 0


@pytest.mark.compiler
def test_a_compiled_kernel_is_tested_by_its_name(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = new_kernel("my-relu", tmp_path / "my-relu", backends=["cuda"], repo_id="org/my-relu")
    [test] = (folder / "tests").iterdir()
    test.write_text(
        """
import my_relu
import torch
from my_relu.layers import ReLU

import kernels


def test_by_name():
    x = torch.randn(1000, device="cuda")
    torch.testing.assert_close(my_relu.relu(x), torch.relu(x))
    torch.testing.assert_close(ReLU()(x), torch.relu(x))
    assert kernels.get_kernel("org/my-relu", version=1) is my_relu
    assert my_relu.ops.relu is not None
"""
    )
    [outcome] = build_variants(folder, folder, this_gpu=True)
    if outcome.reason.startswith("No compiler"):
        pytest.skip(outcome.reason)
    assert outcome.path is not None, f"{outcome.reason}\n{outcome.detail}"
    assert run_tests(folder, ARGUMENTS) == 0, capfd.readouterr().out
