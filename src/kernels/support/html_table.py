"""Results as a notebook and a terminal show them: plain tables, in which no text is markup or a control character."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, TypeVar

from kernels.support.formatting import format_text
from kernels.support.text import one_line

__all__ = ["TableList", "html_table", "text_table"]

_Item = TypeVar("_Item")

#: The most characters of a cell, and the most rows: a browser tab holds no table of a hostile repository's size.
_MAX_CELL, _MAX_ROWS = 500, 1000

# No colour: text and background are those of the page, dark or light. The classes stop MathJax, which would read
# `$…$` in a cell as a formula.
_NO_FORMULAS = 'class="tex2jax_ignore mathjax_ignore"'
_TABLE = f'<table {_NO_FORMULAS} style="border-collapse:collapse">'
_CELL = "text-align:left;vertical-align:top;padding:2px 10px"


def html_table(
    headings: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "", notes: Iterable[str] = ()
) -> str:
    """An HTML table; every text is escaped, cut to a length that can be read, and kept on one line.

    Args:
        headings: One for each column.
        rows: The cells of each row.
        title: A line above the table.
        notes: Lines below it.

    Example:
        >>> html_table(["name"], [["<b>"]]).partition("<tbody>")[2]
        '<tr><td style="text-align:left;vertical-align:top;padding:2px 10px">&lt;b&gt;</td></tr></tbody></table>'
    """
    every = list(rows)
    more = [f"and {len(every) - _MAX_ROWS} more"] if len(every) > _MAX_ROWS else []
    head, body = _row("th", headings), "".join(_row("td", row) for row in every[:_MAX_ROWS])
    # A caption would be as narrow as its table.
    above, below = "".join(map(_line, filter(None, [title]))), "".join(map(_line, [*more, *notes]))
    return f"{above}{_TABLE}<thead>{head}</thead><tbody>{body}</tbody></table>{below}"


def text_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "", notes: Iterable[str] = ()
) -> str:
    """The same as lines of text. A row's last cell may be wider than its column.

    Args:
        headings: One for each column; none for no table.
        rows: The cells of each row.
        title: A line above the table.
        notes: Lines below it.

    Example:
        >>> print(text_table(["name", "size"], [["relu", "3"], ["a long reason"]]))
        name  size
        relu  3
        a long reason
    """
    lines = [[one_line(cell) for cell in line] for line in (headings, *rows)]
    inner = [line[:-1] for line in lines]
    widths = [max(len(line[column]) for line in inner if column < len(line)) for column in range(len(inner[0]))]
    table = ["".join(f"{cell:{width}}  " for cell, width in zip(line, [*widths, 0], strict=False)) for line in lines]
    return "\n".join([*([title] if title else []), *(line.rstrip() for line in table if line), *map(one_line, notes)])


class TableList(list[_Item]):
    """A list that a notebook shows as a table. In all else it is a list.

    Attributes:
        headings: One for each column.
    """

    headings: ClassVar[tuple[str, ...]]

    @staticmethod
    def cells(item: _Item) -> Sequence[object]:
        """The cells of an item's row."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return html_table(self.headings, map(self.cells, self))


def _line(text: str) -> str:
    return f'<div {_NO_FORMULAS} style="padding:2px 10px">{_escaped(text)}</div>'


def _row(tag: str, cells: Sequence[object]) -> str:
    inner = "".join(f'<{tag} style="{_CELL}">{_escaped(each)}</{tag}>' for each in cells)
    return f"<tr>{inner}</tr>"


def _escaped(text: object) -> str:
    import html

    return html.escape(format_text(text, _MAX_CELL))
