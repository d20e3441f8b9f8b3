"""A library's author gets types from `kernels`: mypy and pyright, both strict, check a small project that uses it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

# mypy runs at the root, so that it shares its cache with `make lint`.
CHECKERS = {
    "mypy": ["-m", "mypy", str(HERE / "acme_models")],
    "pyright": ["-m", "pyright", "--project", str(HERE), "--pythonpath", sys.executable],
}


@pytest.mark.parametrize("checker", CHECKERS)
def test_right_uses_pass_and_each_wrong_line_has_its_error(checker: str) -> None:
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, *CHECKERS[checker]], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
