"""The text of every page passes each check, and each check notices what it is for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from doc_pages import ALL_PAGES, ROOT, page_id
from page_checks import CHECKS, foreign_addresses


@pytest.mark.parametrize("page", ALL_PAGES, ids=page_id)
def test_a_page_passes_every_check(page: Path) -> None:
    assert [f"{name}: {fault}" for name, check in CHECKS.items() for fault in check(page)] == []


def _block(language: str, text: str, mark: str = "") -> str:
    return f"{mark}\n```{language}\n{text}\n```\n"


#: Pages with a fault, each with the check that notices it.
FAULTS = {
    "blocks": [
        *(_block(each, "1") for each in ("bash", "py", "Python", "python title=a", "")),
        "> ```python\n> 1\n> ```\n",
        "~~~python\n1\n~~~\n",
        "````python\n1\n````\n",
        "1. Do:\n\n   ```bash\n   1\n   ```\n",
    ],
    "marks": [_block("python", "1", "<!-- needs: no_such_module -->")],
    "documents": [_block("json", "{"), _block("toml", "a ="), "1. Do:\n\n   ```json\n   {\n   ```\n"],
    "programs": [
        _block("console", "$ make nope"),
        _block("console", "$ HF_HUB_OFFLINE=1 kernels cache --nope"),
        _block("console", "$ kernels nope"),
        "Use `make nope`.",
        "Use `HF_HUB_OFFLINE=1 kernels cache --nope`.",
        "Use `python -m kernels cache --nope`.",
        "Use ``kernels cache --nope``.",
        "Use `kernels\nnope`.",
    ],
    "examples": [_block("console", "$ kernels explain kernels-examples/nope"), "`kernels-examples/nope`"],
    "html": [
        '<a href="nope.md">x</a>',
        '<a href="README.md#nope">x</a>',
        "<img src='images/nope.svg' alt='A picture'>",
        "<img src='images/a.svg'>",
        "<script>fetch('x')</script>",
        "<video src='images/a.svg'></video>",
        "<object data='x'></object>",
        '<p style="background: url(http://example.com/a)">',
        '<p onclick="x()">',
    ],
    "variables": ["Set `KERNELS_NOPE=1`.", _block("console", "$ KERNELS_NOPE=1 kernels cache")],
    "names": ["`kernels.nope`", "`kernels.errors.Nope`", "`kernels.get_kernels(model)`", "`kernels.Mode.NOPE`"],
}


@pytest.mark.parametrize(
    ("check", "text"), [(name, text) for name, texts in FAULTS.items() for text in texts], ids=repr
)
def test_a_check_notices_what_it_is_for(check: str, text: str, tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"# A page\n\n{text}", encoding="utf-8")
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.svg").touch()
    assert list(CHECKS[check](page)) != []


GOOD = f"""# A page

See `kernels.get_kernel(name)`, `kernels.errors.NoSuitableBuild`, `kernels.Mode.INFERENCE`, ``kernels.backends``
and `KERNELS_HUB`.
Use `HF_HUB_OFFLINE=1 kernels cache --json` or `make test`. <a href="#a-page">Up</a> <img src='a.svg' alt="A picture">

1. Do:

   <!-- not run: it has no end -->
   ```json
   {{
   ```
{_block("console", "$ HF_HUB_OFFLINE=1 kernels cache --json  # with a comment")}"""


def test_every_check_has_a_fault_that_it_notices_and_passes_a_good_page(tmp_path: Path) -> None:
    assert set(FAULTS) == set(CHECKS)
    page = tmp_path / "README.md"
    page.write_text(GOOD, encoding="utf-8")
    (tmp_path / "a.svg").touch()
    assert [fault for check in CHECKS.values() for fault in check(page)] == []


def test_every_picture_in_the_folder_is_on_a_page() -> None:
    """Of a picture with several layouts, one is named, and the site has the others."""
    sources = [*ALL_PAGES, ROOT / "mkdocs.yml", ROOT / "CONTRIBUTING.md"]
    text = "".join(page.read_text(encoding="utf-8") for page in sources)
    images = ROOT / "docs" / "images"
    shown = {re.sub("(-narrow)?(-still)?$", "", name) for name in re.findall(r"images/([\w/-]+)\.\w+", text)}
    there = {path.relative_to(images).with_suffix("").as_posix() for path in images.rglob("*") if path.is_file()}
    assert {name for name in there if re.sub("(-narrow)?(-still)?$", "", name) not in shown} == set()


OWN = [path for folder in ("stylesheets", "javascripts") for path in sorted((ROOT / "docs" / folder).iterdir())]


@pytest.mark.parametrize("path", OWN, ids=page_id)
def test_the_styles_and_scripts_of_the_site_ask_no_other_host(path: Path) -> None:
    assert foreign_addresses(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "text",
    [
        '@import "other.css";',
        "a { background: url( 'http://example.com/a.png') }",
        "a { background: url(//example.com/a.png) }",
        'fetch("https://example.com")',
        "new XMLHttpRequest()",
        "navigator.sendBeacon('x')",
        'import("https://example.com/a.js")',
        'const there = "//example.com/a.js";',
    ],
)
def test_an_address_of_another_host_is_noticed(text: str) -> None:
    assert foreign_addresses(text) != []
