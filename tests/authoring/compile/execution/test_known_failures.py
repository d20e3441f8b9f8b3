"""A compiler's failure that means a missing or unfit installation says what to install."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.authoring.compile.execution.compiler_steps import Compilation, CompileUnit
from kernels.authoring.compile.execution.known_failures import advice_for
from kernels.authoring.compile.execution.run_compiler import compile_extension
from kernels.errors import BuildError


@pytest.mark.parametrize(
    ("output", "advice"),
    [
        (
            "/usr/local/cuda/include/crt/host_config.h:143:2: error: #error -- unsupported GNU version! gcc versions "
            "later than 13 are not supported! The nvcc flag '-allow-unsupported-compiler' can be used",
            "compiles with GCC 13 at most: name an older one with NVCC_CCBIN",
        ),
        (
            "error -- unsupported clang version! clang version must be less than 19 and greater than 3.2 .",
            "with a Clang before 19",
        ),
        (
            'error: #error "CUDA compiler and CUDA toolkit headers are incompatible, please check your include paths"',
            "Install one version of all: pip install 'nvidia-cuda-nvcc==X.Y.*'",
        ),
        ("ptxas fatal   : Unsupported .version 9.5; current version is '9.0'", "parts of the CUDA toolkit are of diff"),
        ("sh: 1: /x/bin/../nvvm/bin/cicc: not found", "pip install nvidia-nvvm"),
        ("a.cpp:3:10: fatal error: cuda_runtime.h: No such file or directory", "set CUDA_HOME to its folder"),
        (
            "CUDAContextLight.h:10:10: fatal error: cusparse.h: No such file or directory",
            "pip install nvidia-cusparse ",
        ),
        ("cuda_runtime.h:82:10: fatal error: crt/host_config.h: No such file or directory", "nvidia-cuda-crt (CUDA 12"),
        ("a.hip:1:10: fatal error: 'hip/hip_runtime.h' file not found", "set ROCM_PATH"),
        (
            "a.cu:1:10: fatal error: 'hipcub/hipcub.hpp' file not found",
            "hipcub/hipcub.hpp is in a library of ROCm that",
        ),
        (
            "complex.h:9:10: fatal error: 'thrust/complex.h' file not found\n#include <thrust/complex.h>\n"
            "1 error generated when compiling for gfx90a.",
            "thrust/complex.h is in a library of ROCm",
        ),
        ("a.cu:1:10: fatal error: 'thrust/complex.h' file not found", "thrust/complex.h is not in the CUDA toolkit"),
        ("cc1plus: error: bad value ‘armv8-a+sve’ for ‘-march=’ switch", "-march=armv8-a+sve is for another processor"),
        ("clang: error: unsupported argument 'armv8-a+sve' to option '-march='", "-march=armv8-a+sve is for another"),
        (
            "c++: error: unrecognized command-line option ‘-mavx512bf16’; did you mean ‘-mavx512f’?",
            "-mavx512bf16 is for",
        ),
        ("clang++: error: unsupported option '-mavx2' for target 'aarch64-linux-gnu'", "-mavx2 is for another"),
        ("c++: error: unrecognized command-line option ‘-fsycl’", ""),
        ("pyport.h:1:10: fatal error: Python.h: No such file or directory", "python3-dev"),
        (
            "fatal error: nvrtc.h: No such file or directory\nfatal error: cublas_v2.h: No such file or directory",
            "nvrtc.h is not in the CUDA toolkit",
        ),
        ("a.cpp:3:10: fatal error: my/own.h: No such file or directory", ""),
    ],
)
def test_known_failures_say_what_to_do(output: str, advice: str) -> None:
    assert advice in advice_for(output)
    assert bool(advice) == bool(advice_for(output))


def test_the_error_of_a_build_ends_with_the_advice(tmp_path: Path) -> None:
    compiler = tmp_path / "cxx"
    said = "a.cpp:1:10: fatal error: nvrtc.h: No such file or directory"
    compiler.write_text(f"#!/bin/sh\n[ $1 = --version ] && exit\necho '{said}'; exit 1\n")
    (tmp_path / "a.cpp").touch()
    compiler.chmod(0o755)
    compilation = Compilation(tmp_path, (CompileUnit("a.cpp", (str(compiler),)),), (str(compiler),), ())
    with pytest.raises(BuildError) as caught:
        compile_extension(compilation, tmp_path / "a.so", tmp_path / "objects", tmp_path / "log")
    assert str(caught.value).splitlines()[-1].startswith("> nvrtc.h is not in the CUDA toolkit")
