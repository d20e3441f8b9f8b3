"""Root-mean-square normalisation: Triton on accelerators, plain Torch on CPU, chosen by where the input is."""

from . import layers
from ._function import rms_norm
from ._ops import ops

__all__ = ["layers", "ops", "rms_norm"]
