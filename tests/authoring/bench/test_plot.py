"""The drawing: readable on a light and on a dark page, the same for the same report."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from kernels.authoring.bench import Machine, Report, Times, WorkloadOutcome
from kernels.authoring.bench.plot import INK, KERNEL, REFERENCE, check_plot, draw, format_seconds
from kernels.errors import MissingPythonDependency, RequestError

pytest.importorskip("matplotlib")

OUTCOMES = (
    WorkloadOutcome(
        script="benchmark_x.py",
        benchmark="Relu",
        workload="small$1$",
        verified=True,
        times=Times.of([1e-3, 2e-3, 3e-3]),
        reference=Times.of([4e-3]),
        speedup=2.0,
    ),
    WorkloadOutcome(script="benchmark_x.py", benchmark="Relu", workload="alone", times=Times.of([5e-3])),
    WorkloadOutcome(script="benchmark_x.py", benchmark="Relu", workload="broken", verdict="failed", reason="no"),
)
REPORT = Report(
    kernel="acme/<relu>",
    commit=None,
    variant="torch-cpu",
    machine=Machine(
        target="torch2.13-cpu-x86_64-linux",
        backend="cpu",
        device="cpu",
        device_name="A processor & more",
        torch="2.13.0",
        threads=2,
        python="3.11.7",
        kernels="0.0.0",
        date="2026-01-02T03:04:05+00:00",
    ),
    iterations=3,
    warmup=1,
    outcomes=OUTCOMES,
)


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2.2 defines it."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("page", ["#ffffff", "#0d1117"])
@pytest.mark.parametrize("colour", [INK, KERNEL, REFERENCE])
def test_colours_stand_out_on_a_light_and_on_a_dark_page(colour: str, page: str) -> None:
    assert contrast(colour, page) >= 3


def test_the_drawing_has_no_background_no_other_colour_and_text_that_is_text(tmp_path: Path) -> None:
    place = tmp_path / "times.svg"
    draw(REPORT, place)
    text = place.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", text)) == {INK, KERNEL, REFERENCE}
    words = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"<relu>, torch-cpu", "A processor & more, 2 threads, Torch 2.13.0"} <= set(words)
    assert {"Relu.small$1$", "Relu.alone"} <= set(words)
    assert {"2.00 ms  (2.00x)", "4.00 ms", "5.00 ms", "kernel", "reference"} <= set(words)
    assert "Relu.broken" not in words


def test_a_repository_has_its_whole_name_and_a_folder_its_own_alone(tmp_path: Path) -> None:
    draw(msgspec.structs.replace(REPORT, commit="0" * 40), tmp_path / "repository.svg")
    draw(msgspec.structs.replace(REPORT, kernel="/home/ada/relu"), tmp_path / "folder.svg")
    assert "acme/&lt;relu&gt;, torch-cpu" in (tmp_path / "repository.svg").read_text(encoding="utf-8")
    assert "/home/ada" not in (tmp_path / "folder.svg").read_text(encoding="utf-8")


def test_a_quick_workload_is_drawn_as_long_as_a_slow_one(tmp_path: Path) -> None:
    def drawn(seconds: float) -> str:
        quick = msgspec.structs.replace(OUTCOMES[1], times=Times.of([seconds]))
        draw(msgspec.structs.replace(REPORT, outcomes=(OUTCOMES[0], quick)), tmp_path / "times.svg")
        return (tmp_path / "times.svg").read_text(encoding="utf-8")

    bars = [re.findall(r'd="(M [^"]+)"', drawn(seconds)) for seconds in (5e-3, 5e-9)]
    assert bars[0] == bars[1]


def test_the_same_report_gives_the_same_file(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        draw(REPORT, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_nothing_is_drawn_where_nothing_was_timed(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="Nothing to draw: no workload of acme/<relu> has times"):
        draw(msgspec.structs.replace(REPORT, outcomes=OUTCOMES[2:]), tmp_path / "times.svg")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["times.png", "times", "nowhere/times.svg"])
def test_a_file_that_cannot_be_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RequestError, match="expected a file name"):
        check_plot(tmp_path / name)


def test_without_matplotlib_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingPythonDependency, match="pip install matplotlib"):
        check_plot(tmp_path / "times.svg")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1.0, "0"), (1e-9, "1.00 ns"), (9.994e-9, "9.99 ns"), (12.34e-6, "12.3 µs"), (123.4e-6, "123 µs"),
        (999.6e-6, "1.00 ms"), (0.9994, "999 ms"), (0.9996, "1.00 s"), (75.0, "75.00 s"),
    ],
)  # fmt: skip
def test_times_have_three_digits(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
