"""Rotary position embedding, compiled: C++ for CPU, CUDA C++ for NVIDIA GPUs."""

from . import layers
from ._function import apply_rotary_pos_emb
from ._ops import ops

__all__ = ["apply_rotary_pos_emb", "layers", "ops"]
