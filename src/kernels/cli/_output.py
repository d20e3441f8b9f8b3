"""What commands print: tables and errors for people, JSON for programs."""

from __future__ import annotations

import io
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import msgspec
import typer

from kernels.cli._streams import PLAIN, answer_stream, print_in_any_locale, reserve_stdout
from kernels.cli._tables import Line, fold, lay_out_fields, lay_out_table
from kernels.errors import KernelsError
from kernels.support.secrets import redacted
from kernels.support.text import clean, one_line

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "console",
    "count_failed",
    "describe_error",
    "format_size",
    "log_to_stderr",
    "print_error",
    "print_fields",
    "print_in_any_locale",
    "print_json",
    "print_line",
    "print_note",
    "print_progress",
    "print_table",
    "print_text",
    "reserve_stdout",
    "styled",
    "untrusted_line",
]

#: Width of output that is not a terminal: lines are not folded, so that they can be searched.
_UNFOLDED = 100_000

#: Columns and lines of a terminal that does not report its size.
_TERMINAL = 80, 24

#: Exceptions whose message is enough for the user; for others the type is printed too.
_READABLE = (KernelsError, ValueError, OSError)

#: The colours of cells that hold a verdict.
_VERDICTS = {
    **dict.fromkeys(("chosen", "accepted", "yes", "ok"), "green"),
    **dict.fromkeys(("rejected", "no", "failed"), "red"),
    "missing": "yellow",
}


# Text


def _stdout() -> TextIO:
    out = answer_stream()
    if out is None:
        raise typer.Exit(1)
    return out


def console(*, stderr: bool = False) -> Console:
    """Where a command prints: folded and coloured on a terminal (no colour with `NO_COLOR`), plain text elsewhere.

    Raises:
        typer.Exit: Standard output is closed.
    """
    from rich.console import Console
    from rich.segment import Segment
    from rich.text import Text

    class SafeConsole(Console):
        """Prints escapes in place of control characters, except those of Rich itself."""

        def render(self, *args: Any, **options: Any) -> Iterable[Segment]:
            for segment in super().render(*args, **options):
                yield segment if segment.control else Segment(clean(segment.text), segment.style)

        def print(self, *objects: Any, **options: Any) -> None:
            # What is printed above a progress bar is folded by the terminal too, so that it can be copied.
            if objects and isinstance(objects[0], Text):
                options.setdefault("soft_wrap", True)
            super().print(*objects, **options)

    stream: TextIO | None = sys.stderr if stderr else _stdout()
    # For a simple terminal (TERM=dumb) Rich assumes 80 columns unless both are given.
    known = _terminal_size(stream)
    # Python 3.10 answers 0 for a terminal of unknown size, whatever the fallback.
    width, height = (shown or other for shown, other in zip(shutil.get_terminal_size(known), known, strict=True))
    if stream is None or not stream.isatty():
        width = _UNFOLDED
    make = partial(SafeConsole, file=stream, stderr=stderr, width=width, height=height, highlight=False, emoji=False)
    # With `NO_COLOR` Rich leaves out the colours; without a colour system there is no bold text either.
    return make(color_system=None) if make().no_color else make()


def _terminal_size(stream: TextIO | None) -> tuple[int, int]:
    """Columns and lines of a terminal, also where its descriptor is not 1."""
    with suppress(OSError, ValueError):
        if stream is not None:
            width, height = os.get_terminal_size(stream.fileno())
            return width or _TERMINAL[0], height or _TERMINAL[1]  # an unknown size is 0
    return _TERMINAL


def print_line(line: str = "") -> None:
    """Print a line at once, with escapes for newlines and control characters; nothing if standard output is closed."""
    out = answer_stream()
    if out is not None:
        typer.echo(one_line(line), file=out)


def print_text(text: str) -> None:
    """Print lines that are to be kept as they are, with escapes for control characters other than tabs."""
    out = answer_stream()
    if out is not None:
        typer.echo(clean(text).rstrip("\n"), file=out)


def print_note(line: str) -> None:
    """Print a line on standard error, beside a program's answer on standard output."""
    console(stderr=True).print(one_line(line), markup=False, soft_wrap=True)


def print_progress(line: str) -> None:
    """Print a line on standard error, if that is a terminal."""
    out = console(stderr=True)
    if out.is_terminal:
        out.print(one_line(line), style="dim", markup=False)


def describe_error(error: Exception) -> str:
    r"""An error in one line: the lines of its message are joined, with the error's type where it is needed.

    Example:
        >>> describe_error(ValueError("No build suits:\n  torch-cuda: for cuda\n  torch-cpu: for cpu\nTry another."))
        'No build suits: torch-cuda: for cuda; torch-cpu: for cpu. Try another.'
        >>> describe_error(ZeroDivisionError("division by zero"))
        'ZeroDivisionError: division by zero (--debug shows where)'
    """
    text = ""
    whole = clean("\n".join([str(error), *getattr(error, "__notes__", ())]))
    in_list = False
    for indented, line in ((line.startswith(" "), line.strip().removeprefix("| ")) for line in whole.splitlines()):
        if not line:
            continue
        separator = ". " if in_list and not indented and line[0].isupper() else "; "
        text += f"{'' if not text else ' ' if text.endswith((':', '.', ',', ';', '?')) else separator}{line}"
        in_list = indented
    if isinstance(error, _READABLE) and text:
        return text
    return f"{type(error).__name__}{': ' * bool(text)}{text} (--debug shows where)"


