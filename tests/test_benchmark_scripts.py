"""What the scripts in benchmarks/ do with their samples: nothing is measured here."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

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
