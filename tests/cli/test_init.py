"""`kernels init`: a folder to start from, and what it answers where it cannot make one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def test_it_makes_the_folder_and_tells_what_is_next(
    kernels: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = kernels("init", "rms-norm", "--backends", "cpu, cuda")
    assert result.exit_code == 0, result.stderr
    first, *rest, last = result.stdout.splitlines()
    notes = [line for line in rest if line.startswith("Note: ")]
    assert all("cuda" in note for note in notes)  # where CUDA cannot be built
    files = [line for line in rest if line not in notes]
    assert first == f"Created {tmp_path / 'rms-norm'}"
    assert all((tmp_path / "rms-norm" / name.strip()).is_file() for name in files)
    assert "  rms_norm_cuda/rms_norm.cu" in files
    steps = ("build", "test", "benchmark", "check", "upload")
    assert last == "Next: " + ", ".join(f"kernels {step} rms-norm" for step in steps) + " --repo-id org/name"


def test_every_option_counts(kernels: Callable[..., Any], tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "k"
    options = ["--noarch", "--backends", "cpu", "--license", "MIT", "--repo-id", "org/x", "--out", folder]
    result = kernels("init", "rms-norm", *options)
    assert result.exit_code == 0, result.stderr
    text = (folder / "build.toml").read_text()
    assert all(line in text for line in ('license = "MIT"', 'repo-id = "org/x"', "[torch-noarch]", '["cpu"]'))
    next_steps = result.stdout.splitlines()[-1]
    assert next_steps.startswith(f"Next: kernels build {folder}, ")
    assert next_steps.endswith(f", kernels upload {folder}")
    assert "$ kernels upload .\n" in (folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["../up"], "`name` is '../up'; expected 2 to 96 lower-case letters"),
        (["x1", "--backends", "cpu,abacus"], "`backend`: expected one of "),
        (["x1", "--backends", ","], "`backends` is empty"),
        (["x1", "--license", "\x1b[2J"], "`license` is "),
        (["x1", "--repo-id", "x1"], "`repo_id` is 'x1'"),
        (["x1", "--out", "."], "is not empty"),
    ],
)
def test_what_cannot_be_made_is_one_line_and_leaves_nothing(
    kernels: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    (tmp_path / "mine").write_text("mine")
    monkeypatch.chdir(tmp_path)
    result = kernels("init", *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    [line] = result.stderr.splitlines()
    assert line.startswith("Error: ")
    assert says in line
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_kernel_is_made_from_a_file_and_what_is_left_is_said(
    kernels: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "add.cu").write_text(
        '#include "solve.h"\n__global__ void add(float* x) {}\nvoid solve(float* x) { add<<<1, 1>>>(x); }\n'
    )
    result = kernels("init", "--from", "add.cu")
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "add" / "add_cuda" / "add.cu").read_bytes() == (tmp_path / "add.cu").read_bytes()
    first, *_, last = result.stdout.splitlines()
    assert first == f"Created {tmp_path / 'add'}"
    assert "Note: add.cu includes 'solve.h', which is not beside it: copy it there" in result.stdout
    assert last.startswith("Next: kernels build add, kernels test add, kernels check add, ")


@pytest.mark.parametrize("from_file", [False, True], ids=["new", "from a file"])
def test_its_page_names_the_repository_that_it_is_published_to(
    kernels: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, from_file: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "twice.py").write_text(
        "import triton\n\n\n@triton.jit\ndef _twice(x):\n    pass\n\n\ndef twice(x):\n    _twice[(1,)](x)\n"
    )
    made = kernels("init", *(["--from", "twice.py"] if from_file else ["twice", "--noarch", "--backends", "cpu"]))
    assert made.exit_code == 0, made.stderr
    built = kernels("build", "twice")
    assert built.exit_code == 0, built.stderr
    card = kernels("card", "twice", "--repo-id", "acme/twice").stdout
    assert "local/twice" not in card
    # Before the steps for those who build it.
    assert card.index('get_kernel("acme/twice", version=1)') < card.index("## Build from source")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "`NAME` is missing"),
        (["--from", "absent.cu"], "does not exist"),
        (["--from", "x.cu", "--noarch"], "`--noarch` and `--from`"),
    ],
)
def test_what_cannot_be_made_from_a_file_is_one_line(
    kernels: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = kernels("init", *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    [line] = result.stderr.splitlines()
    assert says in line
    assert list(tmp_path.iterdir()) == []


def test_a_file_with_lines_that_its_backend_forbids_is_noted(
    kernels: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "import triton\n\n\n@triton.jit\ndef k(x):\n    pass\n\n\ntorch.cuda.synchronize()\n"
    (tmp_path / "add.py").write_text(text)
    result = kernels("init", "--from", "add.py", "--backends", "xpu")
    assert "`kernels check add --diff` shows them" in result.stdout
    assert (tmp_path / "add" / "torch-ext" / "add" / "add.py").read_text() == text
