"""What `kernels init` writes into a page for its author to replace."""

from __future__ import annotations

__all__ = ["note_on_new_page"]

#: Sentences in the README.md of a new kernel, and of one made from files (`scaffold/templates`).
_SENTENCES = (
    "This is a ReLU: replace it by your own operator, and describe the operator here.",
    "Describe its functions here.",
)


def note_on_new_page(page: str, where: str) -> str | None:
    """A note if the author's text still has what `kernels init` wrote for its author; None otherwise.

    Args:
        page: The text.
        where: The name of its file.

    Example:
        >>> note_on_new_page("# relu\\n\\nA fast ReLU.", "README.md") is None
        True
    """
    words = " ".join(page.split())
    found = next((each for each in _SENTENCES if each in words), None)
    if found is None:
        return None
    return (
        f"{where} still says {found!r}, which `kernels init` wrote for its author: replace it, as users see this page"
    )
