"""Draw how a cost grows as an SVG: curves with a mark at each measured point, on logarithmic axes.

One file serves light and dark pages: it has its own background and follows `prefers-color-scheme`. It names no font
that a machine may not have, and is as wide as a phone's screen, so that its text stays readable there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

__all__ = ["Curve", "draw"]

WIDTH, HEIGHT = 420, 330
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 62, 48  # from the edges of the picture to those of the plot
CHARACTER = 7.5  # the width of a character of the text, at most

#: How each curve looks: a colour on light and on dark pages, each with a contrast of 4.5 to 1 or more, and a dash and a
#: mark, for those who cannot tell the colours apart.
LOOKS = {
    "existing": ("#b3261e", "#ff8a80", "", "square"),
    "ours": ("#0b57d0", "#8ab4f8", "", "circle"),
    "the wire": ("#4a5a4e", "#a8c7ae", "5 4", "diamond"),
}

_STYLE = """
.page {{ fill: #ffffff }} .ink {{ fill: #24292f }} .grid {{ stroke: #d8dee4 }} .axis {{ stroke: #57606a }}
{light}
@media (prefers-color-scheme: dark) {{
.page {{ fill: #0d1117 }} .ink {{ fill: #e6edf3 }} .grid {{ stroke: #30363d }} .axis {{ stroke: #8b949e }}
{dark}
}}
text {{ font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif }}
.title {{ font-weight: 600 }}
"""


@dataclass(frozen=True)
class Curve:
    """The costs of one client: points of what grows and what it costs, both above 0."""

    name: str
    points: Sequence[tuple[float, float]]


def draw(title: str, across: str, up: str, curves: Sequence[Curve]) -> str:
    """Draw curves.

    Args:
        title: What grows and what it costs; a line of some 50 characters.
        across: What grows, with its unit.
        up: The cost, with its unit.
        curves: One for each client, named as in `LOOKS`. One without points is left out.

    Returns:
        The SVG.

    Raises:
        ValueError: No curve has points, or a figure is 0 or less.

    Example:
        >>> draw("Requests", "files", "requests", [Curve("ours", [(1, 4), (10, 13)])]).startswith("<svg")
        True
    """
    shown = [Curve(curve.name, sorted(curve.points)) for curve in curves if curve.points]
    if not shown:
        raise ValueError("expected at least one point, got none")
    if any(value <= 0 for curve in shown for point in curve.points for value in point):
        raise ValueError(f"{title}: expected figures above 0, as the axes are logarithmic")
    xs = _Axis.over([x for curve in shown for x, _ in curve.points], LEFT, WIDTH - RIGHT)
    ys = _Axis.over([y for curve in shown for _, y in curve.points], HEIGHT - BOTTOM, TOP)
    parts = [*_grid(xs, ys), *_names(title, across, up, shown)]
    for curve in shown:
        parts += _curve(curve, xs, ys)
    light, dark = (
        " ".join(f".{_class(name)} {{ stroke: {look[page]}; fill: {look[page]} }}" for name, look in LOOKS.items())
        for page in (0, 1)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img" aria-label="{escape(title)}">\n<title>{escape(title)}</title>\n'
        f"<style>{_STYLE.format(light=light, dark=dark)}</style>\n"
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="6"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


@dataclass(frozen=True)
class _Axis:
    """A logarithmic axis: the figures at its ticks, and where on the picture it begins and ends."""

    ticks: tuple[float, ...]
    begin: float
    end: float

    @classmethod
    def over(cls, figures: Sequence[float], begin: float, end: float) -> _Axis:
        """The axis with the most ticks, up to seven whose labels have room, that goes over all figures."""
        low, high = min(figures), max(figures)
        for steps, every in (((1, 2, 5), 1), ((1, 3), 1), ((1,), 1), ((1,), 2), ((1,), 4)):
            lowest = (math.floor(math.log10(low)) // every) * every
            decades = range(lowest, math.ceil(math.log10(high)) + every + 1, every)
            all_ticks = [float(f"{step}e{decade}") for decade in decades for step in steps]
            first = max(place for place, tick in enumerate(all_ticks) if tick <= low * 1.0001)
            last = min(place for place, tick in enumerate(all_ticks) if tick >= high * 0.9999)
            last = max(last, first + 1)
            axis = cls(tuple(all_ticks[first : last + 1]), begin, end)
            if len(axis.ticks) <= 7 and (begin > end or axis.has_room()):
                break
        return axis

    def has_room(self) -> bool:
        """Whether no label, from left to right, meets the next one."""
        labels = [_label(self, tick) for tick in self.ticks]
        return all(right[0] - left[1] > CHARACTER for left, right in pairwise(labels))

    def at(self, figure: float) -> float:
        """Where a figure stands."""
        low, high = math.log10(self.ticks[0]), math.log10(self.ticks[-1])
        return self.begin + (self.end - self.begin) * (math.log10(figure) - low) / (high - low)


def _label(axis: _Axis, tick: float) -> tuple[float, float]:
    """Where the label of a tick of the lower axis begins and ends; the last one ends within the picture."""
    width = CHARACTER * len(_figure(tick))
    middle = min(axis.at(tick), WIDTH - 4 - width / 2)
    return middle - width / 2, middle + width / 2


def _grid(xs: _Axis, ys: _Axis) -> list[str]:
    lines = []
    for tick in xs.ticks:
        x = xs.at(tick)
        lines.append(f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}"/>')
        left, right = _label(xs, tick)
        lines.append(_text((left + right) / 2, HEIGHT - BOTTOM + 18, _figure(tick), "middle"))
    for tick in ys.ticks:
        y = ys.at(tick)
        lines.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
        lines.append(_text(LEFT - 6, y + 4, _figure(tick), "end"))
    bottom, left = HEIGHT - BOTTOM, LEFT
    return [
        *lines,
        f'<line class="axis" x1="{left}" y1="{bottom}" x2="{WIDTH - RIGHT}" y2="{bottom}"/>',
        f'<line class="axis" x1="{left}" y1="{TOP}" x2="{left}" y2="{bottom}"/>',
    ]


def _names(title: str, across: str, up: str, curves: Sequence[Curve]) -> list[str]:
    lines = [_text(12, 20, title, "start", "ink title")]
    x = 12.0
    for curve in curves:
        lines += [f'<line class="{_class(curve.name)}" {_dash(curve.name)}x1="{x}" y1="38" x2="{x + 26}" y2="38"/>']
        lines += [_mark(curve.name, x + 13, 38), _text(x + 32, 42, curve.name, "start")]
        x += 32 + CHARACTER * len(curve.name) + 18
    lines.append(_text(WIDTH - RIGHT, 42, up, "end"))
    lines.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, across, "middle"))
    return lines


def _curve(curve: Curve, xs: _Axis, ys: _Axis) -> list[str]:
    places = [(xs.at(x), ys.at(y)) for x, y in curve.points]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    look = f'class="{_class(curve.name)}" {_dash(curve.name)}style="fill: none" stroke-width="2"'
    return [
        f'<polyline {look} points="{line}"/>',
        *[_mark(curve.name, x, y) for x, y in places],
    ]


def _mark(name: str, x: float, y: float) -> str:
    if LOOKS[name][3] == "circle":
        return f'<circle class="{_class(name)}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
    turn = f' transform="rotate(45 {x:.1f} {y:.1f})"' if LOOKS[name][3] == "diamond" else ""
    return f'<rect class="{_class(name)}" x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7"{turn}/>'


def _dash(name: str) -> str:
    return f'stroke-dasharray="{LOOKS[name][2]}" ' if LOOKS[name][2] else ""


def _class(name: str) -> str:
    return name.replace(" ", "-")


def _text(x: float, y: float, text: str, anchor: str, kind: str = "ink") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _figure(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:g} M"
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"
