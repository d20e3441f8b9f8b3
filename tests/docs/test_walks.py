"""Pages that are a road from the first line to the last: they are walked as they are printed."""

from __future__ import annotations

from pathlib import Path

import pytest
from doc_pages import PAGES, is_walked, page_id
from walked_pages import walk


@pytest.mark.parametrize("page", [page for page in PAGES if is_walked(page)], ids=page_id)
def test_a_walk_goes_as_the_page_shows(page: Path, reader: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "walk"
    scratch.mkdir()
    different = [str(step) for step in walk(page, reader, scratch) if not step.as_shown]
    assert different == [], "\n\n".join(different)
