"""Acme's operators."""

import torch

__all__ = ["silu"]


def silu(self: torch.Tensor) -> torch.Tensor:
    torch.acme.launch("vendor's silu")
    return self * torch.sigmoid(self)
