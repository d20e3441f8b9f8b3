"""What commands print: tables for people, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["console", "format_size", "print_fields", "print_json", "print_table", "visible"]

#: Columns of a "terminal" that is a pipe or a file: nothing is folded, so that lines can be searched.
_UNFOLDED = 100_000


def console(*, stderr: bool = False) -> Console:
    """Where a command prints: colours and folds on a terminal (not with `NO_COLOR`), plain text elsewhere."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else _UNFOLDED, highlight=False, emoji=False)


def print_json(data: Any) -> None:
    """Print JSON on standard output, and nothing else."""
    text = msgspec.json.format(msgspec.json.encode(data, enc_hook=_encode), indent=2)
    sys.stdout.write(text.decode() + "\n")
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None) -> None:
    """Print a table; a cell's text is taken as it is, never as markup.

    Args:
        columns: The headings; one that starts with `>` is aligned to the right.
        rows: The cells.
        title: What stands above; it may have several lines.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        right = column.startswith(">")
        table.add_column(column.removeprefix(">"), justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(visible(cell), style=_style(cell)) for cell in row))
    out = console()
    if title is not None:
        out.print(Text("\n".join(visible(line) for line in title.splitlines())))
        out.print()
    out.print(table)


def print_fields(fields: Mapping[str, str | Sequence[str]]) -> None:
    """Print names and values in two columns; a value of several lines is a sequence, an empty value is left out."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields.items():
        lines = [value] if isinstance(value, str) else list(value)
        for position, line in enumerate(filter(None, lines)):
            table.add_row(Text("" if position else name), Text(visible(line)))
    console().print(table)


def format_size(count: int) -> str:
    """A number of bytes for people, in powers of 1000 as file listings of the Hub have them.

    Example:
        >>> format_size(512), format_size(25_600), format_size(1_230_000_000)
        ('512 B', '25.6 kB', '1.2 GB')
    """
    if count < 1000:
        return f"{count} B"
    size = float(count)
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"


_VERDICTS = {"chosen": "bold green", "accepted": "green", "yes": "green", "rejected": "red", "no": "red"}


def _style(cell: str) -> str:
    return _VERDICTS.get(cell, "")


def visible(text: str) -> str:
    r"""`text` without control characters: what a repository says must not steer the terminal.

    Example:
        >>> visible("torch-cpu\x1b[2J")
        'torch-cpu\ufffd[2J'
    """
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def _encode(value: Any) -> Any:
    if isinstance(value, (str, Path)):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no place in JSON.")
