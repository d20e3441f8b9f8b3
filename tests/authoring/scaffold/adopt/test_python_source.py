"""A Python file's Triton functions, their launchers, and its texts for load_inline are found without running it."""

from __future__ import annotations

import pytest

from kernels.authoring.scaffold.adopt.python_source import InlineSources, read_python
from kernels.errors import RequestError

TRITON = b"""
import os
import numpy as np
import torch
import triton
from .other import thing

@triton.autotune(configs=[], key=["n"])
@triton.jit
def _kernel(x, n): pass

@triton.jit
def public_kernel(x): pass

def _launch(x):
    _kernel[(1,)](x, 1)

def scale(x):
    return _launch(x)

def unrelated(x):
    return x

class Layer(torch.nn.Module):
    def forward(self, x):
        return scale(x)

print(scale)
os.environ["A"] = "1"
if __name__ == "__main__":
    raise SystemExit("it was run")
raise SystemExit("it was run")
"""


def test_triton_functions_and_what_launches_them_are_found() -> None:
    source = read_python(TRITON, "f.py")
    assert source.kernels == ("_kernel", "public_kernel")
    assert source.launchers == ("scale",)
    assert source.classes == ("Layer",)
    assert source.modules == ("numpy", ".")
    assert [TRITON.decode().splitlines()[line - 1] for line in source.runs] == ["print(scale)"]
    assert source.inline is None


@pytest.mark.parametrize(
    "call",
    [
        'load_inline(name="m", cpp_sources=CPP, cuda_sources=[CUDA], functions=["f"])',
        'cpp_extension.load_inline("m", [CPP], CUDA, functions="f")',
        'm = load_inline(name="m", cpp_sources=[CPP], cuda_sources=CUDA, functions={"f": "a text"})',
    ],
)
def test_texts_for_load_inline_are_found(call: str) -> None:
    source = read_python(
        f'A = "__global__ "\nCUDA = A + """void k() {{}}"""\nCPP = ("int " "f();")\n{call}'.encode(), "f.py"
    )
    assert source.inline == InlineSources("int f();", "__global__ void k() {}", ("f",))


@pytest.mark.parametrize("text", ['open("f.cu").read()', "f'{x}'", "CUDA", "1"])
def test_a_text_that_is_not_in_the_file_is_not_guessed(text: str) -> None:
    data = f"CUDA = CUDA\nload_inline(name='m', cpp_sources='', cuda_sources={text}, functions=['f'])".encode()
    assert read_python(data, "f.py").inline is None


@pytest.mark.parametrize("data", [b"def f(:", b"\0", b"(" * 10_000, b"\xff\xfe"])
def test_what_is_no_python_is_an_error(data: bytes) -> None:
    with pytest.raises(RequestError, match=r"f\.py"):
        read_python(data, "f.py")


def test_a_launch_through_thousands_of_functions_is_found() -> None:
    chain = "".join(f"def f{number}(x):\n  f{number + 1}(x)\n" for number in range(5000))
    source = read_python(f"@triton.jit\ndef k(x):\n  pass\n{chain}def f5000(x):\n  k[(1,)](x)\n".encode(), "f.py")
    assert len(source.launchers) == 5001
