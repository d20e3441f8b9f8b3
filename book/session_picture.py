"""Draw the recorded terminal session: a window in which commands are typed, and what they print.

It is one file without a script: the steps are keyframes of CSS. It is shown twice and stops at its last screen. Who
prefers less motion sees all screens below each other, in a file of their own, which the page chooses. The window is
dark on light pages too, as terminals are.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import NamedTuple

from drawing import MONO
from session import Line, Run, Screen, read

__all__ = ["PATHS", "draw", "says"]

#: With motion and without, for a page and for a phone.
PATHS = tuple(
    Path(__file__).parents[1] / "docs" / "images" / f"session{suffix}.svg"
    for suffix in ("", "-still", "-narrow", "-narrow-still")
)

#: Pixels: of a character, of a line, around the text, of the bar of the window.
ADVANCE, LINE, PAD, BAR = 7.5, 17.0, 10.0, 26.0
FONT = 12.4

#: Seconds: for a typed character, between what was typed and the answer, and to read a line of the answer.
KEY, ANSWER, READ = 0.03, 0.3, 0.2
LEAST, NEXT = 3.0, 0.5

_COLOURS = {"typed": "#ffffff", "prompt": "#79c0ff", "green": "#56d364", "red": "#ff8a80", "yellow": "#e3b341"}


class _Event(NamedTuple):
    """What happens to a line of a screen: it appears at a time, and is typed from another to a third."""

    line: int
    shown: float
    begin: float
    end: float
    prompt: int


def says(screens: list[Screen]) -> str:
    """What the session shows, in words; of `kernels doctor` the problem that it finds."""
    parts = []
    for screen in screens:
        typed = [_text(runs)[max(prompt, 0) :].strip(" \\") for prompt, runs in screen.lines if prompt]
        printed = [" ".join(_text(runs).split()).removeprefix("> ") for prompt, runs in screen.lines if not prompt]
        problems = [number for number, line in enumerate(printed) if line.startswith("problems")]
        if problems:
            printed = ["the versions and the hardware of this machine", *printed[problems[0] :]]
        parts.append(f"{' '.join(typed)} prints: {'; '.join(filter(None, printed))}")
    return "A terminal session. " + ". ".join(parts)


def _text(runs: list[Run]) -> str:
    return "".join(run.text for run in runs)


def draw(path: Path) -> str:
    """The text of one of the files of `PATHS`."""
    _, *looks = path.stem.split("-")
    screens = read()["narrow" if "narrow" in looks else "wide"]
    columns = max(len(_text(runs)) for screen in screens for _, runs in screen.lines)
    return _still(screens, columns) if "still" in looks else _moving(screens, columns)


def _still(screens: list[Screen], columns: int) -> str:
    lines = _below_each_other(screens).lines
    text = "\n".join(_line(runs, number) for number, (_, runs) in enumerate(lines))
    return _window(text, "", says(screens), columns, len(lines))


def _below_each_other(screens: list[Screen]) -> Screen:
    lines: list[Line] = []
    for screen in screens:
        lines += [*([(0, [])] if lines else []), *screen.lines]
    return Screen(screens[0].name, lines)


def _moving(screens: list[Screen], columns: int) -> str:
    description = says(screens)
    screens = [_below_each_other(screens[:-1]), screens[-1]]
    timed, begins, now = [], [], 0.0
    for screen in screens:
        begins.append(now)
        events, now = _events(screen, now)
        timed.append(events)
    rules: list[str] = []
    groups: list[str] = []
    for number, (screen, events) in enumerate(zip(screens, timed, strict=True)):
        start, end = begins[number], [*begins, now][number + 1]
        parts = []
        for event in events:
            runs = screen.lines[event.line][1]
            name = f"k{number}-{event.line}"
            rules.append(_appears(name, event.shown, now))
            group = _line(runs, event.line)
            if event.end > event.begin:
                group += _cover(runs, event, f"c{number}-{event.line}", rules, now)
            parts.append(f'<g class="m" style="animation-name: {name}">{group}</g>')
        rules.append(_appears(f"s{number}", start, now, end))
        first = "" if number == 0 else " later"
        groups.append(f'<g class="m{first}" style="animation-name: s{number}">\n' + "\n".join(parts) + "\n</g>")
    # It begins where the first screen is complete: who opens the page sees something to read, not an empty window.
    full = timed[0][-1].shown + 0.1
    css = (
        f".m {{ animation-duration: {now:g}s; animation-delay: -{full:g}s; animation-iteration-count: 2; "
        "animation-fill-mode: forwards; animation-timing-function: step-end }\n"
        ".later, .cover { opacity: 0 }\n"
        "@media (prefers-reduced-motion: reduce) {\n.m { animation-duration: 0s; animation-name: none !important }\n}\n"
        + "\n".join(rules)
    )
    return _window("\n".join(groups), css, description, columns, max(len(screen.lines) for screen in screens))


def _events(screen: Screen, now: float) -> tuple[list[_Event], float]:
    """When each line of a screen appears, from a time on, and when the screen ends."""
    events: list[_Event] = []
    printed = 0
    for number, (prompt, runs) in enumerate(screen.lines):
        if not prompt:
            events.append(_Event(number, now, now, now, 0))
            printed += 1
            continue
        shown = now
        if prompt > 0:
            now += NEXT + printed * READ
        begin, now = now, now + KEY * (len(_text(runs)) - max(prompt, 0))
        events.append(_Event(number, shown, begin, now, prompt))
        now += ANSWER
        printed = 0
    return events, now + max(LEAST, printed * READ)


def _appears(name: str, begin: float, whole: float, end: float | None = None) -> str:
    frames = ["0% { opacity: 0 }"] if begin else []
    frames.append(f"{_percent(begin, whole)} {{ opacity: 1 }}")
    if end is not None:
        if end < whole:
            frames.append(f"{_percent(end, whole)} {{ opacity: 0 }}")
        frames.append(f"100% {{ opacity: {int(end >= whole)} }}")
    return f"@keyframes {name} {{ {' '.join(frames)} }}"


def _cover(runs: list[Run], event: _Event, name: str, rules: list[str], whole: float) -> str:
    """What hides the rest of a line that is being typed, with a cursor at its left edge."""
    text = _text(runs)
    skipped = max(event.prompt, 0)
    count = len(text) - skipped
    x, width = PAD + ADVANCE * skipped, ADVANCE * count
    begin, end = _percent(event.begin, whole), _percent(event.end, whole)
    rules.append(
        f"@keyframes {name} {{ 0% {{ opacity: 1; transform: none }} {begin} {{ opacity: 1; transform: none; "
        f"animation-timing-function: steps({count}) }} {end} {{ opacity: 1; transform: translateX({width:g}px) }} "
        f"{_percent(event.end + 0.02, whole)} {{ opacity: 0 }} 100% {{ opacity: 0 }} }}"
    )
    top = BAR + PAD / 2 + LINE * event.line
    return (
        f'<svg x="{x:g}" y="{top:g}" width="{width + ADVANCE:g}" height="{LINE:g}">'
        f'<g class="m cover" style="animation-name: {name}"><rect class="page" width="{width + ADVANCE:g}" '
        f'height="{LINE:g}"/><rect class="cursor" x="1" y="2" width="6" height="13"/></g></svg>'
    )


def _percent(time: float, whole: float) -> str:
    return f"{100 * time / whole:.2f}".rstrip("0").rstrip(".") + "%"


def _line(runs: list[Run], number: int) -> str:
    """A line; each column stands where it belongs, in any font."""
    y = BAR + PAD / 2 + LINE * number + 13
    parts, column = [], 0
    for text, look in runs:
        for match in re.finditer(r"\S+(?: \S+)*", text):
            x = PAD + ADVANCE * (column + match.start())
            length = ADVANCE * len(match[0])
            named = f' class="{look}"' if look else ""
            parts.append(
                f'<text{named} x="{x:g}" y="{y:g}" textLength="{length:g}">{escape(match[0], quote=False)}</text>'
            )
        column += len(text)
    return "".join(parts)


def _window(inner: str, css: str, description: str, columns: int, lines: int) -> str:
    width, height = columns * ADVANCE + 2 * PAD, BAR + PAD + LINE * lines + PAD / 2
    colours = " ".join(f".{name} {{ fill: {colour} }}" for name, colour in _COLOURS.items())
    dots = "".join(
        f'<circle class="dot" cx="{PAD + 4 + 16 * number:g}" cy="{BAR / 2:g}" r="4.5"/>' for number in range(3)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(description)}">\n'
        f"<title>A terminal session</title>\n<desc>{escape(description)}</desc>\n<style>\n"
        f"text {{ font: {FONT:g}px {MONO}; fill: #d5dbe3; white-space: pre }}\n"
        f".bold {{ font-weight: 700; fill: #ffffff }} .dim {{ fill: #9198a1 }} {colours}\n"
        ".page { fill: #0d1117 } .bar { fill: #21262d } .edge { fill: none; stroke: #444c56 } .dot { fill: #6e7681 }\n"
        f".cursor {{ fill: #d5dbe3 }}\n{css}\n</style>\n"
        f'<rect class="page" width="{width:g}" height="{height:g}" rx="8"/>\n'
        f'<path class="bar" d="M0 {BAR:g}V8a8 8 0 0 1 8-8H{width - 8:g}a8 8 0 0 1 8 8V{BAR:g}z"/>{dots}\n'
        f"{inner}\n"
        f'<rect class="edge" x=".5" y=".5" width="{width - 1:g}" height="{height - 1:g}" rx="7.5"/>\n</svg>\n'
    )
