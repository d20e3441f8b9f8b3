"""Kernels made from CUDA files by `kernels init --from`, built here with nvcc, on an NVIDIA GPU."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

from kernels import get_local_kernel
from kernels.authoring.compile import build_variants
from kernels.authoring.scaffold import adopt_kernel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.compiler,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

LAUNCHER = """\
#include <cuda_runtime.h>
__global__ void add(const float* a, const float* b, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a[i] + b[i];
}
extern "C" void solve(const float* a, const float* b, float* out, int n) {
  add<<<(n + 255) / 256, 256>>>(a, b, out, n);
}
"""

KERNELS = """\
#include <cuda_fp16.h>
namespace mine {
typedef half real;
__global__ void twice(const real* x, real* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = __hadd(x[i], x[i]);
}
}
"""

INLINE = '''\
from torch.utils.cpp_extension import load_inline

source = """
#include <torch/extension.h>
__global__ void k(const float* x, float* y, int n) { int i = threadIdx.x; if (i < n) y[i] = fmaxf(0.0f, x[i]); }
torch::Tensor relu_cuda(torch::Tensor x) {
    auto y = torch::zeros_like(x);
    k<<<1, 1024>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
    return y;
}
"""
relu = load_inline("relu", "torch::Tensor relu_cuda(torch::Tensor x);", source, functions=["relu_cuda"])
'''


def made_from(folder: Path, name: str, text: str) -> ModuleType:
    (folder / name).write_text(text)
    made = adopt_kernel([folder / name], folder=folder / "made")
    [built] = build_variants(made.folder, made.folder, this_gpu=True)
    if built.reason.startswith("No compiler"):
        pytest.skip(built.reason)
    assert built.path is not None, f"{built.reason}\n{built.detail}"
    return get_local_kernel(built.path)


def test_a_launcher_of_pointers_takes_tensors(tmp_path: Path) -> None:
    kernel = made_from(tmp_path, "vector_add.cu", LAUNCHER)
    a, b = torch.randn(1000, device="cuda"), torch.randn(1000, device="cuda")
    out = torch.empty_like(a)
    kernel.solve(a, b, out, 1000)
    assert torch.equal(out, a + b)
    with pytest.raises(RuntimeError, match="`b`: expected a tensor on cuda:0, got one on cpu"):
        kernel.solve(a, b.cpu(), out, 1000)
    with pytest.raises(RuntimeError, match="`out`: expected Float, got Half"):
        kernel.solve(a, b, out.half(), 1000)


def test_a_kernel_alone_is_launched_from_python(tmp_path: Path) -> None:
    kernel = made_from(tmp_path, "twice.cu", KERNELS)
    x = torch.randn(1000, device="cuda", dtype=torch.float16)
    y = torch.empty_like(x)
    kernel.twice(x, y, 1000, [4], [256])
    assert torch.equal(y, x + x)


def test_texts_of_load_inline_are_compiled_once(tmp_path: Path) -> None:
    kernel = made_from(tmp_path, "relu_inline.py", INLINE)
    x = torch.randn(1000, device="cuda")
    assert torch.equal(kernel.relu_cuda(x), torch.relu(x))
