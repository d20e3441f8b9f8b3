"""MkDocs hook: each page says in its head what it is, and the search finds what explains before what lists.

The description of a page is its first paragraph. A page of the Python API may have the title of a guide, which is right
in the menu; its heading, its window and its results of the search say that it is the API. What counts in the search is
where a page is in the menu.
"""

from __future__ import annotations

import re
from html import escape, unescape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

#: How much a word on a page counts, by the innermost part of the menu; of pages in no part, 1.
_BOOSTS = {
    "Start": 3,
    "Run models": 4,
    "Build a library": 3,
    "Write kernels": 3,
    "Make chips": 3,
    "Run clusters": 3,
    "Python API": 1,
    "Reference": 4,
    "Explanation": 5,
    "Migration": 2,
    "Measured": 0.2,
}

#: Pages that explain what others only name.
_PAGES = {"settings.md": 12, "where-from.md": 20}

#: Words that lead to a page before any other; a result of the search shows them beside it.
_WORDS = {
    "which-build.md": ("rejected", "fits", "mismatch", "sm_90", "sm90", "rocm"),
    "errors.md": ("rejected", "fits"),
    "variants.md": ("cuda", "sm_90", "sm90"),
    "troubleshooting.md": ("401", "403", "ssl", "certificate", "glibc", "disk", "slow"),
    "trust.md": ("trusted", "untrusted"),
    "publish.md": ("publish",),
    "migrating.md": ("upgrade", "migrate", "switch"),
    "join-by-json.md": ("chip", "vendor"),
    "mirrors.md": ("mirror", "object", "s3"),
    "backends.md": ("rocm", "metal", "xpu", "mac"),
    "offline.md": ("offline",),
    "kernelize.md": ("kernelize",),
    "get-a-kernel.md": ("get_kernel",),
}

#: Pages that the menu does not have: files of the repository.
_ELSEWHERE = 0.1

_HEADING = re.compile(r"(<h1\b[^>]*>)(?!Python API)")
_PARAGRAPH = re.compile(r"<p>(.*?)</p>", re.DOTALL)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Give a page its description, its title and its place in the search."""
    found = _PARAGRAPH.search(html)
    says = description(found[1]) if found else f"{page.title} of {config.site_name}"
    page.meta.setdefault("description", escape(says))
    if page.file.src_uri.startswith("api/"):
        in_menu = page.title
        page.title, page.meta["title"] = in_menu, f"API: {in_menu}"  # else the second would change the first
        html = _HEADING.sub(r"\1API: ", html, count=1)
    if page.file.src_uri in _WORDS:
        page.meta["tags"] = list(_WORDS[page.file.src_uri])
    page.meta["search"] = {"boost": boost(page), **page.meta.get("search", {})}
    return html


def boost(page: Page) -> float:
    """How much a word on a page counts in the search."""
    if page.file.src_uri.startswith("repository/"):
        return _ELSEWHERE
    if page.file.src_uri in _PAGES:
        return _PAGES[page.file.src_uri]
    parts = [str(section.title) for section in page.ancestors]
    return next((_BOOSTS[part] for part in parts if part in _BOOSTS), 1)


def description(html: str) -> str:
    """The text of a paragraph, on one line.

    Example:
        >>> description('For <a href="x">users</a>\\\\nof <code>a&lt;b</code>.')
        'For users of a<b.'
    """
    return " ".join(unescape(re.sub(r"<[^>]+>", "", html)).split())
