"""The tables of the pages are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from doc_pages import ROOT, names, table

import kernels
from kernels import backends
from kernels.layer.mode import KernelizeFallback, Mode, serving_modes


def test_the_variables_of_other_software_on_the_page_are_read() -> None:
    sources = Path(kernels.__file__).parent.rglob("*.py")
    quoted = set(re.findall(r"[\"/ ]([A-Z][A-Z0-9_]+)[\", )]", "".join(path.read_text("utf-8") for path in sources)))
    named = {name for row in table("settings.md", "visible devices") for name in names(row[1])}
    assert len(named) > 20
    assert named - quoted == set()


def test_the_table_of_backends_is_the_registry() -> None:
    def cells(backend: backends.Backend) -> list[str]:
        return [
            f"`{backend.name}`",
            f"`{backend.device_type}`",
            f"`{backend.mapping_device}`",
            f"`{backend.dispatch_key}`",
            "yes" if backend.checks_archs else "no",
        ]

    assert [row[:5] for row in table("backends.md", "`cuda`")] == [cells(each) for each in backends.all_backends()]


def test_the_table_of_modes_is_the_order_in_which_they_serve() -> None:
    modes = [Mode.INFERENCE, Mode.TRAINING, Mode.INFERENCE | Mode.TORCH_COMPILE, Mode.TRAINING | Mode.TORCH_COMPILE]
    rows = [[names(cell.replace("\\|", "|")) for cell in row] for row in table("kernelize.md", "`INFERENCE`")]
    assert rows == [[[str(mode)], [str(each) for each in serving_modes(mode)]] for mode in modes]


def test_the_table_of_fallbacks_has_each_flag_and_whether_it_is_the_default() -> None:
    rows = {names(row[0])[0]: row[2].startswith("yes") for row in table("kernelize.md", "`NO_LAYER`")}
    single = [flag for flag in KernelizeFallback if flag.name not in ("NONE", "DEFAULT", "ALL")]
    assert rows == {flag.name: flag in KernelizeFallback.DEFAULT for flag in single}


def test_every_module_that_the_design_names_exists_and_every_room_is_named() -> None:
    source = Path(kernels.__file__).parent
    rooms, missing = set(), []
    for line in (ROOT / "docs" / "design.md").read_text(encoding="utf-8").splitlines():
        named = re.findall(r"`([a-z_/]+(?:\.py|/))`", line)
        # In a table, the first cell is the room that the other cells are about.
        room = source / named[0] if named and line.startswith(f"| `{named[0]}`") else source
        if room != source:
            rooms.add(named[0])
        missing += [name for name in named if not any((place / name).exists() for place in (ROOT, source, room))]
    assert missing == []
    here = {path.name if path.is_file() else f"{path.name}/" for path in source.iterdir()}
    assert {name for name in here if name.endswith((".py", "/")) and not name.startswith("__")} - rooms == set()


def test_every_test_that_the_security_page_names_exists() -> None:
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_/]*test_[a-z_]+\.py)`", text))
    places = [ROOT, ROOT / "tests", ROOT / "tests" / "security"]
    assert named
    assert {name for name in named if not any((place / name).is_file() for place in places)} == set()