def print_error(error: Exception | str, detail: str = "") -> None:
    """Print an error on standard error: one line, `Error: …`, red on a terminal; then the lines of `detail`."""
    from rich.text import Text

    text = one_line(error if isinstance(error, str) else describe_error(error))
    out = console(stderr=True)
    out.print(Text.assemble(("Error:", "bold red"), " ", text), soft_wrap=True)
    for line in detail.splitlines():
        out.print(Text(one_line(line.expandtabs())), soft_wrap=True)


# The log


class _Notes(logging.Handler):
    """Prints records on standard error: `Warning: …`."""

    def emit(self, record: logging.LogRecord) -> None:
        typer.echo(f"{record.levelname.capitalize()}: {clean(self.format(record))}", err=True)


@contextmanager
def log_to_stderr(verbosity: int = 0) -> Iterator[None]:
    """Print what this package logs on standard error.

    Args:
        verbosity: 0 for warnings, 1 also for `INFO`, 2 also for `DEBUG`.
    """
    log, notes = logging.getLogger("kernels"), _Notes()
    before = log.level
    log.addHandler(notes)
    if verbosity:
        log.setLevel(logging.INFO if verbosity == 1 else logging.DEBUG)
    try:
        yield
    finally:
        log.removeHandler(notes)
        log.setLevel(before)


# Tables


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str | None = None,
    details: Sequence[int] = (),
) -> None:
    """Print a table; cells are plain text, not markup.

    Args:
        columns: The headings; one that starts with `>` is aligned to the right.
        rows: The cells.
        title: Text above the table; it may have several lines.
        details: Positions of columns that become a table below each row where the terminal is too narrow. A row whose
            other cells are empty continues the row above.
    """
    out = console()
    cells = [list(map(one_line, row)) for row in rows]
    lines: list[Line] = []
    if title is not None:
        lines = [[(part, "")] for line in title.splitlines() for part in fold(one_line(line), _width(out))] + [[]]
    _print(out, lines + lay_out_table(columns, cells, _width(out), _VERDICTS, details))


def print_fields(fields: Mapping[str, str | Sequence[str]], *, plain: bool = False) -> None:
    """Print names and values in two columns; a value of several lines is a sequence, an empty value is left out.

    Args:
        fields: The values by name.
        plain: Print `Name: value` where no terminal reads it, as programs for the existing client look for it.
    """
    out = console()
    rows = []
    for name, value in fields.items():
        lines = filter(None, [value] if isinstance(value, str) else value)
        rows += [("" if position else name, one_line(line)) for position, line in enumerate(lines)]
    if plain and _width(out) is None:
        _print(out, [[(f"{name}: {value}" if name else f"  {value}", "")] for name, value in rows])
    else:
        _print(out, lay_out_fields(rows, _width(out)))


def styled(lines: Callable[[int | None], Iterable[Line]]) -> str:
    """Lines as text, with colours and in the width of standard output if that is a terminal.

    Args:
        lines: Gives the lines for a width, None for no limit.
    """
    out = console()
    with out.capture() as captured:
        _print(out, lines(_width(out)))
    encoding = _stdout().encoding or "utf-8"
    return captured.get().encode(encoding, PLAIN).decode(encoding)


def _width(out: Console) -> int | None:
    """The columns of a terminal; None for other output, which is not folded."""
    return out.width if out.is_terminal else None


def _print(out: Console, lines: Iterable[Line]) -> None:
    """Print lines, each of which the terminal folds where it is too long, so that it can be copied."""
    from rich.text import Text

    for line in lines:
        out.print(Text.assemble(*line), soft_wrap=True)


def count_failed(names: str, failed: int) -> str:
    """The last line of a check.

    Example:
        >>> count_failed("2 builds", 0), count_failed("2 builds", 1)
        ('2 builds: nothing failed.', '2 builds: 1 failed.')
    """
    return f"{names}: {failed or 'nothing'} failed."


def untrusted_line(repo_id: str) -> str:
    """What a refused repository needs.

    Example:
        >>> untrusted_line("eve/relu")
        "The publisher or commit is not trusted: get_kernel needs trust_remote_code=['eve/relu'] to load it."
    """
    return f"The publisher or commit is not trusted: get_kernel needs trust_remote_code=[{repo_id!r}] to load it."


def format_size(count: int) -> str:
    """A number of bytes for people, in powers of 1000 like the Hub's file listings.

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


# JSON


def print_json(data: Any) -> None:
    """Print JSON on standard output: in UTF-8, whatever the locale is, and in ASCII on a terminal.

    Raises:
        typer.Exit: Standard output is closed.
    """
    out = _stdout()
    plain = msgspec.to_builtins(data, enc_hook=_encode)
    terminal = out.isatty()
    written = json.dumps(_without_secrets(plain), indent=2, ensure_ascii=terminal)
    # DEL is ASCII. Surrogates (from names of no encoding) are printed as question marks.
    text = (written.replace("\x7f", "\\u007f") if terminal else written).encode("utf-8", "replace") + b"\n"
    out.flush()
    if isinstance(out, io.TextIOWrapper):
        out.buffer.write(text)
    else:
        out.write(text.decode())
    out.flush()


def _without_secrets(data: Any) -> Any:
    if isinstance(data, str):
        return redacted(data)
    if isinstance(data, dict):
        return {_without_secrets(key): _without_secrets(value) for key, value in data.items()}
    return list(map(_without_secrets, data)) if isinstance(data, (list, tuple)) else data


def _encode(value: Any) -> Any:
    if isinstance(value, (str, Path)):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON.")
