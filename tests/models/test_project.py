"""`[tool.kernels.dependencies]` is read, and what is wrong with it is said in one line with the entry."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.errors import RequestError
from kernels.models.lockfile import Lock, Pin
from kernels.models.project import KernelProject, dependencies, unpinned
from kernels.models.requirement import Requirement

RELU, NORM = Requirement("org/relu", version=1), Requirement("org/norm", revision="main")
TABLE = '[tool.kernels.dependencies]\n"org/relu" = 1\n"org/norm" = { revision = "main" }\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "pyproject.toml"


def test_the_table_is_read_from_a_folder_or_from_the_file_itself(file: Path) -> None:
    file.write_text(TABLE)
    for path in (file, file.parent):
        project = KernelProject.read(path)
        assert project.dependencies == (RELU, NORM)
        assert project.lock_file == file.with_name("kernels.lock")


def test_a_version_may_stand_in_a_table_and_the_table_may_be_empty(file: Path) -> None:
    file.write_text('[tool.kernels.dependencies."org/relu"]\nversion = 1\n')
    assert dependencies(file) == (RELU,)
    file.write_text("[tool.kernels.dependencies]\n")
    assert dependencies(file) == ()


@pytest.mark.parametrize("text", ["", "[project]\nname = 'x'\n", "[tool.black]\n", "[tool.kernels]\n"])
def test_a_file_without_the_table_asks_for_nothing_which_a_project_must_not(text: str, file: Path) -> None:
    file.write_text(text)
    assert dependencies(file) is None
    with pytest.raises(RequestError, match=r"no table \[tool\.kernels\.dependencies\]"):
        KernelProject.read(file)


def test_a_folder_without_the_file_is_no_project(tmp_path: Path) -> None:
    other = tmp_path / "setup.cfg"
    other.write_text("")
    for path in (tmp_path, tmp_path / "absent", other):
        with pytest.raises(RequestError, match=r"is no project; .* folder with a pyproject\.toml"):
            KernelProject.read(path)


WRONG = {
    "half a line": (b"[tool", "not valid TOML"),
    "bytes": (b"\xff", "not valid TOML"),
    "nested": (b"a = " + b"[" * 100_000, "nested too deep"),
    "1 MiB": (b"#" * (1024 * 1024 + 1), "larger than 1 MiB"),
    "tool": (b"tool = 1", "`tool` is 1; expected a table"),
    "kernels": (b"[tool]\nkernels = []", "`tool.kernels` is []; expected a table"),
    "a list": (b"[tool.kernels]\ndependencies = ['org/relu']", "`tool.kernels.dependencies` is ['org/relu']"),
    "no publisher": (b"[tool.kernels.dependencies]\nrelu = 1", ":2: `tool.kernels.dependencies`: 'relu': `repo_id`"),
    "dots": (b"[tool.kernels.dependencies]\norg.relu = 1", ":2: `tool.kernels.dependencies`: 'org': `repo_id`"),
    "a space": (b"[tool.kernels.dependencies]\n'org/re lu' = 1", "'org/name', each part of letters"),
    "control characters": (b'[tool.kernels.dependencies]\n"org/\\u001b[2J" = 1', "'org/name', each part of letters"),
    "text": (
        b"[tool.kernels.dependencies]\n'org/relu' = '1'",
        ":2: `tool.kernels.dependencies`: 'org/relu': `version` is '1' (str); expected an integer",
    ),
    "list": (b"[tool.kernels.dependencies]\n'org/relu' = []", "`version` is [] (list)"),
    "empty": (b"[tool.kernels.dependencies]\n'org/relu' = {}", "got {}; expected a major version"),
    "both": (
        b"[tool.kernels.dependencies]\n'org/relu' = {version = 1, revision = 'x'}",
        "either `version` or `revision`",
    ),
    "unknown": (b"[tool.kernels.dependencies]\n'org/relu' = {version = 1, x = 2}", "either `version` or `revision`"),
    "revision": (b"[tool.kernels.dependencies]\n'org/relu' = {revision = 1}", "`revision` is 1 (int)"),
    "leaves": (b"[tool.kernels.dependencies]\n'org/relu' = {revision = '../x'}", "`revision` is '../x'"),
    "twice": (b"[tool.kernels.dependencies]\n'org/relu' = 1\n'org/relu' = 2", "not valid TOML"),
}


@pytest.mark.parametrize(("content", "said"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_said_in_one_line_with_the_file_and_the_entry(content: bytes, said: str, file: Path) -> None:
    file.write_bytes(content)
    with pytest.raises(RequestError) as refused:
        KernelProject.read(file)
    assert str(refused.value).startswith(str(file))
    assert said in str(refused.value)
    assert str(refused.value).isprintable()


def test_what_a_lock_does_not_pin_is_told_in_either_format() -> None:
    assert unpinned((RELU, NORM), Lock()) == [RELU, NORM]
    assert unpinned((RELU, NORM), Lock((Pin(RELU, "1" * 40),))) == [NORM]
    assert unpinned((RELU,), Lock((Pin(Requirement("org/relu", version=2), "1" * 40),))) == [RELU]
    assert unpinned((RELU, NORM), Lock((Pin(Requirement("org/norm"), "1" * 40),), older=True)) == [RELU]
