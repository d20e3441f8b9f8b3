"""Layers that stand in for a model's own."""

import torch

from ._ops import ops

__all__ = ["RMSNorm"]


class RMSNorm(torch.nn.Module):
    """Stands in for `LlamaRMSNorm`, `Qwen3RMSNorm` and their like: a `weight` and a `variance_epsilon`."""

    has_backward: bool = True
    can_torch_compile: bool = True

    weight: torch.Tensor
    variance_epsilon: float

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Normalise `hidden_states` `[..., N]` over its last dimension."""
        return ops.rms_norm(hidden_states, self.weight, self.variance_epsilon)
