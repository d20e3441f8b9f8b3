"""`kernels skills`: the skills are listed, and copied to where an agent reads them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_skills_are_listed(kernels: Callable[..., Any], home: Path) -> None:
    assert "write-kernels" in kernels("skills").stdout
    [skill] = json.loads(kernels("skills", "list", "--json").stdout)
    assert "SKILL.md" in skill["files"]
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "places"),
    [
        ([], ["project/.agents/skills"]),
        (["--agent", "claude", "--agent", "cursor"], ["project/.claude/skills", "project/.cursor/skills"]),
        (["write-kernels", "--agent", "codex", "--global"], ["home/.codex/skills"]),
        (["--to", "here"], ["project/here"]),
    ],
)
def test_skills_are_copied_to_where_an_agent_reads_them(
    kernels: Callable[..., Any], home: Path, arguments: list[str], places: list[str]
) -> None:
    result = kernels("skills", "add", *arguments)
    assert result.exit_code == 0, result.stderr
    found = {path.parent.parent for path in home.parent.rglob("SKILL.md")}
    assert found == {home.parent / place for place in places}
    assert result.stdout.count("Added ") == len(places)
    assert kernels("skills", "add", *arguments).stdout.count("Up to date: ") == len(places)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["add", "--agent", "hal"], "expected one of agents, claude, codex, cursor, opencode"),
        (["add", "other"], "expected one of write-kernels"),
        (["add", "--to", "x", "--global"], "`--to` is the folder itself"),
        (["list", "--force"], "options of `add`"),
    ],
)
def test_what_cannot_be_added_is_said(kernels: Callable[..., Any], home: Path, arguments: list[str], says: str) -> None:
    result = kernels("skills", *arguments)
    assert result.exit_code in (1, 2)
    assert says in result.stderr
    assert list(Path().iterdir()) == []
