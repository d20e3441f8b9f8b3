"""A kernel is made around files that somebody has: they stay as they are, and what was made builds and runs."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from torch_headers import torch_headers

from kernels import get_local_kernel
from kernels.authoring.check.audit import audit
from kernels.authoring.compile import build_kernel, read_source
from kernels.authoring.scaffold import adopt_kernel
from kernels.errors import RequestError

PYBIND = """\
#include <torch/extension.h>
#include "sub/factor.h"

namespace mine {
// Adds, in a namespace.
std::vector<torch::Tensor> both(torch::Tensor x, const at::Tensor& y, float by = 2) { return {x * by, y + kFactor}; }
}
static double scale_all(float* x, int n, float by) {
  for (int i = 0; i < n; ++i) x[i] *= by;
  return by;
}
void add_to(torch::Tensor& out, const torch::Tensor& x) { out.add_(x); }
template <typename T> T generic(T x) { return x; }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("both", &mine::both, "Adds", py::arg("x"), py::arg("y") = 1, py::call_guard<py::gil_scoped_release>());
  m.def("scale_all", &scale_all);
  m.def("add_to", &add_to);
  m.def("generic", &generic);
}
"""

LIBRARY = """\
#include <ATen/core/Tensor.h>
#include <ATen/ops/mul.h>
#include <torch/library.h>

namespace mine {
at::Tensor twice(const at::Tensor& x, double by) { return at::mul(x, 2 * by); }
TORCH_LIBRARY(mine, m) { m.def("twice(Tensor x, float by=1.0) -> Tensor"); }
TORCH_LIBRARY_IMPL(mine, CPU, m) { m.impl("twice", &twice); }
}
"""

LAUNCHER = """\
#include "solve.h"
#include <cuda_runtime.h>

__global__ void vector_add(const float* A, const float* B, float* C, int N) {
  int i = blockDim.x * blockIdx.x + threadIdx.x;
  if (i < N) C[i] = A[i] + B[i];
}
extern "C" void solve(const float* A, const float* B, float* C, int N) {
  vector_add<<<(N + 255) / 256, 256>>>(A, B, C, N);
}
void reference(float* A, int N) { A[0] = N; }
int main() { return 0; }
"""

KERNELS = """\
#include <cuda_fp16.h>
namespace mine {
typedef half real;
template <typename T> __device__ T twice(T x) { return x + x; }
__global__ void scale(const real* __restrict__ x, real* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = twice(x[i]);
}
}
"""

INLINE = '''\
import torch
from torch.utils.cpp_extension import load_inline

source = """
#include <cuda_runtime.h>
__global__ void k(const float* x, float* y, int n) { y[0] = x[0]; }
torch::Tensor relu_cuda(torch::Tensor x) {
    auto y = torch::zeros_like(x);
    k<<<1, 1>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
    return y;
}
"""
relu = load_inline(name="relu", cpp_sources="torch::Tensor relu_cuda(torch::Tensor x);", cuda_sources=source,
                   functions=["relu_cuda"])
raise SystemExit("the file was run")
'''

TRITON = """\
import torch
import triton
import triton.language as tl


@triton.jit
def _double_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


def double(x):
    if not x.is_cuda:
        return x * 2
    y = torch.empty_like(x)
    _double_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
    return y
