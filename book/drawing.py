"""Draw the pictures of the documentation as SVG: boxes, text whose width is known, arrows.

What is drawn is laid out as a page is: text is folded to the width that it has, a box is as high as what it holds. So
the same parts make a wide picture and one for a phone. One file serves light and dark pages: its colours are custom
properties of CSS that follow `prefers-color-scheme`, and it has its own background.

Text is measured with the widths of DejaVu Sans, one of the widest fonts that systems have for their own text: in
another one it ends earlier, and overflows nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import NamedTuple, Protocol

__all__ = [
    "COLOURS",
    "FONTS",
    "KINDS",
    "MONO",
    "Arrow",
    "Box",
    "Canvas",
    "Gap",
    "Marked",
    "Part",
    "Place",
    "Row",
    "Stack",
    "Words",
    "svg",
    "text_width",
    "wrap",
]

#: The custom properties: a colour on light pages and one on dark pages. A test computes the contrast of text.
COLOURS = {
    "page": ("#ffffff", "#0d1117"),
    "ink": ("#1f2328", "#e6edf3"),
    "soft": ("#57606a", "#a4aeb9"),
    "line": ("#6e7781", "#8b949e"),
    "plain": ("#f6f8fa", "#161b22"),
    "plain-edge": ("#afb8c1", "#484f58"),
    "main": ("#eceefb", "#1b2148"),
    "main-edge": ("#3f51b5", "#9fa8ff"),
    "hub": ("#fff6dd", "#2f250b"),
    "hub-edge": ("#8a5c00", "#e3b341"),
    "good": ("#e6f7e9", "#0f2b18"),
    "good-edge": ("#1a7f37", "#56d364"),
    "bad": ("#fff0ee", "#331513"),
    "bad-edge": ("#b3261e", "#ff8a80"),
}

#: The kinds of boxes: each has a fill, and an edge, which its headings have too.
KINDS = ("plain", "main", "hub", "good", "bad")

FONTS = 'system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif'
MONO = 'ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace'

SIZE = 13.0
SMALL = 12.5
#: Code is wider than the text that it stands in: its size as a part of the text's, but never below `SMALLEST`.
CODE, SMALLEST = 0.95, 12.0
#: The width of a character of code as a part of its size, in the widest of the fonts in `MONO`.
CODE_WIDTH = 0.62
LINE = 1.42

#: The widths of the characters from " " to "~" in DejaVu Sans and in its bold face, in thousandths of the size.
_WIDTHS = {
    False: (
        "318 401 460 838 636 950 780 275 390 390 500 838 318 361 318 337 636 636 636 636 636 636 636 636 636 "
        "636 337 337 838 838 838 531 1000 684 686 698 770 632 575 775 752 295 295 656 557 863 748 787 603 787 "
        "695 635 611 732 684 989 685 611 685 390 337 390 838 500 500 613 635 550 635 615 352 635 634 278 278 "
        "579 278 974 634 612 635 635 411 521 392 634 592 818 592 592 525 636 337 636 838"
    ),
    True: (
        "348 456 521 838 696 1002 872 306 457 457 523 838 380 415 380 365 696 696 696 696 696 696 696 696 696 "
        "696 400 400 838 838 838 580 1000 774 762 734 830 683 683 821 837 372 372 775 637 995 837 850 733 850 "
        "770 720 682 812 774 1103 771 724 725 457 365 457 838 500 500 675 716 593 716 678 435 716 712 343 343 "
        "665 343 1042 712 687 716 716 493 595 478 712 652 924 645 652 582 712 365 712 838"
    ),
}
_ADVANCES = {bold: tuple(int(each) / 1000 for each in text.split()) for bold, text in _WIDTHS.items()}

#: `code`, **bold**, and all else.
_RUNS = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*|([^`*]+)")


class Run(NamedTuple):
    """Text of one look: that of the words around it ("") or `code` or `bold`."""

    text: str
    look: str = ""


#: What is not folded: runs without a space between them.
Atom = tuple[Run, ...]


def code_size(size: float) -> float:
    """The size of code in text of a size."""
    return max(size * CODE, SMALLEST)


def text_width(text: str, size: float = SIZE, *, bold: bool = False, code: bool = False) -> float:
    """The width of a text without marks, in pixels, at most.

    Example:
        >>> text_width("iii") < text_width("mmm") == text_width("mmm", bold=False)
        True
    """
    if code:
        return len(text) * CODE_WIDTH * code_size(size)
    advances = _ADVANCES[bold]
    return size * sum(advances[ord(each) - 32] if " " <= each <= "~" else 1.0 for each in text)


def wrap(text: str, width: float, size: float = SIZE, *, bold: bool = False) -> list[list[Atom]]:
    """Fold a text with marks (`code`, **bold**) into lines of a width; code is also folded after a slash or a hyphen.

    Raises:
        ValueError: A word is wider.
    """
    lines: list[list[Atom]] = [[]]
    room = width
    space = text_width(" ", size, bold=bold)
    for atom in _atoms(text):
        wide = _atom_width(atom, size, bold)
        if lines[-1] and space + wide <= room:
            lines[-1].append(atom)
            room -= space + wide
            continue
        if lines[-1]:
            lines.append([])
        pieces = [atom] if wide <= width else _split(atom, width, size, bold)
        for piece in pieces:
            lines[-1].append(piece)
            if piece is not pieces[-1]:
                lines.append([])
        room = width - _atom_width(pieces[-1], size, bold)
    return lines


def _atoms(text: str) -> list[Atom]:
    atoms: list[list[Run]] = [[]]
    for match in _RUNS.finditer(text):
        code, strong, plain = match.groups()
        look = "code" if code else "bold" if strong else ""
        for place, word in enumerate((code or strong or plain).split(" ")):
            if place:
                atoms.append([])
            if word:
                atoms[-1].append(Run(word, look))
    return [tuple(atom) for atom in atoms if atom]


def _atom_width(atom: Atom, size: float, bold: bool) -> float:
    return sum(text_width(run.text, size, bold=bold or run.look == "bold", code=run.look == "code") for run in atom)


def _split(atom: Atom, width: float, size: float, bold: bool) -> list[Atom]:
    whole = "".join(run.text for run in atom)
    if {run.look for run in atom} != {"code"}:
        raise ValueError(f"{whole!r} is wider than {width:.0f}")
    pieces = [""]
    for part in re.split(r"(?<=[/\-.])", whole):
        if pieces[-1] and text_width(pieces[-1] + part, size, code=True) > width:
            pieces.append("")
        pieces[-1] += part
    if any(text_width(piece, size, code=True) > width for piece in pieces):
        raise ValueError(f"{whole!r} is wider than {width:.0f}")
    return [(Run(piece, "code"),) for piece in pieces]


class Place(NamedTuple):
    """Where a named box stands."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


