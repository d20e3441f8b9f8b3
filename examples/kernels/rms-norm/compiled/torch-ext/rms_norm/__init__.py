"""Root-mean-square normalisation, compiled: C++ for CPU, CUDA C++ for NVIDIA GPUs."""

from . import layers
from ._function import fused_add_rms_norm, rms_norm

__all__ = ["fused_add_rms_norm", "layers", "rms_norm"]
