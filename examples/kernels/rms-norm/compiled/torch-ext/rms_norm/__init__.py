"""Root-mean-square normalisation, compiled: C++ for CPU, CUDA C++ for NVIDIA GPUs."""

from . import layers
from ._function import fused_add_rms_norm, rms_norm
from ._ops import ops

__all__ = ["fused_add_rms_norm", "layers", "ops", "rms_norm"]
