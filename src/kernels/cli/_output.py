"""What commands print: tables for people, JSON for programs."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import msgspec
import typer

from kernels.support.secrets import redacted
from kernels.support.text import clean, one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["answering", "console", "format_size", "print_fields", "print_json", "print_table", "say", "visible"]

#: Columns of a "terminal" that is a pipe or a file: nothing is folded, so that lines can be searched.
_UNFOLDED = 100_000

#: Columns and lines of a terminal that does not say.
_TERMINAL = 80, 24

#: The standard output of each command that runs, the innermost last.
_kept: list[TextIO | None] = []


@contextmanager
def answering() -> Iterator[None]:
    """Keep standard output for the answer: what a vendor's or kernel's code prints goes to standard error.

    Only the functions of this module print on standard output meanwhile.

    Example:
        >>> with answering():
        ...     print("a vendor's greeting")  # on standard error
        ...     say("the answer")
        the answer
    """
    before = sys.stdout
    with _apart(before) as out:
        _kept.append(out)
        sys.stdout = sys.stderr
        try:
            yield
        finally:
            sys.stdout = before
            _kept.pop()


@contextmanager
def _apart(out: TextIO | None) -> Iterator[TextIO | None]:
    """Standard output under a number of its own, where it is the process's; its number then stands for standard error.

    So it goes for libraries in C and for the processes that are started, which know nothing of `sys.stdout`.
    """
    own = None if out is None else _duplicate(out)
    if out is None or own is None:
        yield out
        return
    try:
        os.dup2(2, 1)
        yield own
    finally:
        out.flush()
        _flush_c()
        os.dup2(own.fileno(), 1)
        own.close()


def _duplicate(out: TextIO) -> TextIO | None:
    """The same file under another number, or None when it is not standard output, or nothing can stand in for it."""
    try:
        if out.fileno() != 1:
            return None
        os.fstat(2)
        out.flush()
        return open(os.dup(1), "w", encoding=out.encoding, errors=out.errors)
    except (OSError, ValueError):  # a stream in memory, a closed one
        return None


def _flush_c() -> None:
    """Have C's library write what it holds back for standard output, which else would follow the answer."""
    with suppress(ImportError, OSError, TypeError, AttributeError):  # a Python without it, Windows
        import ctypes

        ctypes.CDLL(None).fflush(None)


def console(*, stderr: bool = False) -> Console:
    """Where a command prints: colours and folds on a terminal (not with `NO_COLOR`), plain text elsewhere.

    Raises:
        typer.Exit: Standard output is closed, so that nothing can be shown.
    """
    from rich.console import Console
    from rich.segment import Segment

    class Safe(Console):
        """Whatever is printed, only Rich itself steers the terminal."""

        def render(self, *args: Any, **options: Any) -> Iterable[Segment]:
            for segment in super().render(*args, **options):
                yield segment if segment.control else Segment(clean(segment.text), segment.style)

    stream: TextIO | None = sys.stderr if stderr else _stdout()
    # Rich would take a simple terminal (TERM=dumb) to have 80 columns, whatever it has, unless both are given.
    width, height = shutil.get_terminal_size(_size(stream))
    if stream is None or not stream.isatty():
        width = _UNFOLDED
    return Safe(file=stream, stderr=stderr, width=width, height=height, highlight=False, emoji=False)


def _size(stream: TextIO | None) -> tuple[int, int]:
    """Columns and lines of a terminal whose number is not standard output's."""
    with suppress(OSError, ValueError):
        if stream is not None:
            width, height = os.get_terminal_size(stream.fileno())
            return width or _TERMINAL[0], height or _TERMINAL[1]  # a terminal that does not know says 0
    return _TERMINAL


def say(line: str) -> None:
    """Print a line, or several, at once; nothing where standard output is closed."""
    out = _kept[-1] if _kept else sys.stdout
    if out is not None:
        typer.echo(clean(line), file=out)


def print_json(data: Any) -> None:
    """Print JSON on standard output, and nothing else: in UTF-8, whatever the locale, and in ASCII on a terminal.

    Raises:
        typer.Exit: Standard output is closed.
    """
    out = _stdout()
    plain = msgspec.to_builtins(data, enc_hook=_encode)
    # What the system gave as bytes of no encoding (a name, a variable) is no text; it is shown as a question mark.
    terminal = out.isatty()
    written = json.dumps(_without_secrets(plain), indent=2, ensure_ascii=terminal)
    # DEL is ASCII.
    text = (written.replace("\x7f", "\\u007f") if terminal else written).encode("utf-8", "replace") + b"\n"
    out.flush()
    raw = getattr(out, "buffer", None)
    if raw is None:
        out.write(text.decode())
    else:
        raw.write(text)
    out.flush()


def _without_secrets(data: Any) -> Any:
    if isinstance(data, str):
        return redacted(data)
    if isinstance(data, dict):
        return {_without_secrets(key): _without_secrets(value) for key, value in data.items()}
    return list(map(_without_secrets, data)) if isinstance(data, (list, tuple)) else data


def _stdout() -> TextIO:
    out = _kept[-1] if _kept else sys.stdout
    if out is None:
        raise typer.Exit(1)
    return out


def _print(renderable: Table) -> None:
    """Print a table: padded to its width on a terminal, but not where lines are searched or compared."""
    out = console()
    if out.is_terminal:
        out.print(renderable)
        return
    with out.capture() as captured:
        out.print(renderable)
    out.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().split("\n")[:-1]))


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
    _print(table)


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
    _print(table)


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


_VERDICTS = {
    **dict.fromkeys(("chosen", "accepted", "yes", "ok"), "green"),
    **dict.fromkeys(("rejected", "no", "failed"), "red"),
    "missing": "yellow",
}


def _style(cell: str) -> str:
    return _VERDICTS.get(cell, "")


def visible(text: str) -> str:
    r"""`text` on one line, without what steers a terminal or hides in it, and without secrets.

    Example:
        >>> visible("torch-cpu\x1b[2J")
        'torch-cpu\\x1b[2J'
    """
    return one_line(text)


def _encode(value: Any) -> Any:
    if isinstance(value, (str, Path)):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no place in JSON.")
