"""Which build tests run on, and what is said before pytest starts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kernels.authoring.own_tests.choice import choose_tested_build
from kernels.authoring.own_tests.run import run_tests
from kernels.errors import KernelsError, MissingPythonDependency, RequestError
from kernels.resolver.target import Target

Write = Callable[..., Path]

QUIET = ("-q", "-p", "no:cacheprovider")


def test_the_build_that_fits_is_chosen_and_others_are_refused_with_their_reason(write_kernel: Write) -> None:
    kernel = write_kernel({}, backends='["cpu", "cuda"]')
    for chosen in (
        choose_tested_build(kernel),
        choose_tested_build(kernel, backend="cpu"),
        choose_tested_build(kernel, variant="torch-cpu"),
    ):
        assert chosen.variant == "torch-cpu"
        assert chosen.id.startswith("_real_one_cpu_")
    assert choose_tested_build(kernel).backend is None
    pinned = choose_tested_build(kernel, variant="torch-cpu")
    assert (pinned.local, pinned.backend) == (kernel / "build" / "torch-cpu", "cpu")
    for arguments, what in (
        ({"variant": "torch-xpu"}, r"`variant` is 'torch-xpu'; the builds in .*build are torch-cpu, torch-cuda\."),
        ({"variant": "torch-cuda"}, "'torch-cuda', which does not fit this machine: .*[Tt]orch"),
        ({"backend": "cuda"}, "cuda.*cannot be tested here|'cuda', but none of the builds"),
        ({"backend": "nosuch"}, "nosuch"),
        ({"backend": "cpu", "variant": "torch-cpu"}, "give one of them"),
    ):
        with pytest.raises(RequestError, match=what):
            choose_tested_build(kernel, **arguments)


def test_the_chosen_build_is_the_default_of_get_kernel(write_kernel: Write) -> None:
    test = """
import os

import kernels
import real_one


def test_it():
    assert kernels.get_kernel("org/real-one", version=1) is real_one
    assert os.environ["KERNELS_BACKEND"] == "cpu"
"""
    kernel = write_kernel({"test_it.py": test}, backends='["cpu", "cuda"]')
    assert run_tests(kernel, QUIET, variant="torch-cpu") == 0
    assert run_tests(kernel, QUIET, backend="cpu") == 0


def test_without_a_build_that_fits_the_import_says_why(write_kernel: Write, capfd: pytest.CaptureFixture[str]) -> None:
    kernel = write_kernel({"test_it.py": "import real_one\n"}, backends='["cuda"]')
    assert run_tests(kernel, QUIET) == 2
    assert "none of the builds in" in capfd.readouterr().out


def _change(kernel: Path, **fields: object) -> None:
    path = kernel / "build" / "torch-cpu" / "metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize(
    ("fields", "kind", "what"),
    [
        ({"python-depends": ["helion"]}, MissingPythonDependency, "helion"),
        ({"kernel-depends": [{"repo-id": "nobody/nothing", "version": 1}]}, KernelsError, "nobody/nothing"),
    ],
)
def test_a_dependency_that_is_not_there_is_said_before_pytest_starts(
    write_kernel: Write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    fields: dict[str, object],
    kind: type[Exception],
    what: str,
) -> None:
    (tmp_path / "hub").mkdir()
    monkeypatch.setenv("KERNELS_HUB", str(tmp_path / "hub"))
    kernel = write_kernel({"test_it.py": ""})
    _change(kernel, **fields)
    with pytest.raises(kind, match=what):
        run_tests(kernel, QUIET)
    assert capfd.readouterr().out == ""


def test_the_build_that_there_is_is_tested_where_another_backend_is_the_default(
    write_kernel: Write, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    test = """
import os

import kernels
import real_one


def test_it():
    assert kernels.get_kernel("org/real-one", version=1) is real_one
    assert os.environ["KERNELS_BACKEND"] == "cpu"
"""
    kernel = write_kernel({"test_it.py": test}, backends='["cpu"]')
    here = Target.current()
    gpu = Target.parse(f"torch{'.'.join(str(here.torch).split('.')[:2])}-cu130-x86_64-linux+sm_90")
    monkeypatch.setattr(Target, "current", staticmethod(lambda: gpu))
    assert run_tests(kernel, QUIET) == 0
    said = capfd.readouterr().out
    assert "kernels test: the tests ran on torch-cpu, for cpu: torch-cpu: " in said
    (kernel / "torch-ext" / "real_one" / "late.py").write_text("changed = 1\n")
    with pytest.raises(RequestError, match="torch-cpu: the sources have changed"):
        run_tests(kernel, QUIET)
