"""CUDA sources are translated to HIP by Torch's own translator, and built by a stand-in for AMD's compiler.

The stand-in starts this machine's C++ compiler, with headers that have the names of HIP's and of a Torch for ROCm.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from logged import warned

from kernels.authoring.compile import build_kernel, read_source
from kernels.authoring.compile.compile_commands import compile_commands
from kernels.authoring.compile.dry_run import build_commands, shell_script
from kernels.authoring.compile.execution import run_compiler
from kernels.authoring.compile.execution.hipify_sources import translate
from kernels.authoring.compile.frameworks import torch_installation
from kernels.authoring.compile.frameworks.torch_installation import this_torch
from kernels.authoring.compile.plan.build_plan import BuildPlan, plan_build, source_state
from kernels.authoring.compile.toolchains import toolkit_for
from kernels.errors import BuildError
from kernels.support.version import MajorMinor

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is a shell script around g++")

_HIPCC = r"""#!/bin/sh
here=$(cd "$(dirname "$0")/.." && pwd)
case " $* " in
*" --version "*) echo "HIP version: 7.0.51831-a3e329ad8"; exit ;;
*" -### "*) exit ;;
*" -shared "*) language= ;;
*) language="-x c++"; echo "$*" >> "$here/compiled" ;;
esac
for each; do
    shift
    case $each in
    hip | -x | --offload-arch=* | -lamdhip64 | -lc10_hip | -ltorch_hip) ;;
    *) set -- "$@" "$each" ;;
    esac
done
exec c++ -I"$here/include" $language "$@"
"""

#: What the sources below use of HIP, and of Torch for ROCm.
_HEADERS = {
    "hip/hip_runtime.h": """#pragma once
#define __global__
#define __device__
typedef struct Stream* hipStream_t;
inline int hipStreamSynchronize(hipStream_t) { return 0; }
#define hipSuccess 0
struct { int x; } static threadIdx;
""",
    "hip/hip_bf16.h": "#pragma once\nstruct __hip_bfloat16 { float value; };\n",
    "hipcub/hipcub.hpp": "#pragma once\nnamespace hipcub { struct Max { float operator()(float a, float b); }; }\n",
    # The first name since Torch 2.11, the second one before.
    "c10/hip/HIPStream.h": "#pragma once\n#include <hip/hip_runtime.h>\n",
    "ATen/hip/impl/HIPStreamMasqueradingAsCUDA.h": "#pragma once\n#include <hip/hip_runtime.h>\n",
}

_TOML = """
[general]
name = "scale"
version = 1
edition = 5
license = "MIT"
backends = ["rocm"]

[torch]
src = ["torch-ext/binding.cpp"]

[kernel.scale]
backend = "rocm"
rocm-archs = ["gfx942"]
include = ["headers"]
src = ["csrc/cuda/scale.cu", "csrc/cuda/util.cuh", "csrc/own.hip"]
"""

#: Shaped like the community's kernels: a launcher that the binding declares, and headers beside it and on `-I`.
_SOURCES = {
    "build.toml": _TOML,
    "torch-ext/scale/__init__.py": "",
    "torch-ext/binding.cpp": """#include <c10/cuda/CUDAStream.h>
#include "../csrc/launch.h"
extern "C" __attribute__((visibility("default"))) int answer() { cudaStream_t s = nullptr; return launch(s) + own(); }
""",
    "csrc/launch.h": "#pragma once\n#include <cuda_runtime.h>\nint launch(cudaStream_t stream);\nint own();\n",
    "csrc/own.hip": '#include "launch.h"\nint own() { hipStream_t s = nullptr; return s == nullptr ? 2 : 0; }\n',
    "csrc/cuda/util.cuh": "#pragma once\n#include <cuda_bf16.h>\nusing number = __nv_bfloat16;\n#define STEP 1\n",
    "headers/reduce.cuh": "#pragma once\n#include <cub/cub.cuh>\nusing largest = cub::Max;\n",
    "csrc/cuda/scale.cu": """#include "../launch.h"
