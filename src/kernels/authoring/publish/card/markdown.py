"""Texts of a kernel's author as Markdown that shows them literally."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

__all__ = ["cell", "code", "fenced", "link", "table", "text"]

#: What begins markup inside a line.
_MARKUP = re.compile(r"([\\|<>`*\[\]~&$]|(?<![^\W_])_|_(?![^\W_]))")  # not `_` in a word: it marks nothing there
#: What begins a heading, a list, a quotation or a rule at the start of a line.
_BLOCK = re.compile(r"^(\s*)([#+=-]|(\d+)([.)]))")
_BACKTICKS = re.compile(r"`+")
#: Code as Markdown and reStructuredText write it.
_CODE = re.compile(r"(?<!`)(``?)(?!`)([^`]+)\1(?!`)")
_URL = re.compile(r"https?://[\w.~:/?#@!$&'*+,;=%-]+")


def cell(content: str) -> str:
    r"""A text for a cell of a table: on one line, with its markup escaped; what stands in backticks stays code.

    Example:
        >>> print(cell("a | *b* `c_d`"))
        a \| \*b\* `c_d`
    """
    return _inline(" ".join(_printable(content).split()))


def text(content: str) -> str:
    r"""Paragraphs: the lines of a text, as `cell` shows them; empty lines separate paragraphs.

    Example:
        >>> print(text("# not a heading"))
        \# not a heading
    """
    lines = (_inline(_printable(line.strip())) for line in content.splitlines())
    return "\n".join(_BLOCK.sub(_escaped_block, line) for line in lines)


def code(content: str) -> str:
    """A text as code inside a line; also in a cell of a table.

    Example:
        >>> code("a`b")
        '``a`b``'
    """
    line = " ".join(_printable(content).split())
    ticks = "`" * (1 + max(map(len, _BACKTICKS.findall(line)), default=0))
    space = " " if line.startswith("`") or line.endswith("`") else ""
    # In tables of GitHub's Markdown a bar ends the cell, even inside of code.
    return f"{ticks}{space}{line}{space}{ticks}".replace("|", "\\|")


def fenced(content: str, language: str = "") -> str:
    """Lines of code, in a fence that no line of it ends.

    Example:
        >>> print(fenced("x = 1", "python"))
        ```python
        x = 1
        ```
    """
    ticks = "`" * max(3, 1 + max(map(len, _BACKTICKS.findall(content)), default=0))
    lines = "\n".join(map(_printable, content.splitlines()))
    return f"{ticks}{language}\n{lines}\n{ticks}"


def link(content: str) -> str:
    """A URL as a link if it is a plain one of HTTP, else as text.

    Example:
        >>> link("https://example.com/a"), link("javascript:x")
        ('<https://example.com/a>', 'javascript:x')
    """
    return f"<{content}>" if _URL.fullmatch(content) else cell(content)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; the cells are Markdown already.

    Example:
        >>> print(table(["A", ">B"], [["x", "1"]]))
        | A | B |
        |---|---:|
        | x | 1 |
    """
    heads = [name.removeprefix(">") for name in columns]
    rules = ["---:" if name.startswith(">") else "---" for name in columns]
    lines = [f"| {' | '.join(heads)} |", f"|{'|'.join(rules)}|"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def _inline(line: str) -> str:
    """A line with its markup escaped, and its code as code."""
    parts, end = [], 0
    for match in _CODE.finditer(line):
        parts += [_MARKUP.sub(r"\\\1", line[end : match.start()]), code(match[2])]
        end = match.end()
    return "".join([*parts, _MARKUP.sub(r"\\\1", line[end:])])


def _printable(content: str) -> str:
    return "".join(character if character.isprintable() else " " for character in content.expandtabs(4))


def _escaped_block(match: re.Match[str]) -> str:
    if match[3] is not None:
        return f"{match[1]}{match[3]}\\{match[4]}"
    return f"{match[1]}\\{match[2]}"
