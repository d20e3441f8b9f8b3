"""A small model with a layer that kernels may serve, for any device."""

from __future__ import annotations

import torch
from torch import nn

from kernels import use_kernel_forward_from_hub

__all__ = ["Model"]


@use_kernel_forward_from_hub("SiluAndMul")
class SiluAndMul(nn.Module):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        half = input.shape[-1] // 2
        return torch.sigmoid(input[..., :half]) * input[..., :half] * input[..., half:]


class Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class Model(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(Norm(8), nn.Linear(8, 32), SiluAndMul(), nn.Linear(16, 8))
