"""`kernels check`: a table a variant, JSON, and an exit status that says whether anything is wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernels.trust.content import BuildContent

Kernels = Callable[..., Any]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A folder of repositories with one kernel of two builds, `org/twice`."""
    root = tmp_path / "hub"
    for backend in ("cpu", "cuda"):
        folder = root / "org" / "twice" / "v1" / "build" / f"torch-{backend}"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("def twice(x):\n    return x + x\n")
        digest = BuildContent(folder).digest("sha256")
        metadata = {
            "name": "twice",
            "id": f"_twice_{backend}_1a2b3c4",
            "version": 1,
            "license": "MIT",
            "python-depends": [],
            "backend": {"type": backend},
            "digest": {"algorithm": digest.algorithm, "files": digest.files},
        }
        (folder / "metadata.json").write_text(json.dumps(metadata))
    return root / "org" / "twice" / "v1"


@pytest.fixture
def hub(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, as the Hub that is asked."""
    root = repository.parents[2]
    monkeypatch.setenv("KERNELS_HUB", str(root))
    return root


def test_a_good_kernel_passes_with_a_table_for_each_variant(kernels: Kernels, repository: Path) -> None:
    done = kernels("check", repository, "--static")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("torch-")] == ["torch-cpu", "torch-cuda"]
    assert ["digest", "ok", "sha256 of 1 file"] in [line.split(maxsplit=2) for line in lines]
    assert lines[-1] == "2 variants: nothing failed."
    assert "loading" not in done.stdout


def test_a_fault_ends_with_status_1_and_is_shown(kernels: Kernels, repository: Path) -> None:
    (repository / "build" / "torch-cpu" / "__init__.py").write_text("import os\n")
    done = kernels("check", repository, "--static")
    assert done.exit_code == 1
    assert "changed: '__init__.py'" in done.stdout
    assert done.stdout.splitlines()[-1] == "2 variants: 1 failed."


def test_hints_are_errors_where_asked_for(kernels: Kernels, repository: Path) -> None:
    path = repository / "build" / "torch-cpu" / "metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "license": None}))
    assert kernels("check", repository, "--static").exit_code == 0
    done = kernels("check", repository, "--static", "--strict")
    assert done.exit_code == 1
    assert any("failed" in line and "`license` is missing" in line for line in done.stdout.splitlines())


def test_json_has_every_finding(kernels: Kernels, repository: Path) -> None:
    (repository / "build" / "torch-cuda" / ".env").write_text("")
    done = kernels("check", repository, "--static", "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert (found["checked"], found["failed"]) == (str(repository), True)
    assert [(each["variant"], each["failed"]) for each in found["variants"]] == [
        ("torch-cpu", False),
        ("torch-cuda", True),
    ]
    assert found["variants"][1]["findings"][0] == {
        "step": "layout",
        "verdict": "failed",
        "what": ".env: a hidden file; delete it",
        "backend": "cuda",
    }


def test_what_fits_this_machine_is_loaded(kernels: Kernels, repository: Path) -> None:
    pytest.importorskip("torch")
    found = json.loads(kernels("check", repository, "--json").stdout)
    loading = {
        each["variant"]: (finding["verdict"], finding["what"])
        for each in found["variants"]
        for finding in each["findings"]
        if finding["step"] == "loading"
    }
    assert loading == {
        "torch-cpu": ("ok", "loaded as _twice_cpu_1a2b3c4"),
        "torch-cuda": ("skipped", "does not fit this machine: for cuda, not cpu"),
    }


@pytest.mark.parametrize(
    ("options", "variants", "static"),
    [([], ["torch-cpu"], True), (["--all-variants"], ["torch-cpu", "torch-cuda"], False)],
)
def test_a_repositorys_builds_are_fetched_and_checked(
    kernels: Kernels, hub: Path, options: list[str], variants: list[str], static: bool
) -> None:
    pytest.importorskip("torch")
    done = kernels("check", "org/twice", "--version", 1, "--json", *options, *["--static"] * static)
    assert done.exit_code == 0
    found = json.loads(done.stdout)["variants"]
    assert [each["variant"] for each in found] == variants
    assert ("loading" in {finding["step"] for finding in found[0]["findings"]}) is not static


@pytest.mark.parametrize("options", [["--static"], []])
def test_no_build_for_this_machine_is_an_error_unless_all_are_asked_for(
    kernels: Kernels, hub: Path, options: list[str]
) -> None:
    pytest.importorskip("torch")
    shutil.rmtree(hub / "org" / "twice" / "v1" / "build" / "torch-cpu")
    done = kernels("check", "org/twice", "--version", 1, *options)
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: ")
    assert kernels("check", "org/twice", "--version", 1, "--all-variants", *options).exit_code == 0


def test_a_version_of_a_folder_is_refused(kernels: Kernels, repository: Path) -> None:
    done = kernels("check", repository, "--version", 1)
    assert done.exit_code == 1
    assert "leave --version and --revision out" in done.stderr


def test_a_folder_without_builds_is_an_error(kernels: Kernels, tmp_path: Path) -> None:
    done = kernels("check", tmp_path)
    assert done.exit_code == 1
    assert "has no builds" in done.stderr


def test_what_a_backend_forbids_is_shown_and_then_removed(kernels: Callable[..., Any], tmp_path: Path) -> None:
    from kernels.authoring.scaffold import new_kernel

    folder = new_kernel("relu-it", tmp_path / "k", backends=["xpu"], noarch=True)
    assert "nothing that their backends forbid" in kernels("check", folder, "--fix").stdout
    file = folder / "torch-ext" / "relu_it" / "extra.py"
    file.write_text("import torch\n\ntorch.cuda.synchronize()\n")
    shown = kernels("check", folder, "--diff")
    assert shown.exit_code == 1
    assert "-torch.cuda.synchronize()" in shown.stdout.splitlines()
    assert "Nothing was changed" in shown.stdout
    assert "synchronize" in file.read_text()
    found = json.loads(kernels("check", folder, "--diff", "--json").stdout)
    assert (found["written"], found["left"]) == (False, [])
    assert [each["path"] for each in found["changed"]] == [str(file)]
    fixed = kernels("check", folder, "--fix")
    assert fixed.exit_code == 0
    assert "-torch.cuda.synchronize()" in fixed.stdout.splitlines()
    assert "run kernels build" in fixed.stdout
    assert "synchronize" not in file.read_text()
