"""Ready-made benchmarks: a kernel's `benchmarks/benchmark_<name>.py` subclasses one, and may change what differs.

    from kernels.benchmarks import RMSNormBenchmark

    class RMSNorm(RMSNormBenchmark):
        eps = 1e-6

The names, the workloads' shapes and what is called of the kernel are those that published benchmarks are written for.
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
