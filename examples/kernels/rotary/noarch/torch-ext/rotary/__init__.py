"""Rotary position embedding: Triton on accelerators, plain Torch on CPU, chosen by where the queries are."""

from . import layers
from ._function import apply_rotary_pos_emb
from ._ops import ops

__all__ = ["apply_rotary_pos_emb", "layers", "ops"]
