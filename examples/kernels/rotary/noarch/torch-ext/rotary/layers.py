"""Layers that stand in for a model's own."""

import torch

from ._function import apply_rotary_pos_emb

__all__ = ["ApplyRotaryPosEmb"]


class ApplyRotaryPosEmb(torch.nn.Module):
    """Stands in for transformers' function `apply_rotary_pos_emb`, the layer `rotary_pos_emb`."""

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Turn `q` and `k` by the angles of their positions."""
        return apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim)
