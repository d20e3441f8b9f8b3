"""What the scripts in benchmarks/ do with their samples: nothing is measured here."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

Script = Callable[[str], ModuleType]

SCRIPTS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """Imports one of the scripts, which import each other by name, and forgets them all afterwards."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    yield importlib.import_module
    for name in {path.stem for path in SCRIPTS.glob("*.py")} & set(sys.modules):
        if Path(sys.modules[name].__file__ or "").parent == SCRIPTS:
            del sys.modules[name]


def test_each_script_writes_its_own_part_of_the_page(script: Script, tmp_path: Path) -> None:
    page = tmp_path / "docs" / "benchmarks.md"
    side_by_side = script("side_by_side")
    side_by_side.write_section(page, "gpu_kernels", "## On a GPU\n\nfast\n")
    side_by_side.write_section(page, "client", "# Benchmarks\n\nfirst\n")
    side_by_side.write_section(page, "mirror", "## From a mirror\n")
    side_by_side.write_section(page, "client", "# Benchmarks\n\nsecond\n")
    parts = ("# Benchmarks\n\nsecond", "## From a mirror", "## On a GPU\n\nfast")
    names = ("client", "mirror", "gpu_kernels")
    written = [f"{side_by_side.marker(name)}\n{part}" for name, part in zip(names, parts, strict=True)]
    assert page.read_text() == "\n\n".join(written) + "\n"
    with pytest.raises(ValueError, match=r"expected one of client, .*, got 'other'"):
        side_by_side.write_section(page, "other", "")


def test_a_figure_in_a_table_stays_on_one_line_with_its_unit(script: Script, tmp_path: Path) -> None:
    page = tmp_path / "page.md"

    script("side_by_side").write_section(page, "growth", "## Costs\n\nSome 5 ms.\n\n| ours | 0.5 s | 1,000 ms | 2 |")

    assert "| ours | 0.5\N{NO-BREAK SPACE}s | 1,000\N{NO-BREAK SPACE}ms | 2 |" in page.read_text(encoding="utf-8")
    assert "Some 5 ms." in page.read_text(encoding="utf-8")


def test_the_table_says_which_targets_are_met(script: Script) -> None:
    page, side_by_side = script("client_page"), script("side_by_side")
    results = side_by_side.Results()

    def add(measurement: str, **figures: dict[str, float]) -> None:
        for column, sample in figures.items():
            results.add(measurement, column.replace("_", " "), lambda sample=sample: sample)

    small, large, warm = page.CASES
    for case, existing, ours in ((small, 0.5, 0.19), (large, 1.5, 0.51), (warm, 0.2, 0.076)):
        seen = {"requests": 6, "depth": 4, "processor": 0.1}
        samples = {"existing": {**seen, "seconds": existing}, "ours": {**seen, "seconds": ours}}
        add(page.timed(case, True, 0.05), **samples, wire={"seconds": case.trips * 0.055, "processor": 0.01})
        add(page.timed(case, False, 0.05), **samples)
    add("hub parts", ours={"import": 120.0, "session": 70.0})
    add("builds", ours={"choosing": 140.0, "mb": 20.0})
    lines = page.table(results)
    times = [line for line in lines if line.startswith("| 5 | time")]
    assert [line.split(" | ")[6:] for line in times] == [
        ["3 round trips and 50 ms: 0.200 s", "yes |"],
        ["a third of the existing client's: 0.500 s", "**no** |"],
        ["1 round trip and 25 ms: 0.075 s", "**no** |"],
        ["half of the existing client's: 0.250 s", "yes |"],
        ["a third of the existing client's: 0.500 s", "**no** |"],
        ["half of the existing client's: 0.100 s", "yes |"],
    ]
    assert "| 5 | time, cold, 3 files, session made before | 0.500 s | 0.190 s | 0.38 | 0.165 s |" in "\n".join(times)
    assert "| 16 | choosing among 10,000 builds | – | 140 ms | – | – | 100 ms or less | **no** |" in lines
    assert "| 12 | resident memory after `import kernels` | – | – | – | – | 16 MB or less | not measured |" in lines
    numbers = [int(number) for line in lines[2:] for number in line.split("|")[1].split(",")]
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(1, 17))
    # A column for each time that is missed. 500 ms, less the imports of huggingface_hub, its session and the wire.
    missed = [line.strip("| ").split(" | ") for line in page.missed_table(results) if "--" not in line]
    columns = [" | ".join(column) for column in zip(*missed, strict=True)]
    assert any("not there" in column and "| 120 ms | 70 ms | 165 ms | 145 ms |" in column for column in columns)
    assert any(
        column.startswith("warm, session made before | 75 ms | 76 ms | – | – | 55 ms | 20 ms |") for column in columns
    )


