"""The Triton kernels, forward and backward, under Triton's interpreter.

Triton decides for its interpreter when it is imported, so each kernel has an interpreter of Python to itself.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from pathlib import Path

import torch
from example_kernels import CHECKS, load_example

hub, name, backend = sys.argv[1:]
check, operator = CHECKS[name]
check(operator(load_example(Path(hub), name, backend)), "cpu", [torch.float32, torch.bfloat16])
print("checked", name)
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
@pytest.mark.parametrize("name", ["rms-norm", "silu-and-mul", "rotary"])
def test_triton_kernels_match_their_float64_reference(example_hub: Path, name: str) -> None:
    support = Path(__file__).parents[1] / "fixtures"
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(support), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, str(example_hub), name, "cuda"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"checked {name}\n")
