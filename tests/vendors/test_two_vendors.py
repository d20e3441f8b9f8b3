"""Vendors do not disturb each other, nor what was there before them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hub import TestHub

from kernels import Target

SCRIPT = Path(__file__).with_name("two_vendors.py")

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the runtime library is an ELF library"),
]

# Each build tells which one it is when it runs.
KERNEL = """
import torch
from torch import nn


def silu(self):
    torch.acme.launch({variant!r})
    return self * torch.sigmoid(self)


class SiluAndMul(nn.Module):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        half = input.shape[-1] // 2
        torch.acme.launch({variant!r})
        return torch.sigmoid(input[..., :half]) * input[..., :half] * input[..., half:]
"""


def test_two_vendors_and_the_processor_share_a_process(acme: Callable[..., str], hub: TestHub, tmp_path: Path) -> None:
    for name, archs in {"acme": ["a100x"], "zeta": ["z9"], "cuda": ["9.0"], "cpu": None}.items():
        variant = f"torch-{name}"
        source = f"variant = {variant!r}\nfrom . import layers\nfrom .layers import silu\n"
        files = {"__init__.py": source, "layers.py": KERNEL.format(variant=variant)}
        backend = {"type": name} if archs is None else {"type": name, "archs": archs}
        hub.make_repo("acme/both", variants={variant: files}, metadata={"backend": backend})
    zeta, recorded = tmp_path / "zeta.json", tmp_path / "recorded.json"
    zeta.write_text(json.dumps({"zeta": {"device_string": "cpu", "version": "3.1", "archs": ["z9"]}}))
    # A machine as one of an NVIDIA H100 told of itself.
    recorded.write_bytes(Target.parse("torch2.9-cu128-x86_64-linux+sm_90").to_json())
    assert acme(SCRIPT, zeta, recorded) == "held\n"
