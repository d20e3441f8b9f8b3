"""The page `GUIDANCE.md`: how to write kernels for the backends."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from kernels.backends import Backend

__all__ = ["guidance"]

_HEADING = """# Guidance

How to write kernels for this kernel's backends; `kernels backends show NAME` prints the same.
"""


def guidance(backends: Sequence[Backend]) -> str | None:
    """A Markdown page with the backends' guidance, or None if they have none.

    Args:
        backends: The backends: their `guidance_block`, `kernel_guidance` and `cuda_hacks_to_strip`.

    Example:
        >>> from kernels import get_backend
        >>> guidance([get_backend("rocm")]).splitlines()[4]
        '## rocm (AMD)'
    """
    sections = [section for backend in backends if (section := "".join(_section(backend)))]
    return "\n".join([_HEADING, *sections]) if sections else None


def _section(backend: Backend) -> Iterator[str]:
    parts = [
        ("The hardware", backend.guidance_block.strip()),
        ("How to write kernels", backend.kernel_guidance.strip()),
        ("Lines that a kernel must not have", _fenced(backend.cuda_hacks_to_strip)),
    ]
    if any(text for _, text in parts):
        yield f"## {backend.name}{f' ({backend.vendor})' if backend.vendor else ''}\n"
    for heading, text in parts:
        if text:
            yield f"\n### {heading}\n\n{text}\n"


def _fenced(lines: Sequence[str]) -> str:
    if not lines:
        return ""
    text = "\n".join(lines)
    # A fence is longer than any that the lines themselves have (CommonMark, fenced code blocks).
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return f"{fence}python\n{text}\n{fence}"
