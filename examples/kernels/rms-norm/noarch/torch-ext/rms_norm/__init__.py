"""Root-mean-square normalisation: Triton on accelerators, plain Torch on CPU, chosen by where the input is."""

from . import layers
from ._function import fused_add_rms_norm, rms_norm
from ._ops import ops

__all__ = ["fused_add_rms_norm", "layers", "ops", "rms_norm"]
