"""The site is built without a warning, loads nothing from another host, and has every page in its menu."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from doc_pages import ROOT

pytest.importorskip("mkdocs")
pytest.importorskip("mkdocstrings")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "HOME": str(folder.parent)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    loaded = re.compile(
        r"""<(?:script|link|img|iframe|source|image|use)\b[^>]*?\b(?:src|srcset|href)=["']?(https?:)?//"""
    )
    found = {
        page.relative_to(site).as_posix(): match[0]
        for page in site.rglob("*.html")
        for match in loaded.finditer(page.read_text(encoding="utf-8"))
        if 'rel="canonical"' not in match[0]
    }
    assert found == {}
    styles = [path for path in site.rglob("*.css") if re.search(r"url\(['\"]?(https?:)?//", path.read_text("utf-8"))]
    assert styles == []


def test_the_home_page_and_the_search_index_are_there(site: Path) -> None:
    assert "<h1" in (site / "index.html").read_text(encoding="utf-8")
    assert (site / "search" / "search_index.json").is_file()
