"""Small kernel sources to build."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from kernels.authoring.compile import build_kernel

NOARCH = {
    "build.toml": """
[general]
name = "add-one"
version = 3
edition = 5
license = "MIT"
backends = ["cpu", "cuda", "cann"]
upstream = "https://example.org/add-one"
python-depends = ["einops"]

[general.cuda]
python-depends = ["nvidia-cutlass-dsl"]
kernel-depends = [{ repo-id = "org/other", version = 1 }]

[torch-noarch]
cuda-capabilities = ["8.0", "9.0+PTX"]
""",
    "torch-ext/add_one/__init__.py": "from ._ops import add_op_namespace_prefix, ops\nfrom .deep.inner import one\n",
    "torch-ext/add_one/deep/inner.py": "one = 1\n",
    "torch-ext/add_one/notes.txt": "not a part of the package\n",
}

COMPILED = {
    "build.toml": """
[general]
name = "add-one"
version = 1
edition = 5
license = "MIT"
backends = ["cpu"]

[torch]
src = ["torch-ext/binding.cpp"]

[kernel.add_one]
backend = "cpu"
depends = ["torch"]
include = ["headers"]
src = ["add_one.cpp", "headers/one.h"]
cxx-flags = ["-DONE=1.0"]
""",
    # Torch's stable headers compile five times faster than the others, which the example kernels use.
    "torch-ext/binding.cpp": """
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "registration.h"

void add_one_to(const float* from, float* to, long count);

torch::stable::Tensor add_one(torch::stable::Tensor input) {
  auto output = torch::stable::empty_like(input);
  add_one_to(input.const_data_ptr<float>(), output.mutable_data_ptr<float>(), input.numel());
  return output;
}

STABLE_TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) { ops.def("add_one(Tensor input) -> Tensor"); }

STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CPU, ops) { ops.impl("add_one", TORCH_BOX(&add_one)); }

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
""",
    "add_one.cpp": """
#include "one.h"

#ifndef CPU_KERNEL
#error "compiled for another backend"
#endif

void add_one_to(const float* from, float* to, long count) {
  for (long i = 0; i < count; ++i) to[i] = from[i] + one;
}
""",
    "headers/one.h": "constexpr float one = ONE;\n",
    "torch-ext/add_one/__init__.py": "from ._ops import ops\n\n\ndef add_one(x):\n    return ops.add_one(x)\n",
}


def _write(folder: Path, files: Mapping[str, str | None]) -> Path:
    for name, text in files.items():
        if text is not None:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return folder


@pytest.fixture(scope="session")
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a compiled source, `source`, built into `out`: look at it, copy it, leave it as it is."""
    folder = tmp_path_factory.mktemp("compiled")
    build_kernel(_write(folder / "source", COMPILED), folder / "out")
    return folder


@pytest.fixture
def write_source(tmp_path: Path) -> Callable[..., Path]:
    """Write a source folder: `write_source("noarch")`, with files added or, as None, left out."""

    def write(kind: str, folder: str = "source", changes: Mapping[str, str | None] | None = None) -> Path:
        return _write(tmp_path / folder, {**(COMPILED if kind == "compiled" else NOARCH), **(changes or {})})

    return write
