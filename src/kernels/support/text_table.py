"""A table as plain text: what `print` shows of a result that is a table in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kernels.support.text import one_line

__all__ = ["text_table"]


def text_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table, its cells in columns, each on one line.

    Args:
        headings: One for each column; those of columns that no row has are left out.
        rows: The cells of each row. The last one of a short row spans the columns that are left.

    Example:
        >>> print(*text_table(["name", "kind", "size"], [["a", "file", "12"], ["folder", "not found"]]), sep="\\n")
        name    kind  size
        a       file  12
        folder  not found
    """
    lines = [list(map(one_line, row)) for row in rows]
    columns = max(map(len, lines), default=len(headings))
    lines = [list(headings[:columns]), *lines]
    widths = [0] * columns
    for line in lines:
        for column, cell in enumerate(line if len(line) == columns else line[:-1]):
            widths[column] = max(widths[column], len(cell))
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=False)).rstrip() for line in lines]
