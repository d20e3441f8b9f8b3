"""A part of a page of the documentation that a script writes, between two comments that readers do not see."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

__all__ = ["write_section"]


def write_section(page: Path, name: str, write: Callable[[str], str]) -> bool:
    """Replace what stands between `<!-- NAME:begin -->` and `<!-- NAME:end -->` in a page.

    Args:
        page: The file in Markdown.
        name: Of the section.
        write: Makes the new text out of the old one.

    Returns:
        Whether the page changed.

    Raises:
        ValueError: The page does not have both comments, in this order, once.

    Example:
        write_section(ROOT / "docs" / "compatibility.md", "versions", lambda before: table)
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    text = page.read_text(encoding="utf-8")
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"{page}: expected {begin} and {end}, once and in this order")
    head, rest = text.split(begin)
    before, tail = rest.split(end)
    changed = f"{head}{begin}\n{write(before.strip()).strip()}\n{end}{tail}"
    if changed != text:
        page.write_text(changed, encoding="utf-8")
    return changed != text
