"""`kernels build --python` and `--torch`: one machine builds for the Torch of each environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

compiler = pytest.mark.compiler

_TOML = """
[general]
name = "add-one"
version = 1
edition = 5
license = "MIT"
backends = ["cpu", "cuda"]
[torch]
[kernel.one]
backend = "cpu"
src = ["one.cpp"]
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "torch-ext/add_one").mkdir(parents=True)
    (folder / "torch-ext/add_one/__init__.py").write_text("one = 1\n")
    (folder / "build.toml").write_text(_TOML)
    (folder / "one.cpp").write_text("int one() { return 1; }\n")
    return folder


@pytest.fixture
def environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which `--torch` looks."""
    folder = tmp_path / "envs"
    monkeypatch.setenv("KERNELS_TORCH_ENVS", str(folder))
    return folder


def _built(run: Any) -> list[tuple[str | None, str]]:
    assert run.exit_code == 0, run.output
    return [(each["variant"], each["state"]) for each in json.loads(run.stdout)["variants"]]


@compiler
def test_one_build_makes_the_variants_of_every_torch(
    kernels: Callable[..., Any], source: Path, older_torch: Callable[..., Path]
) -> None:
    first, second = older_torch("2.9.1"), older_torch("2.10.0")
    run = kernels("build", source, "--python", first, "--python", second.parent.parent, "--json")
    names = ["torch29-cxx11-cpu-x86_64-linux", "torch210-cxx11-cpu-x86_64-linux"]
    assert [each for each in _built(run) if each[0]] == [(name, "built") for name in names]
    reasons = [each["reason"] for each in json.loads(run.stdout)["variants"] if each["variant"] is None]
    assert reasons == [f"Torch {version} is not built for cuda." for version in ("2.9.1", "2.10.0")]
    assert sorted(path.name for path in (source / "build").iterdir()) == sorted(names)
    # Each is up to date for its own Torch, also after a build for another one.
    assert kernels("build", source, "--backend", "cpu").exit_code == 0
    again = kernels("build", source, "--python", first, "--python", second, "--backend", "cpu", "--json")
    assert _built(again) == [(name, "up to date") for name in names]
    entry = json.loads((source / "compile_commands.json").read_text())[0]
    assert any(str(first.parent.parent) in word for word in entry["arguments"])


@compiler
def test_a_torch_is_found_by_its_version(
    kernels: Callable[..., Any], source: Path, older_torch: Callable[..., Path], environments: Path
) -> None:
    older_torch("2.9.1+cu128", cuda="12.8", folder=environments / "b")
    older_torch("2.9.0+cpu", folder=environments / "a")
    older_torch("2.8.0", folder=environments / "other")
    older_torch(None, folder=environments / "unfinished")
    run = kernels("build", source, "--list", "--torch", "2.9+cu128", "--torch", "2.8", "--backend", "cpu", "--json")
    assert [name for name, _ in _built(run)] == ["torch29-cxx11-cpu-x86_64-linux", "torch28-cxx11-cpu-x86_64-linux"]
    import torch

    here = ".".join(torch.__version__.split(".")[:2])
    run = kernels("build", source, "--list", "--torch", here, "--backend", "cpu", "--json")
    assert [name for name, _ in _built(run)] == [f"torch{here.replace('.', '')}-cxx11-cpu-x86_64-linux"]


def test_a_torch_that_is_not_installed_is_told_with_the_commands_that_install_it(
    kernels: Callable[..., Any], source: Path, environments: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    run = kernels("build", source, "--torch", "1.99")
    assert run.exit_code == 1
    assert f"`torch` is '1.99', which is installed neither here nor in {environments}." in run.stderr
    place = environments / "torch-1.99"
    commands = f"{sys.executable} -I -m venv {place} && {place}/bin/python -I -m pip install 'torch==1.99.*'"
    assert f"The commands are: {commands}" in run.stderr
    assert not environments.exists()
    run = kernels("build", source, "--torch", "1.99+cu118")
    assert "for one that is built for cu118, install uv: pip install uv" in run.stderr


@compiler
def test_an_environment_is_made_where_the_user_says_so(
    kernels: Callable[..., Any],
    source: Path,
    older_torch: Callable[..., Path],
    environments: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A stand-in for uv: what it downloads is there already.
    ready = older_torch("2.9.1").parent.parent
    uv = tmp_path / "bin/uv"
    uv.parent.mkdir()
    uv.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n[ "$1" = pip ] || exit 0\n[ -n "$FAILS" ] && exit 3\n'
        f'exec cp -a {ready} "$4"\n'
    )
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{uv.parent}:{os.environ['PATH']}")
    place = environments / "torch-2.9+cpu"
    with monkeypatch.context() as patched:
        patched.setenv("FAILS", "1")
        run = kernels("build", source, "--torch", "2.9+cpu", "--make-envs")
        assert "--torch-backend cpu 'torch==2.9.*'` ended with exit status 3" in run.stderr
    (tmp_path / "asked").unlink()
    run = kernels("build", source, "--torch", "2.9+cpu", "--make-envs", "--backend", "cpu", "--json")
    # The stand-in's version has no `+cpu`: what was made is taken as it is.
    assert _built(run) == [("torch29-cxx11-cpu-x86_64-linux", "built")]
    assert (tmp_path / "asked").read_text().splitlines() == [
        f"venv --allow-existing --python {sys.executable} {place}",
        f"pip install --python {place} --torch-backend cpu torch==2.9.*",
    ]


def test_a_noarch_kernel_is_built_once_for_every_torch(
    kernels: Callable[..., Any], source: Path, older_torch: Callable[..., Path]
) -> None:
    (source / "build.toml").write_text(_TOML.split("[torch]")[0] + "[torch-noarch]\n")
    pythons = ["--python", older_torch("2.9.1"), "--python", older_torch("2.10.0")]
    assert _built(kernels("build", source, *pythons, "--json")) == [("torch-cpu", "built"), ("torch-cuda", "built")]


@compiler
@pytest.mark.skipif(
    not os.environ.get("KERNELS_TEST_TORCH_ENVS"), reason="KERNELS_TEST_TORCH_ENVS names no environments with a Torch"
)
def test_builds_for_real_environments_load_there(kernels: Callable[..., Any], tmp_path: Path) -> None:
    pythons = [Path(each) / "bin/python" for each in os.environ["KERNELS_TEST_TORCH_ENVS"].split(":")]
    assert kernels("init", "twice", "--backends", "cpu", "--out", tmp_path / "twice").exit_code == 0
    arguments = [word for python in pythons for word in ("--python", python)]
    assert all(state == "built" for _, state in _built(kernels("build", tmp_path / "twice", *arguments, "--json")))
    program = """
import importlib.util, sys, torch
major, minor = torch.__version__.split(".")[:2]
import glob
[library] = glob.glob(f"{sys.argv[1]}/build/torch{major}{minor}-*-cpu-*/_*.abi3.so")
torch.ops.load_library(library)
name = library.rsplit("/", 1)[1].split(".")[0]
print(getattr(torch.ops, name).relu(torch.tensor([-1.0, 2.0])).tolist())
"""
    for python in pythons:
        run = subprocess.run([python, "-c", program, tmp_path / "twice"], capture_output=True, text=True)
        assert run.stdout == "[0.0, 2.0]\n", run.stderr
