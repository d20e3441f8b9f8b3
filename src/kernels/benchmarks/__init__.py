"""Ready-made benchmarks: a kernel's `benchmarks/benchmark_<name>.py` subclasses one, and may change attributes.

    from kernels.benchmarks import RMSNormBenchmark

    class RMSNorm(RMSNormBenchmark):
        eps = 1e-6

Published benchmarks rely on these names, on the workloads' shapes and on the functions that are called of the kernel.
"""

from __future__ import annotations

from kernels.benchmarks.activation import GeluAndMulBenchmark, SiluAndMulBenchmark
from kernels.benchmarks.attention import (
    FlashAttentionBenchmark,
    FlashAttentionCausalBenchmark,
    FlashAttentionVarlenBenchmark,
)
from kernels.benchmarks.layer_norm import LayerNormBenchmark, RMSNormBenchmark

__all__ = [
    "FlashAttentionBenchmark",
    "FlashAttentionCausalBenchmark",
    "FlashAttentionVarlenBenchmark",
    "GeluAndMulBenchmark",
    "LayerNormBenchmark",
    "RMSNormBenchmark",
    "SiluAndMulBenchmark",
]
