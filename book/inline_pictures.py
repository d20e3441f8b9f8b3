"""MkDocs hook: the SVG pictures of a page become a part of it, so that the reader's choice of light or dark decides.

A picture that is loaded as a file follows the scheme of the system, not the button of the site. In the page its styles
are limited to itself, and what it has under `prefers-color-scheme: dark` applies where the site is dark. Its text can
be selected, and of a picture with a layout for phones the one with room for it is shown.
"""

from __future__ import annotations

import re
from functools import cache
from html import escape, unescape
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

#: What Material sets where the reader chose dark.
_DARK = '[data-md-color-scheme="slate"]'

_PICTURE = re.compile(r"<picture>\s*(?:<source [^>]*>\s*)+(<img [^>]*>)\s*</picture>|<img [^>]*>")
_SOURCE = re.compile(r'\bsrc="(?:[^"]*/)?images/([\w/-]+)\.svg"')
_ALT = re.compile(r'\balt="([^"]*)"')
_HEAD = re.compile(r"<svg [^>]*>")

#: The files of a picture, by what follows its name, and what the style sheet of the site shows them by.
_LAYOUTS = {
    "": "picture-wide",
    "-still": "picture-wide picture-still",
    "-narrow": "picture-narrow",
    "-narrow-still": "picture-narrow picture-still",
}


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the pictures of a page into it."""
    images = Path(config.docs_dir, "images")
    seen: set[str] = set()

    def replaced(match: re.Match[str]) -> str:
        image = match[1] or match[0]
        source, alt = _SOURCE.search(image), _ALT.search(image)
        if source is None or not (images / f"{source[1]}.svg").is_file():
            return match[0]
        says = unescape(alt[1]) if alt else ""
        layouts = {suffix for suffix in _LAYOUTS if (images / f"{source[1]}{suffix}.svg").is_file()}
        if layouts == {""}:
            return _inline(images, source[1], says, seen)
        # Of a picture that moves there are files that do not. All have the same text, which is searched once.
        moving = " picture-moving" if "-still" in layouts else ""
        spans = (
            f'<span class="{kinds}{moving if "still" not in kinds else ""}"{" data-search-exclude" if suffix else ""}>'
            f"{_inline(images, source[1] + suffix, says, seen)}</span>"
            for suffix, kinds in _LAYOUTS.items()
            if suffix in layouts
        )
        return f'<span class="picture">{"".join(spans)}</span>'

    return _PICTURE.sub(replaced, html)


def _inline(images: Path, name: str, says: str, seen: set[str]) -> str:
    """A picture as a part of a page, under a name that the page has once."""
    own = identity = f"picture-{name.replace('/', '-')}"
    while identity in seen:
        identity = f"{own}-{len(seen)}"
    seen.add(identity)
    text = _read(images / f"{name}.svg")
    text = re.sub(r"<(title|desc)>.*?</\1>\n?", "", text, flags=re.DOTALL)  # browsers show a title beside the pointer
    # The names of keyframes are those of the whole page.
    text = re.sub(r"(@keyframes |animation-name: )(?!none)([\w-]+)", rf"\g<1>{identity}-\2", text)
    text = re.sub(r"(?<=<style>).*?(?=</style>)", lambda match: scoped(match[0], f"#{identity}"), text, flags=re.DOTALL)
    head = _HEAD.search(text)
    assert head is not None, name
    start = re.sub(r' (?:role|aria-label)="[^"]*"', "", head[0])[: -len(">")]
    # A blank line would end the block of HTML that it stands in.
    return f'{start} id="{identity}" role="img" aria-label="{escape(says)}">{text[head.end() :].strip()}'


@cache
def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def scoped(css: str, selector: str) -> str:
    """Rules for the SVG that they are in, as rules of a page.

    Args:
        css: Rules of plain selectors, of `@media` and of `@keyframes`.
        selector: What selects the SVG in the page.

    Example:
        >>> scoped("svg { color: red } a, .b { top: 0 }", "#x")
        '#x { color: red }\\n#x a, #x .b { top: 0 }'
        >>> scoped("@media (prefers-color-scheme: dark) { .b { top: 0 } }", "#x")
        '@media screen {\\n[data-md-color-scheme="slate"] #x .b { top: 0 }\\n}'
    """
    rules = []
    for start, body in _rules(css):
        if re.fullmatch(r"@media\s*\(prefers-color-scheme:\s*dark\)", start):
            rules.append(f"@media screen {{\n{scoped(body, f'{_DARK} {selector}')}\n}}")  # paper is light
        elif start.startswith("@media"):
            rules.append(f"{start} {{\n{scoped(body, selector)}\n}}")
        elif start.startswith("@"):
            rules.append(f"{start} {{{body}}}")
        else:
            each = (selector if one.strip() == "svg" else f"{selector} {one.strip()}" for one in start.split(","))
            rules.append(f"{', '.join(each)} {{{body}}}")
    return "\n".join(rules)


def _rules(css: str) -> list[tuple[str, str]]:
    """What stands before each outer pair of braces, and in it."""
    found, depth, begin, start = [], 0, 0, ""
    for place, character in enumerate(css):
        if character == "{":
            if not depth:
                start, begin = css[begin:place].strip(), place + 1
            depth += 1
        elif character == "}":
            depth -= 1
            if not depth:
                found.append((start, css[begin:place]))
                begin = place + 1
    return found
