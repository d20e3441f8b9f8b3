"""A project's lock is in its wheel, where `importlib.metadata` finds it, whichever backend built it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from kernels.errors import LockError, RequestError
from kernels.models.lockfile import Lock, Pin, hashes_path
from kernels.models.requirement import Requirement
from kernels.wheel_hooks import wheel_files

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
RELU = Requirement("acme/relu", version=1)
LOCK = Lock((Pin(RELU, "1" * 40), Pin(Requirement("acme/base", revision="main"), "2" * 40)))
TABLE = '[tool.kernels.dependencies]\n"acme/relu" = 1\n'

PROJECT = """
[project]
name = "My.Project"
version = "1.0"

[build-system]
requires = ["{backend}", "kernels"]
build-backend = "{module}"
"""
BACKENDS = {
    "setuptools": PROJECT.format(backend="setuptools", module="setuptools.build_meta")
    + '[tool.setuptools]\npackages = ["my_project"]\n',
    "hatchling": PROJECT.format(backend="hatchling", module="hatchling.build")
    + '[tool.hatch.build.hooks.kernels]\n[tool.hatch.build]\ndev-mode-dirs = ["."]\n'
    '[tool.hatch.build.targets.wheel]\npackages = ["my_project"]\n',
}

#: Calls a hook of the project's backend, as an installer does.
_CALL = """
import importlib, sys
backend, hook, folder = sys.argv[1:]
print(getattr(importlib.import_module(backend), hook)(folder))
"""


@pytest.fixture(params=BACKENDS)
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if importlib.util.find_spec(request.param) is None:  # not imported here: setuptools wants to come before distutils
        pytest.skip(f"{request.param} is not installed")
    folder = tmp_path / "project"
    (folder / "my_project").mkdir(parents=True)
    (folder / "my_project" / "__init__.py").write_text("")
    (folder / "pyproject.toml").write_text(BACKENDS[request.param] + TABLE)
    return folder


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment in which this source is installed, with the entry points that the project declares."""
    site = tmp_path / "site"
    info = site / "kernels-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kernels\nVersion: 0\n")
    declared: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    (info / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
            for group, points in declared.items()
        )
    )
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT / "src")]), "PIP_NO_INDEX": "1"}


def run(*arguments: object, env: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=300)


