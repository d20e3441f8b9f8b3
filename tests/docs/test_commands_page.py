"""The page of commands has each of them, where it is explained, and what its JSON has."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import typer
from commands_page import GUIDES, JSON_KEYS
from doc_pages import ROOT, anchors
from typer.testing import CliRunner

from kernels.cli import app

COMMANDS = typer.main.get_command(app).list_commands(None)


def test_every_command_has_a_guide() -> None:
    assert sorted(GUIDES) == sorted(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_guide_of_a_command_exists_and_shows_it(command: str) -> None:
    pages = set()
    for _, link in GUIDES[command]:
        name, _, anchor = link.partition("#")
        page = ROOT / "docs" / name
        assert not anchor or anchor in anchors(page)
        pages.add(page)
    assert any(f"kernels {command}" in page.read_text(encoding="utf-8") for page in pages)


#: The commands whose JSON is compared, in an order in which each has something to show.
ANSWERS = [
    ("lock", "", "lock . --hashes"),
    ("explain", "", "explain {kernel} --version 1"),
    ("versions", "", "versions {kernel}"),
    ("info", "", "info {kernel} --version 1"),
    ("download", "", "download ."),
    ("verify", "", "verify {kernel} --version 1"),
    ("check", "", "check {kernel} --version 1 --static"),
    ("cache", "list", "cache"),
    ("cache", "size", "cache size"),
    ("cache", "verify", "cache verify"),
    ("cache", "autotune", "cache autotune"),
    ("cache", "prune", "cache prune --all --older-than 0"),
    ("mirror", "", "mirror tree --repo {kernel}"),
    ("mirror", "--verify", "mirror tree --verify"),
    ("mirror", "--prune", "mirror tree --prune --dry-run"),
    ("backends", "list", "backends"),
    ("backends", "show", "backends show cpu"),
    ("backends", "check", "backends check cpu"),
    ("skills", "list", "skills"),
    ("skills", "add", "skills add"),
    ("doctor", "", "doctor"),
    ("check", "--diff", "check my-relu --diff"),
    ("build", "--list", "build my-relu --list"),
    ("build", "--dry-run", "build my-relu --dry-run"),
    ("build", "", "build my-relu"),
    ("card", "", "card my-relu"),
    ("wheel", "", "wheel my-relu"),
    ("upload", "", "upload my-relu --dry-run"),
    ("benchmark", "", "benchmark my-relu --iterations 1 --warmup 0"),
]


def test_the_json_of_every_command_with_keys_on_the_page_is_compared() -> None:
    assert {(name, how) for name, how, _ in ANSWERS} == {(name, how) for name in JSON_KEYS for how in JSON_KEYS[name]}


def test_the_json_of_commands_has_the_keys_of_the_page(reader: Path) -> None:
    (reader / "pyproject.toml").write_text('[tool.kernels.dependencies]\n"kernels-examples/rms-norm" = 1\n')
    init = ["init", "my-relu", "--noarch", "--backends", "cpu", "--repo-id", "kernels-examples/my-relu"]
    assert CliRunner().invoke(app, init, prog_name="kernels").exit_code == 0
    for name, how, line in ANSWERS:
        arguments = shlex.split(line.format(kernel="kernels-examples/rms-norm"))
        result = CliRunner().invoke(app, [*arguments, "--json"], prog_name="kernels")
        assert _differences(json.loads(result.stdout), JSON_KEYS[name][how]) == [], line


def _differences(answer: Any, keys: str) -> Iterable[str]:
    if keys.startswith("["):
        return _differing_items("", answer, keys)
    described = re.findall(r"(\w+)(\[[^]]*\])?", keys)
    found = sorted({name for name, _ in described} ^ set(answer))
    return found + [each for name, inner in described if inner for each in _differing_items(name, answer[name], inner)]


def _differing_items(name: str, items: list[dict[str, Any]], keys: str) -> list[str]:
    return sorted({f"{name}.{each}" for item in items for each in set(keys.strip("[]").split()) ^ set(item)})
