"""MkDocs hook: what screen readers and keyboards need, and the theme does not give.

The rest is in docs/stylesheets/site.css (contrast) and docs/javascripts/scrollable.js (tables that scroll).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

_SEARCH = '<div class="md-search" data-md-component="search" role="dialog"'


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """A heading of a table that says nothing is a cell."""
    return re.sub(r"<th([^>]*)>\s*</th>", r"<td\1></td>", html)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Name the dialog of the search."""
    return output.replace(_SEARCH, f'{_SEARCH} aria-label="Search"')
