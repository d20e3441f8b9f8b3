"""Acme's operators, in the package itself: `Acme.folder` says where."""

import torch

__all__ = ["silu"]


def silu(self: torch.Tensor) -> torch.Tensor:
    torch.acme.launch("vendor's silu")
    return self * torch.sigmoid(self)
