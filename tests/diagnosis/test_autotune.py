"""`kernels doctor` says whether what `autotune` decided is for this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tuned_models import measured

from kernels.diagnosis import diagnose
from kernels.diagnosis.autotune import check_autotune


def notes() -> list[str]:
    found = check_autotune()
    assert found.problems == []
    return [each.message for each in found.notes]


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a project; the check runs in a folder of it, and the cache is empty."""
    (tmp_path / "project/src").mkdir(parents=True)
    (tmp_path / "project/pyproject.toml").write_text("")
    path = tmp_path / "project/kernels.autotune.json"
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path / "one"))
    measured().save(path)
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path / "another"))
    monkeypatch.chdir(tmp_path / "project/src")
    return path


def change(path: Path, layers: int = 2, **facts: str) -> None:
    content: Any = json.loads(path.read_text())
    for each in content["layers"][:layers]:
        each["facts"] |= facts
    path.write_text(json.dumps(content))


def test_without_a_decision_it_says_nothing(isolated_env: Path) -> None:
    assert notes() == []


def test_decisions_in_the_cache_fit_the_machine_that_made_them(isolated_env: Path) -> None:
    measured()
    assert notes() == ["2 decisions of autotune in the cache, for this machine."]


def test_a_saved_file_of_the_project_fits_or_not(saved: Path) -> None:
    assert notes() == [f"2 decisions of autotune in {saved}, for this machine."]
    change(saved, 1, torch="1.13.0")
    what = f"Torch 1.13.0, here {torch.__version__}"
    assert notes() == [f"2 decisions of autotune in {saved}, 1 of them not for this machine: {what}."]
    change(saved, torch="1.13.0", device="NVIDIA A100", arch="8.0", backend="12.8")
    [note] = notes()
    assert note.startswith(f"2 decisions of autotune in {saved}, none for this machine: device NVIDIA A100, here ")
    assert "; architecture 8.0, here " in note
    assert "; backend version 12.8, here " in note


def test_it_lies_beside_the_named_lockfile(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deploy").mkdir()
    monkeypatch.setenv("KERNELS_LOCKFILE", str(tmp_path / "deploy/gpu.lock"))
    assert notes() == []
    saved.rename(tmp_path / "deploy" / saved.name)
    assert "for this machine" in notes()[0]


def test_what_cannot_be_used_is_a_problem(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved.write_text("{")
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path / "damaged"))
    folder = tmp_path / "damaged/.locks/kernels-autotune"
    folder.mkdir(parents=True)
    (folder / "a.json").write_text("{}")
    file, cached = check_autotune().problems
    assert file.message.startswith(f"{saved} is not a file that a report of autotune saved")
    assert cached.message.startswith("Ignored 1 decision of autotune in the cache")


def test_the_report_says_that_decisions_are_switched_off(isolated_env: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured()
    monkeypatch.setenv("KERNELS_AUTOTUNE", "off")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert [each.message for each in diagnose().notes if each.check == "autotune"] == [
        "KERNELS_AUTOTUNE=off: kernelize ignores what autotune measured."
    ]
    monkeypatch.setenv("KERNELS_AUTOTUNE", "maybe")
    assert notes() == []  # reported with the variables
    assert any("KERNELS_AUTOTUNE" in each.message for each in diagnose().problems)
