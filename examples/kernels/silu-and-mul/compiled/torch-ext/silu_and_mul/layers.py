"""Layers that stand in for a model's own."""

import torch

from ._function import silu_and_mul, silu_mul

__all__ = ["GatedMLP", "SiluAndMul"]


class SiluAndMul(torch.nn.Module):
    """`silu` of the first half of the last dimension times the second half."""

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Turn `[..., 2 * N]` into `[..., N]`."""
        return silu_and_mul(x)


class GatedMLP(torch.nn.Module):
    """Stands in for `LlamaMLP`, `Qwen3MLP` and their like: three projections and an activation."""

    has_backward: bool = True
    can_torch_compile: bool = True

    gate_proj: torch.nn.Module
    up_proj: torch.nn.Module
    down_proj: torch.nn.Module
    act_fn: torch.nn.Module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Turn `[..., hidden]` into `[..., hidden]`; with another activation than SiLU as the layer itself would."""
        gate, up = self.gate_proj(x), self.up_proj(x)
        return self.down_proj(silu_mul(gate, up) if _is_silu(self.act_fn) else self.act_fn(gate) * up)


def _is_silu(activation: object) -> bool:
    # Torch's own, or transformers' class of that name, which a kernel must not import.
    return isinstance(activation, torch.nn.SiLU) or type(activation).__name__ == "SiLUActivation"
