"""Python processes that this package starts run no file of the current folder, whatever Python they run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kernels.authoring.compile.frameworks.torch_environments import WantedTorch, make_environment
from kernels.authoring.own_tests.run import run_tests
from kernels.authoring.scaffold import new_kernel
from kernels.backends.builtin import cuda_driver
from kernels.errors import RequestError

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the interpreter is a shell script")

EVIL = "import pathlib\npathlib.Path({marker!r}).touch()\n"


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """A current folder with modules that say that they ran, and a Python without `PYTHONSAFEPATH`, as 3.10 is."""
    folder, marker = tmp_path / "hostile", tmp_path / "ran"
    folder.mkdir()
    for name in ("msgspec", "json", "ctypes", "pytest", "venv", "pip", "runpy", "sitecustomize", "kernels"):
        (folder / f"{name}.py").write_text(EVIL.format(marker=str(marker)))
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nunset PYTHONSAFEPATH\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.chdir(folder)
    return marker.exists


def test_the_process_that_asks_cuda(
    hostile: Callable[[], bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cuda" / "lib64").mkdir(parents=True)
    (tmp_path / "cuda" / "lib64" / "libcudart.so.12").write_bytes(b"no library")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    notes: list[str] = []
    assert cuda_driver._ask_child("runtime", notes) is not None or "no libcudart loads" in notes[0]
    assert not hostile()


def test_the_tests_of_a_kernel(hostile: Callable[[], bool], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    kernel = new_kernel("rms-norm", tmp_path / "kernel", backends=["npu"], noarch=True)
    assert run_tests(kernel, ("--collect-only", "-q"), build=True) == 0
    assert not hostile()


def test_an_environment_with_another_torch(
    hostile: Callable[[], bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")  # without uv
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(RequestError, match="ended with exit status"):
        make_environment(WantedTorch.parse("2.9"), tmp_path / "environments", lambda command: None)
    assert not hostile()