@dataclass
class Canvas:
    """What was drawn: elements of SVG, and where the boxes with a name stand."""

    elements: list[str] = field(default_factory=list)
    places: dict[str, Place] = field(default_factory=dict)

    def rect(self, kind: str, x: float, y: float, width: float, height: float) -> None:
        """A box with round corners."""
        self.elements.append(
            f'<rect class="{kind}" x="{x + 0.5:g}" y="{_n(y)}" width="{width - 1:g}" height="{_n(height)}" rx="6"/>'
        )

    def text(self, x: float, y: float, atoms: Sequence[Atom], look: str, size: float, bold: bool) -> None:
        """A line of text whose foot is at `y`."""
        runs: list[Run] = []
        for place, atom in enumerate(atoms):
            for number, run in enumerate(atom):
                gap = " " if place and not number else ""
                if runs and runs[-1].look == run.look:
                    runs[-1] = Run(runs[-1].text + gap + run.text, run.look)
                elif gap and not run.look:
                    runs.append(Run(gap + run.text, ""))
                else:
                    if gap:
                        runs[-1:] = [runs[-1], Run(" ")] if runs[-1].look else [Run(runs[-1].text + gap, "")]
                    runs.append(run)
        inner = "".join(
            escape(run.text, quote=False)
            if not run.look
            else f'<tspan class="{run.look}"{self._code_size(run, size)}>{escape(run.text, quote=False)}</tspan>'
            for run in runs
        )
        classes = " ".join(filter(None, (look, "bold" if bold else "")))
        named = f' class="{classes}"' if classes else ""
        own = "" if size == SIZE else f' style="font-size: {size:g}px"'
        self.elements.append(f'<text{named} x="{_n(x)}" y="{_n(y)}"{own}>{inner}</text>')

    @staticmethod
    def _code_size(run: Run, size: float) -> str:
        standard = run.look != "code" or code_size(size) == code_size(SIZE)
        return "" if standard else f' style="font-size: {code_size(size):g}px"'

    def path(self, points: Sequence[tuple[float, float]], *, head: bool = True, dashed: bool = False) -> None:
        """A line through points, with an arrow's head at its end."""
        if head:
            (x0, y0), (x1, y1) = points[-2:]
            length = max(abs(x1 - x0), abs(y1 - y0))
            dx, dy = (x1 - x0) / length, (y1 - y0) / length
            bx, by = x1 - 7 * dx, y1 - 7 * dy
            tip = " ".join(
                f"{_n(x)},{_n(y)}" for x, y in ((x1, y1), (bx - 4 * dy, by + 4 * dx), (bx + 4 * dy, by - 4 * dx))
            )
            self.elements.append(f'<polygon class="head" points="{tip}"/>')
            points = [*points[:-1], (bx, by)]
        line = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        self.elements.append(f'<polyline class="{"dashed line" if dashed else "line"}" points="{line}"/>')

    def mark(self, kind: str, x: float, y: float) -> None:
        """A tick, a cross or a dash around a point, drawn, as not every font has them."""
        shapes = {
            "tick": ("good", ((-5, 0), (-1.5, 3.5), (5, -4.5))),
            "dash": ("soft", ((-5, 0), (5, 0))),
        }
        if kind == "cross":
            for way in (-4, 4):
                ends = f"{_n(x - 4)},{_n(y - way)} {_n(x + 4)},{_n(y + way)}"
                self.elements.append(f'<polyline class="mark bad-mark" points="{ends}"/>')
            return
        look, points = shapes[kind]
        line = " ".join(f"{_n(x + dx)},{_n(y + dy)}" for dx, dy in points)
        self.elements.append(f'<polyline class="mark {look}-mark" points="{line}"/>')


