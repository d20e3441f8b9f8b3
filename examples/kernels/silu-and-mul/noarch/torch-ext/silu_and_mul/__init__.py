"""SiLU of one half times the other, and the gated MLP layer on it: Triton on accelerators, plain Torch on CPU."""

from . import layers
from ._function import silu_and_mul, silu_mul
from ._ops import ops

__all__ = ["layers", "ops", "silu_and_mul", "silu_mul"]
