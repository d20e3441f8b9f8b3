"""What other packages use of this one works here, as compat/dependents.json lists it from their wheels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import pytest

COMPAT = Path(__file__).parents[2] / "compat"
PACKAGES: list[dict[str, Any]] = json.loads((COMPAT / "dependents.json").read_text(encoding="utf-8"))["packages"]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "KERNELS_"))}
    environment |= {"HF_HOME": str(tmp_path_factory.mktemp("home")), "HF_HUB_DISABLE_TELEMETRY": "1"}
    done = subprocess.run(
        [sys.executable, COMPAT / "run_uses.py", COMPAT / "dependents.json"],
        capture_output=True,
        text=True,
        env=environment | {"NO_PROXY": "127.0.0.1"},
        timeout=300,
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("package", [package["package"] for package in PACKAGES])
def test_what_a_package_uses_works_here(outcomes: list[list[str]], package: str) -> None:
    [position] = [number for number, each in enumerate(PACKAGES) if each["package"] == package]
    uses = PACKAGES[position]["uses"]
    failed = [
        f"{use['file']}:{use['lines'][0]}: {use['name']}: {outcome}"
        for use, outcome in zip(uses, outcomes[position], strict=True)
        if outcome.startswith("FAILED")
    ]
    assert not failed


def read(tmp_path: Path, source: str) -> list[dict[str, Any]]:
    """What the script finds in a wheel with this module."""
    wheel = tmp_path / "acme-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("acme/fast.py", textwrap.dedent(source))
        archive.writestr("acme/broken.py", "from kernels import (")
        archive.writestr("acme-1.0.dist-info/METADATA", "Name: acme\nVersion: 1.0\nRequires-Dist: kernels<0.19\n")
    code = "import json, sys, pathlib, dependents; print(json.dumps(dependents.read(pathlib.Path(sys.argv[1]))))"
    done = subprocess.run(
        [sys.executable, "-c", code, wheel],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(COMPAT)},
    )
    package = json.loads(done.stdout)
    assert (package["package"], package["version"], package["requires"]) == ("acme", "1.0", ["kernels<0.19"])
    return package["uses"]


def test_the_script_finds_calls_with_their_arguments_what_is_caught_and_what_is_read(tmp_path: Path) -> None:
    uses = read(
        tmp_path,
        """
        REPO = "acme/relu"

        def _load(version):
            from kernels import get_kernel as get
            options = {"trust_remote_code": True}
            kernel = get(REPO, version=version, **options)
            return kernel.relu, getattr(kernel, "gelu", None)

        def fast():
            try:
                return _load(1)
            except (FileNotFoundError, ValueError):
                return None
        """,
    )
    assert uses[1] == {
        "file": "acme/fast.py",
        "lines": [7],
        "name": "kernels.get_kernel",
        "kind": "call",
        "positional": ["acme/relu"],
        "keywords": {"version": "?", "trust_remote_code": True},
        "catches": ["FileNotFoundError", "ValueError"],
        "reads": ["gelu", "relu"],
    }


def test_the_script_tells_this_package_from_others_of_its_name(tmp_path: Path) -> None:
    uses = read(
        tmp_path,
        """
        import importlib.util, os
        import kernels.layer.mode as modes
        from .kernels import get_kernel
        from acme.kernels import kernelize

        get_kernel(kernelize(modes.Mode.INFERENCE | modes.Mode.TRAINING))
        importlib.util.find_spec("kernels")
        os.environ.get("KERNELS_CACHE"), os.environ.get("ACME_KERNELS_CACHE")
        """,
    )
    assert [(use["kind"], use["name"]) for use in uses] == [
        ("import", "kernels.layer.mode"),
        ("attribute", "kernels.layer.mode.Mode.INFERENCE"),
        ("attribute", "kernels.layer.mode.Mode.TRAINING"),
        ("asks", "kernels"),
        ("variable", "KERNELS_CACHE"),
    ]
