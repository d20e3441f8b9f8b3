"""`kernels card` shows the page that `kernels upload` publishes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub import make_repo
from writable_hub import WritableHub


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    return make_repo(tmp_path / "work", "acme/relu", variants=["torch-cpu", "torch-cuda"])


def test_it_prints_what_is_published(
    kernels: Callable[..., Any], kernel: Path, tmp_path: Path, writable_hub: WritableHub
) -> None:
    (kernel / "CARD.md").write_text("# {{ repo_id }} ä\n\n- {{ functions | join(', ') }} {{ typo }}\n")
    shown = kernels("card", kernel, "--repo-id", "acme/relu")
    assert (shown.exit_code, shown.stderr) == (
        0, "Note: CARD.md: the placeholder 'typo' is not known, and left empty.\n",
    )  # fmt: skip
    assert "# acme/relu ä\n\n- double" in shown.stdout
    assert "| `torch-cuda` | cuda |" in shown.stdout
    kernels("upload", kernel, "--repo-id", "acme/relu")
    for branch in ("v1", "main"):
        served = writable_hub.catalog.commit("acme/relu", branch).files["README.md"].source.read_text()
        assert served == shown.stdout
    written = kernels("card", kernel, "--repo-id", "acme/relu", "--output", tmp_path / "page.md")
    assert (written.stdout, (tmp_path / "page.md").read_text()) == ("", shown.stdout)
    found = json.loads(kernels("card", kernel, "--json").stdout)
    assert (found["origin"], found["files"]) == ("CARD.md", [])
    assert "# org/name" in found["text"]


@pytest.mark.parametrize(
    ("page", "said"), [("{% if %}", "CARD.md, line 1: this is not a Jinja template"), ("---\n", "front matter begins")]
)
def test_a_wrong_page_is_one_line(kernels: Callable[..., Any], kernel: Path, page: str, said: str) -> None:
    (kernel / "CARD.md").write_text(page)
    done = kernels("card", kernel)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert said in done.stderr