#include "util.cuh"
#include <reduce.cuh>
__global__ void kernel(number* x) { x[threadIdx.x] = x[0]; }
int launch(cudaStream_t stream) {
  return cudaStreamSynchronize(stream) == cudaSuccess ? 40 * STEP : 0;
}
""",
}


def _write(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    hipcc = _write(tmp_path / "rocm", {"bin/hipcc": _HIPCC}) / "bin/hipcc"
    hipcc.chmod(0o755)
    _write(tmp_path / "rocm/include", _HEADERS)
    monkeypatch.setenv("HIPCC", str(hipcc))
    monkeypatch.setattr(torch_installation, "torch_builds", lambda: {"rocm": MajorMinor(7, 0)})
    return _write(tmp_path / "source", _SOURCES)


def _compiled(tmp_path: Path) -> list[str]:
    """What hipcc compiled since the last call."""
    log = tmp_path / "rocm/compiled"
    lines = log.read_text().splitlines() if log.is_file() else []
    log.unlink(missing_ok=True)
    return sorted(line.partition(" -c ")[2].split()[0] for line in lines)


def _answer(variant: Path) -> int:
    (library,) = variant.glob("*.so")
    return int(ctypes.CDLL(str(library)).answer())


def _plan(source: Path) -> BuildPlan:
    read = read_source(source)
    return plan_build(read, source_state(read), "rocm")


@pytest.mark.compiler
@pytest.mark.parametrize("ninja", [True, False])
def test_cuda_sources_are_built_for_rocm(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ninja: bool
) -> None:
    if not ninja:
        monkeypatch.setattr(run_compiler, "_ninja", lambda: None)
    before = {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}
    (variant,) = build_kernel(source, tmp_path / "out")
    assert _answer(variant) == 42
    # The translation is in the build's work folder; what is published has no trace of it.
    assert {path: path.read_bytes() for path in source.rglob("*") if path.is_file()} == before
    assert not list(variant.rglob("*.hip"))
    translated = (tmp_path / "out/.kernels-build" / variant.name / "translated.txt").read_text().split()
    assert translated == [
        "csrc/cuda/scale.cu",
        "csrc/cuda/util.cuh",
        "csrc/launch.h",
        "headers/reduce.cuh",
        "torch-ext/binding.cpp",
    ]


@pytest.mark.compiler
def test_only_what_changed_is_compiled_again(source: Path, tmp_path: Path) -> None:
    build_kernel(source, tmp_path / "out")
    assert _compiled(tmp_path) == ["csrc/cuda/scale.cu", "csrc/own.hip"]
    build_kernel(source, tmp_path / "out")
    assert _compiled(tmp_path) == []
    header = source / "csrc/cuda/util.cuh"
    header.write_text(header.read_text().replace("STEP 1", "STEP 2"))
    (variant,) = build_kernel(source, tmp_path / "out")
    assert (_answer(variant), _compiled(tmp_path)) == (82, ["csrc/cuda/scale.cu"])


@pytest.mark.compiler
def test_errors_have_the_authors_paths_and_lines_and_say_what_was_compiled(source: Path, tmp_path: Path) -> None:
    kernel = source / "csrc/cuda/scale.cu"
    kernel.write_text(kernel.read_text().replace("40 * STEP", "forty"))
    with pytest.raises(
        BuildError, match=r"(?s)^Building csrc/cuda/scale\.cu failed.*csrc/cuda/scale\.cu:6:.*forty"
    ) as it:
        build_kernel(source, tmp_path / "out")
    assert "> Compiled is its translation to HIP: " in str(it.value)
    assert str(it.value).endswith("/hip/csrc/cuda/scale.cu")


@pytest.mark.compiler
def test_the_printed_commands_translate_too(source: Path, tmp_path: Path) -> None:
    plan = _plan(source)
    commands = build_commands(plan, tmp_path / "out", tmp_path / "work")
    script = "\n".join(shell_script(plan, commands))
    subprocess.run(["sh", "-e", "-c", script], check=True, cwd="/")
    assert _answer(tmp_path / "out/build" / plan.variant) == 42
    (translating,) = (number for number, each in enumerate(commands) if any("hipify_sources" in x for x in each.argv))
    (first, *_) = (number for number, each in enumerate(commands) if "-c" in each.argv)
    assert translating < first

    entries = compile_commands([plan], tmp_path / "work")[source]
    here = tmp_path / "work" / plan.variant / "hip"
    assert {entry["directory"] for entry in entries} == {str(here)}
    assert str(here / "csrc/cuda/scale.cu") in {entry["file"] for entry in entries}
    json.dumps(entries)


@pytest.mark.compiler
@pytest.mark.skipif(shutil.which("hipcc") is None, reason="hipcc is not installed")
def test_hipcc_compiles_the_translation(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HIPCC")
    toolkit = toolkit_for("hip")
    assert toolkit is not None
    monkeypatch.setattr(torch_installation, "torch_builds", lambda: {"rocm": toolkit.version})
    kernel = """#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include "util.cuh"
