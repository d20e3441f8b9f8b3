"""A kernel of C++ and CUDA sources is built, loaded and run wherever the toolkit is, on an NVIDIA GPU."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernels import get_local_kernel
from kernels.authoring.compile import build_variants
from kernels.authoring.compile.builder import BuildResult
from kernels.authoring.compile.toolchains import cuda_folders, nvcc, toolkit_for
from kernels.authoring.compile.toolchains.interface import Toolkit
from kernels.errors import CompilerNotFound
from kernels.support.version import MajorMinor

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.compiler,
    pytest.mark.skipif(torch.version.cuda is None or not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

_FILES = {
    "build.toml": """
[general]
name = "scaled"
version = 1
edition = 5
license = "MIT"
backends = ["cuda"]

[torch]
src = ["torch-ext/torch_binding.cpp"]

[kernel.scaled]
backend = "cuda"
depends = ["torch"]
src = ["scaled/scaled.cu", "scaled/host.cpp"]
""",
    "torch-ext/scaled/__init__.py": "from ._ops import ops\n\nscaled, driver, blas = ops.scaled, ops.driver, ops.blas",
    # The host's compiler reads CUDA's headers, Torch's that include them, and calls cuBLAS.
    "torch-ext/torch_binding.cpp": """
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAStream.h>
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <torch/library.h>
#include "registration.h"

at::Tensor scaled(at::Tensor const &x, double factor);
int64_t driver();

int64_t blas() {
  int version = 0;
  cublasGetVersion(at::cuda::getCurrentCUDABlasHandle(), &version);
  return version;
}

TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {
  ops.def("scaled(Tensor x, float factor) -> Tensor");
  ops.impl("scaled", c10::kCUDA, &scaled);
  ops.def("driver() -> int", &driver);
  ops.def("blas() -> int", &blas);
}

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
""",
    # It calls the driver, for which `build.toml` has no word.
    "scaled/host.cpp": """
#include <cstdint>
#include <cub/version.cuh>
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

int64_t driver() {
  int version = 0;
  return cuDriverGetVersion(&version) == CUDA_SUCCESS ? version : -1;
}
""",
    "scaled/scaled.cu": """
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

__global__ void scale(float *out, const float *x, float factor, int64_t count) {
  int64_t index = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (index < count) out[index] = x[index] * factor;
}

at::Tensor scaled(at::Tensor const &x, double factor) {
  c10::cuda::CUDAGuard guard(x.device());
  at::Tensor out = at::empty_like(x);
  int64_t count = x.numel();
  scale<<<(count + 255) / 256, 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
      out.mutable_data_ptr<float>(), x.const_data_ptr<float>(), factor, count);
  return out;
}
""",
}

_Build = Callable[[str], BuildResult]


def _torch_cuda() -> MajorMinor:
    version = MajorMinor.parse(str(torch.version.cuda))
    assert version is not None
    return version


@pytest.fixture
def toolkit() -> Toolkit:
    """The toolkit that fits Torch, as this machine has it."""
    try:
        found = toolkit_for("cuda", _torch_cuda(), Path(torch.__file__).parents[1])
    except CompilerNotFound as error:
        pytest.skip(str(error))
    assert found is not None
    return found


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing on the path and in variables leads to CUDA: only links to the tools that a C++ build needs are there."""
    for variable in ("NVCC", "CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX", "CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH"):
        monkeypatch.delenv(variable, raising=False)
    folders = [folder for folder in os.environ["PATH"].split(os.pathsep) if not Path(folder, "nvcc").exists()]
    monkeypatch.setenv("PATH", os.pathsep.join(folders))
    assert shutil.which("nvcc") is None


@pytest.fixture
def build(tmp_path: Path) -> _Build:
    """Build the kernel; the name makes its id its own, so that several are loaded in this process."""

    def build(name: str) -> BuildResult:
        for path, text in {**_FILES, "NAME": name}.items():
            (tmp_path / "source" / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "source" / path).write_text(text)
        (result,) = build_variants(tmp_path / "source", tmp_path / "out", this_gpu=True)
        return result

    return build


