"""A page has one title, and says first who should read it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer
from doc_pages import PAGES, ROOT, page_id

from kernels.cli import app

DOCS = ROOT / "docs"


def _text(page: Path) -> str:
    """A page without its blocks of code and its comments; of a notebook, its cells of text."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        cells = [cell["source"] for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        text = "\n\n".join(cell if isinstance(cell, str) else "".join(cell) for cell in cells)
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


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_a_command_within_a_sentence_is_one_that_kernels_has_with_that_option(page: Path) -> None:
    group = typer.main.get_command(app)
    context = group.make_context("kernels", ["--help"], resilient_parsing=True)
    wrong = []
    for name, rest in re.findall(r"`kernels ([a-z][a-z-]*)((?: [^`]*)?)`", _text(page)):
        command = group.get_command(context, name)
        each = [] if command is None else [command, *getattr(command, "commands", {}).values()]
        options = {option for one in each for parameter in one.params for option in parameter.opts}
        options |= {option for one in each for parameter in one.params for option in parameter.secondary_opts}
        shown = re.findall(r"(?<![\w-])--[a-z-]+", rest.partition(" -- ")[0])
        wrong += [f"{name} {option}" for option in shown if option not in options | {"--debug", "--help"}]
        wrong += [] if each else [name]
    assert wrong == []