def test_the_page_names_an_older_checkout_or_says_what_one_took(script: Script, tmp_path: Path) -> None:
    page, side_by_side = script("client_page"), script("side_by_side")
    ours = side_by_side.Client("ours", sys.executable, str(side_by_side.SOURCE))
    before = side_by_side.Client("before", sys.executable, str(tmp_path / "older" / "src"))

    alone = page.report(side_by_side.Results(), {"ours": ours}, "idle", 1)
    compared = page.report(side_by_side.Results(), {"ours": ours, "before": before}, "idle", 5)

    assert page.AS_BEFORE in alone
    assert "- method: one run (1 at other latencies" in alone
    assert page.AS_BEFORE not in compared
    assert "- ours, before: older" in compared
    assert "- method: medians of 5 runs (3 at other latencies" in compared


def test_processor_time_is_compared_with_an_older_checkout_with_and_without_the_wire(script: Script) -> None:
    page, side_by_side = script("client_page"), script("side_by_side")
    results = side_by_side.Results()
    for column, spent in {"existing": 0.2, "before": 0.15, "ours": 0.08, "wire": 0.01}.items():
        sample = {"processor": spent, "seconds": 0.5}
        results.add(page.timed(page.CASES[0], True, 0.05), column, lambda sample=sample: sample)
    heading, _, small, large, _ = page.processor_table(results)
    assert heading == "|  | existing | ours, before | ours | the wire | ours / before | the same, beyond the wire's |"
    assert small.endswith("| 200 ms of 500 ms | 150 ms of 500 ms | 80 ms of 500 ms | 10 ms of 500 ms | 0.53 | 0.50 |")
    assert large.endswith("| – | – | – | – | – | – |")


def test_the_wire_sends_what_a_call_needs_in_three_round_trips(script: Script) -> None:
    refs, overview = "/api/models/a/b/refs", "/api/organizations/a/overview"
    tree, metadata, code = "/api/models/a/b/tree/0?recursive=true", "/a/b/resolve/0/x.json", "/a/b/resolve/0/x.py"
    asked = [refs, overview, tree, metadata, code, metadata]
    assert script("client").necessary(asked) == [[refs, overview], [tree], [metadata, code]]
    assert script("client").necessary([refs]) == [[refs]]


def test_the_imports_of_a_process_are_summed(script: Script) -> None:
    written = (
        "import time: self [us] | cumulative | imported package\n"
        "import time:       200 |        300 | kernels.api\nimport time:       100 |        100 |   kernels\n"
        "import time:       700 |        700 | html.entities\nother\n"
    )
    expected = {"imports": 3, "imports_ms": 1.0, "own_imports": 2, "own_imports_ms": 0.3}
    assert script("side_by_side").imports(written) == pytest.approx(expected)
    assert script("side_by_side").imports("a warning") == {}


CURVES = {
    "files": {"existing": [(2, 8), (300, 604.5)], "ours": [(2, 5), (300, 303)], "the wire": [(2, 5), (300, 303)]},
    "one point": {"ours": [(7, 0.002)]},
    "wide": {"existing": [(1, 1e-4), (1e6, 1e5)], "ours": [(1, 1e5), (1e6, 1e-4)]},
    "layers": {"ours": [(1_000, 2.1), (100_000, 210.0)]},
}


