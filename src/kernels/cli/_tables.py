"""How a table is laid out in a width, without breaking a word: a repository, a commit, a build or a path is whole.

Cells are folded at spaces. Where that is not enough, the widest columns leave the table: the first one becomes a line
above its rows, the others become lines below each row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Line", "fold", "lay_out_fields", "lay_out_table"]

#: The parts of a line, each a text and its style.
Line = list[tuple[str, str]]

#: The space between two columns.
_GAP = "  "

_INDENT = 2

#: A narrower column is not folded, so that `1.5 kB` and `built in` stay on one line.
_SHORT = 16

#: A folded column is not made narrower than this, unless all its words fit.
_READABLE = 24

_TITLE = "bold"


def lay_out_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int | None,
    styles: Mapping[str, str] | None = None,
    details: Sequence[int] = (),
) -> list[Line]:
    """The lines of a table.

    Args:
        columns: The titles; one that starts with `>` is aligned to the right.
        rows: The cells, each of one line.
        width: The number of columns of the terminal, None for no limit. A longer word is a longer line.
        styles: The styles of cells with these texts.
        details: Positions of columns that become a table below each row where the width is too small. A row whose other
            cells are empty continues the row above.

    Example:
        >>> for line in lay_out_table(["Name", ">Size"], [["a", "1 B"], ["bc", "20 B"]], None):
        ...     print("".join(text for text, _ in line))
        Name  Size
        a      1 B
        bc    20 B
    """
    every = range(len(columns))
    own = [position for position in every if position not in details]
    if not details or _Layout(columns, rows, every, width).is_whole:
        own, details = list(every), ()
    table = _Layout(columns, rows, own, width)
    inner = _Layout(columns, rows, details, width, indent=table.indent + _INDENT)
    lines = [*table.title(), *inner.title()]
    above = ""
    for row in rows:
        name = "" if table.heading is None else row[table.heading]
        if name not in ("", above):
            lines.append([(name, (styles or {}).get(name, ""))])
        above = name or above
        lines += [*table.row(row, styles or {}), *inner.row(row, styles or {})]
    return lines


def lay_out_fields(fields: Iterable[tuple[str, str]], width: int | None) -> list[Line]:
    """The lines of names and values; a value without a name continues the one above.

    Args:
        fields: The names and values, each of one line.
        width: The number of columns of the terminal, None for no limit.

    Example:
        >>> for line in lay_out_fields([("name", "a"), ("", "b")], None):
        ...     print("".join(text for text, _ in line))
        name  a
              b
    """
    listed = list(fields)
    before = max((_cells(name) for name, _ in listed), default=0) + len(_GAP)
    lines: list[Line] = []
    for name, value in listed:
        for number, part in enumerate(fold(value, None if width is None else max(width - before, _SHORT))):
            first = "" if number else name
            lines.append([(first, _TITLE), (" " * (before - _cells(first)) + part, "")])
    return lines


def fold(text: str, width: int | None) -> list[str]:
    """A text in lines, folded at spaces; a longer word is a longer line.

    Example:
        >>> fold("one two three", 8)
        ['one two', 'three']
        >>> fold("torch-stable-abi29-cpu", 8)
        ['torch-stable-abi29-cpu']
    """
    if width is None or _cells(text) <= width:
        return [text]
    lines: list[str] = []
    for word in text.split(" "):
        if lines and _cells(lines[-1]) + 1 + _cells(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


class _Layout:
    """Where the columns of a table go: beside each other, above the row, or below it."""

    def __init__(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        positions: Iterable[int],
        width: int | None,
        *,
        indent: int = 0,
    ) -> None:
        self._every = [_Column(position, columns[position], rows) for position in positions]
        self._width = width
        self._inside = list(self._every)
        self.heading: int | None = None
        self.indent = indent
        while width is not None and self._inside and self._least() > width:
            widest = max(self._inside, key=lambda column: (column.least, column.position))
            self._inside.remove(widest)
            if widest.position == 0:
                self.heading = 0
                self.indent += _INDENT
        self._widths = self._shared()

    @property
    def is_whole(self) -> bool:
        """Whether all columns are beside each other."""
        return len(self._inside) == len(self._every)

    def _least(self) -> int:
        return self.indent + sum(column.least + len(_GAP) for column in self._inside) - len(_GAP)

    def _shared(self) -> dict[int, int]:
        """The width of each column: what is left over goes to those that need more."""
        if self._width is None:
            return {column.position: column.natural for column in self._inside}
        widths = {column.position: column.least for column in self._inside}
        left = self._width - self._least()
        needy = sorted(self._inside, key=lambda column: column.natural - column.least)
        for number, column in enumerate(needy):
            more = min(column.natural - column.least, left // (len(needy) - number))
            widths[column.position] += more
            left -= more
        return widths

    def title(self) -> list[Line]:
        """The titles."""
        above = [[(column.title, _TITLE)] for column in self._every if column.position == self.heading]
        return [*above, *self._beside({column.position: column.title for column in self._inside}, _TITLE, {})]

    def row(self, cells: Sequence[str], styles: Mapping[str, str]) -> list[Line]:
        """The lines of a row, without that of its heading."""
        lines = self._beside({column.position: cells[column.position] for column in self._inside}, "", styles)
        for column in self._every:
            if column not in self._inside and column.position != self.heading:
                lines += self._below(column.title, cells[column.position], styles)
        return lines

    def _beside(self, cells: Mapping[int, str], default: str, styles: Mapping[str, str]) -> list[Line]:
        folded = [column.fold(cells[column.position], self._widths[column.position]) for column in self._inside]
        lines: list[Line] = []
        for number in range(max(map(len, folded), default=0)):
            line: Line = [(" " * self.indent, "")]
            for column, parts in zip(self._inside, folded, strict=True):
                part = parts[number] if number < len(parts) else ""
                space = (" " * (self._widths[column.position] - _cells(part)), "")
                text = (part, styles.get(cells[column.position], default))
                line += [space, text] if column.right else [text, space]
                line.append((_GAP, ""))
            while line and not line[-1][0].strip():  # no line ends with spaces
                line.pop()
            if line:
                lines.append(line)
        return lines

    def _below(self, title: str, cell: str, styles: Mapping[str, str]) -> list[Line]:
        if not cell:
            return []
        indent, name = self.indent + _INDENT, f"{title}: "
        before = indent + _cells(name)
        first, *rest = fold(cell, None if self._width is None else max(self._width - before, _SHORT))
        style = styles.get(cell, "")
        return [
            [(" " * indent, ""), (name, _TITLE), (first, style)],
            *([(" " * before, ""), (part, style)] for part in rest),
        ]


class _Column:
    """A column: its title, and the widths of what is in it."""

    def __init__(self, position: int, title: str, rows: Sequence[Sequence[str]]) -> None:
        self.position = position
        self.right = title.startswith(">")
        self.title = title.removeprefix(">")
        texts = [self.title, *(row[position] for row in rows)]
        self.natural = self.least = max(map(_cells, texts))
        if self.natural > _SHORT and not self.right:
            longest = max(_cells(word) for text in texts for word in text.split(" "))
            self.least = max(longest, min(self.natural, _READABLE))

    def fold(self, cell: str, width: int) -> list[str]:
        """The lines of a cell."""
        return [cell] if self.natural <= _SHORT or self.right else fold(cell, width)


def _cells(text: str) -> int:
    """The columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
