"""`kernels test`: pytest's answer is the command's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernels.authoring.scaffold import new_kernel


@pytest.fixture
def kernel(tmp_path: Path, isolated_env: Path) -> Path:
    folder = new_kernel("rms-norm", tmp_path / "k", backends=["cpu"], noarch=True)
    [test] = (folder / "tests").iterdir()
    test.write_text("def test_layer():\n    pass\n\n\ndef test_fails():\n    assert 'éa' == 'b'\n")
    return folder


def test_it_builds_where_told_to_and_ends_with_pytests_status(kernels: Callable[..., Any], kernel: Path) -> None:
    result = kernels("test", kernel, "--build", "--", "-q", "-k", "layer")
    assert result.exit_code == 0, result.stderr
    assert "1 passed, 1 deselected" in result.stdout
    result = kernels("test", kernel, "--", "-q", "-k", "fails")
    assert result.exit_code == 1
    assert "assert 'éa' == 'b'" in result.stdout
    assert result.stderr == ""


def test_the_folder_is_here_where_none_is_given_and_skips_have_reasons(
    kernels: Callable[..., Any], kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [test] = (kernel / "tests").iterdir()
    test.write_text("import pytest\n\n\ndef test_layer():\n    pytest.skip('no such device')\n")
    monkeypatch.chdir(kernel)
    result = kernels("test", "--build")
    assert result.exit_code == 0, result.stderr
    assert "no such device" in result.stdout
    result = kernels("test", "--", "-q", "-k", "layer")
    assert result.exit_code == 0, result.stderr
    assert "1 skipped" in result.stdout


def test_what_pytest_prints_is_the_answer_on_standard_output(kernels_process: Callable[..., Any], kernel: Path) -> None:
    done = kernels_process("test", kernel, "--build", "--", "-q", "-k", "layer")
    assert done.returncode == 0, done.stderr
    assert "1 passed, 1 deselected" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["k"], "which has no builds; run `kernels build"),
        (["nowhere"], "nowhere does not exist; "),
        (["k/tests"], "did you mean {k}?"),
        (["k", "--build", "--variant", "torch-cuda"], "the builds in {k}/build are torch-cpu."),
    ],
)
def test_a_folder_that_cannot_be_tested_is_one_line(
    kernels: Callable[..., Any],
    kernel: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = kernels("test", *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    [line] = result.stderr.splitlines()
    assert line.startswith("Error: ")
    assert says.format(k=kernel) in line


def test_under_kernels_locked_no_build_of_sources_is_tested(
    kernels: Callable[..., Any], kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELS_LOCKED", "1")
    result = kernels("test", kernel, "--build")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "Error: KERNELS_LOCKED=1 allows locked kernels only, and no lockfile pins the builds in "
        f"{kernel}. Unset KERNELS_LOCKED to test them.\n"
    )
