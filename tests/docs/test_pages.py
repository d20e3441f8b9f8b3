"""A page has one title, and says first who should read it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from doc_pages import ROOT, markdown

DOCS = ROOT / "docs"


def _text(page: Path) -> str:
    """A page without its blocks of code and its comments; of a notebook, its cells of text."""
    text = markdown(page)
    text = re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


@pytest.mark.parametrize(
    "page",
    sorted([*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb")]),
    ids=lambda page: page.relative_to(DOCS).as_posix(),
)
def test_a_page_has_one_title_and_then_says_for_whom_it_is(page: Path) -> None:
    title, first, *_ = (part.strip() for part in re.split(r"\n{2,}", _text(page).strip()))
    assert re.fullmatch(r"# .+", title)
    assert re.match(r"For \w", first), first
    assert len(re.findall(r"^# ", _text(page), flags=re.MULTILINE)) == 1


def test_no_alternative_text_has_marks_that_would_end_it() -> None:
    """Markdown makes a tag of a backtick also within an attribute."""
    pages = [ROOT / "README.md", *DOCS.rglob("*.md")]
    texts = {page.name: re.findall(r'alt="([^"]*)"', page.read_text(encoding="utf-8")) for page in pages}
    assert any(texts.values())
    assert {name for name, found in texts.items() if any("`" in text for text in found)} == set()
