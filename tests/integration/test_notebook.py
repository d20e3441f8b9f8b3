"""The example notebook runs, and shows its results as tables."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from example_kernels import example_builder
from html_cells import ReadHtml

from kernels.server import HubServer

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first-steps.ipynb"

#: A line of an error in a notebook has colours.
_COLOUR = re.compile("\x1b\\[[0-9;]*m")


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The outputs of each code cell, by the start of its last line."""
    folder, builder = tmp_path_factory.mktemp("notebook"), example_builder()
    builder.build_examples(folder / "examples", noarch_only=True)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with HubServer(folder / "examples", trusted=[builder.PUBLISHER]) as hub, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("HF_", "KERNELS_"))]:
            patch.delenv(name)
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "HF_HOME"):
            patch.setenv(name, str(folder / "home"))
        for name, value in {"HUB": hub.url, "BACKEND": "cpu", "CACHE": str(folder / "cache")}.items():
            patch.setenv(f"KERNELS_{name}", value)
        client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}})
        client.execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return {cell.source.splitlines()[-1].partition("(")[0]: cell.outputs for cell in cells}


def test_its_results_are_tables_and_plain_text(outputs: dict[str, Any]) -> None:
    def shown(cell: str) -> tuple[list[str], str]:
        [output] = [each for each in outputs[cell] if each.output_type == "execute_result"]
        read = ReadHtml(output.data["text/html"])
        assert read.tags <= {"table", "div", "thead", "tbody", "tr", "th", "td"}
        return read.cells, output.data["text/plain"]

    cells, text = shown("explain")
    assert cells[0].startswith("kernels-examples/rms-norm version 1 (commit ")
    assert cells[1:7] == ["variant", "verdict", "reason", "torch-cpu", "chosen", "the only one that fits"]
    assert text.splitlines()[1] == "torch-cpu: chosen, the only one that fits"

    cells, text = shown("Target.current")
    assert cells[:1] == ["machine"]
    assert text.startswith("Target(")

    cells, text = shown("report")
    assert cells[0] == "2 of 2 layers run through a kernel"
    assert cells[7:10] == ["* (2)", "RMSNorm", "kernels-examples/rms-norm"]
    [printed] = outputs["print"]
    assert printed.text.strip() == text
    assert text.splitlines()[2].split() == ["*", "(2)", *cells[8:12], "INFERENCE", "(any", "mode)"]

    cells, text = shown("get_loaded_kernels")
    assert cells[:6] == ["kernel", "repository", "revision", "variant", "module", "rms-norm"]
    assert cells[8] == "torch-cpu"
    assert text.startswith("[LoadedKernel(")


def test_nothing_else_is_shown_and_an_error_is_short(outputs: dict[str, Any]) -> None:
    written = [each.text for cell in outputs.values() for each in cell if each.get("name") == "stderr"]
    # Without ipywidgets, tqdm says so where huggingface_hub imports it.
    assert [text for text in written if "TqdmWarning" not in text] == []
    [error] = outputs["get_kernel"]
    assert error.ename == "RepositoryNotFound"
    text = _COLOUR.sub("", "\n".join(error.traceback))
    lines = [line for line in text.splitlines() if line.strip("- ")]
    assert [line.split()[0] for line in lines] == ["RepositoryNotFound", "Cell", "---->", "File", "RepositoryNotFound:"]
    assert "Did you mean 'kernels-examples/rms-norm'?" in lines[-1]
