"""`kernels mirror --html`, as a command."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from mirror_tree import MirrorTree

pytestmark = pytest.mark.skipif(find_spec("zstandard") is None, reason="zstandard is not installed")


def test_pages_of_a_mirror_are_written_and_named(
    kernels: Callable[..., Any], tmp_path: Path, isolated_env: Path
) -> None:
    tree = MirrorTree(tmp_path / "mirror")
    tree.add("acme/relu")
    done = kernels("mirror", tree.root, "--html")
    assert (done.exit_code, "1 page written: " in done.stdout) == (0, True), done.output
    assert (tree.root / "catalog/acme/relu/index.html").is_file()
    assert "Nothing to do: 1 page in " in kernels("mirror", tree.root, "--html").stdout
    found = json.loads(kernels("mirror", tree.root, "--html", "--json").stdout)
    assert found["pages"] == {"written": 0, "removed": 0, "kept": 1}


def test_what_takes_nothing_takes_no_options_of_taking(
    kernels: Callable[..., Any], tmp_path: Path, isolated_env: Path
) -> None:
    refused = kernels("mirror", tmp_path, "--html", "--since", "7d")
    assert refused.exit_code == 2
    assert "--since is no option of --html without what to take" in refused.output
    missing = kernels("mirror", tmp_path, "--html")
    assert missing.exit_code == 1
    assert "is not a mirror: it has no mirror.json" in missing.output