__global__ void kernel(__half* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = __float2half(STEP * __half2float(x[i]));
}
int launch(cudaStream_t stream) {
  kernel<<<1, 256, 0, stream>>>(nullptr, 0);
  return cudaPeekAtLastError() == cudaSuccess ? 1 : 2;
}
"""
    changed = {
        "build.toml": _TOML.replace('["gfx942"]', '["gfx906", "gfx9999"]'),
        "csrc/cuda/scale.cu": kernel,
        "csrc/cuda/util.cuh": "#pragma once\n#define STEP 2\n",
        "torch-ext/binding.cpp": '#include "../csrc/launch.h"\nint answer() { return launch(nullptr) + own(); }\n',
    }
    with warned(r"hipcc does not support gfx9999"):
        (variant,) = build_kernel(_write(source, changed), tmp_path / "out")
    assert json.loads((variant / "metadata.json").read_text())["backend"]["archs"] == ["gfx906"]
    (library,) = variant.glob("*.so")
    assert b"amdgcn-amd-amdhsa--gfx906" in library.read_bytes()


def test_sources_without_cudas_names_are_compiled_as_they_are(source: Path) -> None:
    assert _plan(source).compilation.translation is not None  # type: ignore[union-attr]
    for name in _SOURCES:
        if Path(name).suffix in (".cu", ".cuh", ".h", ".cpp"):
            (source / name).write_text("#ifdef CUDA_KERNEL\n#endif\n__global__ void k(); // torch::kCUDA, is_cuda()\n")
    assert _plan(source).compilation.translation is None  # type: ignore[union-attr]


def test_a_torch_without_a_translator_is_mentioned(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernels.authoring.compile.toolchains.hipify import hip_translator

    (tmp_path / "torch/lib").mkdir(parents=True)
    with warned(r"csrc/launch\.h is CUDA, and there is no .*/torch/utils/hipify to translate it to HIP"):
        assert hip_translator(source, ["a.py", "csrc/launch.h"], "hip", tmp_path / "torch/lib") is None
    assert hip_translator(source, ["csrc/launch.h"], "cuda", tmp_path / "torch/lib") is None


def test_files_keep_their_names_and_lines(tmp_path: Path) -> None:
    torch = this_torch()
    assert torch is not None
    made = tmp_path / "made"
    files = {
        "cuda/one_cuda.cu": '#include <ATen/cuda/CUDAContext.h>\n#include "one_cuda.cuh"\n__global__ void k();\n',
        "cuda/one_cuda.cuh": "#include <cuda_fp16.h>\n",
        "table.inc": "// cudaMalloc\n",
        "done.hip": "// cudaMalloc\n",
    }
    source = _write(tmp_path / "source", files)
    (source / "latin.h").write_bytes(b"// \xe9 cudaMalloc\n")
    every = [*files, "latin.h"]
    made.mkdir()
    assert translate(torch.folder / "utils/hipify", source, made, every) == [*files][:3]
    lines = (made / "cuda/one_cuda.cu").read_text().splitlines()
    assert lines[:2] == ['#include "hip/hip_runtime.h"', "#line 1"]
    assert lines[2].startswith("#include <ATen/hip/")
    assert lines[3:] == ['#include "one_cuda.cuh"', "__global__ void k();"]
    assert (made / "cuda/one_cuda.cuh").read_text() == "#include <hip/hip_fp16.h>\n"
    assert (made / "table.inc").read_text() == "// hipMalloc\n"
    assert (made / "done.hip").read_text() == files["done.hip"]
    assert (made / "latin.h").read_bytes() == b"// \xe9 cudaMalloc\n"

    # Again: nothing is written that would be the same.
    for path in made.rglob("*"):
        os.utime(path, (1, 1))
    (source / "table.inc").write_text("// cudaFree\n")
    translate(torch.folder / "utils/hipify", source, made, every)
    assert [path.name for path in made.rglob("*") if path.is_file() and path.stat().st_mtime > 1] == ["table.inc"]
