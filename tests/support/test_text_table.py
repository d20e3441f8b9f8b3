"""A table as text: each row is a line, and no text leaves its cell's place."""

from __future__ import annotations

import pytest

from kernels.support.text_table import text_table


@pytest.mark.parametrize(
    ("rows", "shown"),
    [
        ([], ["a  bb  c"]),
        ([["1"], ["2", "long text"]], ["a  bb", "1", "2  long text"]),
        ([["1", "long text"], ["222", "3", "4"]], ["a    bb  c", "1    long text", "222  3   4"]),
        ([["1\n2", "\x1b[2J", ""]], ["a     bb       c", "1\\n2  \\x1b[2J"]),
    ],
)
def test_a_short_row_s_last_cell_spans_the_columns_that_are_left(rows: list[list[str]], shown: list[str]) -> None:
    assert text_table(["a", "bb", "c"], rows) == shown
