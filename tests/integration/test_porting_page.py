"""The walks of docs/porting.md: what the page shows is what the commands print, and the folders are in order."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kernels.authoring.compile import build_kernel, read_source
from kernels.cli import app

PAGE = (Path(__file__).parents[2] / "docs" / "porting.md").read_text(encoding="utf-8")
FILES = re.findall(r"<!-- file: ([^\n]+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
WALKS = re.findall(
    r"^\$ kernels (init (?:\S+ )?--from .+)\n((?:Created|  |Note).+\n(?:(?:  |Note).+\n)+)", PAGE, re.MULTILINE
)


@pytest.fixture(autouse=True)
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("command", "output"), WALKS, ids=[command for command, _ in WALKS])
def test_a_walk_begins_as_the_page_shows(command: str, output: str, reader: Path) -> None:
    result = CliRunner().invoke(app, shlex.split(command), prog_name="kernels")
    assert result.exit_code == 0, result.stderr
    # What can be built differs from machine to machine, and a last line names the next commands.
    lines = result.stdout.replace(str(reader), "/home/ada").splitlines(keepends=True)
    shown = output.splitlines(keepends=True)
    assert lines[: len(shown)] == shown
    read_source(reader / Path(lines[0].strip()).name)


def test_there_are_three_walks_and_the_one_in_triton_builds(reader: Path) -> None:
    assert len(WALKS) == 3
    [command] = [command for command, _ in WALKS if "double.py" in command]
    assert CliRunner().invoke(app, shlex.split(command), prog_name="kernels").exit_code == 0
    built = build_kernel("double", "double")
    assert sorted(path.name for path in built) == ["torch-cuda", "torch-rocm", "torch-xpu"]
