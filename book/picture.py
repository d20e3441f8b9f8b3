"""A picture of the documentation: its subject, what it says, and its two layouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from drawing import Canvas, Part, svg

__all__ = ["Picture", "branches", "plain"]

#: Widths in pixels: of the text of a page on a screen, and on a phone of 390 pixels.
WIDE, NARROW, MARGIN = 720, 358, 12


@dataclass(frozen=True)
class Picture:
    """A picture: its subject, what it says in words, and what draws its parts on a canvas of a width."""

    title: str
    says: str
    layout: Callable[[bool], Part]
    after: Callable[[Canvas, bool], None] = lambda canvas, narrow: None

    def draw(self, *, narrow: bool) -> str:
        """The picture as SVG."""
        canvas = Canvas()
        width = NARROW if narrow else WIDE
        part = self.layout(narrow)
        height = part.height(width - 2 * MARGIN)
        part.draw(canvas, MARGIN, MARGIN, width - 2 * MARGIN, height)
        self.after(canvas, narrow)
        return svg(self.title, self.says, canvas, width, round(height + 2 * MARGIN))


def branches(canvas: Canvas, count: int, own: str, other: str, narrow: bool) -> None:
    """Arrows from each box to the next one, and to the one that stands beside it, or below it on a phone."""
    for number in range(count):
        here, there = canvas.places[f"{own} {number}"], canvas.places.get(f"{other} {number}")
        below = canvas.places.get(f"{own} {number + 1}")
        if below is not None:
            canvas.path([(here.x + 24, here.y + here.height + 2), (here.x + 24, below.y - 2)])
        if there is not None:
            begin = here.x + (24 if narrow else here.width + 2)
            canvas.path([(begin, there.middle), (there.x - 2, there.middle)])


def plain(text: str) -> str:
    """A text without what marks code and bold words."""
    return text.replace("`", "").replace("**", "")
