"""A small kernel, with benchmarks beside its build."""

from __future__ import annotations

import queue
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from example_kernels import example_hub
from hub import kernel_files

from kernels.authoring.bench import measure_process, runner
from kernels.authoring.bench.messages import Job, Message, decode, encode

__all__ = ["example_hub", "in_process", "make_kernel", "make_script"]


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


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`measure` works in this process: for tests in which no workload crashes or hangs."""
    modules = set(sys.modules)

    class Worker:
        def __init__(self, job: Job) -> None:
            self.messages: queue.Queue[Message | None] = queue.Queue()
            measure_process.work(job, lambda message: self.messages.put(decode(encode(message))))
            for name in set(sys.modules) - modules:
                if name.startswith("benchmark_"):
                    del sys.modules[name]

        def __enter__(self) -> Worker:
            return self

        def __exit__(self, *_: object) -> None: ...

        def wait(self) -> None: ...

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(runner, "_Worker", Worker)
