"""The pages of the reference say what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest
from write_reference import GENERATED


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: path.name)
def test_a_page_that_is_written_from_the_code_is_up_to_date(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == GENERATED[path](), "run `make reference`"