"""


def file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def clean(folder: Path) -> None:
    """All Python is clean for ruff, and nothing of the templates is left."""
    for path in folder.rglob("*.py"):
        ast.parse(path.read_text())
    texts = [path.read_text() for path in folder.rglob("*") if path.is_file() and path.suffix != ".so"]
    assert not [text for text in texts if "@FILE@" in text or "@NAME@" in text]
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--no-cache",
        "--select",
        "E,F,I",
        "--ignore",
        "E501",
    ]
    made = [path for path in folder.rglob("*.py") if path.name in ("__init__.py", "test_kk.py")]
    if shutil.which("ruff") or (Path(sys.executable).parent / "ruff").exists():
        done = subprocess.run([*command, *made], capture_output=True, text=True, cwd=folder.parent)
        assert done.returncode == 0, done.stdout


@pytest.mark.compiler
def test_functions_of_pybind_become_operators_of_a_build(tmp_path: Path) -> None:
    import torch

    path = file(tmp_path / "their", "My_Ops.cpp", PYBIND)
    file(tmp_path / "their", "sub/factor.h", "#pragma once\nconstexpr double kFactor = 3;\n")
    made = adopt_kernel([path], folder=tmp_path / "k")
    assert made.offered == ("both", "scale_all", "add_to")
    assert [note for note in made.notes if "generic (line 13) was not mapped: it is a template" in note]
    assert (made.folder / "my_ops_cpu" / "My_Ops.cpp").read_text() == PYBIND
    assert (made.folder / "my_ops_cpu" / "sub" / "factor.h").is_file()
    assert read_source(made.folder).name == "my-ops"
    clean(made.folder)
    # All of Torch's C++ takes some 20 seconds to compile.
    light = "<ATen/core/Tensor.h>\n#include <ATen/TensorOperators.h>\nnamespace torch { using at::Tensor; }"
    adapter = made.folder / "my_ops_cpu" / "adapters" / "torch" / "extension.h"
    adapter.write_text(adapter.read_text().replace("<torch/all.h>", light))
    [built] = build_kernel(made.folder, made.folder)
    assert [each for found in audit(built) for each in found.findings if found.failed] == []
    kernel = get_local_kernel(built)
    x = torch.ones(4)
    first, second = kernel.both(x, x)
    assert (first.tolist(), second.tolist()) == ([2.0] * 4, [4.0] * 4)
    assert kernel.scale_all(x, 3, 5.0) == 5
    assert x.tolist() == [5.0, 5.0, 5.0, 1.0]
    kernel.add_to(x, torch.ones(4))
    assert x.tolist() == [6.0, 6.0, 6.0, 2.0]
    with pytest.raises(RuntimeError, match="`x`: expected Float, got Double"):
        kernel.scale_all(x.double(), 3, 5.0)
    with pytest.raises(RuntimeError, match="`x`: expected a contiguous tensor"):
        kernel.scale_all(torch.ones(4, 4).t()[1:], 3, 5.0)
    torch.library.opcheck(kernel._ops.ops.add_to.default, (torch.ones(4), torch.ones(4)), test_utils=["test_schema"])


@pytest.mark.compiler
def test_operators_of_a_library_are_registered_in_the_builds_namespace(tmp_path: Path) -> None:
    import torch

    made = adopt_kernel([file(tmp_path, "twice.cpp", LIBRARY)], "kk", tmp_path / "k", license="MIT", repo_id="org/k")
    assert (made.folder / "kk_cpu" / "twice.cpp").read_text() == LIBRARY
    [built] = build_kernel(made.folder, made.folder)
    kernel = get_local_kernel(built)
    assert kernel.twice(torch.ones(2)).tolist() == [2.0, 2.0]
    assert kernel.twice(torch.ones(2), by=2).tolist() == [4.0, 4.0]
    assert [each for found in audit(built) for each in found.findings if found.failed] == []
    assert 'repo-id = "org/k"' in (made.folder / "build.toml").read_text()


def test_a_file_with_implementations_alone_gets_their_schemas(tmp_path: Path) -> None:
    text = LIBRARY.replace('TORCH_LIBRARY(mine, m) { m.def("twice(Tensor x, float by=1.0) -> Tensor"); }\n', "")
    made = adopt_kernel([file(tmp_path, "kk.cpp", text)], folder=tmp_path / "k")
    binding = (made.folder / "torch-ext" / "torch_binding.cpp").read_text()
    assert 'ops.def("twice(Tensor x, float by) -> Tensor");' in binding
    assert not (made.folder / "kk_cpu" / "kk_bindings.cpp").exists()


@pytest.mark.parametrize(
    ("name", "text", "schema", "notes"),
    [
        (
            "kk.cu",
            LAUNCHER,
            "solve(Tensor A, Tensor B, Tensor(a!) C, int N) -> ()",
            ["kk.cu includes 'solve.h', which is not beside it", "kk.cu, line 9: a launch without a stream"],
        ),
        (
            "kk.cu",
            KERNELS,
            "scale(Tensor x, Tensor(a!) y, int n, int[] grid, int[] block, int shared_bytes=0) -> ()",
            [],
        ),
        (
            "kk.py",
            INLINE,
            "relu_cuda(Tensor x) -> Tensor",
            ["kk.cu is the text that kk.py gives to load_inline", "kk.cu, line 8: a launch without a stream"],
        ),
    ],
    ids=["launcher", "kernels", "load_inline"],
)
def test_cuda_files_become_a_cuda_kernel(tmp_path: Path, name: str, text: str, schema: str, notes: list[str]) -> None:
    made = adopt_kernel([file(tmp_path, name, text)], folder=tmp_path / "k", license="MIT")
    assert f'ops.def("{schema}");' in (made.folder / "torch-ext" / "torch_binding.cpp").read_text()
    assert [note[: len(start)] for note, start in zip(made.notes, notes, strict=True)] == notes
    source = read_source(made.folder)
    assert [(kernel.backend, kernel.src) for kernel in source.kernels] == [("cuda", ("kk_cuda/kk_bindings.cu",))]
    bindings = (made.folder / "kk_cuda" / "kk_bindings.cu").read_text()
    assert '#include "kk.cu"' in bindings
    assert ("getCurrentCUDAStream()" in bindings) == (text == KERNELS)
    clean(made.folder)


@pytest.mark.compiler
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_nvcc_compiles_the_launch_of_a_kernel(tmp_path: Path) -> None:
    import kernels.authoring.compile

    made = adopt_kernel([file(tmp_path, "kk.cu", KERNELS)], folder=tmp_path / "k")
    registration = Path(kernels.authoring.compile.__file__).parent / "include"
    # A header that only Torch's builds for CUDA have.
    command = [
        "nvcc",
        "-std=c++20",
        "-O0",
        "-arch=sm_90",
        "-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE",
        "-ptx",
        "-o",
        tmp_path / "ptx",
    ]
    command += [option for path in (*torch_headers(), registration) for option in ("-isystem", path)]
    command += ["-DTORCH_EXTENSION_NAME=_kk_cuda_1", made.folder / "kk_cuda" / "kk_bindings.cu"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert ".entry" in (tmp_path / "ptx").read_text()


def test_a_triton_file_becomes_a_noarch_kernel(tmp_path: Path) -> None:
    import torch

    pytest.importorskip("triton")
    path = file(tmp_path, "double.py", TRITON)
    made = adopt_kernel([path], folder=tmp_path / "k", backends=["cuda", "cpu"], license="MIT")
    assert made.offered == ("double",)
    assert [note.partition(":")[0] for note in made.notes] == ["Triton needs an accelerator"]  # as it is for cpu, too
    assert (made.folder / "torch-ext" / "double" / "double.py").read_bytes() == path.read_bytes()
    clean(made.folder)
    built = {each.name: each for each in build_kernel(made.folder, made.folder)}
    assert set(built) == {"torch-cpu", "torch-cuda"}
    assert get_local_kernel(built["torch-cpu"]).double(torch.ones(2)).tolist() == [2.0, 2.0]


def test_what_a_triton_file_needs_is_said(tmp_path: Path) -> None:
    text = "import numpy\n" + TRITON.split("def double")[0] + "print(1)\n"
    made = adopt_kernel([file(tmp_path, "my-file.py", text)], folder=tmp_path / "k")
    assert made.offered == ("_double_kernel",)
    said = "\n".join(made.notes)
    assert "no function of my-file.py launches _double_kernel" in said
    assert "my-file.py imports numpy" in said
    assert ": this runs in every process" in said
    assert (made.folder / "torch-ext" / "my_file" / "_source.py").is_file()


@pytest.mark.parametrize(
    ("name", "text", "options", "says"),
    [
        ("kk.txt", "x", {}, r"'kk\.txt': expected a file with one of the suffixes \.cu, \.hip"),
        ("kk.metal", "kernel void f() {}", {}, "kernels init NAME --backends metal"),
        ("kk.py", "x = 1", {}, "no function with @triton.jit"),
        ("kk.py", "def f(:", {}, r"kk\.py, line 1"),
        ("kk.cpp", "int x;", {}, "has nothing that can become an operator: it defines no function with a tensor"),
        ("kk.cpp", "template <typename T> at::Tensor f(T x) { return x; }", {}, "it is a template"),
        ("kk.cpp", "at::Tensor f(at::Tensor x) { return x; }", {"backends": ["cpu", "cuda"]}, "for one backend"),
        ("a b.cpp", "at::Tensor f(at::Tensor x) { return x; }", {}, "rename the file"),
        ('k".cpp', "at::Tensor f(at::Tensor x) { return x; }", {}, "rename the file"),
    ],
)
def test_what_cannot_be_adopted_is_said_and_leaves_nothing(
    tmp_path: Path, name: str, text: str, options: dict[str, list[str]], says: str
) -> None:
    path = file(tmp_path, name, text)
    with pytest.raises(RequestError, match=says):
        adopt_kernel([path], folder=tmp_path / "made", **options)  # type: ignore[arg-type]
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_headers_outside_of_the_files_folder_are_not_copied(tmp_path: Path) -> None:
    file(tmp_path, "secret.h", "secret")
    folder = tmp_path / "their"
    text = (
        '#include "../secret.h"\n#include "link.h"\n#include "/etc/hostname"\nat::Tensor f(at::Tensor x) { return x; }'
    )
    path = file(folder, "kk.cpp", text)
    (folder / "link.h").symlink_to(tmp_path / "secret.h")
    made = adopt_kernel([path], folder=tmp_path / "k")
    assert [each for each in made.folder.rglob("*.h") if each.parent.name != "torch"] == []
    assert len([note for note in made.notes if "copy it there" in note]) == 3


def test_several_files_are_compiled_together(tmp_path: Path) -> None:
    first = file(tmp_path, "kernel.cu", "torch::Tensor f_cuda(torch::Tensor x) { return x; }")
    second = file(
        tmp_path,
        "ops.cpp",
        "#include <torch/extension.h>\ntorch::Tensor f_cuda(torch::Tensor x);\n"
        'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("f", &f_cuda); }',
    )
    made = adopt_kernel([first, second], "kk", tmp_path / "k")
    assert made.offered == ("f",)
    [kernel] = read_source(made.folder).kernels
    assert (kernel.backend, kernel.src) == ("cuda", ("kk_cuda/ops_bindings.cpp", "kk_cuda/kernel.cu"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("001_Vector Add.cu", "kernel-001-vector-add"),
        ("k.cu", "kernel-k"),
        ("_.cu", "kernel"),
        ("RMSNorm.cu", "rmsnorm"),
    ],
)
def test_a_files_name_names_the_kernel(tmp_path: Path, name: str, expected: str) -> None:
    path = file(tmp_path, name.replace(" ", "-"), KERNELS)
    assert read_source(adopt_kernel([path], folder=tmp_path / "k").folder).name == expected


def test_a_file_that_begins_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = file(tmp_path, "add.cpp", "\ufeffat::Tensor add(at::Tensor x) { return x; }\n")
    assert adopt_kernel([path], folder=tmp_path / "add", backends=["cpu"]).offered == ("add",)


def test_an_operator_that_gives_a_tensor_has_a_fake_to_complete(tmp_path: Path) -> None:
    file = tmp_path / "both.cpp"
    file.write_text(
        "torch::Tensor scale(torch::Tensor x, double by) { return x * by; }\n"
        "void fill(torch::Tensor x) { x.fill_(1); }\n"
    )
    made = adopt_kernel([file], folder=tmp_path / "both")
    package = (made.folder / "torch-ext" / "both" / "__init__.py").read_text(encoding="utf-8")
    assert "_fill_fake" not in package  # Torch needs none where nothing is returned
    fake = package[package.index("# @torch") :].partition("\n\n")[0].replace("# ", "")
    assert ast.unparse(ast.parse(fake)) == (
        "@torch.library.register_fake(add_op_namespace_prefix('scale'))\n"
        "def _scale_fake(x, by):\n    return torch.empty_like(x)"
    )


@pytest.mark.parametrize(
    ("texts", "license"),
    [
        (["# SPDX-License-Identifier: MIT\n"], "MIT"),
        (["/* SPDX-License-Identifier: (MIT OR Apache-2.0) */\n"], "(MIT OR Apache-2.0)"),
        (["// Copyright\n//SPDX-License-Identifier:BSD-3-Clause\n"] * 2, "BSD-3-Clause"),
        (["// SPDX-License-Identifier: MIT\n", "// SPDX-License-Identifier: BSD-3-Clause\n"], None),
        (["// SPDX-License-Identifier: MIT\n", ""], None),
        (["// SPDX-License-Identifier: the MIT licence\n"], None),
        (["// SPDX-License-Identifier:\n"], None),
        ([""], None),
    ],
)
def test_the_licence_is_that_which_all_files_name_or_else_it_is_noted(
    tmp_path: Path, texts: list[str], license: str | None
) -> None:
    code = "at::Tensor f{}(at::Tensor x) {{ return x; }}\n"
    paths = [file(tmp_path, f"kk{at}.cpp", text + code.format(at)) for at, text in enumerate(texts)]
    made = adopt_kernel(paths, folder=tmp_path / "k")
    assert read_source(made.folder).license == (license or "Apache-2.0")
    expected = () if license else ("the licence is Apache-2.0: set that of kk0.cpp with --license",)
    assert made.notes == expected
    given = adopt_kernel(paths, folder=tmp_path / "given", license="LicenseRef-ours")
    assert (read_source(given.folder).license, given.notes) == ("LicenseRef-ours", ())


@pytest.mark.parametrize(
    ("name", "text", "called"),
    [
        (
            "kk.cu",
            "void geglu(const float* x, float* out, int n) {}\n",
            "    kernel.geglu(x, out, n)\n    found = out\n    expected = ...\n",
        ),
        ("kk.cpp", "at::Tensor f(at::Tensor x) { return x; }\n", "    found = kernel.f(x)\n    expected = ...\n"),
        (
            "kk.py",
            "@triton.jit\ndef k(x): pass\ndef f(x, n: int, out=None):\n  k[(1,)](x)\n  return x\n",
            "    n = 1024\n    found = kernel.f(x=x, n=n)\n    expected = ...\n",
        ),
        (
            "kk.py",
            "@triton.jit\ndef k(x): pass\ndef f(x):\n  k[(1,)](x)\n",
            "    kernel.f(x=x)\n    found = ...  # what it writes into\n    expected = ...\n",
        ),
    ],
)
def test_the_test_to_fill_in_calls_the_function_and_names_what_it_gives(
    tmp_path: Path, name: str, text: str, called: str
) -> None:
    made = adopt_kernel([file(tmp_path, name, text)], folder=tmp_path / "k")
    assert called in (made.folder / "tests" / "test_kk.py").read_text()
    clean(made.folder)


def test_classes_and_triton_functions_get_no_test_that_calls_them(tmp_path: Path) -> None:
    kernel = "@triton.jit\ndef k(x): pass\n"
    text = f"{kernel}class Norm(torch.nn.Module):\n  def forward(self, x): k[(1,)](x)\n"
    for name, source in (("kk", text), ("raw", kernel)):
        made = adopt_kernel([file(tmp_path, f"{name}.py", source)], folder=tmp_path / f"made-{name}")
        tests = (made.folder / "tests" / f"test_{name}.py").read_text()
        assert tests.rstrip().endswith("is launched")  # no test calls a class, or a function of Triton


def test_where_pointers_become_tensors_the_function_says_that_sizes_are_not_checked(tmp_path: Path) -> None:
    text = "at::Tensor f(at::Tensor x) { return x; }\nvoid g(float* x, int n) {}\n"
    made = adopt_kernel([file(tmp_path, "kk.cpp", text)], folder=tmp_path / "k")
    package = ast.parse((made.folder / "torch-ext" / "kk" / "__init__.py").read_text())
    source = (made.folder / "torch-ext" / "kk" / "__init__.py").read_text()
    functions = {
        each.name: ast.get_source_segment(source, each) for each in package.body if isinstance(each, ast.FunctionDef)
    }
    assert {name: "sizes are not checked" in str(text) for name, text in functions.items()} == {"f": False, "g": True}
