"""Draw a report: one SVG that is readable on light and dark pages, or an image for each of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels.errors import MissingPythonDependency, RequestError
from kernels.support.written_paths import stay_inside

if TYPE_CHECKING:
    from kernels.authoring.bench.report import Report, WorkloadOutcome

__all__ = [
    "INK",
    "KERNEL",
    "REFERENCE",
    "check_matplotlib",
    "check_plot",
    "draw",
    "draw_pages",
    "format_seconds",
]

#: The background is transparent, and each colour has a contrast of at least 3 to 1 to a white page and to a nearly
#: black one, as WCAG 2.2 (1.4.11) requires of graphics.
INK = "#7d7d7d"
KERNEL = "#2f81d6"
REFERENCE = "#8a8a8a"

#: Pages by name: the colours of their background and of the text on it.
PAGES = {"light": ("#ffffff", "#24292f"), "dark": ("#0d1117", "#e6edf3")}

_BAR = 0.38

#: Opacity of a bar's inside, 0 to 1.
_PALE = 0.35


def check_plot(path: os.PathLike[str] | str) -> Path:
    """Check that a plot can be written, before anything is measured."""
    place = Path(path).expanduser().absolute()
    if place.suffix != ".svg" or not place.parent.is_dir() or place.is_dir():
        raise RequestError(
            f"`plot` is {os.fspath(path)!r}; expected a file name that ends in .svg, in a folder that exists."
        )
    check_matplotlib()
    return stay_inside(place)


def check_matplotlib() -> None:
    """Raise a `MissingPythonDependency` if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingPythonDependency(
            "A plot needs matplotlib, which is not installed: pip install matplotlib (the extra `bench`)."
        ) from None


def draw(report: Report, path: os.PathLike[str] | str) -> None:
    """Draw the medians of a report's workloads as an SVG, with a line from quartile to quartile; overwrites the file.

    Raises:
        RequestError: The path is invalid, or no workload has times.
        MissingPythonDependency: matplotlib is not installed.
        OSError: The file cannot be written.
    """
    _draw(report, check_plot(path), INK, None)


def draw_pages(report: Report, base: str, *, rasterized: bool = False) -> list[Path]:
    """Draw the medians of a report's workloads as `media/<base>_light.svg` and `media/<base>_dark.svg`.

    Args:
        report: The measurement.
        base: What the names of the files begin with.
        rasterized: Whether PNG files are drawn too.

    Returns:
        The files, in the current folder's `media`.

    Raises:
        RequestError: No workload has times.
        MissingPythonDependency: matplotlib is not installed.
        OSError: A file cannot be written.
    """
    check_matplotlib()
    drawn = []
    for page, (background, ink) in PAGES.items():
        for kind in ("svg", "png") if rasterized else ("svg",):
            place = Path("media", f"{base}_{page}.{kind}")
            place.parent.mkdir(parents=True, exist_ok=True)
            _draw(report, stay_inside(place), ink, background)
            drawn.append(place)
    return drawn


def _draw(report: Report, place: Path, ink: str, background: str | None) -> None:
    timed = [outcome for outcome in report.outcomes if outcome.times is not None]
    if not timed:
        raise RequestError(f"Nothing to draw: no workload of {report.kernel} has times.")
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    kind = place.suffix.removeprefix(".")
    # Text stays text, and ids and metadata depend on the content only: the same report gives the same file.
    settings: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "kernels", "font.family": "sans-serif"}
    settings |= dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), ink)
    settings["text.parse_math"] = False  # a name from a repository may have a `$`
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(8, 1.4 + 0.62 * len(timed)), layout="constrained")
        (FigureCanvasSVG if kind == "svg" else FigureCanvasAgg)(figure)
        axes = figure.add_subplot()
        _bars(figure, axes, timed)
        machine = report.machine
        # A folder's full path means nothing to readers of the page.
        kernel = report.kernel if report.commit is not None else Path(report.kernel).name
        where = f"{machine.device_name}, {machine.threads} threads, Torch {machine.torch}"
        axes.set_title(f"{kernel}, {report.variant}\n{where}", loc="left", fontsize=11)
        metadata = {"Date": None} if kind == "svg" else {}
        page: dict[str, Any] = {"transparent": True} if background is None else {"facecolor": background}
        figure.savefig(place, format=kind, metadata=metadata, dpi=200, **page)


def _bars(figure: Any, axes: Any, timed: list[WorkloadOutcome]) -> None:
    for row, outcome in enumerate(timed):
        assert outcome.times is not None
        pairs = [(outcome.times, KERNEL, "kernel")]
        if outcome.reference is not None:
            pairs.append((outcome.reference, REFERENCE, "reference"))
        # One scale for each workload: on a common one the bars of a quick workload would be invisible.
        longest = max(times.q3_seconds for times, _, _ in pairs) or 1.0
        for place, (times, colour, kind) in enumerate(pairs):
            middle = row + (place - (len(pairs) - 1) / 2) * _BAR
            low, median, high = (each / longest for each in (times.q1_seconds, times.median_seconds, times.q3_seconds))
            # The line has the bar's colour, and is visible because the bar is pale.
            axes.barh(middle, median, _BAR * 0.9, facecolor=(colour, _PALE), edgecolor=colour, label=kind)
            spread = [[median - low], [high - median]]
            axes.errorbar(median, middle, xerr=spread, color=colour, capsize=3, linewidth=1.5)
            text = format_seconds(times.median_seconds)
            if kind == "kernel" and outcome.speedup is not None:
                text += f"  ({outcome.speedup:.2f}x)"
            axes.annotate(text, (high, middle), (6, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_yticks(range(len(timed)), [outcome.name for outcome in timed])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.3)
    axes.set_xticks([])
    axes.set_xlabel("Medians and quartiles; each benchmark has its own scale", loc="left", fontsize=9)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend(unique.values(), unique.keys(), frameon=False, loc="outside lower right", ncols=2, fontsize=9)


def format_seconds(seconds: float) -> str:
    """A time with three digits and a unit.

    Example:
        >>> [format_seconds(each) for each in (0, 0.00000123, 0.0123, 4.5)]
        ['0', '1.23 µs', '12.3 ms', '4.50 s']
    """
    if seconds <= 0:
        return "0"
    for unit, size in (("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * size:
            value = seconds / size
            return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"
    return f"{seconds:.2f} s"
