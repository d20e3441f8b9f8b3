"""A lock that cannot be used: one line of every command that takes one names it, and nothing changes on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub import TestHub

ENTRY = {"dependency": {"repo-id": "acme/relu", "version": 1}, "lock": {"commit": "9" * 40}}

LOCKS = {
    "no JSON": (b"<<<<<<< HEAD\n[]", "is not JSON"),
    "no lock": (b'{"a": 1}', "Expected `array`, got `object`"),
    "the same twice": (json.dumps([ENTRY, ENTRY]).encode(), "acme/relu version 1 twice"),
    "a field twice": (json.dumps([ENTRY]).replace('{"commit"', '{"commit": "x", "commit"').encode(), "commit"),
    "nested": (b"[" * 100_000, "kernels.lock"),
    "a commit that is gone": (json.dumps([ENTRY]).encode(), "9" * 12),
}

COMMANDS = {
    "download": ("download", "--lockfile", "kernels.lock"),
    "download of the project": ("download",),
    "download of a kernel": ("download", "acme/relu", "--version", "1"),
    "download into a folder": ("download", "--lockfile", "kernels.lock", "--to", "to"),
    "lock": ("lock",),
    "lock --check": ("lock", "--check"),
    "lock --hashes": ("lock", "--hashes"),
    "verify": ("verify", "--lockfile", "kernels.lock"),
    "info": ("info", "acme/relu", "--version", "1"),
    "explain": ("explain", "acme/relu", "--version", "1"),
    "cache prune": ("cache", "prune", "--yes", "--lockfile", "kernels.lock"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", LOCKS)
def test_it_is_said_in_one_line_and_nothing_changes(
    kernels: Callable[..., Any],
    hub: TestHub,
    isolated_env: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    command: str,
) -> None:
    if kind == "a commit that is gone" and command == "cache prune":
        pytest.skip("what is kept on disk need not be on a Hub")
    content, said = LOCKS[kind]
    hub.make_repo("acme/relu")
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text('[tool.kernels.dependencies]\n"acme/relu" = 1\n')
    (project / "kernels.lock").write_bytes(content)
    monkeypatch.chdir(project)
    done = kernels(*COMMANDS[command])
    assert (done.exit_code, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("Error: ")
    assert "kernels.lock" in line
    assert said in line
    assert len(line) < 600
    assert (project / "kernels.lock").read_bytes() == content
    assert {path.name for path in project.iterdir()} == {"pyproject.toml", "kernels.lock"}
    assert not list(isolated_env.glob("*/snapshots"))