class Part(Protocol):
    """What is laid out."""

    def height(self, width: float) -> float:
        """How high it is in a width."""
        ...

    def draw(self, canvas: Canvas, x: float, y: float, width: float, height: float) -> None:
        """Draw it with its upper left corner at a point; it may have more height than it needs."""
        ...


@dataclass(frozen=True)
class Words:
    """Text with marks: `code`, **bold**. `look` is `ink`, `soft`, or a kind of box, whose edge has the same colour."""

    text: str
    look: str = "ink"
    size: float = SIZE
    bold: bool = False

    def _lines(self, width: float) -> list[list[Atom]]:
        return wrap(self.text, width, self.size, bold=self.bold)

    def height(self, width: float) -> float:
        return len(self._lines(width)) * round(self.size * LINE)

    def draw(self, canvas: Canvas, x: float, y: float, width: float, height: float) -> None:
        step = round(self.size * LINE)
        for number, line in enumerate(self._lines(width)):
            look = "" if self.look == "ink" else self.look
            canvas.text(x, y + number * step + self.size, line, look, self.size, self.bold)


@dataclass(frozen=True)
class Gap:
    """Nothing, of a height."""

    size: float = 8

    def height(self, width: float) -> float:
        return self.size

    def draw(self, canvas: Canvas, x: float, y: float, width: float, height: float) -> None:
        pass


@dataclass(frozen=True)
class Arrow:
    """An arrow down, or up, with words beside it; `at` is how far from the left."""

    text: str = ""
    at: float = 24
    size: float = 22
    up: bool = False

    def height(self, width: float) -> float:
        if not self.text:
            return self.size
        return max(self.size, Words(self.text, size=SMALL).height(width - self.at - 10) + 6)

    def draw(self, canvas: Canvas, x: float, y: float, width: float, height: float) -> None:
        ends = [(x + self.at, y + 2), (x + self.at, y + height - 2)]
        canvas.path(ends[::-1] if self.up else ends)
        if self.text:
            words = Words(self.text, "soft", SMALL)
            needed = words.height(width - self.at - 10)
            words.draw(canvas, x + self.at + 10, y + (height - needed) / 2 + 1, width - self.at - 10, needed)


@dataclass(frozen=True)
class Marked:
    """A tick, a cross or a dash before a part."""

    mark: str
    part: Part

    def height(self, width: float) -> float:
        return self.part.height(width - 20)

    def draw(self, canvas: Canvas, x: float, y: float, width: float, height: float) -> None:
        canvas.mark(self.mark, x + 7, y + 9)
        self.part.draw(canvas, x + 20, y, width - 20, height)


