"""A small model with marked layers, kernels' layers for it, and repositories that give them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from kernels.layer import register_kernel_mapping, use_kernel_forward_from_hub, use_kernelized_func


@use_kernel_forward_from_hub("Norm")
class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0]), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


@use_kernel_forward_from_hub("Act")
class Act(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


@use_kernel_forward_from_hub("scale")
def scale(x: torch.Tensor, by: float = 3.0) -> torch.Tensor:
    return x * by


@use_kernelized_func(scale)
class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.act = Norm(), Act()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(scale(self.norm(x)))


class Model(nn.Module):
    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class KernelNorm(nn.Module):
    can_torch_compile = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight + 100


class OtherNorm(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight + 200


class ForwardOnly(nn.Module):
    has_backward = False
    can_torch_compile = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight + 300


class KernelAct(nn.Module):
    can_torch_compile = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1000


class KernelScale(nn.Module):
    can_torch_compile = True

    def forward(self, x: torch.Tensor, by: float = 3.0) -> torch.Tensor:
        return x * by + 7


class OtherScale(nn.Module):
    def forward(self, x: torch.Tensor, by: float = 3.0) -> torch.Tensor:
        return x * by + 70


class Gives:
    """A repository of someone else's: it only has `load()`."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self.loads = 0

    def load(self) -> Any:
        self.loads += 1
        if isinstance(self.layer, Exception):
            raise self.layer
        return self.layer


X = torch.tensor([1.0])


def norm_of(module: nn.Module) -> float:
    """What a norm adds says which forward it runs: 0 its own, 100, 200 or 300 a kernel's."""
    with torch.no_grad():
        return float(module(torch.zeros(1)))


def registered(**layers: Any) -> None:
    """Register a repository, or mode -> repository, for each layer on the CPU."""
    register_kernel_mapping({name: {"cpu": value} for name, value in layers.items()})
