"""The Triton kernels, forward and backward, under Triton's interpreter.

Triton chooses its interpreter when it is imported: the kernels run in a process of their own.
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
from example_kernels import CHECKS, check_fused_add_rms_norm, load_example

for name, (check, operator) in CHECKS.items():
    check(operator(load_example(Path(sys.argv[1]), name, "cuda")), "cpu", [torch.float32, torch.bfloat16])
    print("checked", name)
fused = load_example(Path(sys.argv[1]), "rms-norm", "cuda").ops.fused_add_rms_norm
check_fused_add_rms_norm(fused, "cpu", [torch.float32, torch.bfloat16])
print("checked", "fused")
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_triton_kernels_match_their_float64_reference(example_hub: Path) -> None:
    support = Path(__file__).parents[1] / "fixtures"
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(support), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, str(example_hub)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        "checked",
        "rms-norm",
        "checked",
        "silu-and-mul",
        "checked",
        "rotary",
        "checked",
        "fused",
    ]
