"""`kernels doctor` says which toolkit kernels would be built with, and whether it fits Torch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from cuda_toolkits import cuda_toolkit

from kernels.authoring.compile.toolchains import cuda_folders, nvcc
from kernels.diagnosis import toolkits
from kernels.diagnosis.toolkits import ToolkitReport, check_toolkits
from kernels.support.version import MajorMinor

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the stand-ins are shell scripts")


@pytest.fixture
def usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without toolkits; the folder in the place of `/usr/local`."""
    for variable in ("NVCC", "CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"):
        monkeypatch.delenv(variable, raising=False)
    for variable in ("HIPCC", "ICPX"):
        monkeypatch.setenv(variable, "not-installed")
    folder = tmp_path / "usual"
    folder.mkdir()
    monkeypatch.setattr(nvcc, "_NVIDIA", folder)
    monkeypatch.setattr(nvcc, "_DISTRIBUTIONS", ())
    monkeypatch.setattr(cuda_folders, "package_folders", lambda beside: [])
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return folder


def _built_for(monkeypatch: pytest.MonkeyPatch, builds: Mapping[str, MajorMinor | None]) -> None:
    torch = SimpleNamespace(builds=builds, folder=Path("/no/such/site/torch"))
    monkeypatch.setattr(toolkits, "this_torch", lambda: torch)


def test_the_toolkit_that_fits_torch_is_reported(usual: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = cuda_toolkit(usual / "cuda-13.0", "13.0")
    cuda_toolkit(usual / "cuda-13.2", "13.2")
    _built_for(monkeypatch, {"cuda": MajorMinor(13, 0), "cpu": None})
    reports, found = check_toolkits()
    place = str(usual / "cuda-13.0")
    assert reports == (ToolkitReport("cuda", "CUDA", "13.0", place, str(command), found_by=place, torch="13.0"),)
    assert found.problems == found.notes == []
    assert msgspec.to_builtins(reports)[0]["found_by"] == place


@pytest.mark.parametrize(
    ("installed", "note"),
    [
        ("12.8", "cuda: Torch was built with CUDA 13.0, which CUDA 12.8 in "),
        ("13.2", "cuda: Torch was built with CUDA 13.0; CUDA 13.2 in "),
        (None, "cuda: nvcc was not found on the path or in the usual places. Install the CUDA toolkit"),
    ],
)
def test_one_that_does_not_fit_or_is_absent_is_no_problem_for_who_builds_nothing(
    usual: Path, monkeypatch: pytest.MonkeyPatch, installed: str | None, note: str
) -> None:
    if installed is not None:
        cuda_toolkit(usual / "cuda", installed)
    _built_for(monkeypatch, {"cuda": MajorMinor(13, 0), "cpu": None})
    (report,), found = check_toolkits()
    assert found.problems == []
    assert [finding.message[: len(note)] for finding in found.notes] == [note]
    assert "to build kernels only" in found.notes[0].fix
    assert (report.version, report.torch) == ("13.2" if installed == "13.2" else None, "13.0")


def test_a_toolkit_that_torch_is_not_built_for_is_reported_and_absent_ones_are_not(
    usual: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _built_for(monkeypatch, {"cpu": None})
    assert check_toolkits()[0] == ()
    cuda_toolkit(usual / "cuda", "13.0")
    reports, found = check_toolkits()
    assert [(each.backend, each.version, each.torch) for each in reports] == [("cuda", "13.0", None)]
    assert found.notes == []
