"""The part of docs/benchmarks.md with curves, from samples alone."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from client_page import LATENCY
from curves import Curve, draw
from side_by_side import Client, Results, cores, cpu_name, medians, version_of

__all__ = ["GROWTHS", "IMAGES", "Cost", "Growth", "report", "sample_name", "write_pictures"]

#: The folder of the pictures, beside the page.
IMAGES = Path("images", "benchmarks")

NAMES = ("existing", "ours", "the wire")


@dataclass(frozen=True)
class Cost:
    """What is drawn over what grows: a figure of the samples, and how it is written."""

    name: str
    title: str
    unit: str
    figure: Callable[[int], str]  # of the samples at a count
    format: str
    scale: Callable[[int], float] = lambda count: 1.0


REQUESTS = Cost("requests", "Requests", "requests", lambda count: "requests", "{:,.0f}")
TIME = Cost("time", "Time", "seconds", lambda count: "seconds", "{:.2f} s")
#: The samples have microseconds of each module.
KERNELIZE = Cost("time", "Time", "milliseconds", str, "{:,.1f} ms", lambda count: count / 1e3)


@dataclass(frozen=True)
class Growth:
    """What grows, and the counts at which it is measured."""

    name: str
    heading: str
    unit: str
    what: str
    counts: tuple[int, ...]
    of_existing: tuple[int, ...]
    costs: tuple[Cost, ...] = (REQUESTS, TIME)


GROWTHS = (
    Growth("files", "Files of a build", "files of the build", "A cold `get_kernel` of a build with more files.",
           (2, 3, 10, 30, 100, 300), (2, 3, 10, 30, 100, 300)),
    Growth("builds", "Builds of a repository", "builds of the repository",
           "A cold `get_kernel` from a repository with more builds, of which one suits this machine.",
           (1, 10, 100, 1_000, 10_000), (1, 10, 100, 1_000, 10_000)),
    Growth("kernels", "Kernels of a lockfile", "kernels of the lockfile",
           "A cold `kernels download` of a project whose lockfile has more kernels, of 3 files each: what a model with "
           "as many kernels needs.", (1, 2, 4, 8, 16, 32, 50), (1, 4, 16, 50)),
    Growth("processes", "Processes at once", "processes at once",
           "A cold `get_kernel` of 63 files in more processes of one machine, which begin at the same time and share "
           "a cache; the time is that of the last one.", (1, 2, 4, 8, 16), (1, 2, 4, 8, 16)),
    Growth("layers", "Layers of a model", "layers of the model",
           "`kernelize` of a model with more layers, its kernel loaded before.",
           (1_000, 3_000, 10_000, 30_000, 100_000), (1_000, 3_000, 10_000, 30_000, 100_000), (KERNELIZE,)),
)  # fmt: skip


def sample_name(growth: Growth, count: int) -> str:
    """The name of the measurement of a point."""
    return f"{growth.name} {count}"


def curves(results: Results, growth: Growth, cost: Cost) -> list[Curve]:
    """The medians of each client at the counts at which it was measured."""
    drawn = []
    for name in NAMES:
        points = []
        for count in growth.counts:
            value = results.median(sample_name(growth, count), name, cost.figure(count))
            if value is not None and value > 0:
                points.append((float(count), value * cost.scale(count)))
        if points:
            drawn.append(Curve(name, points))
    return drawn


def write_pictures(results: Results, growths: Sequence[Growth], folder: Path) -> list[Path]:
    """Draw what was measured; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for growth in growths:
        for cost in growth.costs:
            shown = curves(results, growth, cost)
            if shown:
                written.append(folder / _file(growth, cost))
                title = f"{cost.title} over the {growth.unit}"
                text = draw(title, growth.unit, cost.unit, shown)
                written[-1].write_text(text, encoding="utf-8")
    return written


def report(results: Results, growths: Sequence[Growth], clients: Sequence[Client], load: str, rounds: int) -> str:
    """The part, as Markdown; the pictures are those of `write_pictures`."""
    now = datetime.datetime.now(datetime.timezone.utc)
    versions = " and ".join(f"kernels {version_of(client, 'kernels')} ({client.name})" for client in clients)
    lines = [
        "## Costs as they grow",
        "",
        "Both axes are logarithmic: a cost in proportion grows tenfold where the horizontal axis does.",
        "",
        f"- date: {now:%Y-%m-%d %H:%M} UTC",
        f"- machine: {cpu_name()}, {cores()} cores; {load}",
        f"- {versions}",
        f"- method: {medians(rounds)}, or of fewer where they took more than 10 s together, each a process of "
        "its own, in turn; huggingface_hub's session made before; one local Hub that waits "
        f"{LATENCY * 1e3:.0f} ms before every answer. The existing client is measured at fewer points where it is "
        "slow. Each figure is a point of a curve.",
    ]
    for growth in growths:
        lines += ["", f"### {growth.heading}", "", growth.what, ""]
        lines += [_picture(results, growth, cost) for cost in growth.costs if curves(results, growth, cost)]
        for cost in growth.costs:
            lines += ["", *_figures(results, growth, cost)]
    return "\n".join([*lines, *results.failed(), ""])


def _picture(results: Results, growth: Growth, cost: Cost) -> str:
    """The line of Markdown that shows a picture, with what it says for those who do not see it."""
    ends = "; ".join(
        f"{curve.name} {cost.format.format(curve.points[0][1])} at {curve.points[0][0]:,.0f}, "
        f"{cost.format.format(curve.points[-1][1])} at {curve.points[-1][0]:,.0f}"
        for curve in curves(results, growth, cost)
    )
    return f"![{cost.title} over the {growth.unit}: {ends}]({(IMAGES / _file(growth, cost)).as_posix()})"


def _figures(results: Results, growth: Growth, cost: Cost) -> list[str]:
    lines = [f"| {cost.title.lower()} | {' | '.join(f'{count:,}' for count in growth.counts)} |"]
    lines.append("|---|" + "--:|" * len(growth.counts))
    for curve in curves(results, growth, cost):
        found = dict(curve.points)
        cells = [cost.format.format(found[count]) if count in found else "–" for count in growth.counts]
        lines.append(f"| {curve.name} | {' | '.join(cells)} |")
    return lines


def _file(growth: Growth, cost: Cost) -> str:
    return f"{growth.name}-{cost.name}.svg"
