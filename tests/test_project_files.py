"""The files around the sources agree with each other: versions, pins, workflows, commands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import kernels

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
STACKS = ["cpu", "cuda"]


def pins(stack: str) -> list[Requirement]:
    lines = (ROOT / "lockfiles" / f"requirements-{stack}.txt").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def pinned(requirement: Requirement) -> Version:
    [specifier] = requirement.specifier
    assert specifier.operator == "=="
    return Version(specifier.version)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def tracked_files() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"this is no git checkout: {done.stderr.strip()}")
    return [path for name in done.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def test_the_version_stands_in_the_project_the_package_and_the_changelog() -> None:
    assert PROJECT["dynamic"] == ["version"]  # from the package
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert kernels.__version__ in headings


@pytest.mark.parametrize("stack", STACKS)
def test_pins_are_exact_and_name_no_index(stack: str) -> None:
    assert all(pinned(requirement) for requirement in pins(stack))
    text = (ROOT / "lockfiles" / f"requirements-{stack}.txt").read_text(encoding="utf-8")
    assert not re.search(r"://|^\s*--?\w| @ |\+", text, flags=re.MULTILINE)


@pytest.mark.parametrize("stack", STACKS)
def test_pins_satisfy_what_the_project_asks_for(stack: str) -> None:
    extras = [asked for extra, asked in PROJECT["optional-dependencies"].items() if not extra.startswith("curated")]
    asked = [*PROJECT["dependencies"], *(each for extra in extras for each in extra)]
    locked: dict[str, list[Requirement]] = {}
    for requirement in pins(stack):
        locked.setdefault(normal(requirement.name), []).append(requirement)
    for requirement in map(Requirement, asked):
        assert normal(requirement.name) in locked, f"make lock: {requirement} is not pinned"
        for pin in locked[normal(requirement.name)]:
            assert pinned(pin) in requirement.specifier, f"make lock: {pin} does not satisfy {requirement}"


def test_the_packages_of_the_extra_for_serving_are_those_that_users_are_told_to_install() -> None:
    packages = [each.partition(">=")[0] for each in PROJECT["optional-dependencies"]["serve"]]
    for path in ("docs/serve.md", "src/kernels/server/__init__.py"):
        assert f"pip install {' '.join(packages)}" in (ROOT / path).read_text(encoding="utf-8")


def test_the_extras_that_other_packages_require_are_there() -> None:
    assert {"benchmark", "curated", "curated-xpu", "torch"} <= set(PROJECT["optional-dependencies"])


def test_the_cpu_stack_is_the_cuda_stack_without_nvidias_libraries() -> None:
    cpu, cuda = ({str(requirement) for requirement in pins(stack)} for stack in STACKS)
    assert cpu < cuda
    assert all(re.match(r"(cuda|nvidia)-", requirement) for requirement in cuda - cpu)


def workflow(name: str) -> dict[Any, Any]:
    content: dict[Any, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8"))
    return content


def test_the_oldest_and_the_newest_python_are_tested() -> None:
    tested = workflow("ci.yml")["jobs"]["cpu"]["strategy"]["matrix"]["python"]
    known = [
        classifier.rpartition(" ")[2]
        for classifier in PROJECT["classifiers"]
        if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", classifier)
    ]
    supported = SpecifierSet(PROJECT["requires-python"])
    oldest, newest = min(map(Version, tested)), max(map(Version, tested))
    assert oldest in supported
    assert Version(f"3.{oldest.minor - 1}") not in supported
    assert newest >= max(map(Version, known))


def test_the_gpu_job_runs_on_a_machine_of_our_own() -> None:
    job = workflow("gpu.yml")["jobs"]["gpu"]
    assert job["runs-on"] == ["self-hosted", "gpu"]
    assert any("make test-gpu STACK=cuda" in step.get("run", "") for step in job["steps"])


def test_the_documentation_is_built_strictly_and_what_is_built_is_published() -> None:
    jobs = workflow("docs.yml")["jobs"]
    folder = re.findall(r"^site_dir: (.+)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.MULTILINE)
    build, upload = (jobs["build"]["steps"][index] for index in (-2, -1))
    assert (build["run"], [upload["with"]["path"]]) == ("make docs", folder)
    assert jobs["publish"]["needs"] == "build"
    assert jobs["publish"]["permissions"] == {"pages": "write", "id-token": "write"}
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\ndocs: ")[2].partition("\n\n")[0]
    assert "mkdocs build --strict" in recipe


def test_every_make_target_that_is_named_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, flags=re.MULTILINE))
    named = {
        target
        for path in [
            ROOT / ".ci" / "run",
            *ROOT.glob("*.md"),
            *(ROOT / "docs").glob("*.md"),
            *(ROOT / ".github").rglob("*.yml"),
        ]
        for target in re.findall(r"(?:`|run: |^)make ([a-z][a-z-]*)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert {"demo", "test"} <= named <= targets


def test_scripts_that_make_runs_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    scripts = re.findall(r"\$\(RUN\) (\S+\.py)", makefile)
    assert scripts
    assert [script for script in scripts if not (ROOT / script).is_file()] == []


def test_no_tracked_file_names_a_path_of_this_machine() -> None:
    everyones = {Path("/"), Path("/tmp"), Path("/usr"), Path("/usr/local"), Path("/home"), Path("/root")}
    here = {f"{path}/" for path in (ROOT, ROOT.parent, Path.home(), Path(sys.prefix)) if path not in everyones}
    pattern = re.compile("|".join(map(re.escape, sorted(here))).encode())
    found = {
        path.relative_to(ROOT): match[0] for path in tracked_files() if (match := pattern.search(path.read_bytes()))
    }
    assert not found