def pip(*arguments: object, env: dict[str, str], cwd: Path) -> str:
    if run("-m", "pip", "--version", env=env, cwd=cwd).returncode != 0:
        pytest.skip("there is no pip here")
    done = run("-m", "pip", "--disable-pip-version-check", *arguments, env=env, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def call(project: Path, hook: str, env: dict[str, str]) -> Path:
    module = tomllib.loads((project / "pyproject.toml").read_text())["build-system"]["build-backend"]
    folder = project.parent / hook
    folder.mkdir(exist_ok=True)
    done = run("-c", _CALL, module, hook, folder, env=env, cwd=project)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / done.stdout.splitlines()[-1]


def installed(wheel: Path, env: dict[str, str]) -> importlib.metadata.Distribution:
    target = wheel.parent / "target"
    pip("install", "--no-deps", "--no-compile", "--target", target, wheel, env=env, cwd=wheel.parent)
    [found] = importlib.metadata.distributions(path=[str(target)])
    return found


def wheel_of(source: Path, env: dict[str, str], folder: Path) -> tuple[Path, str]:
    said = pip("wheel", "-v", "--no-build-isolation", "--no-deps", "-w", folder, source, env=env, cwd=folder.parent)
    [wheel] = folder.glob("*.whl")
    return wheel, said


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_an_installed_project_has_its_lock_and_hashes_in_its_metadata(
    kind: str, project: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    lock, hashes = project / "kernels.lock", hashes_path(project / "kernels.lock")
    lock.write_bytes(LOCK.to_bytes())
    hashes.write_bytes(LOCK.hashes_to_bytes())
    if kind == "wheel":
        wheel, said = wheel_of(project, environment, tmp_path / "wheels")
        assert "kernels lock" not in said
    else:
        wheel = call(project, "build_editable", environment)
    distribution = installed(wheel, environment)
    assert distribution.metadata["Name"] == "My.Project"
    assert distribution.read_text("kernels.lock") == lock.read_text()
    assert distribution.read_text("kernels.hashes.json") == hashes.read_text()
    assert {"kernels.lock", "kernels.hashes.json"} <= {path.name for path in distribution.files or ()}


def test_a_wheel_from_an_sdist_has_the_lock_as_well(project: Path, environment: dict[str, str], tmp_path: Path) -> None:
    (project / "kernels.lock").write_bytes(LOCK.to_bytes())
    (project / "kernels.hashes.json").write_bytes(LOCK.hashes_to_bytes())
    sdist = call(project, "build_sdist", environment)
    wheel, said = wheel_of(sdist, environment, tmp_path / "wheels")
    assert "kernels lock" not in said
    with zipfile.ZipFile(wheel) as archive:
        assert Lock.from_bytes(archive.read("my_project-1.0.dist-info/kernels.lock")).pins == LOCK.pins
        assert "my_project-1.0.dist-info/kernels.hashes.json" in archive.namelist()


def test_a_build_without_a_lock_warns_and_goes_on(project: Path, environment: dict[str, str], tmp_path: Path) -> None:
    wheel, said = wheel_of(project, environment, tmp_path / "wheels")
    assert "has no kernels.lock: run `kernels lock`" in said
    with zipfile.ZipFile(wheel) as archive:
        assert not any(name.endswith("/kernels.lock") for name in archive.namelist())


@pytest.mark.parametrize(
    ("content", "warning"),
    [
        (LOCK.to_bytes(), None),
        (Lock().to_bytes(), "kernels.lock does not pin acme/relu version 1, which the project needs"),
        (json.dumps([{"repo_id": "acme/relu", "sha": "1" * 40}]).encode(), "kernels.lock has the older format"),
    ],
    ids=["right", "of another table", "older"],
)
def test_a_lock_that_is_not_the_tables_is_warned_about(content: bytes, warning: str | None, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(TABLE)
    (tmp_path / "kernels.lock").write_bytes(content)
    found = wheel_files(tmp_path)
    assert list(found.files) == ["kernels.lock"]
    assert [each for each in found.warnings if warning is None or warning not in each] == []
    assert len(found.warnings) == (warning is not None)


def test_a_lock_that_cannot_be_read_fails_the_build_and_names_the_file(
    project: Path, environment: dict[str, str]
) -> None:
    (project / "kernels.lock").write_text("<<<<<<< HEAD")
    module = tomllib.loads((project / "pyproject.toml").read_text())["build-system"]["build-backend"]
    done = run("-c", _CALL, module, "build_wheel", project.parent, env=environment, cwd=project)
    assert done.returncode != 0
    assert "kernels.lock is not JSON" in done.stderr
    assert list(project.parent.glob("*.whl")) == []


def test_a_lock_that_is_gone_leaves_the_metadata_of_the_next_build(project: Path, environment: dict[str, str]) -> None:
    (project / "kernels.lock").write_bytes(LOCK.to_bytes())
    call(project, "build_wheel", environment)
    (project / "kernels.lock").unlink()
    with zipfile.ZipFile(call(project, "build_wheel", environment)) as archive:
        assert not any(name.endswith("/kernels.lock") for name in archive.namelist())


@pytest.mark.parametrize(
    "text", ["", "[project]\nname = 'x'\n", "not TOML", "# kernels\n", "[tool.kernels]\n"], ids=range(5)
)
def test_a_project_that_asks_for_no_kernels_is_none_of_its_business(text: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    (tmp_path / "kernels.lock").write_text("of something else")
    assert (wheel_files(tmp_path).files, wheel_files(tmp_path).warnings) == ({}, ())
    assert wheel_files(tmp_path / "absent").files == {}


def test_what_is_wrong_with_the_table_or_the_lock_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.kernels.dependencies]\n"relu" = 1\n')
    with pytest.raises(RequestError, match=r"pyproject\.toml:2: "):
        wheel_files(tmp_path)
    (tmp_path / "pyproject.toml").write_text(TABLE)
    (tmp_path / "kernels.lock").write_text("{}")
    with pytest.raises(LockError, match="Expected `array`, got `object`"):
        wheel_files(tmp_path)


@pytest.mark.parametrize("module", ["kernels.wheel_hooks", "kernels.wheel_hooks.egg_info", "kernels.wheel_hooks.hatch"])
def test_a_build_loads_nothing_heavy(module: str) -> None:
    if module.endswith("hatch"):
        pytest.importorskip("hatchling")
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) & {"torch", "huggingface_hub", "rich", "typer", "httpx"} == set()
