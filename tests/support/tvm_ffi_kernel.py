"""The sources of a kernel for tvm-ffi, which adds to every number of a tensor, for the processor and for CUDA."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

__all__ = ["needs_tvm_ffi", "write_tvm_ffi_source"]

needs_tvm_ffi = pytest.mark.skipif(importlib.util.find_spec("tvm_ffi") is None, reason="needs apache-tvm-ffi")

_FILES = {
    "build.toml": """
[general]
name = "add-one"
version = 1
edition = 5
license = "MIT"
backends = ["cpu", "cuda"]

[tvm-ffi]
src = ["tvm-ffi-ext/binding.cpp"]

[kernel.add_one_cpu]
backend = "cpu"
depends = []
src = ["add_one.cpp", "add_one.h"]

[kernel.add_one_cuda]
backend = "cuda"
depends = []
src = ["add_one.cu", "add_one.h"]
""",
    "tvm-ffi-ext/add_one/__init__.py": """
from ._ops import add_op_namespace_prefix, ops


def add_one(x, out):
    ops.add_one(x, out)
    return out
""",
    "tvm-ffi-ext/binding.cpp": """
#include <tvm/ffi/tvm_ffi.h>

#include "../add_one.h"

#define TEXT_OF(NAME) #NAME
#define TEXT(NAME) TEXT_OF(NAME)

tvm::ffi::String id() { return TEXT(TVM_FFI_EXTENSION_NAME); }

TVM_FFI_DLL_EXPORT_TYPED_FUNC(add_one, add_one);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(id, id);
""",
    "add_one.h": """
#pragma once
#include <tvm/ffi/tvm_ffi.h>

constexpr float one = 1.0f;

void add_one(tvm::ffi::TensorView from, tvm::ffi::TensorView to);

inline void check(tvm::ffi::TensorView from, tvm::ffi::TensorView to) {
  if (from.numel() != to.numel()) TVM_FFI_THROW(ValueError) << "`out` has " << to.numel() << " elements";
}
""",
    "add_one.cpp": """
#include "add_one.h"

#ifndef CPU_KERNEL
#error "compiled for another backend"
#endif

void add_one(tvm::ffi::TensorView from, tvm::ffi::TensorView to) {
  check(from, to);
  auto input = static_cast<const float*>(from.data_ptr());
  auto output = static_cast<float*>(to.data_ptr());
  for (int64_t i = 0; i < from.numel(); ++i) output[i] = input[i] + one;
}
""",
    "add_one.cu": """
#include "add_one.h"

#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/cuda/device_guard.h>

#ifndef CUDA_KERNEL
#error "compiled for another backend"
#endif

__global__ void add(const float* from, float* to, int64_t count) {
  int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < count) to[i] = from[i] + one;
}

void add_one(tvm::ffi::TensorView from, tvm::ffi::TensorView to) {
  check(from, to);
  int64_t count = from.numel();
  if (count == 0) return;
  auto device = from.device();
  tvm::ffi::CUDADeviceGuard guard(device.device_id);
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  add<<<(count + 255) / 256, 256, 0, stream>>>(
      static_cast<const float*>(from.data_ptr()), static_cast<float*>(to.data_ptr()), count);
}
""",
}


def write_tvm_ffi_source(folder: Path, changes: dict[str, str] | None = None) -> Path:
    """Write the sources into a folder.

    Args:
        folder: The folder.
        changes: Files in the place of its own, by their path.
    """
    for name, text in {**_FILES, **(changes or {})}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
