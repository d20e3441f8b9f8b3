"""From `new_kernel` over a build to the kernel's own tests and benchmarks, and what keeps tests from running."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels import get_kernel
from kernels.authoring.compile import build_kernel
from kernels.authoring.own_tests import run
from kernels.authoring.own_tests.run import run_tests
from kernels.authoring.scaffold import new_kernel
from kernels.benchmark import Benchmark
from kernels.errors import MissingPythonDependency, RequestError

compiler = pytest.mark.compiler

#: Name, backends, noarch, repository. With one backend: tests/integration/test_round_trip.py.
KINDS = [
    pytest.param("class", ["cpu", "cuda", "xpu"], False, "org/class", id="compiled-many", marks=compiler),
    pytest.param("torch", ["cpu", "cuda", "npu"], True, None, id="noarch"),
]


def counts(folder: Path) -> dict[str, int]:
    """What a run wrote about its tests with `--junitxml`."""
    import xml.etree.ElementTree as ElementTree

    suite = ElementTree.parse(folder / "report.xml").getroot()[0]
    return {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}


@pytest.mark.parametrize(("name", "backends", "noarch", "repo_id"), KINDS)
def test_a_new_kernel_builds_passes_its_own_tests_and_can_be_measured(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    isolated_env: Path,
    name: str,
    backends: list[str],
    noarch: bool,
    repo_id: str | None,
) -> None:
    folder = new_kernel(name, tmp_path / "k", backends=backends, noarch=noarch, repo_id=repo_id)
    built = build_kernel(folder, folder)
    assert len(built) == (len(backends) if noarch else 1)
    arguments = [f"--junitxml={tmp_path / 'report.xml'}", "-p", "no:cacheprovider", "-q"]
    assert run_tests(folder, arguments) == 0
    ran = counts(tmp_path)
    assert ran["tests"] - ran["skipped"] == 23  # neither `import class` nor another `import torch` is tried
    assert ran["skipped"] == 23 * (len(backends) - 1)

    monkeypatch.setenv("LOCAL_KERNELS", f"{repo_id or f'local/{name}'}={folder}")
    kernel = get_kernel(repo_id or f"local/{name}", version=1)
    [measured] = benchmarks(folder)
    workloads = [each.removeprefix("benchmark_") for each in dir(measured) if each.startswith("benchmark_")]
    assert workloads == ["large", "small"]
    for workload in workloads:
        run = measured()
        run.kernel = kernel
        getattr(run, f"setup_{workload}")()
        getattr(run, f"benchmark_{workload}")()
        torch.testing.assert_close(run.out, getattr(run, f"verify_{workload}")())
    compiled = torch.compile(kernel.relu, backend="eager", fullgraph=True)
    x = torch.randn(4, 8)
    torch.testing.assert_close(compiled(x), torch.relu(x))


def test_its_tests_skip_with_a_reason_what_was_not_built_or_is_not_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolated_env: Path
) -> None:
    folder = new_kernel("rms-norm", tmp_path / "k", backends=["cpu", "cuda", "xpu"], noarch=True)
    build_kernel(folder, folder, backends=["cuda", "xpu"])
    # A Torch that is built for CUDA, where no device is visible.
    (tmp_path / "no_device.py").write_text("import torch\ntorch.version.cuda = '13.0'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    report = tmp_path / "report.xml"
    arguments = [f"--junitxml={report}", "-p", "no:cacheprovider", "-p", "no_device", "-q"]
    assert run_tests(folder, arguments) == 0
    assert counts(tmp_path) == {"tests": 70, "failures": 0, "errors": 0, "skipped": 70}
    reasons = set(re.findall(r'<skipped type="pytest.skip" message="([^"]*)"', report.read_text()))
    assert any("torch-cuda" in each and "for cuda, not cpu" in each for each in reasons), reasons
    assert any("xpu" in each and "has cuda, cpu" in each for each in reasons), reasons
    assert any(each.startswith("no cuda device: ") for each in reasons), reasons


def benchmarks(folder: Path) -> list[Any]:
    [path] = (folder / "benchmarks").glob("benchmark*.py")
    spec = importlib.util.spec_from_file_location("its_benchmarks", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, Benchmark)][1:]


@pytest.fixture
def kernel(tmp_path: Path, isolated_env: Path) -> Path:
    """A kernel whose only test writes down what it sees; it is built for the processor."""
    folder = new_kernel("seen", tmp_path / "k", backends=["cpu"], noarch=True, repo_id="org/seen")
    [test] = (folder / "tests").iterdir()
    test.write_text(
        "import json, os, pathlib\n"
        "def test_it():\n"
        "    seen = {'local': os.environ['LOCAL_KERNELS']}\n"
        f"    pathlib.Path({str(tmp_path / 'seen.json')!r}).write_text(json.dumps(seen))\n"
        "    assert os.environ.get('FAIL') is None\n"
    )
    build_kernel(folder, folder)
    return folder


def test_its_folder_stands_in_for_the_repository_and_others_stay(
    kernel: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LOCAL_KERNELS", "org/dep=/somewhere:org/seen=/elsewhere")
    assert run_tests(kernel, ["-q"]) == 0
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen["local"] == f"org/dep=/somewhere:org/seen=/elsewhere:local/seen={kernel}:org/seen={kernel}"


@pytest.mark.parametrize(
    ("arguments", "passed"),
    [
        (["tests/test_two.py"], ["test_two"]),
        (["test_two.py::test_two"], ["test_two"]),
        (["{tests}/test_two.py"], ["test_two"]),
        (["tests"], ["test_it", "test_more", "test_two"]),
        (["more", "--tb", "short"], ["test_more"]),
        (["tests/more/", "-k", "tests/test_two.py or more"], ["test_more"]),
        (["--ignore", "{tests}/more"], ["test_it", "test_two"]),
        (["--rootdir", "{tests}/more"], ["test_it", "test_more", "test_two"]),
    ],
)
def test_arguments_can_select_tests_from_anywhere(
    kernel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], passed: list[str]
) -> None:
    tests = kernel / "tests"
    (tests / "test_two.py").write_text("def test_two(): pass\n")
    (tests / "more").mkdir()
    (tests / "more" / "test_more.py").write_text("def test_more(): pass\n")
    monkeypatch.chdir(tmp_path)
    report = tmp_path / "report.xml"
    further = [f"--junitxml={report}", "-p", "no:cacheprovider", "-q"]
    assert run_tests(kernel, [*(each.format(tests=tests) for each in arguments), *further]) == 0
    assert sorted(re.findall(r'<testcase [^>]*name="([^"]*)"', report.read_text())) == passed


def test_the_exit_status_is_pytests(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_tests(kernel, ["-q", "-k", "nothing"]) == 5
    assert run_tests(kernel, ["--no-such-option"]) == 4
    monkeypatch.setenv("FAIL", "1")
    assert run_tests(kernel, ["-q"]) == 1


def test_without_a_build_it_says_how_to_get_one_or_makes_it(tmp_path: Path, isolated_env: Path) -> None:
    folder = new_kernel("rms-norm", tmp_path / "k", backends=["cpu"], noarch=True)
    with pytest.raises(RequestError, match=r"which has no builds; run `kernels build .*`, or add --build"):
        run_tests(folder)
    assert run_tests(folder, ["-q", "-k", "nothing"], build=True) == 5


def test_without_pytest_it_says_what_to_install(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pytest" else find(name))
    with pytest.raises(MissingPythonDependency, match="pip install pytest"):
        run_tests(kernel)


def test_without_tests_it_says_where_they_would_be(kernel: Path) -> None:
    (kernel / "tests").rename(kernel / "checks")
    with pytest.raises(RequestError, match=r"which has no tests: .*tests does not exist\."):
        run_tests(kernel)


def test_a_folder_without_build_toml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"build\.toml"):
        run_tests(tmp_path)


@pytest.mark.parametrize("name", ["a:b", "end "])
def test_a_path_that_cannot_stand_in_the_variable_is_refused(kernel: Path, tmp_path: Path, name: str) -> None:
    moved = kernel.rename(tmp_path / name)
    with pytest.raises(RequestError, match=r"without ':' and without space at its end"):
        run_tests(moved)


def test_a_repository_of_build_toml_that_is_none_is_refused(kernel: Path) -> None:
    path = kernel / "build.toml"
    path.write_text(path.read_text().replace('"org/seen"', '"org=/x:y"'))
    with pytest.raises(RequestError):
        run_tests(kernel)


def test_the_tests_run_with_this_python(kernel: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_tests(kernel, ["-v"]) == 0
    assert sys.version.split()[0] in capfd.readouterr().out
    assert run.__all__ == ["run_tests"]


def test_another_version_in_the_tests_is_noted(
    write_kernel: Callable[..., Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    test = """
from kernels import get_kernel

MINE = "org/real-one"


def test_other():
    assert get_kernel(MINE, version=2).twice(1) == 2


def test_same():
    assert get_kernel("org/real-one", version=1).twice(1) == 2
"""
    folder = write_kernel({"test_it.py": test})
    assert run_tests(folder, ["-q", "-p", "no:cacheprovider"]) == 0
    noted = [line for line in capfd.readouterr().out.splitlines() if line.startswith("kernels test:")]
    where = os.path.relpath(folder / "tests" / "test_it.py")
    assert noted == [
        f"kernels test: {where}, line 8, loads version 2; this folder, of version 1, was tested in its place."
    ]


def test_a_test_can_read_what_the_user_types(kernel: Path) -> None:
    (kernel / "tests" / "test_typed.py").write_text("def test_typed():\n    assert input() == 'continue'\n")
    command = [sys.executable, "-m", "kernels", "test", str(kernel), "--", "-s", "-q", "tests/test_typed.py"]
    done = subprocess.run(command, input="continue\n", text=True, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
