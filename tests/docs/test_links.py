"""Links lead somewhere, and what is public is on a page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from doc_pages import PAGES, ROOT, anchors, page_id


@pytest.mark.parametrize("page", [*PAGES, *sorted((ROOT / "docs" / "api").glob("*.md"))], ids=page_id)
def test_every_link_leads_to_a_file_and_a_heading_that_exist(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_page_is_in_the_menu_once() -> None:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r"([\w./-]+\.(?:md|ipynb))$", menu, flags=re.MULTILINE)
    there = [path for kind in ("*.md", "notebooks/*.ipynb") for path in (ROOT / "docs").rglob(kind)]
    assert sorted(listed) == sorted(path.relative_to(ROOT / "docs").as_posix() for path in there)
