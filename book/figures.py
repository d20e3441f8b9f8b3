"""The table of figures at the front of the README and of the documentation, taken from docs/benchmarks.md.

What the front says is what was measured: `make reference` takes the figures over after `make bench`.
"""

from __future__ import annotations

import re
from pathlib import Path

from generated_part import with_generated_part

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "docs" / "benchmarks.md"

#: The pages with the table.
PAGES = (ROOT / "README.md", ROOT / "docs" / "README.md")

#: What a row of the front says, and the rows of docs/benchmarks.md that it takes its figures from.
_ROWS = (
    ("`import kernels`", ("`import kernels`",)),
    (
        "a cached kernel in a new process",
        ("requests, warm, new process, `version=1`", "time, warm, session not there"),
    ),
    (
        "a kernel of 63 files, not cached",
        ("requests, cold, 63 files", "time, cold, 63 files, session not there"),
    ),
    ("the same in 8 processes at once", ("requests, 8 processes at once, cold, 63 files",)),
    ("`kernelize` with 8 repositories, not cached", ("`kernelize` of a model that needs 8 repositories, cold",)),
    ("`version=1`, cached, with `HF_HUB_OFFLINE=1`", ("the same, `HF_HUB_OFFLINE=1`",)),
)


#: Figures that are no number of requests.
_SAID = {"failed": "fails", "0": "loads, no request"}


def front_table(page: str = "benchmarks.md") -> str:
    """The table, from the measured figures.

    Args:
        page: Where docs/benchmarks.md is, seen from the page with the table.

    Raises:
        LookupError: docs/benchmarks.md has no such row, or has it twice.
    """
    text = BENCHMARKS.read_text(encoding="utf-8")
    measured = [[cell.strip() for cell in line.split("|")[2:5]] for line in text.splitlines() if line.startswith("| ")]
    existing, ours = re.findall(r"existing: kernels (\S+); ours: kernels (\S+)", text)[0]
    date = re.findall(r"^- date: (\S+)", text, flags=re.MULTILINE)[0]  # that of the client: other parts have their own

    def figures(column: int, rows: tuple[str, ...]) -> str:
        cells = []
        for row in rows:
            found = [cells[column] for cells in measured if cells[0] == row]
            if len(found) != 1:
                raise LookupError(f"docs/benchmarks.md has {len(found)} rows {row!r}; expected one")
            cells.append(_counted(found[0]))
        return ", ".join(cells)

    lines = [f"| what | existing client {existing} | this one, {ours} |", "|---|---|---|"]
    lines += [f"| {name} | {figures(1, rows)} | **{figures(2, rows)}** |" for name, rows in _ROWS]
    source = f"Measured on {date} side by side, with a Hub that answers after 50 ms: [benchmarks]({page})."
    return "\n".join([*lines, "", source])


def with_figures(page: Path) -> str:
    """The text of a page, with the figures of now."""
    return with_generated_part(page, front_table("docs/benchmarks.md" if page.parent == ROOT else "benchmarks.md"))


def _counted(figure: str) -> str:
    """A figure with what it counts."""
    if figure in _SAID:
        return _SAID[figure]
    if not figure.isdigit():
        return figure
    return f"{figure} request" if figure == "1" else f"{figure} requests"
