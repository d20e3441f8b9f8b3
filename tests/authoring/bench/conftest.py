"""A small kernel, with benchmarks beside its build."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from example_kernels import example_hub
from hub import kernel_files

__all__ = ["example_hub", "make_kernel", "make_script"]


@pytest.fixture
def make_script(tmp_path: Path) -> Callable[..., Path]:
    """Write scripts into a folder of benchmarks, by name, and return the folder."""

    def write(root: Path | None = None, /, **scripts: str) -> Path:
        folder = (root or tmp_path) / "benchmarks"
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in scripts.items():
            (folder / f"{name}.py").write_text(textwrap.dedent(text))
        return folder

    return write


@pytest.fixture
def make_kernel(tmp_path: Path, make_script: Callable[..., Path]) -> Callable[..., Path]:
    """A folder with a build, whose function `double` adds a number to itself, and with benchmark scripts by name."""

    def write(name: str = "relu", /, **scripts: str) -> Path:
        folder = tmp_path / name
        for path, content in kernel_files(f"acme/{name}", "torch-cpu").items():
            place = folder / "build" / "torch-cpu" / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        if scripts:
            make_script(folder, **scripts)
        return folder

    return write
