"""Rotary position embedding, compiled for CPU."""

from . import layers
from ._function import apply_rotary_pos_emb

__all__ = ["apply_rotary_pos_emb", "layers"]
