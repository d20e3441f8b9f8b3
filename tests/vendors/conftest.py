"""A machine with an Acme accelerator: its runtime library and program, and processes that run there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from acme_packages import add_package
from forked import Interpreter, started
from hub import TestHub

HERE = Path(__file__).parent
SUPPORT = HERE.parent / "fixtures"


@pytest.fixture(scope="session")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with `libacmert.so` and `acme-smi`."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("acme")
    source = str(HERE / "acmert.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libacmert.so", source], check=True)
    subprocess.run([compiler, "-DACME_SMI", "-o", folder / "acme-smi", source], check=True)
    return folder


@pytest.fixture(scope="session")
def interpreter(runtime: Path) -> Iterator[Interpreter]:
    """It imports Torch once, and finds the runtime library: the system reads `LD_LIBRARY_PATH` at a process's start."""
    folders = os.pathsep.join([str(runtime), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    with started("import torch, torch.utils.backend_registration", LD_LIBRARY_PATH=folders) as interpreter:
        yield interpreter


#: `python arguments`, where Torch is there already: it now calls the extensions that are installed.
PYTHON = """
import sys, runpy
torch._import_device_backends()
sys.argv, (how, *rest) = sys.argv[1:], sys.argv[1:]
if how == "-c":
    names = {"__name__": "__main__"}
    sys.argv = [how, *rest[1:]]
    exec(compile(rest[0], "<string>", "exec"), names)
elif how == "-m":
    sys.argv = rest
    runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
else:
    runpy.run_path(how, run_name="__main__")
"""


@pytest.fixture
def acme(
    runtime: Path, interpreter: Interpreter, hub: TestHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """Run Python where an Acme accelerator is there; returns what it printed to its standard output.

    The runtime library and the program are found; nothing is registered, and Torch alone does not know the device.
    `site` is a folder of installed packages, further names are environment variables.
    """
    registration = pytest.importorskip("torch.utils.backend_registration")
    if not hasattr(registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this Torch has no devices that are written in Python")
    monkeypatch.delenv("KERNELS_BACKEND", raising=False)
    for name, folders in {
        "PATH": [runtime],
        "LD_LIBRARY_PATH": [runtime],
        "PYTHONPATH": [SUPPORT, HERE / "acme_package" / "src"],
    }.items():
        monkeypatch.setenv(name, os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get(name)])]))

    def run(*arguments: str | Path, site: Path | None = None, status: int = 0, **environment: str) -> str:
        path = os.environ["PYTHONPATH"]
        environment = {"PYTHONPATH": path if site is None else f"{site}{os.pathsep}{path}", **environment}
        if "LD_LIBRARY_PATH" in environment:
            command = [sys.executable, *arguments]
            done = subprocess.run(
                command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120
            )
        else:
            folders = environment["PYTHONPATH"].split(os.pathsep)
            done = interpreter.run(PYTHON, tmp_path, *arguments, path=folders, **environment)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture
def extended_torch(tmp_path: Path) -> Path:
    """A folder of installed packages with Acme's extension of Torch, so that every process has the device."""
    site = tmp_path / "site"
    # `import torch` calls it (PyTorch's "autoloading" of out-of-tree extensions).
    add_package(site, "torch-acme", "[torch.backends]\nacme = acme_device:install\n")
    return site


@pytest.fixture
def installed(extended_torch: Path) -> Path:
    """The same folder with Acme's package for kernels beside it."""
    source = HERE / "acme_package" / "src"
    shutil.copytree(source, extended_torch, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    add_package(extended_torch, "acme-kernels", "[kernels.backends]\nacme = acme_kernels:Acme\n")
    return extended_torch
