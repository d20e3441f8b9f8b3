"""`kernels wheel` makes wheels of the builds in a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_TOML = """
[general]
name = "add-one"
version = 2
edition = 5
license = "MIT"
backends = ["cpu", "cuda"]
[torch-noarch]
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "torch-ext/add_one").mkdir(parents=True)
    (folder / "torch-ext/add_one/__init__.py").write_text("one = 1\n")
    (folder / "build.toml").write_text(_TOML)
    return folder


def test_every_build_becomes_a_wheel(kernels: Callable[..., Any], source: Path) -> None:
    run = kernels("wheel", source)
    assert run.exit_code == 1
    assert "run `kernels build` first" in run.stderr
    run = kernels("wheel", source, "--build")
    assert run.exit_code == 0, run.output
    assert [line.split() for line in run.stdout.splitlines()[1:]] == [
        [f"torch-{name}", str(source / f"dist/add_one-2.0+{name}-py3-none-any.whl"), "torch"]
        for name in ("cpu", "cuda")
    ]


def test_one_wheel_can_have_a_public_version(kernels: Callable[..., Any], source: Path, tmp_path: Path) -> None:
    arguments = ["--variant", "torch-cuda", "--wheel-version", "2.1.0rc1", "--no-local-version", "--build", "--json"]
    run = kernels("wheel", source, *arguments, "--out", tmp_path / "out")
    assert run.exit_code == 0, run.output
    assert json.loads(run.stdout)["wheels"] == [
        {
            "variant": "torch-cuda",
            "path": str(tmp_path / "out/add_one-2.1.0rc1-py3-none-any.whl"),
            "name": "add-one",
            "version": "2.1.0rc1",
            "tag": "py3-none-any",
            "requires": ["torch"],
        }
    ]
    assert not (source / "dist").exists()
