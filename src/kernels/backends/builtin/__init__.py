"""The accelerators that come with this package, one file a family. They register by the door that everyone uses."""

from __future__ import annotations

from kernels.backends.builtin import cann, cpu, cuda, metal, neuron, rocm, tpu, xpu

__all__ = ["BUILT_IN", "BuiltInName"]

#: Every built-in family, each from its file.
BUILT_IN = (tpu.TPU, neuron.Neuron, cuda.CUDA, rocm.ROCm, metal.Metal, xpu.XPU, cann.CANN, cpu.CPU)

#: Their names, for editors to complete: each family's file says its own.
BuiltInName = tpu.Name | neuron.Name | cuda.Name | rocm.Name | metal.Name | xpu.Name | cann.Name | cpu.Name
