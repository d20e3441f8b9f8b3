"""What published `build.toml` files ask of nvcc, built here and run on an NVIDIA GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import torch
from logged import warned

from kernels import get_local_kernel
from kernels.authoring.compile import build_variants

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.compiler,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

_GENERAL = '[general]\nname = "forms"\nversion = 1\nedition = 5\nlicense = "MIT"\nbackends = ["cuda"]\n'

# Few of Torch's headers: nvcc takes a minute for all of them.
_BINDING = """
#include <ATen/core/Tensor.h>
#include <torch/library.h>
#include "registration.h"

void newest(int* out);
void oldest(int* out);

void run_newest(at::Tensor& out) { newest(out.mutable_data_ptr<int>()); }
void run_oldest(at::Tensor& out) { oldest(out.mutable_data_ptr<int>()); }

TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {
  ops.def("newest(Tensor! out) -> ()");
  ops.def("oldest(Tensor! out) -> ()");
}

TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CUDA, ops) {
  ops.impl("newest", &run_newest);
  ops.impl("oldest", &run_oldest);
}

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
"""

# A host's constexpr function and a lambda in device code, as Torch's own build system allows them; a header of `csrc`.
_SOURCE = """
#include <c10/cuda/CUDAStream.h>
#include <algorithm>
#include "launch.cuh"

#ifndef USE_CUDA
#error "USE_CUDA is not defined"
#endif

void NAME(int* out) {
  auto value = [] __device__() { return std::max(FIRST, 0); };
  launch<<<1, 1, 0, c10::cuda::getCurrentCUDAStream()>>>(out, value);
}
"""

_LAUNCH = """
#pragma once
template <typename Value>
__global__ void launch(int* out, Value value) {
  out[0] = value();
#ifdef __CUDA_ARCH__
  out[1] = __CUDA_ARCH__;
#endif
}
"""


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., Path]:
    """Build a source folder for CUDA, with files beside its package."""

    def build(toml: str, **files: str) -> Path:
        package = {"build.toml": _GENERAL + toml, "torch-ext/forms/__init__.py": "from ._ops import ops\n"}
        for name, text in {**package, **{name.replace("__", "/"): text for name, text in files.items()}}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        (made,) = build_variants(tmp_path, tmp_path)
        if made.path is None and made.reason.startswith("No compiler"):
            pytest.skip(made.reason)
        assert made.path is not None, f"{made.reason}\n{made.detail}"
        return made.path

    return build


def test_each_section_has_its_flags_and_architectures(build: Callable[..., Path]) -> None:
    major, minor = torch.cuda.get_device_capability()
    own = f"{major}.{minor}"
    toml = f"""
[torch]
src = ["torch-ext/torch_binding.cpp"]

[kernel.newest]
backend = "cuda"
depends = ["torch"]
cuda-capabilities = ["{own}{"a" if major >= 9 else ""}", "99.0"]
cuda-flags = ["-DFIRST=1", "-DNAME=newest", "--use_fast_math"]
src = ["csrc/newest/fill.cu", "csrc/launch.cuh"]

[kernel.oldest]
backend = "cuda"
depends = ["torch"]
cuda-capabilities = ["{major}.0+PTX"]
cuda-flags = ["-DFIRST=2", "-DNAME=oldest"]
src = ["csrc/oldest/fill.cu", "csrc/launch.cuh"]

[kernel.future]
backend = "cuda"
cuda-minver = "99.0"
cuda-capabilities = ["99.0a"]
src = ["csrc/future.cu"]
"""
    files = {
        "torch-ext__torch_binding.cpp": _BINDING,
        "csrc__newest__fill.cu": _SOURCE,
        "csrc__oldest__fill.cu": _SOURCE,
        "csrc__launch.cuh": _LAUNCH,
        "csrc__future.cu": "#error",
    }
    with warned(r"`kernel\.future` needs cuda 99\.0; .* is installed\. The section is left out"):
        variant = build(toml, **files)
    archs = json.loads((variant / "metadata.json").read_text())["backend"]["archs"]
    assert archs == [f"{own}{'a' if major >= 9 else ''}", f"{major}.0+PTX"]
    kernel = get_local_kernel(variant)
    out = torch.zeros(2, dtype=torch.int32, device="cuda")
    for number, name in ((1, "newest"), (2, "oldest")):
        getattr(kernel.ops, name)(out)
        assert out[0].item() == number
    kernel.ops.newest(out)
    assert out[1].item() == major * 100 + minor * 10


def test_a_file_of_two_sections_is_compiled_for_the_architectures_of_both(build: Callable[..., Path]) -> None:
    major, minor = torch.cuda.get_device_capability()
    section = '[kernel.{}]\nbackend = "cuda"\ncuda-capabilities = ["{}"]\ncuda-flags = {}\nsrc = ["one.cu"]\n'
    toml = '[torch]\nsrc = ["torch-ext/torch_binding.cpp"]\n'
    toml += section.format("a", "8.0" if major > 8 else "9.0", '["-DFIRST=3"]')
    toml += section.format("b", f"{major}.{minor}", '["-DNAME=newest"]')
    binding = _BINDING.replace("void oldest(int* out);", "void oldest(int* out) { newest(out); }")
    with warned(r"`src` of a and of b both have one\.cu; it is compiled once"):
        variant = build(
            toml, **{"torch-ext__torch_binding.cpp": binding, "one.cu": _SOURCE, "csrc__launch.cuh": _LAUNCH}
        )
    assert len(json.loads((variant / "metadata.json").read_text())["backend"]["archs"]) == 2
    out = torch.zeros(2, dtype=torch.int32, device="cuda")
    get_local_kernel(variant).ops.newest(out)
    assert out.tolist() == [3, major * 100 + minor * 10]


def test_cutlass_of_the_installed_package_is_used(build: Callable[..., Path]) -> None:
    try:
        installed = version("nvidia-cutlass").split(".")[:2]
    except PackageNotFoundError:
        pytest.skip("needs nvidia-cutlass")
    toml = '[torch]\nsrc = ["torch-ext/torch_binding.cpp"]\n[kernel.a]\nbackend = "cuda"\nsrc = ["one.cu"]\n'
    toml += f'depends = ["torch", "cutlass_{"_".join(installed)}"]\ncuda-flags = ["-DNAME=newest"]\n'
    major, minor = torch.cuda.get_device_capability()
    toml += f'cuda-capabilities = ["{major}.{minor}"]\n'
    # A constexpr function of CUTLASS, called on the device.
    source = "#include <cutlass/cutlass.h>\n#include <cute/tensor.hpp>\n" + _SOURCE
    source = source.replace("std::max(FIRST, 0)", "int(cute::size(cute::make_shape(cute::Int<2>{}, 3)))")
    binding = _BINDING.replace("void oldest(int* out);", "void oldest(int* out) { newest(out); }")
    files = {"torch-ext__torch_binding.cpp": binding, "one.cu": source, "csrc__launch.cuh": _LAUNCH}
    out = torch.zeros(2, dtype=torch.int32, device="cuda")
    get_local_kernel(build(toml, **files)).ops.newest(out)
    assert out[0].item() == 6