@pytest.mark.parametrize("name", CURVES)
def test_a_picture_is_valid_and_keeps_all_within_its_frame(script: Script, name: str) -> None:
    curves = script("curves")
    drawn = curves.draw(
        "Time over the <files> & more", "files of the build", "milliseconds",
        [curves.Curve(client, points) for client, points in CURVES[name].items()],
    )  # fmt: skip
    root = ElementTree.fromstring(drawn)
    space = "{http://www.w3.org/2000/svg}"
    assert root.findtext(f"{space}title") == "Time over the <files> & more"
    assert "prefers-color-scheme: dark" in drawn
    assert "url(" not in drawn
    boxes = []
    for text in root.iter(f"{space}text"):
        width = curves.CHARACTER * len(text.text or "")
        left = float(text.get("x", "")) - {"start": 0, "middle": width / 2, "end": width}[text.get("text-anchor", "")]
        top = float(text.get("y", "")) - 11
        boxes.append((left, top, left + width, top + 14))
    for left, top, right, bottom in boxes:
        assert left >= 0
        assert top >= 0
        assert right <= curves.WIDTH
        assert bottom <= curves.HEIGHT
    for one, other in itertools.combinations(boxes, 2):
        apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
        assert apart, (one, other)
    for mark in [*root.iter(f"{space}circle"), *root.iter(f"{space}polyline")]:
        points = mark.get("points", f"{mark.get('cx')},{mark.get('cy')}").split()
        for x, y in (map(float, point.split(",")) for point in points):
            assert 0 <= x <= curves.WIDTH
            assert 0 <= y <= curves.HEIGHT - curves.BOTTOM


def test_a_picture_without_points_or_with_a_zero_is_refused(script: Script) -> None:
    curves = script("curves")
    with pytest.raises(ValueError, match="at least one point"):
        curves.draw("", "", "", [curves.Curve("ours", [])])
    with pytest.raises(ValueError, match="figures above 0"):
        curves.draw("", "", "", [curves.Curve("ours", [(1, 0)])])


def test_growth_is_drawn_and_listed_as_far_as_it_was_measured(script: Script, tmp_path: Path) -> None:
    page, side_by_side = script("growth_page"), script("side_by_side")
    results = side_by_side.Results()
    files, *_, layers = page.GROWTHS
    for count in files.counts:
        sample = {"requests": 3 + count, "seconds": 0.15 + count / 100}
        results.add(page.sample_name(files, count), "ours", lambda sample=sample: sample)
    results.add(page.sample_name(files, 3), "existing", lambda: {"requests": 10, "seconds": 0.5})
    results.add(page.sample_name(layers, 1_000), "ours", lambda: {"1000": 2.5})
    written = page.write_pictures(results, page.GROWTHS, tmp_path)
    assert [path.name for path in written] == ["files-requests.svg", "files-time.svg", "layers-time.svg"]
    text = page.report(results, [files, layers], [side_by_side.Client("ours", sys.executable)], "idle", 3)
    assert "| existing | – | 10 | – | – | – | – |" in text
    assert "| ours | 0.17 s | 0.18 s | 0.25 s | 0.45 s | 1.15 s | 3.15 s |" in text
    assert "ours 5 at 2, 303 at 300](images/benchmarks/files-requests.svg)" in text
    assert "ours 2.5 ms at 1,000" in text


def test_the_part_of_a_mirror_compares_its_requests_with_their_targets(script: Script) -> None:
    mirror, side_by_side = script("mirror"), script("side_by_side")
    results = side_by_side.Results()
    for case in mirror.CASES:
        if 0.05 in case.latencies:
            sample = {"requests": 2, "depth": 2, "bytes": 1_500, "seconds": 0.4}
            results.add(mirror.named(case, 0.05), "ours, mirror", lambda sample=sample: sample)
            results.add(mirror.named(case, 0.05), "existing, Hub", lambda sample=sample: {**sample, "seconds": 1.3})
    rows = {line.split(" | ")[0]: line.split(" | ")[3:] for line in mirror.requests_table(results)}
    assert rows["| 63 files, cold"] == ["2 (2), 1.5 kB", "2", "yes |"]
    assert rows["| 63 files, warm"] == ["2 (2), 1.5 kB", "1", "**no** |"]
    assert rows["| 200 MB build, cold"] == ["2 (2), 1.5 kB", "", " |"]
    assert rows["| 50 kernels of a lockfile, warm"] == ["2 (2), 1.5 kB", "0", "**no** |"]
    times = mirror.times_table(results, "seconds")
    assert "| 63 files, cold | 50 ms | 1.30 s | – | 0.40 s | 0.31 | yes |" in times


def test_requests_in_a_row_and_at_once_are_counted(script: Script) -> None:
    hub = script("local_hub")
    server = hub.SlowServer.__new__(hub.SlowServer)
    server.requests = [hub._Request("", start, end) for start, end in ((0, 2), (0, 2), (1, 3), (3, 5), (6, 7))]
    assert server.depth() == 3
    assert server.at_once() == 3
    server.requests = []
    assert (server.depth(), server.at_once()) == (0, 0)
