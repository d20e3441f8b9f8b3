"""A page with a part that is written from the code, between two lines that are not shown."""

from __future__ import annotations

from pathlib import Path

__all__ = ["with_generated_part"]

_BEGIN = "<!-- `make reference` writes from here -->\n"
_END = "<!-- to here -->\n"


def with_generated_part(page: Path, generated: str) -> str:
    """A page with its generated part as it should be.

    Args:
        page: The page. What is before and after the part stays.
        generated: The part.
    """
    before, begin, rest = page.read_text(encoding="utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{page} does not have the lines {_BEGIN!r} and {_END!r}.")
    return f"{before}{begin}\n{generated.strip()}\n\n{end}{after}"
