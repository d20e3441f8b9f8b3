"""An untrusted checkout with links: what a command writes below it is written nowhere else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub import TestHub

from kernels.authoring.bench.plot import check_plot
from kernels.errors import RequestError

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")

Run = Callable[..., Any]

BUILD_TOML = """[general]
name = "twice"
version = 1
license = "MIT"
edition = {}
backends = ["cpu"]
[torch-noarch]
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kernel's sources and a project that needs a kernel, in the current folder."""
    folder = tmp_path / "checkout"
    (folder / "torch-ext" / "twice").mkdir(parents=True)
    (folder / "torch-ext" / "twice" / "__init__.py").write_text("def twice(x): return x + x\n")
    (folder / "build.toml").write_text(BUILD_TOML.format(5))
    (folder / "pyproject.toml").write_text('[tool.kernels.dependencies]\n"acme/relu" = 1\n')
    monkeypatch.chdir(folder)
    return folder


def tree(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize("outside", ["file", "nothing"])
@pytest.mark.parametrize(
    ("link", "command"),
    [
        ("kernels.lock", ["lock", "--upgrade"]),
        ("kernels.hashes.json", ["lock", "--upgrade", "--hashes"]),
        ("gpu.lock", ["lock", "--upgrade", "--lockfile", "gpu.lock"]),
        ("README.md", ["card", "--output", "README.md"]),
        ("new-kernel", ["init", "new-kernel"]),
        ("times.json", ["benchmark", ".", "--output", "times.json"]),
    ],
)
def test_no_file_is_written_through_a_link(
    hub: TestHub, kernels: Run, checkout: Path, tmp_path: Path, link: str, command: list[str], outside: str
) -> None:
    hub.make_repo()
    home = tmp_path / "home"
    home.mkdir()
    if outside == "file":
        (home / "profile").write_text("precious\n")
    before = tree(home)
    (checkout / link).symlink_to("../home/profile")
    if command[0] == "card":
        assert kernels("build").exit_code == 0
    done = kernels(*command)
    assert (done.exit_code != 0, tree(home)) == (True, before), done.stdout
    assert f"{link} is a link, or in one, to {home / 'profile'}, outside of {checkout}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("outside", ["folder", "nothing"])
@pytest.mark.parametrize(
    ("link", "command"),
    [
        ("build", ["build"]),
        ("dist", ["wheel"]),
        (".agents", ["skills", "add"]),
        (".agents/skills", ["skills", "add"]),
        (".agents/skills/write-kernels/references", ["skills", "add", "--force"]),
        ("docs", ["card", "--output", "docs/page.md"]),
        ("locks", ["lock", "--lockfile", "locks/gpu.lock"]),
        ("new", ["init", "new/kernel"]),
    ],
)
def test_nothing_is_written_into_a_linked_folder(
    hub: TestHub, kernels: Run, checkout: Path, tmp_path: Path, link: str, command: list[str], outside: str
) -> None:
    hub.make_repo()
    home = tmp_path / "home"
    if outside == "folder":
        (home / "torch-cpu").mkdir(parents=True)
        (home / "torch-cpu" / "file").write_text("precious\n")
    if command[0] in ("card", "wheel"):
        assert kernels("build").exit_code == 0
    before = tree(tmp_path / "home")
    (checkout / link).parent.mkdir(parents=True, exist_ok=True)
    (checkout / link).symlink_to(home)
    done = kernels(*command)
    assert (done.exit_code != 0, tree(home), home.exists()) == (True, before, outside == "folder"), done.stdout
    assert "Traceback" not in done.stderr


def test_build_toml_is_not_rewritten_through_a_link(kernels: Run, checkout: Path, tmp_path: Path) -> None:
    pytest.importorskip("tomlkit")
    (tmp_path / "theirs.toml").write_text(BUILD_TOML.format(4))
    (checkout / "build.toml").unlink()
    (checkout / "build.toml").symlink_to("../theirs.toml")
    done = kernels("build", "--update")
    assert done.exit_code != 0
    assert "outside of" in done.stderr
    assert (checkout / "build.toml").is_symlink()
    assert (tmp_path / "theirs.toml").read_text() == BUILD_TOML.format(4)


def test_a_plot_is_not_written_through_a_link(checkout: Path) -> None:
    pytest.importorskip("matplotlib")
    (checkout / "times.svg").symlink_to("../times.svg")
    with pytest.raises(RequestError, match="outside of"):
        check_plot("times.svg")


def test_links_inside_of_the_project_and_folders_that_the_user_names_are_followed(
    hub: TestHub, kernels: Run, checkout: Path, tmp_path: Path
) -> None:
    hub.make_repo()
    (checkout / "kernels.lock").symlink_to("locks.json")
    (checkout / "real-build").mkdir()
    (checkout / "build").symlink_to("real-build")
    assert (kernels("lock").exit_code, kernels("build").exit_code) == (0, 0)
    assert (checkout / "kernels.lock").is_symlink()
    assert (checkout / "locks.json").is_file()
    assert (checkout / "real-build" / "torch-cpu" / "metadata.json").is_file()
    (tmp_path / "large").mkdir()
    (checkout / "out").symlink_to(tmp_path / "large")
    assert kernels("build", "--out", "out").exit_code == 0
    assert (tmp_path / "large" / "build" / "torch-cpu" / "metadata.json").is_file()
