"""The site is built without a warning, loads nothing from another host, and has every page in its menu."""

from __future__ import annotations

import re
from html import unescape
from itertools import groupby
from pathlib import Path

from api_names import documented_names, summary


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


def test_every_name_of_the_python_api_has_an_anchor_with_its_description(site: Path) -> None:
    for path, names in groupby(documented_names(), key=lambda each: each[1]):
        html = (site / "api" / f"{path.stem}.html").read_text(encoding="utf-8")
        parts = dict(re.findall(r'<h[2-6] id="([^"]+)"(.*?)(?=<h[2-6] |$)', html, flags=re.DOTALL))
        for name, _ in names:
            shown = " ".join(unescape(re.sub(r"<[^>]+>", "", parts[name])).split())
            assert summary(name).replace("`", "") in shown, name


def test_types_of_the_public_api_lead_to_what_documents_them(site: Path) -> None:
    html = (site / "api" / "get-kernels.html").read_text(encoding="utf-8")
    assert re.search(r'<a [^>]*href="backends\.html#kernels\.BackendName"', html)
    assert re.search(r'<a [^>]*href="errors\.html#kernels\.errors\.NoSuitableBuild"[^>]*><code>NoSuitableBuild', html)
