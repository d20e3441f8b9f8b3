"""Environments for the scripts in compat/: made once, used again, made anew when what is asked for changes."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode != 0,
    reason="this environment has no pip",
)


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A package of one module that needs nothing."""
    path = tmp_path / "acme_tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("acme_tiny.py", "ANSWER = 42\n")
        archive.writestr("acme_tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: acme-tiny\nVersion: 1.0\n")
        archive.writestr(
            "acme_tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("acme_tiny-1.0.dist-info/RECORD", "")
    return path


def run_script(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    script = ROOT / "compat" / "environment.py"
    return subprocess.run([sys.executable, str(script), *map(str, arguments)], capture_output=True, text=True)


def test_an_environment_is_made_once_and_again_when_the_request_changes(tmp_path: Path, wheel: Path) -> None:
    folder = tmp_path / "env"
    arguments = ["tiny", wheel, "--folder", folder, "--option=--no-index"]
    made = run_script(*arguments)
    assert made.returncode == 0, made.stderr
    python = made.stdout.strip()
    assert Path(python).is_relative_to(folder)

    query = "import acme_tiny, importlib.util; print(acme_tiny.ANSWER, importlib.util.find_spec('msgspec') is not None)"
    assert subprocess.run([python, "-c", query], capture_output=True, text=True).stdout.split() == ["42", "False"]

    (folder / "kept").touch()
    assert run_script(*arguments).stdout.strip() == python
    assert (folder / "kept").exists()

    assert run_script(*arguments, "--borrow").stdout.strip() == python
    assert not (folder / "kept").exists()
    assert subprocess.run([python, "-c", query], capture_output=True, text=True).stdout.split() == ["42", "True"]


def test_what_the_installer_says_is_the_error_and_nothing_half_made_is_used(tmp_path: Path) -> None:
    arguments = ["none", tmp_path / "missing-1.0-py3-none-any.whl", "--folder", tmp_path / "env", "--option=--no-index"]
    for _ in range(2):
        failed = run_script(*arguments)
        assert failed.returncode == 1
        assert "missing-1.0-py3-none-any.whl" in failed.stderr
        assert "Traceback" not in failed.stderr


def test_a_python_that_is_not_there_is_named(tmp_path: Path) -> None:
    failed = run_script("none", "packaging", "--folder", tmp_path / "env", "--python", str(tmp_path / "python9"))
    assert failed.returncode == 1
    assert "python9" in failed.stderr
