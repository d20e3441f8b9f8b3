"""The notebooks run, their outputs are those that are committed, and the site shows them."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from doc_pages import ROOT, anchors
from html_cells import ReadHtml

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

spec = importlib.util.spec_from_file_location("book_notebooks", ROOT / "book" / "notebooks.py")
assert spec is not None
assert spec.loader is not None
notebooks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(notebooks)

#: What a notebook imports that not every environment has.
NEEDED = {"faster-llama": "transformers"}

#: What the cells of the notebooks may say beside their results: what is being built.
EXPECTED = re.compile(r"Building torch-\w+ …")


@pytest.fixture(scope="module", params=notebooks.NOTEBOOKS, ids=lambda path: path.stem)
def ran(request: pytest.FixtureRequest, examples: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A notebook, and the same after a run."""
    path: Path = request.param
    if path.stem in NEEDED:
        pytest.importorskip(NEEDED[path.stem])
    folder = tmp_path_factory.mktemp("notebook").resolve()
    return path, notebooks.run(nbformat.read(path, as_version=4), examples, folder)


@pytest.mark.skipif(sys.platform == "win32", reason="`%%bash`")
def test_a_notebook_runs_and_its_outputs_are_those_that_are_committed(ran: tuple[Path, Any]) -> None:
    path, notebook = ran
    assert notebooks.same(notebook) == notebooks.same(nbformat.read(path, as_version=4)), "`make notebooks` writes them"


def test_its_results_are_tables_plain_text_and_short_errors(ran: tuple[Path, Any]) -> None:
    """Tables are plain HTML; nothing else is written to stderr; an error has the cell's frame and one of ours."""
    for output in (output for cell in ran[1].cells if cell.cell_type == "code" for output in cell.outputs):
        if output.output_type == "execute_result":
            assert set(output.data) <= {"text/plain", "text/html", "image/png"}
            tags = ReadHtml(output.data.get("text/html", "")).tags
            assert tags <= {"table", "div", "thead", "tbody", "tr", "th", "td"}
        elif output.output_type == "stream":
            said = output.text.splitlines() if output.name == "stderr" else []
            assert [line for line in said if not EXPECTED.fullmatch(line)] == []
        else:
            lines = [line for line in "\n".join(output.traceback).splitlines() if line.strip("- ")]
            frames = lines[: 1 + next(at for at, line in enumerate(lines) if line.startswith(f"{output.ename}: "))]
            assert [line.split()[0] for line in frames if not re.match(r" +\d+", line)] == [
                output.ename,
                "Cell",
                "---->",
                "File",
                "--->",
                f"{output.ename}:",
            ]


@pytest.mark.parametrize("path", notebooks.NOTEBOOKS, ids=lambda path: path.stem)
def test_a_committed_notebook_has_nothing_of_the_machine_that_ran_it(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert dict(notebook.metadata.language_info) == {"name": "python"}
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert [cell.metadata for cell in notebook.cells if set(cell.metadata) - {"tags"}] == []
    assert re.findall(r"(?:/tmp|/home|/root|/work|/Users|site-packages)\b.{30}", path.read_text("utf-8")) == []


@pytest.mark.parametrize("path", notebooks.NOTEBOOKS, ids=lambda path: path.stem)
def test_the_links_of_a_notebook_lead_somewhere(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    links = [link for cell in notebook.cells if cell.cell_type == "markdown" for link in _links(cell.source)]
    assert links
    for link in links:
        name, _, anchor = link.partition("#")
        target = path.parent / name
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("path", notebooks.NOTEBOOKS, ids=lambda path: path.stem)
def test_the_site_shows_a_notebook_with_its_outputs(path: Path, site: Path) -> None:
    page = (site / "notebooks" / f"{path.stem}.html").read_text(encoding="utf-8")
    assert (site / "notebooks" / path.name).read_bytes() == path.read_bytes()
    assert f'download="{path.name}"' in page
    shown = _words(re.sub(r"<[^>]+>", "", page))
    notebook = nbformat.read(path, as_version=4)
    for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
        for output in cell.outputs if not cell.source.startswith("%%writefile") else ():
            html = output.get("data", {}).get("text/html", "")
            if "image/png" in output.get("data", {}):
                assert f'src="data:image/png;base64,{output.data["image/png"].strip()}"' in page
            elif html:
                assert "style=" not in page.partition("<table>")[2].partition("</table>")[0]
                assert all(_words(text) in shown for text in ReadHtml(html).cells)
            else:
                text = output.get("text") or output.get("evalue") or output.data["text/plain"]
                assert _words(text) in shown
    links = re.findall(r'href="([^":]+\.ipynb)"', page.partition("<article")[2].partition("</article")[0])
    assert links == [path.name]


def _links(markdown: str) -> list[str]:
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", markdown) if "://" not in link]


def _words(text: str) -> str:
    import html

    return " ".join(html.unescape(text).split())
