"""A Python file's Triton functions, their launchers, and its texts for load_inline are found without running it."""

from __future__ import annotations

import pytest

from kernels.authoring.scaffold.adopt.python_source import InlineSources, Launcher, read_python
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
    assert source.launchers == (Launcher("scale", (("x", ""),), returns=True),)
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


@pytest.mark.parametrize(
    ("parameters", "body", "required", "returns"),
    [
        ("x, n: int, by=1, *rest, out: torch.Tensor, eps=0, **others", "k[(1,)](x)", ["x", "n", "out"], False),
        ("", "k[(1,)]()\n    return", [], False),
        ("x, /", "if x:\n        return k[(1,)](x)", ["x"], True),
        ("x", "def grid(meta):\n        return (1,)\n    k[grid](x)", ["x"], False),
    ],
)
def test_a_launcher_has_the_parameters_that_a_call_needs_and_may_return_nothing(
    parameters: str, body: str, required: list[str], returns: bool
) -> None:
    data = f"@triton.jit\ndef k(x): pass\ndef f({parameters}):\n    {body}\n"
    [launcher] = read_python(data.encode(), "f.py").launchers
    assert ([name for name, _ in launcher.parameters], launcher.returns) == (required, returns)


@pytest.mark.parametrize(
    ("statement", "is_noted"),
    [
        ('x = torch.randn(4, 512, device="cuda")', True),
        ("x: torch.Tensor = torch.empty(1)", True),
        ("x = t.zeros(1) + 1", True),
        ("x = randn(1)", True),
        ("layer = nn.Linear(2, 2)", True),
        ("y = f(None)", True),
        ("y = k[(1,)](None)", True),
        ("major = torch.cuda.get_device_capability()[0]", True),
        ("DEVICE = triton.runtime.driver.active.get_active_torch_device()", True),
        ("HAS_GPU = torch.cuda.is_available()", False),
        ("INFINITY = torch.finfo(torch.float32).max", False),
        ("make = lambda: torch.empty(1)", False),
        ("T = TypeVar('T')", False),
        ("log = logging.getLogger(__name__)", False),
        ("configs = [triton.Config({'BLOCK': 2 ** n}, num_warps=4) for n in range(3)]", False),
        ("BLOCK = tl.constexpr(int(os.environ.get('BLOCK', 64)))", False),
        ("ops = torch.library.Library('ns', 'DEF')", False),
        ("g = torch.compile(f)", False),
        ("alias = torch.nn.functional.silu", False),
        ("x: int", False),
    ],
)
def test_an_assignment_is_noted_where_it_computes_with_torch_or_launches(statement: str, is_noted: bool) -> None:
    data = (
        "import torch, triton\nimport torch as t\nfrom torch import nn, randn\n@triton.jit\ndef k(x): pass\n"
        f"def f(x): k[(1,)](x)\n{statement}\n"
    )
    assert read_python(data.encode(), "f.py").runs == ((7,) if is_noted else ())
