"""A machine with an Acme accelerator: its runtime library and program, and processes that run there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hub import TestHub

HERE = Path(__file__).parent
SUPPORT = HERE.parent / "support"


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


@pytest.fixture
def acme(runtime: Path, hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run Python where an Acme accelerator is there; returns what it printed.

    The library and the program are found, nothing is registered, and Torch alone does not know the device.
    """
    monkeypatch.delenv("KERNELS_BACKEND", raising=False)
    for name, folders in {
        "PATH": [runtime],
        "LD_LIBRARY_PATH": [runtime],
        "PYTHONPATH": [SUPPORT, HERE / "acme_package" / "src"],
    }.items():
        monkeypatch.setenv(name, os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get(name)])]))

    def run(*arguments: str | Path, check: bool = True, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout if check else done.stdout + done.stderr

    return run


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder of installed packages with Acme's: what an installer leaves there."""
    site = tmp_path / "site"
    shutil.copytree(HERE / "acme_package" / "src", site, ignore=shutil.ignore_patterns("__pycache__"))
    metadata = site / "acme_kernels-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-kernels\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[kernels.backends]\nacme = acme_kernels:Acme\n")
    return site
