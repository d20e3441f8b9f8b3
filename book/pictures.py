"""The pictures of the documentation: their files, and the lines that embed them in pages.

Each has two layouts, one for a page and one for a phone: `docs/images/NAME.svg` and `docs/images/NAME-narrow.svg`. A
page embeds both in one line of HTML. Write it as below: `python book/pictures.py` fills in the rest of the line, and
writes the pictures.

    <picture><source media=""><img src="images/NAME.svg" alt=""></picture>
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from html import escape
from pathlib import Path

import builds_picture
import cache_picture
import call_picture
import kernelize_picture
import session
import session_picture
import trust_picture
from picture import Picture

__all__ = ["PICTURES", "files", "pages", "with_pictures"]

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"

#: The line that embeds a picture.
_EMBEDDED = re.compile(r'<picture>(?:<source [^>]*>)+<img src="([^"]*?)images/([\w-]+)\.svg" alt="[^"]*"></picture>')
_NARROW, _STILL = "(max-width: 760px)", "(prefers-reduced-motion: reduce)"

PICTURES: Mapping[str, Picture] = {
    "call": call_picture.PICTURE,
    "builds": builds_picture.PICTURE,
    "trust": trust_picture.PICTURE,
    "cache": cache_picture.PICTURE,
    "kernelize": kernelize_picture.PICTURE,
}


def files() -> dict[Path, Callable[[], str]]:
    """The files of the pictures, and what gives their text."""
    written: dict[Path, Callable[[], str]] = {}
    for name, picture in PICTURES.items():
        for suffix, narrow in (("", False), ("-narrow", True)):
            written[IMAGES / f"{name}{suffix}.svg"] = partial(picture.draw, narrow=narrow)
    for path in session_picture.PATHS:
        written[path] = partial(session_picture.draw, path)
    return written


def with_pictures(page: Path, text: str | None = None) -> str:
    """The text of a page, or that text for it, with the lines that embed pictures as they are now."""
    text = page.read_text(encoding="utf-8") if text is None else text

    def line(match: re.Match[str]) -> str:
        folder, name = match.groups()
        if name == "session":
            alternative = session_picture.says(session.read()["wide"])
            others = {f"{_NARROW} and {_STILL}": "-narrow-still", _NARROW: "-narrow", _STILL: "-still"}
        elif name in PICTURES:
            alternative, others = PICTURES[name].says, {_NARROW: "-narrow"}
        else:
            return match[0]
        sources = "".join(
            f'<source media="{media}" srcset="{folder}images/{name}{suffix}.svg">' for media, suffix in others.items()
        )
        return f'<picture>{sources}<img src="{folder}images/{name}.svg" alt="{escape(alternative)}"></picture>'

    return _EMBEDDED.sub(line, text)


def pages() -> list[Path]:
    """The pages that embed a picture."""
    return [
        page
        for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
        if _EMBEDDED.search(page.read_text(encoding="utf-8"))
    ]


def main() -> None:
    """Write the pictures, and the lines that embed them."""
    texts = {path: text() for path, text in files().items()}
    texts |= {page: with_pictures(page) for page in pages()}
    for path, text in texts.items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"written: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