def _runs(result: BuildResult) -> None:
    assert result.path is not None, f"{result.reason}\n{result.detail}"
    kernel = get_local_kernel(result.path)
    x = torch.randn(100_003, device="cuda")
    torch.testing.assert_close(kernel.scaled(x, 3.0), x * 3)
    assert kernel.driver() >= 10 * 1000
    assert kernel.blas() > 0


def test_with_the_toolkit_on_the_path(toolkit: Toolkit, build: _Build, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(toolkit.compiler[0]).parent
    monkeypatch.setenv("PATH", os.pathsep.join([str(folder), os.environ["PATH"]]))
    _runs(build("path"))


def test_with_the_toolkit_where_its_installer_put_it(toolkit: Toolkit, bare: None, build: _Build) -> None:
    try:
        found = toolkit_for("cuda", _torch_cuda())
    except CompilerNotFound as error:
        pytest.skip(str(error))
    assert found is not None
    assert found.found_by != "the path"
    _runs(build("usual"))


def test_with_nvcc_of_pythons_packages(
    toolkit: Toolkit, bare: None, build: _Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layout of the packages: one folder of each kind, and no `libcudart.so` and no stub of the driver to link."""
    root = tmp_path / "site/nvidia" / f"cu{toolkit.version.major}"
    (root / "bin").mkdir(parents=True)
    (root / "lib").mkdir()
    real = Path(shutil.which(toolkit.compiler[0]) or "").resolve().parent
    real = real if (real / "nvcc.profile").is_file() else toolkit.folder / "bin"
    for path in real.iterdir():
        # nvcc finds the rest from where it is itself.
        (shutil.copy2 if path.name == "nvcc" else os.symlink)(path, root / "bin" / path.name)
    (root / "bin/nvcc.profile").unlink()
    (root / "bin/nvcc.profile").write_text(
        "TOP = $(_HERE_)/..\n\nCICC_PATH = $(TOP)/nvvm/bin\nNVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice\n\n"
        'PATH += $(CICC_PATH):$(_HERE_):\n\nINCLUDES += "-I$(TOP)/include" $(_SPACE_)\n'
        'SYSTEM_INCLUDES += "-isystem" "$(TOP)/include/cccl" $(_SPACE_)\n\n'
        'LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib/stubs" "-L$(TOP)/lib"\n'
    )
    (root / "nvvm").symlink_to(toolkit.folder / "nvvm")
    (root / "include").symlink_to(toolkit.include[0])
    for folder in toolkit.libraries:
        for path in (*folder.glob("lib*.a"), *folder.glob("lib*.so.[0-9]*")):
            if not (root / "lib" / path.name).exists() and not path.name.startswith("libcuda."):
                (root / "lib" / path.name).symlink_to(path)
    beside = cuda_folders.package_folders(Path(torch.__file__).parents[1])
    monkeypatch.setattr(cuda_folders, "package_folders", lambda packages: [root.parent, *beside])
    monkeypatch.setattr(nvcc, "_NVIDIA", tmp_path / "nothing")
    monkeypatch.setattr(nvcc, "_DISTRIBUTIONS", ())
    found = toolkit_for("cuda", _torch_cuda())
    assert found is not None
    assert (found.folder, found.found_by) == (root.resolve(), "the package nvidia-cuda-nvcc")
    _runs(build("packages"))


def test_without_nvcc_the_result_says_what_to_install(
    bare: None, build: _Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvcc, "_NVIDIA", tmp_path / "nothing")
    monkeypatch.setattr(nvcc, "_DISTRIBUTIONS", ())
    monkeypatch.setattr(cuda_folders, "package_folders", lambda packages: [])
    result = build("none")
    assert (result.state, result.path) == ("not built", None)
    assert result.reason.startswith("nvcc was not found on the path or in the usual places. Install the CUDA toolkit")
