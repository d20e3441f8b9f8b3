"""Kernels for Acme's accelerator, as a publisher puts them on a Hub."""

from __future__ import annotations

from hub import TestHub

from kernels import Target
from kernels.backends import MajorMinor

__all__ = ["compiled", "publish_kernels"]

_LAYERS = """
import torch
from torch import nn


class SiluAndMul(nn.Module):
    can_torch_compile = False
    has_backward = True

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        half = input.shape[-1] // 2
        torch.acme.launch("kernel's silu_and_mul")
        return torch.nn.functional.silu(input[..., :half]) * input[..., half:]
"""

_FUNCTIONS = """
variant = {variant!r}


def silu(self):
    import torch

    torch.acme.launch("kernel's silu")
    return self * torch.sigmoid(self)


def __getattr__(name):
    import importlib

    if name == "layers":
        return importlib.import_module(".layers", __name__)
    raise AttributeError(name)
"""


def compiled(token: str) -> str:
    """The name of a build that was compiled for this machine and Torch, and for an accelerator."""
    target = Target.current()
    torch = MajorMinor.parse(target.torch or "")
    assert torch is not None
    tag = {True: "-cxx11", False: "-cxx98", None: ""}[target.cxx11_abi]
    return f"torch{torch.major}{torch.minor}{tag}-{token}-{target.cpu}-{target.os}"


def publish_kernels(hub: TestHub) -> None:
    """Put kernels on a Hub.

    `acme/activation` has builds for this runtime, for a newer one, for any, and for the processor; `acme/portable` only
    those that are not compiled; what `acme/other` has is for another device.
    """
    for repo_id, builds in {
        "acme/activation": {
            compiled("acme12"): ["a100x"],
            compiled("acme20"): ["a100x"],
            "torch-acme": ["a100x"],
            "torch-cpu": None,
        },
        "acme/portable": {"torch-acme": ["a100x", "b200y"], "torch-cpu": None},
        "acme/other": {compiled("acme12"): ["b200y"], "torch-acme": ["b200y"]},
    }.items():
        for variant, archs in builds.items():
            backend = {"type": "cpu"} if archs is None else {"type": "acme", "archs": archs}
            hub.make_repo(
                repo_id,
                variants={variant: {"__init__.py": _FUNCTIONS.format(variant=variant), "layers.py": _LAYERS}},
                metadata={"backend": backend},  # the Hub's own process knows nothing of this one either
            )
