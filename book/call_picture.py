"""The picture of a call: its steps, and what the Hub is asked for at each."""

from __future__ import annotations

from dataclasses import dataclass

from drawing import SMALL, Arrow, Box, Canvas, Gap, Part, Row, Stack, Words
from picture import Picture, branches, plain

from kernels.loader.load import load_variant
from kernels.operations.install import fetch_build
from kernels.operations.install_check import check_build
from kernels.resolver.build_choice import choose_build
from kernels.resolver.find import find

__all__ = ["PICTURE"]


@dataclass(frozen=True)
class _Step:
    """A step of a call: what comes out, the function that does it, what decides, and what the Hub is asked for."""

    result: str
    function: str
    what: str
    asked: tuple[str, str] | None = None


#: The functions are those of the package, so that a name that is changed there changes here.
CALL = (
    _Step(
        "Requirement",
        "",
        "The repository, and a version or a revision.",
        ("Round 1", "The branches."),
    ),
    _Step(
        "Snapshot: a commit and its files",
        find.__name__,
        "The lockfile or the branch names the commit. A publisher who is not trusted ends the call.",
        (
            "Round 2, side by side",
            "The files of the commit, each with its size and hash. Whether the publisher is trusted.",
        ),
    ),
    _Step(
        "Build, or why each was rejected",
        choose_build.__name__,
        "The names and the metadata of the builds are compared with the Target: this machine.",
        ("Round 3", "`metadata.json` of the likely build, and at the same time its files."),
    ),
    _Step(
        "Folder in the cache",
        fetch_build.__name__,
        "Each file is compared with its size and hash, and renamed into place.",
        ("Native code, large files", "One round more: the Hub redirects to its storage."),
    ),
    _Step("Checked build", check_build.__name__, "The digest in the metadata, and the content that a lockfile pins."),
    _Step(
        "Module", load_variant.__name__, "The listed files only, under a unique name. Dependencies are loaded first."
    ),
)
_CACHED = (
    "**Fewer rounds.** A commit, named or locked, is listed at once: two rounds. "
    "A kernel in the cache: one request, the branches. A commit in the cache: none."
)


def _call(narrow: bool) -> Part:
    heading = Words('`get_kernel("org/repo", version=1)`', bold=True)
    parts: list[Part] = [Stack([heading], left=4), Arrow()]
    for number, step in enumerate(CALL):
        if number:
            parts.append(Gap(22))
        lines: list[Part] = [Words(step.result, bold=True)]
        if step.function:
            lines.append(Words(f"`{step.function}`", "main", SMALL))
        own = Box([*lines, Words(step.what, size=SMALL)], "main", f"step {number}")
        if step.asked:
            title, asked = step.asked
            hub: Part = Box([Words(title, "hub", bold=True), Words(asked, size=SMALL)], "hub", f"hub {number}")
        elif number == len(CALL) - 2 and not narrow:
            hub = Box([Words(_CACHED, "soft", SMALL)], "plain", "cached")
        else:
            hub = Gap(0)
        parts.append(Stack([own, Gap(8), Stack([hub], left=64)]) if narrow else Row([own, hub], (360, 280), gap=32))
    if narrow:
        parts += [Gap(14), Box([Words(_CACHED, "soft", SMALL)])]
    return Stack([Stack(parts, left=26)])


def _call_lines(canvas: Canvas, narrow: bool) -> None:
    places = canvas.places
    branches(canvas, len(CALL), "step", "hub", narrow)
    # A dependency is a requirement of its own.
    chosen, first = places["step 2"], places["step 0"]
    x = first.x - 16
    canvas.path(
        [(chosen.x, chosen.middle), (x, chosen.middle), (x, first.middle), (first.x - 2, first.middle)], dashed=True
    )
    canvas.elements.append(
        f'<text class="soft" transform="translate({x - 7:g} {(chosen.middle + first.middle) / 2:g}) rotate(-90)" '
        f'text-anchor="middle" style="font-size: {SMALL:g}px">for each kernel dependency</text>'
    )


def _call_says() -> str:
    steps = " ".join(
        f"{number}. {step.result}{f' ({step.function})' if step.function else ''}: {plain(step.what)}"
        + (f" The Hub is asked ({step.asked[0]}): {plain(step.asked[1])}" if step.asked else "")
        for number, step in enumerate(CALL, start=1)
    )
    again = "Each kernel dependency of a build is a new requirement."
    return f"The steps of a call of get_kernel. {steps} {again} {plain(_CACHED)}"


PICTURE = Picture("The way of a call", _call_says(), _call, _call_lines)
