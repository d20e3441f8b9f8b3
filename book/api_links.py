"""MkDocs hook: names in the text of the Python API lead to what documents them."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent))

from api_names import documented_names

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

#: Where a link would be in the way: in another link, a heading, a signature or an example.
_CLOSED = ("a", "autoref", "pre", "h1", "h2", "h3", "h4", "nav")

#: The documented names, each with its page.
_documented: dict[str, str] = {}


def on_pre_build(config: MkDocsConfig) -> None:
    """Collect the names."""
    _documented.clear()
    _documented.update((name, f"api/{page.name}") for name, page in documented_names())


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link the names on a page of the API; a short name that several have is that of the page."""
    here = page.file.src_uri
    if here not in _documented.values():
        return html
    names: dict[str, str] = {}
    for name in sorted(_documented, key=lambda name: _documented[name] != here):
        names[name] = name
        names.setdefault(name.rpartition(".")[2], name)
    return linked(html, names)


def linked(html: str, names: Mapping[str, str]) -> str:
    """HTML with a link around each `<code>` that is a documented name and nothing else.

    Args:
        html: The HTML.
        names: The dotted name for each name that a text may have.
    """
    # What a docstring names without its module, such as an error.
    html = re.sub(r'(?<=<autoref identifier=")([A-Za-z_]+)(?=")', lambda match: names.get(match[1], match[1]), html)
    inside = 0
    parts: list[str] = []
    for part in re.split(r"(<code>[A-Za-z_.]+</code>|</?[a-z][^>]*>)", html):
        tag = re.match(r"<(/?)([a-z0-9-]+)", part)
        code = re.fullmatch(r"<code>([A-Za-z_.]+)</code>", part)
        if code is not None:
            name = names.get(code[1])
            if inside == 0 and name is not None:
                part = f'<autoref identifier="{name}" optional>{part}</autoref>'
        elif tag is not None and tag[2] in _CLOSED and not part.endswith("/>"):
            inside += -1 if tag[1] else 1
        parts.append(part)
    return "".join(parts)
