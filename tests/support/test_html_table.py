"""Results are HTML tables in which no text is markup."""

from __future__ import annotations

import copy
import pickle

import pytest
from html_cells import HOSTILE, ReadHtml

from kernels.support.html_table import TableList, html_table


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_becomes_markup(text: str) -> None:
    read = ReadHtml(html_table([text], [[text]], title=text, notes=[text]))
    assert read.tags == {"table", "thead", "tbody", "tr", "th", "td", "div"}
    assert read.attributes == {"class", "style"}
    shown = text if text.isprintable() else text.encode("unicode_escape").decode()
    assert read.cells == [shown] * 4


def test_a_formula_in_a_cell_stays_text() -> None:
    assert html_table(["a"], [["$x$"]]).startswith('<table class="tex2jax_ignore mathjax_ignore"')


def test_long_cells_and_long_tables_are_cut() -> None:
    read = ReadHtml(html_table(["a"], [["x" * 10_000]] * 1_500))
    assert len(read.cells) == 1 + 1000 + 1
    assert {len(cell) for cell in read.cells[1:-1]} == {500}
    assert read.cells[-1] == "and 500 more"


class Numbers(TableList[int]):
    headings = ("number", "square")

    @staticmethod
    def cells(item: int) -> tuple[int, int]:
        return (item, item * item)


def test_a_list_with_a_table_is_a_list() -> None:
    numbers = Numbers([1, 2])
    assert numbers == [1, 2]
    assert repr(numbers) == "[1, 2]"
    assert ReadHtml(numbers._repr_html_()).cells == ["number", "square", "1", "1", "2", "4"]
    assert type(numbers[:1]) is list
    for copied in (copy.copy(numbers), copy.deepcopy(numbers)):
        assert (type(copied), copied) == (Numbers, [1, 2])


def test_the_lists_of_this_package_can_be_pickled() -> None:
    from kernels import list_backends

    listed = type(list_backends())([])
    assert type(pickle.loads(pickle.dumps(listed))) is type(listed)