@dataclass(frozen=True)
class Stack:
    """Parts below each other."""

    parts: Sequence[Part]
    gap: float = 0
    left: float = 0

    def height(self, width: float) -> float:
        return sum(part.height(width - self.left) for part in self.parts) + self.gap * max(len(self.parts) - 1, 0)

    def draw(self, canvas: Canvas, x: float, y: float, width: float, height: float) -> None:
        for part in self.parts:
            own = part.height(width - self.left)
            part.draw(canvas, x + self.left, y, width - self.left, own)
            y += own + self.gap


@dataclass(frozen=True)
class Box:
    """A box of a kind around parts. One with a name can be found on the canvas."""

    parts: Sequence[Part]
    kind: str = "plain"
    name: str = ""
    gap: float = 2
    pad: tuple[float, float] = (12, 9)

    def _inner(self) -> Stack:
        return Stack(self.parts, self.gap)

    def height(self, width: float) -> float:
        return self._inner().height(width - 2 * self.pad[0]) + 2 * self.pad[1]

    def draw(self, canvas: Canvas, x: float, y: float, width: float, height: float) -> None:
        canvas.rect(self.kind, x, y, width, height)
        across, down = self.pad
        self._inner().draw(canvas, x + across, y + down, width - 2 * across, height - 2 * down)
        if self.name:
            canvas.places[self.name] = Place(x, y, width, height)


@dataclass(frozen=True)
class Row:
    """Parts beside each other, all as high as the highest; `arrows` are after which of them one leads to the next."""

    parts: Sequence[Part]
    widths: Sequence[float] = ()
    gap: float = 12
    arrows: Sequence[int] = ()

    def _widths(self, width: float) -> list[float]:
        room = width - self.gap * (len(self.parts) - 1)
        shares = self.widths or [1] * len(self.parts)
        return [room * share / sum(shares) for share in shares]

    def height(self, width: float) -> float:
        return max(part.height(own) for part, own in zip(self.parts, self._widths(width), strict=True))

    def draw(self, canvas: Canvas, x: float, y: float, width: float, height: float) -> None:
        for number, (part, own) in enumerate(zip(self.parts, self._widths(width), strict=True)):
            part.draw(canvas, x, y, own, height)
            x += own
            if number in self.arrows:
                canvas.path([(x + 2, y + height / 2), (x + self.gap - 2, y + height / 2)])
            x += self.gap


def svg(title: str, description: str, canvas: Canvas, width: float, height: float) -> str:
    """A picture as a file.

    Args:
        title: Its subject.
        description: What it says, in words: the alternative text.
        canvas: What was drawn.
        width, height: Its size in pixels.
    """
    light, dark = (" ".join(f"--{name}: {pair[page]};" for name, pair in COLOURS.items()) for page in (0, 1))
    boxes = "\n".join(
        f".{kind} {{ fill: var(--{kind}); stroke: var(--{kind}-edge) }} "
        f"text.{kind} {{ fill: var(--{kind}-edge); stroke: none }}"
        for kind in KINDS
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(description)}">\n'
        f"<title>{escape(title)}</title>\n<desc>{escape(description)}</desc>\n<style>\n"
        f"svg {{ {light} }}\n@media (prefers-color-scheme: dark) {{\nsvg {{ {dark} }}\n}}\n"
        f"text {{ font: {SIZE:g}px {FONTS}; fill: var(--ink); white-space: pre }}\n"
        f".bold {{ font-weight: 600 }} .soft {{ fill: var(--soft) }} .page {{ fill: var(--page) }}\n"
        f".code {{ font: {code_size(SIZE):g}px {MONO} }}\n"
        ".line { fill: none; stroke: var(--line); stroke-width: 1.5 } .head { fill: var(--line) }\n"
        ".dashed { stroke-dasharray: 4 3 } .mark { fill: none; stroke-width: 2.2; stroke-linecap: round }\n"
        ".good-mark { stroke: var(--good-edge) } .bad-mark { stroke: var(--bad-edge) }\n"
        ".soft-mark { stroke: var(--soft) }\n"
        f"{boxes}\n</style>\n"
        f'<rect class="page" width="{width:g}" height="{height:g}" rx="8"/>\n'
        + "\n".join(canvas.elements)
        + "\n</svg>\n"
    )


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
