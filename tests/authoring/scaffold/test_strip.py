"""What a backend forbids is removed as whole statements, and never where the rest of the file needs it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from kernels.authoring.compile import read_source
from kernels.authoring.scaffold import new_kernel
from kernels.authoring.scaffold.strip import strip_sources, strip_text
from kernels.backends import find

# What a model writes to force CUDA, and the texts that a description lists for it.
HACKS = [
    "torch.cuda.is_available = lambda: True",
    "_orig_torch_device = torch.device",
    "def _fake_torch_device",
    "torch.device = _fake_torch_device",
    'os.environ["TRITON_BACKENDS"] = "cuda"',
]
FORCED = '''\
import os
import torch

os.environ["TRITON_BACKENDS"] = "cuda"
torch.cuda.is_available = lambda: True
_orig_torch_device = torch.device


def _fake_torch_device(*args, **kwargs):
    if args and args[0] == "xpu":
        return _orig_torch_device("cuda")

    return _orig_torch_device(*args, **kwargs)


torch.device = _fake_torch_device


def kernel_function(x):
    """Not torch.device = _fake_torch_device."""
    return x  # torch.cuda.is_available = lambda: True
'''
CLEAN = '''\
import os
import torch





def kernel_function(x):
    """Not torch.device = _fake_torch_device."""
    return x  # torch.cuda.is_available = lambda: True
'''


def test_a_whole_hack_is_removed_with_its_function() -> None:
    found = strip_text(FORCED, HACKS)
    assert ast.dump(ast.parse(found.text)) == ast.dump(ast.parse(CLEAN))
    assert found.left == ((20, "'torch.device = _fake_torch_device' is in a text"),)
    assert strip_text(found.text, HACKS).text == found.text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("torch.cuda.synchronize()\nx = 1\n", "x = 1\n"),
        ("x = 1\r\ntorch.cuda.synchronize()\r\ny = 2\r\n", "x = 1\r\ny = 2\r\n"),
        ("def f(x):\n    torch.cuda.synchronize()\n", "def f(x):\n    pass\n"),
        ("def f(x):\n\ttorch.cuda.f(\n\t\t1,\n\t)\n\treturn x\n", "def f(x):\n\treturn x\n"),
        ("if x:\n    torch.cuda.a()\n    torch.cuda.b()\nelse:\n    y()\n", "if x:\n    pass\nelse:\n    y()\n"),
        ("stream = torch.cuda.Stream()\n", ""),
        ("a = torch.cuda.a()\nb = torch.cuda.b(a)\n", ""),
        ("torch.cuda.synchronize()", ""),
    ],
)
def test_statements_are_removed(text: str, expected: str) -> None:
    found = strip_text(text, ["torch.cuda."])
    assert (found.text, found.left) == (expected, ())
    ast.parse(found.text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("stream = torch.cuda.Stream()\nuse(stream)\n", "`stream`, which it sets, is used"),
        ("def f(x):\n    return torch.cuda.get(x)\n", "`return` around it"),
        ("if torch.cuda.is_available():\n    f()\n", "`if` around it"),
        ("with torch.cuda.device(x):\n    f()\n", "`with` around it"),
        ("x = 1; torch.cuda.synchronize()\n", "another statement is on the same line"),
        ("if x: torch.cuda.synchronize()\n", "`if` around it"),
        ("def f(x): torch.cuda.synchronize()\n", "in the head of a function"),
        ("def f(x=torch.cuda.device(0)):\n    return x\n", "in the head of a function"),
        ('x = "torch.cuda.f"\n', "'torch.cuda.' is in a text"),
        ('x = """\ntorch.cuda.f\n"""\n', "'torch.cuda.' is in a text"),
        ("torch.cuda.f(\n", "the file is not valid Python"),
        ("@torch.cuda.decorated\ndef f(x):\n    return x\n", "in the head of a function"),
    ],
)
def test_what_the_rest_needs_is_left_and_named(text: str, says: str) -> None:
    found = strip_text(text, ["torch.cuda."])
    assert found.text == text
    assert [reason for _, reason in found.left if says in reason], found.left


def test_a_name_that_another_file_uses_is_left() -> None:
    assert strip_text("a = torch.cuda.a()\n", ["torch.cuda."], {"a"}).left == (
        (1, "`a`, which it sets, is used elsewhere"),
    )
    assert strip_text("def _fake(x):\n    return x\n", ["def _fake"], {"_fake"}).left
    assert strip_text("def _fake(x):\n    return x\n", ["def _fake"]).text == ""


@pytest.mark.parametrize("text", ["", "# torch.cuda.synchronize()\n", "x = 1  # torch.cuda.f\n", "x = f(1)\n"])
def test_comments_and_clean_files_stay_as_they_are(text: str) -> None:
    found = strip_text(text, ["torch.cuda.", ""])
    assert (found.text, found.left) == (text, ())


def test_sources_are_only_changed_when_asked_and_links_never(tmp_path: Path) -> None:
    folder = new_kernel("relu-it", tmp_path / "k", backends=["xpu"], noarch=True)
    assert find("xpu").cuda_hacks_to_strip
    assert strip_sources(folder) == []
    package = read_source(folder).folder / "torch-ext" / "relu_it"
    file = package / "extra.py"
    file.write_text("import torch\n\ntorch.cuda.synchronize()\n")
    outside = tmp_path / "outside.py"
    outside.write_text("torch.cuda.synchronize()\n")
    (package / "linked.py").symlink_to(outside)
    [found] = strip_sources(folder)
    assert found.path == file
    assert found.diff.splitlines()[-3:] == [" import torch", " ", "-torch.cuda.synchronize()"]
    assert "synchronize" in file.read_text()
    strip_sources(folder, write=True)
    assert file.read_text() == "import torch\n\n"
    assert strip_sources(folder, write=True) == []
    assert "synchronize" in outside.read_text()


@pytest.mark.parametrize(
    ("backends", "removed", "needed_for"),
    [
        (["cpu", "xpu"], ["set_device", "language.extra.cuda"], ""),
        (["rocm", "xpu"], ["language.extra.cuda"], "rocm"),
        (["cuda", "rocm", "xpu"], [], "cuda"),  # of `torch.cuda.` also rocm
    ],
)
def test_what_a_backend_of_the_same_folder_may_need_is_left_and_named(
    tmp_path: Path, backends: list[str], removed: list[str], needed_for: str
) -> None:
    folder = new_kernel("relu-it", tmp_path / "k", backends=backends, noarch=True)
    text = (
        "import torch\n\n\ndef f(x):\n    torch.cuda.set_device(x.device)\n"
        "    triton.language.extra.cuda.sync(torch.ops)\n    return x\n"
    )
    (read_source(folder).folder / "torch-ext" / "relu_it" / "extra.py").write_text(text)
    [found] = strip_sources(folder)
    gone = [line for line in found.diff.splitlines() if line.startswith("-  ")]
    assert [name for line in gone for name in ("set_device", "language.extra.cuda") if name in line] == removed
    assert len(found.left) == 2 - len(removed)
    assert all(f"may be needed for {needed_for}" in reason for _, reason in found.left)


def test_a_statement_with_two_texts_is_left_if_one_of_them_is_needed() -> None:
    text = "torch.cuda.f(tl.g())\n"
    assert strip_text(text, ["torch.cuda.", "tl.g"], needed={"torch.cuda.": "rocm"}).text == text
    assert strip_text(text, ["torch.cuda.", "tl.g"]).text == ""
