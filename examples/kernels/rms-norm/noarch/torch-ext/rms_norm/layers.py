"""Layers that stand in for a model's own."""

import torch

from ._function import fused_add_rms_norm, rms_norm

__all__ = ["FusedAddRMSNorm", "RMSNorm"]


class RMSNorm(torch.nn.Module):
    """Stands in for `LlamaRMSNorm`, `Qwen3RMSNorm` and their like: a `weight` and a `variance_epsilon`."""

    has_backward: bool = True
    can_torch_compile: bool = True

    weight: torch.Tensor
    variance_epsilon: float

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Normalise `hidden_states` `[..., N]` over its last dimension."""
        return rms_norm(hidden_states, self.weight, self.variance_epsilon)


class FusedAddRMSNorm(torch.nn.Module):
    """Adds a residual and normalises the sum: a `weight` and a `variance_epsilon`, as `RMSNorm`."""

    has_backward: bool = True
    can_torch_compile: bool = True

    weight: torch.Tensor
    variance_epsilon: float

    def forward(self, hidden_states: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Normalise `hidden_states + residual` `[..., N]` over its last dimension; returns it and the sum."""
        return fused_add_rms_norm(hidden_states, residual, self.weight, self.variance_epsilon)
