"""What a page has its reader do, step by step, in several terminals, works as printed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from doc_pages import PAGES, page_id
from walks import Walk, alike, expected, steps, walked

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="the steps are for bash")


@pytest.fixture
def walk(reader: Path, tmp_path: Path) -> Iterator[Walk]:
    walk = Walk(reader, tmp_path / "programs")
    yield walk
    walk.close()


@pytest.mark.parametrize("page", [page for page in PAGES if walked(page)], ids=page_id)
def test_the_steps_of_a_page_do_what_the_page_shows(page: Path, walk: Walk) -> None:
    if "$ openssl " in page.read_text(encoding="utf-8") and shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    for block in walked(page):
        if block.mark == "file":
            path = walk.folder / block.reason
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
            continue
        terminal, *compared = block.reason.split(", ")
        for command, shown in steps(block):
            printed, status = walk.run(terminal, command, shown)
            where = f"{page.name}, line {block.line}: {command}"
            if compared:
                assert status == 0, f"{where}\n{printed}"
            else:
                assert expected(shown).fullmatch(alike(printed)), f"{where}\n{printed}\n--- the page shows\n{shown}"
    assert walk.closed is None or not walk.closed.reached.exists(), walk.closed.reached.read_text()


def test_on_a_closed_machine_no_socket_is_opened(walk: Walk) -> None:
    printed, status = walk.run("closed cluster", "python -c 'import socket; socket.socket()'", "")
    assert (status, "the network is unreachable" in printed) == (1, True)
    assert walk.closed is not None
    assert "socket.__new__" in walk.closed.reached.read_text()


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("", "", True),
        ("", "Error: no\n", False),
        ("built in 2.1 s\n", "built in 0.3 s\n", True),
        ("built\n", "built\nNote: more\n", False),
        ("a\n…\nd\n", "a\nb\nc\nd\n", True),
        ("a\n…\nd\n", "a\nd\n", True),
        ("a\n…\nd\n", "a\nb\n", False),
        ("not found: …\n", "not found: icpx\n", True),
        (
            "for torch2.13-cpu-x86_64-linux, backend cpu\n",
            "for torch2.9.1-tvm-ffi0.1-cpu-aarch64-linux, backend cpu\n",
            True,
        ),
    ],
)
def test_output_is_compared_without_what_differs_from_machine_to_machine(shown: str, printed: str, same: bool) -> None:
    assert bool(expected(shown).fullmatch(alike(printed))) is same
