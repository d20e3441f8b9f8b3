"""SiLU of one half times the other, compiled: C++ for CPU, CUDA C++ for NVIDIA GPUs; and the gated MLP layer on it."""

from . import layers
from ._function import silu_and_mul, silu_mul
from ._ops import ops

__all__ = ["layers", "ops", "silu_and_mul", "silu_mul"]
