"""The pictures of the documentation: what each shows, and what it says to those who do not see it.

Each has two layouts, one for a page and one for a phone: `docs/images/NAME.svg` and `docs/images/NAME-narrow.svg`. A
page embeds both in one line of HTML. Write it as below: `python book/pictures.py` fills in the rest of the line, and
writes the pictures.

    <picture><source media=""><img src="images/NAME.svg" alt=""></picture>

What a picture says of builds is what the resolver decides when it is drawn.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import session
import session_picture
from drawing import SMALL, Arrow, Box, Canvas, Gap, Marked, Part, Row, Stack, Words, svg

from kernels import Target, errors
from kernels.loader.load import load_variant
from kernels.operations.info import explain_folder
from kernels.operations.install_check import check_build
from kernels.operations.load import fetch_build
from kernels.resolver.build_choice import choose_build
from kernels.resolver.finder import resolve_snapshot
from kernels.resolver.verdicts import Verdict

__all__ = ["PICTURES", "Picture", "files", "pages", "with_pictures"]

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"

#: Widths in pixels: of the text of a page on a screen, and on a phone of 390 pixels.
WIDE, NARROW, MARGIN = 720, 358, 12

#: The line that embeds a picture.
_EMBEDDED = re.compile(r'<picture>(?:<source [^>]*>)+<img src="([^"]*?)images/([\w-]+)\.svg" alt="[^"]*"></picture>')
_NARROW, _STILL = "(max-width: 760px)", "(prefers-reduced-motion: reduce)"


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


# The way of a call


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
        ("Round 1, side by side", "The branches. Whether the publisher is trusted."),
    ),
    _Step(
        "Snapshot: a commit and its files",
        resolve_snapshot.__name__,
        "The lockfile or the branch names the commit. A publisher who is not trusted ends the call.",
        ("Round 2", "The files of the commit, each with its size and hash."),
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
    "**Fewer rounds.** A commit, named or locked, needs no branches: two rounds. "
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
    _branches(canvas, len(CALL), "step", "hub", narrow)
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


def _branches(canvas: Canvas, count: int, own: str, other: str, narrow: bool) -> None:
    """Arrows from each box to the next one, and to the one that stands beside it, or below it on a phone."""
    for number in range(count):
        here, there = canvas.places[f"{own} {number}"], canvas.places.get(f"{other} {number}")
        below = canvas.places.get(f"{own} {number + 1}")
        if below is not None:
            canvas.path([(here.x + 24, here.y + here.height + 2), (here.x + 24, below.y - 2)])
        if there is not None:
            begin = here.x + (24 if narrow else here.width + 2)
            canvas.path([(begin, there.middle), (there.x - 2, there.middle)])


def _call_says() -> str:
    steps = " ".join(
        f"{number}. {step.result}{f' ({step.function})' if step.function else ''}: {_plain(step.what)}"
        + (f" The Hub is asked ({step.asked[0]}): {_plain(step.asked[1])}" if step.asked else "")
        for number, step in enumerate(CALL, start=1)
    )
    again = "Each kernel dependency of a build is a new requirement."
    return f"The steps of a call of get_kernel. {steps} {again} {_plain(_CACHED)}"


# Three machines

#: One kernel's builds, as its author published them: the name of each, and the architectures in its metadata.
BUILDS: Mapping[str, tuple[str, Sequence[str]]] = {
    "torch-stable-abi29-cu130-x86_64-linux": ("cuda", ("9.0", "10.0")),
    "torch-stable-abi29-cu128-x86_64-linux": ("cuda", ("9.0",)),
    "torch29-cxx11-cu128-x86_64-linux": ("cuda", ("8.0", "9.0")),
    "torch-cuda": ("cuda", ("8.0", "9.0", "10.0")),
    "torch-cpu": ("cpu", ()),
}
#: The machines that choose among them: what each is, and its target.
MACHINES = {
    "H100, Torch 2.13, CUDA 13.0": "torch2.13-cu130-x86_64-linux+sm_90",
    "A100, Torch 2.9, CUDA 12.8": "torch2.9-cu128-x86_64-linux+sm_80",
    "Laptop, Torch 2.13, no GPU": "torch2.13-cpu-x86_64-linux",
}
_MARKS = {"chosen": "tick", "accepted": "dash", "rejected": "cross"}


@cache
def decided() -> dict[str, dict[str, Verdict]]:
    """What the resolver decides: the verdict for each build, by machine and build."""
    with tempfile.TemporaryDirectory() as folder:
        for name, (backend, archs) in BUILDS.items():
            build = Path(folder, "build", name)
            build.mkdir(parents=True)
            listed = ", ".join(f'"{arch}"' for arch in archs)
            named = (
                f'"name": "relu", "id": "_relu_{backend}", "version": 1, "license": "Apache-2.0", "python-depends": []'
            )
            backend_facts = f'"backend": {{"type": "{backend}", "archs": [{listed}]}}'
            (build / "metadata.json").write_text(f"{{{named}, {backend_facts}}}", encoding="utf-8")
            (build / "__init__.py").touch()
        found = {
            machine: explain_folder(Path(folder), target=Target.parse(target)).verdicts
            for machine, target in MACHINES.items()
        }
    return {machine: {each.variant: each for each in verdicts} for machine, verdicts in found.items()}


def _reason(verdict: Verdict) -> str:
    """A reason without the name of the build that another one is preferred to: that one is marked."""
    return re.sub(r"fits, but \S+ is preferred", "fits, but another build is preferred", verdict.reason)


def _verdict(verdict: Verdict) -> Part:
    look = "good" if verdict.verdict == "chosen" else "ink"
    words = Words(f"**{verdict.verdict}**: {_reason(verdict)}", look, SMALL)
    return Marked(_MARKS[verdict.verdict], words)


def _builds(narrow: bool) -> Part:
    verdicts = decided()
    if narrow:
        machines: list[Part] = []
        for machine, target in MACHINES.items():
            lines: list[Part] = [Words(machine, "main", bold=True), Words(f"`{target}`", "soft", SMALL), Gap(2)]
            for build in BUILDS:
                chosen = verdicts[machine][build].verdict == "chosen"
                name = Words(f"`{build}`", size=SMALL)
                lines.append(Box([name, _verdict(verdicts[machine][build])], "good" if chosen else "plain", pad=(8, 6)))
            machines.append(Stack(lines, gap=6))
        return Stack(machines, gap=18)
    heads = [
        Box(
            [
                Words(machine.partition(", ")[0], "main", bold=True),
                Words(machine.partition(", ")[2], size=SMALL),
                Words(f"`{target}`", "soft", SMALL),
            ],
            "main",
        )
        for machine, target in MACHINES.items()
    ]
    rows: list[Part] = [Row(heads)]
    for build, (_, archs) in BUILDS.items():
        listed = f" for capability {', '.join(archs)}" if archs else ""
        cells = [
            Box(
                [_verdict(verdicts[machine][build])],
                "good" if verdicts[machine][build].verdict == "chosen" else "plain",
            )
            for machine in MACHINES
        ]
        rows.append(Stack([Words(f"`{build}`{listed}"), Row(cells)], gap=4))
    return Stack(rows, gap=12)


def _builds_says() -> str:
    machines = []
    for machine, target in MACHINES.items():
        verdicts = "; ".join(
            f"{build} is {each.verdict}: {_reason(each)}"
            for build, each in ((build, decided()[machine][build]) for build in BUILDS)
        )
        machines.append(f"{machine} ({target}): {verdicts}.")
    return f"The same {len(BUILDS)} builds of a kernel on three machines. " + " ".join(machines)


# Trust


@dataclass(frozen=True)
class _Check:
    when: str
    what: str
    how: str
    error: str
    then: str


CHECKS = (
    _Check(
        "The commit is looked up",
        "Is the publisher trusted?",
        "By the Hub, by `KERNELS_TRUSTED_PUBLISHERS`, or by `trust_remote_code`. Asked again for each dependency and "
        "redirect.",
        errors.UntrustedPublisher.__name__,
        "No file is downloaded.",
    ),
    _Check(
        "",
        "Is it what the lockfile pins?",
        "Where a lockfile pins the repository, the pinned commit is used, also for a dependency.",
        errors.LockError.__name__,
        "Another version was requested.",
    ),
    _Check(
        "The files are listed",
        "Can these names be files of a build?",
        "No name leaves its folder, and each file has a size and a hash.",
        errors.InvalidRepository.__name__,
        "No file is downloaded.",
    ),
    _Check(
        "The build is chosen",
        "Did an allowed signer sign it?",
        "Only where `KERNELS_POLICY` requires a signature, and before the metadata is parsed.",
        errors.UntrustedSignature.__name__,
        "If no other build is left.",
    ),
    _Check(
        "The build is downloaded",
        "Is each file what was listed?",
        "Size and hash, while it arrives. Else it is downloaded again.",
        errors.HubUnavailable.__name__,
        "The file is never kept.",
    ),
    _Check(
        "The build is on disk",
        "Are these the files of the publisher?",
        "The digest in `metadata.json`, which the signature covers.",
        errors.DigestMismatch.__name__,
        "Nothing is run.",
    ),
    _Check(
        "",
        "Is this the content that was locked?",
        "Only with `kernels lock --hashes`: the hash of the whole build.",
        errors.DigestMismatch.__name__,
        "Nothing is run.",
    ),
    _Check(
        "The module is imported",
        "Is its name free?",
        "The listed files only, under a name that no other module has.",
        errors.KernelImportError.__name__,
        "No module of it stays.",
    ),
)


def _trust(narrow: bool) -> Part:
    parts: list[Part] = []
    for number, check in enumerate(CHECKS):
        if number:
            parts.append(Gap(22))
        when = Words(check.when, "soft", SMALL, bold=True)
        words: list[Part] = [Words(check.what, bold=True), Words(check.how, size=SMALL)]
        error = Box([Words(f"`{check.error}`", "bad", SMALL), Words(check.then, size=SMALL)], "bad", f"error {number}")
        own = Box([when, *words] if narrow and check.when else words, "main", f"check {number}")
        if narrow:
            parts.append(Stack([own, Gap(8), Stack([error], left=64)]))
        else:
            parts.append(Row([when, own, error], _TRUST_WIDTHS, gap=28))
    words = [Marked("tick", Words("The kernel runs, with your rights.", "good", bold=True))]
    done = Box(words, "good", f"check {len(CHECKS)}")
    return Stack([*parts, Gap(22), done if narrow else Row([Gap(0), done, Gap(0)], _TRUST_WIDTHS, gap=28)])


_TRUST_WIDTHS = (120, 330, 190)


def _trust_lines(canvas: Canvas, narrow: bool) -> None:
    _branches(canvas, len(CHECKS), "check", "error", narrow)


def _trust_says() -> str:
    checks = " ".join(
        f"{number}. {check.when}{'. ' if check.when else ''}{check.what} {_plain(check.how)} "
        f"If not: {check.error}. {check.then}"
        for number, check in enumerate(CHECKS, start=1)
    )
    return f"What is checked before a kernel runs, in this order. {checks}"


# The cache


@dataclass(frozen=True)
class _Record:
    path: str
    what: str
    writer: str
    until: str = ""


_REPO = "kernels--org--name/"
RECORDS: Mapping[str, tuple[str, str, Sequence[_Record]]] = {
    "Never changes": (
        "good",
        "Kept until you remove the commit: `kernels cache prune`.",
        (
            _Record("blobs/<hash>", "the content of a file, once for all commits", "written by the download"),
            _Record(
                "snapshots/<commit>/…", "the files of a commit: links to their contents", "written by the download"
            ),
            _Record("index/<commit>-<Hub>.json", "the list of the files of a commit", "from the Hub"),
            _Record("index/<commit>-fetched", "a mark: this client downloaded files of it", "written by the download"),
            _Record("index/<commit>-<Hub>.allowed", "a mark: `trust_remote_code` allowed it", "written by the load"),
        ),
    ),
    "Has an age": (
        "hub",
        "Asked again when it is too old. Used at any age while the Hub does not answer.",
        (
            _Record(
                "index/heads-<Hub>.json",
                "branches and tags",
                "from the Hub",
                "asked again in each process, or after `KERNELS_REFRESH` seconds",
            ),
            _Record(
                "index/mirror-<mirror>.json",
                "what a mirror says of the repository",
                "from the mirror",
                "as the branches; answered with 304 if unchanged",
            ),
            _Record(
                ".locks/kernels-verdicts/…",
                "whether a publisher is trusted",
                "from the Hub",
                "“trusted” for a day; “not trusted” is asked again each time",
            ),
        ),
    ),
    "Is valid while nothing changes": (
        "main",
        "Results of checks on this machine. After a change, the check is done again.",
        (
            _Record(
                "index/<commit>-<Hub>-<variant>.checked",
                "the content of a build was compared",
                "written by the check",
                "until a file has another size, time or inode",
            ),
            _Record(
                ".locks/kernels-signatures/…",
                "who signed a build",
                "written by the check",
                "until the metadata, the signature or the policy changes",
            ),
        ),
    ),
    "Is temporary": (
        "plain",
        "Left by a process that was killed, it is removed by `kernels cache prune` after a day.",
        (
            _Record(
                "blobs/<hash>.*.incomplete",
                "a part of a large file; the next download goes on from there",
                "written by the download",
            ),
            _Record(".locks/…", "locks: one process downloads a build, the others wait", "written by each process"),
        ),
    ),
}


def _cache(narrow: bool) -> Part:
    groups: list[Part] = []
    for title, (kind, rule, records) in RECORDS.items():
        look = "soft" if kind == "plain" else kind
        lines: list[Part] = [Words(title, look, 14, bold=True), Words(rule, size=SMALL), Gap(4)]
        for record in records:
            path = (_REPO if not record.path.startswith(".locks") else "") + record.path
            if narrow:
                own = [Words(f"`{path}`", size=SMALL), Words(f"{record.what}, {record.writer}", size=SMALL)]
                if record.until:
                    own.append(Words(record.until, look, SMALL))
                lines += [Stack(own), Gap(6)]
            else:
                right: list[Part] = [Words(f"{record.what}", size=SMALL)]
                if record.until:
                    right.append(Words(record.until, look, SMALL))
                lines += [
                    Row(
                        [
                            Words(f"`{record.path}`", size=SMALL),
                            Stack(right),
                            Words(record.writer, "soft", SMALL),
                        ],
                        (294, 234, 120),
                    ),
                    Gap(4),
                ]
        groups.append(Box(lines[:-1], kind))
    where = f"`.locks` is in the folder of the cache, all else in `{_REPO}`, which each repository has."
    return Stack([*([] if narrow else [Words(where, "soft", SMALL)]), *groups], gap=12)


def _cache_says() -> str:
    groups = []
    for title, (_, rule, records) in RECORDS.items():
        listed = "; ".join(
            f"{record.path} ({', '.join(filter(None, (_plain(record.what), record.writer, _plain(record.until))))})"
            for record in records
        )
        groups.append(f"{title}. {_plain(rule)} {listed}.")
    return "The files of the cache, by how long they are valid. " + " ".join(groups)


# kernelize


class Layer(NamedTuple):
    """A layer of the model in the picture: its name in the model, its class, and its name in the mapping."""

    name: str
    type: str
    mark: str = ""
    repository: str = ""


MODEL = (
    Layer("norm", "RMSNorm", "RMSNorm", "kernels-examples/rms-norm"),
    Layer("up", "nn.Linear"),
    Layer("act", "SiluAndMul", "SiluAndMul", "kernels-examples/silu-and-mul"),
    Layer("down", "nn.Linear"),
)


def _kernelize(narrow: bool) -> Part:
    before: list[Part] = [Words("Before", "soft", bold=True)]
    mapping: list[Part] = [Words("Mapping", "hub", bold=True)]
    after: list[Part] = [Words("After", "main", bold=True)]
    for layer in MODEL:
        head = Words(f"`{layer.name}` **{layer.type}**")
        mark = Words(f"marked `{layer.mark}`" if layer.mark else "no mark", "soft", SMALL)
        own = Words("its own forward", size=SMALL)
        before.append(Box([head, mark, own], name=f"before {layer.name}"))
        if layer.mark:
            kernel = Words(f"`{layer.repository}`", size=SMALL)
            on = Words(f"`{layer.mark}` on `cpu`", size=SMALL)
            mapping.append(Box([on, kernel, Words("version 1", size=SMALL)], "hub", f"mapped {layer.name}"))
            ran = [Words("runs the forward of", size=SMALL), Words(f"`{layer.repository}`", "main", SMALL)]
            after.append(Box([head, *ran], "main", f"after {layer.name}"))
        else:
            after.append(Box([head, own, Words("unchanged", "soft", SMALL)], name=f"after {layer.name}"))
    steps = Box(
        [
            Words("`kernelize(model, mapping)`", "main"),
            Words("1. finds the marked layers", size=SMALL),
            Words("2. downloads and checks all kernels", size=SMALL),
            Words("3. compares them with their layers", size=SMALL),
            Words("4. only then replaces the forwards", size=SMALL),
        ],
    )
    back = Words("`unkernelize(model)` restores every forward.")
    same = Words("The classes, the parameters and the `state_dict` never change.", "soft", SMALL)
    if narrow:
        columns = [Stack(before, gap=6), Arrow(), Stack(mapping, gap=6), Gap(8), steps, Arrow(), Stack(after, gap=6)]
        return Stack([*columns, Arrow(), Box([back, same])])
    columns = [Stack(before, gap=8), Stack([*mapping, steps], gap=8), Stack(after, gap=8)]
    return Stack([Row(columns, (156, 242, 242), gap=28), Gap(22), Box([back, same], name="back")])


def _kernelize_lines(canvas: Canvas, narrow: bool) -> None:
    if narrow:
        return
    places = canvas.places
    for layer in MODEL:
        if layer.mark:
            names = [f"{column} {layer.name}" for column in ("before", "mapped", "after")]
            for left, right in pairwise(places[name] for name in names):
                turn = (left.x + left.width + right.x) / 2
                canvas.path(
                    [
                        (left.x + left.width + 2, left.middle),
                        (turn, left.middle),
                        (turn, right.middle),
                        (right.x - 2, right.middle),
                    ]
                )
    back = places["back"]
    for column, down in (("after", True), ("before", False)):
        last = places[f"{column} {MODEL[-1].name}"]
        ends = [(last.x + 24, last.y + last.height + 2), (last.x + 24, back.y - 2)]
        canvas.path(ends if down else ends[::-1])


def _kernelize_says() -> str:
    marked = [layer for layer in MODEL if layer.mark]
    own = [layer.name for layer in MODEL if not layer.mark]
    return (
        f"A model of {len(MODEL)} layers, before and after kernelize. Before, each layer runs its own forward; "
        + " and ".join(f"{layer.name} is marked {layer.mark}" for layer in marked)
        + ". The mapping names a kernel for each mark and device: "
        + ", ".join(f"{layer.mark} on cpu is {layer.repository} version 1" for layer in marked)
        + ". kernelize finds the marked layers, downloads and checks all kernels, compares them with their "
        "layers, and only then replaces the forwards. After, "
        + " and ".join(f"{layer.name} runs the forward of {layer.repository}" for layer in marked)
        + f"; {' and '.join(own)} run their own. unkernelize restores every forward. The classes, the parameters and "
        "the state_dict never change."
    )


def _plain(text: str) -> str:
    return text.replace("`", "").replace("**", "")


PICTURES: Mapping[str, Picture] = {
    "call": Picture("The way of a call", _call_says(), _call, _call_lines),
    "builds": Picture("One kernel on three machines", _builds_says(), _builds),
    "trust": Picture("What is checked before a kernel runs", _trust_says(), _trust, _trust_lines),
    "cache": Picture("What the cache contains, and for how long", _cache_says(), _cache),
    "kernelize": Picture("A model before and after kernelize", _kernelize_says(), _kernelize, _kernelize_lines),
}


def files() -> dict[Path, Callable[[], str]]:
    """The files of the pictures, and what gives their text."""
    written: dict[Path, Callable[[], str]] = {}
    for name, picture in PICTURES.items():
        for suffix, narrow in (("", False), ("-narrow", True)):
            written[IMAGES / f"{name}{suffix}.svg"] = partial(picture.draw, narrow=narrow)
    for path in session_picture.PATHS:
        written[path] = partial(session_picture.draw, path)
    return written


def with_pictures(page: Path, text: str | None = None) -> str:
    """The text of a page, or that text for it, with the lines that embed pictures as they are now."""
    text = page.read_text(encoding="utf-8") if text is None else text

    def line(match: re.Match[str]) -> str:
        folder, name = match.groups()
        if name == "session":
            alternative = session_picture.says(session.read()["wide"])
            others = {f"{_NARROW} and {_STILL}": "-narrow-still", _NARROW: "-narrow", _STILL: "-still"}
        elif name in PICTURES:
            alternative, others = PICTURES[name].says, {_NARROW: "-narrow"}
        else:
            return match[0]
        sources = "".join(
            f'<source media="{media}" srcset="{folder}images/{name}{suffix}.svg">' for media, suffix in others.items()
        )
        return f'<picture>{sources}<img src="{folder}images/{name}.svg" alt="{escape(alternative)}"></picture>'

    return _EMBEDDED.sub(line, text)


def pages() -> list[Path]:
    """The pages that embed a picture."""
    return [
        page
        for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
        if _EMBEDDED.search(page.read_text(encoding="utf-8"))
    ]


def main() -> None:
    """Write the pictures, and the lines that embed them."""
    texts = {path: text() for path, text in files().items()}
    texts |= {page: with_pictures(page) for page in pages()}
    for path, text in texts.items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"written: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
