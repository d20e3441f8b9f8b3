"""Run the notebooks in docs/notebooks, and write their outputs into them: `make notebooks`.

They run where a clone would have them, `docs/notebooks` beside `build/examples`, on the processor, and use nothing of
the user's environment or cache. What is written has no times of execution and no paths of this machine. Outputs that
are as the committed ones, but for what differs in each run, stay as they are.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

import nbclient
import nbformat

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))

#: The outputs of a cell with this tag are those of the machine: they are never compared.
THIS_MACHINE = "this-machine"

_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
_COLOUR = re.compile("\x1b\\[[0-9;]*m")


def run(notebook: nbformat.NotebookNode, examples: Path, folder: Path) -> nbformat.NotebookNode:
    """Run a notebook beside the built example kernels, in an empty folder; returns it with its outputs."""
    ran = nbformat.from_dict(notebook)
    place = folder / "docs" / "notebooks"
    for each in (place, folder / "home", folder / "tmp", folder / "build"):
        each.mkdir(parents=True)
    (folder / "build" / "examples").symlink_to(examples)
    own = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "KERNELS_", "JUPYTER_"))}
    own |= {name: str(folder / "home") for name in ("HF_HOME", "IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR")}
    own |= {"JUPYTER_RUNTIME_DIR": str(folder / "home"), "TMPDIR": str(folder / "tmp"), "COLUMNS": "100"}
    own |= {"CUDA_VISIBLE_DEVICES": "", "KERNELS_BACKEND": "cpu", "TQDM_DISABLE": "1"}
    with patch.dict(os.environ, own, clear=True):
        client = nbclient.NotebookClient(
            ran,
            timeout=300,
            kernel_name="python3",
            record_timing=False,
            resources={"metadata": {"path": str(place)}},
            extra_arguments=["--IPKernelApp.log_level=ERROR"],
        )
        client.execute()
    return stable(ran, folder)


def stable(notebook: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    """A notebook that was run in a folder, without what only its machine has."""
    notebook.metadata = nbformat.from_dict(_METADATA)
    for cell in notebook.cells:
        cell.metadata = {"tags": cell.metadata["tags"]} if cell.metadata.get("tags") else {}
        if cell.cell_type != "code":
            continue
        outputs: list[nbformat.NotebookNode] = []
        for output in cell.outputs:  # a path or a colour can be in two parts of a stream
            if "TqdmWarning" in output.get("text", ""):  # it says that ipywidgets is not installed
                continue
            if outputs and output.output_type == "stream" and outputs[-1].get("name") == output.name:
                outputs[-1].text += output.text
            else:
                outputs.append(output)
        for output in outputs:
            if output.output_type == "stream":
                output.text = _here(output.text, folder)
            elif output.output_type == "error":
                output.evalue = _here(output.evalue, folder)
                output.traceback = [_here(line, folder) for line in output.traceback]
            else:
                output.metadata = {}
                output.data = {kind: _here(text, folder) for kind, text in output.data.items()}
        cell.outputs = outputs
    return notebook


def same(notebook: nbformat.NotebookNode) -> list[list[tuple[str, str]]]:
    """The outputs of each code cell, without what differs from run to run; none of a cell about the machine."""
    return [_same(cell) for cell in notebook.cells if cell.cell_type == "code"]


def keep_outputs(ran: nbformat.NotebookNode, committed: nbformat.NotebookNode) -> None:
    """Give the cells of a notebook that was run the outputs that are committed, where they say the same."""
    for cell, before in zip(ran.cells, committed.cells, strict=True):
        if cell.cell_type == "code" and before.outputs and _same(cell) == _same(before):
            cell.outputs = before.outputs


def main() -> None:
    """Run every notebook, and write those whose outputs have changed."""
    sys.path[:0] = [str(ROOT / "examples" / "kernels")]
    from build import build_examples

    examples = ROOT / "build" / "examples"
    build_examples(examples)
    for path in NOTEBOOKS:
        committed = path.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            ran = run(nbformat.reads(committed, as_version=4), examples, Path(folder).resolve())
        keep_outputs(ran, nbformat.reads(committed, as_version=4))
        written = nbformat.writes(ran) + "\n"
        if written != committed:
            path.write_text(written, encoding="utf-8")
            print(f"written: {path.relative_to(ROOT)}")


def _same(cell: nbformat.NotebookNode) -> list[tuple[str, str]]:
    if THIS_MACHINE in cell.metadata.get("tags", ()):
        return []
    return [(kind, _same_everywhere(text)) for output in cell.outputs for kind, text in _texts(output)]


def _texts(output: nbformat.NotebookNode) -> list[tuple[str, str]]:
    if output.output_type == "stream":
        return [(output.name, output.text)]
    if output.output_type == "error":
        return [("error", "\n".join(output.traceback))]
    return sorted(output.data.items())


def _here(text: str, folder: Path) -> str:
    """A text without colours and the paths of the run: files that it wrote are named from its own folder on."""
    text = _COLOUR.sub("", text)
    text = re.sub(rf"{re.escape(str(folder))}/tmp/\w+/?", "", text)
    text = re.sub(r"(?<=File )\S+/src/(?=kernels/)", "", text)
    return text.replace(str(folder), "…").replace(str(ROOT), "…")


def _same_everywhere(text: str) -> str:
    for pattern, word in (
        (r"(?<![0-9a-zA-Z])[0-9a-f]{7,64}(?![0-9a-zA-Z])", "<commit>"),
        (r"torch2\d+-cxx11-cpu-\w+-\w+|torch-cpu", "<build>"),  # compiled, where there is a compiler
        (r"(?<=_)[0-9a-f]{7}(?=_|\b)", "<id>"),
        (r"(?<=')[\w+/]{43}=(?=')", "<digest>"),
        (r"[0-9.]+ (B|kB|MB|bytes)\b", "<size>"),
        (r"\b[\d.]+ ?m?s\b", "<time>"),
        (r"http://127\.0\.0\.1:\d+", "<hub>"),
        (r"(?<=\.py:)\d+|(?<=>:)\d+", "<line>"),
        (r"(?<![\w.])[\d,]*\d(\.\d+)?e[+-]\d+|(?<![\w.])\d[\d,]*\.\d+(?![\w.])|(?<![\w.])0(?![\w.])", "<number>"),
        (r"[\d,.]+(?= (?:tokens/s|with kernels|times))", "<number>"),
        (r"[ \t-]+", " "),
    ):
        text = re.sub(pattern, word, text)
    return "\n".join(line.strip() for line in text.strip().splitlines())


if __name__ == "__main__":
    main()
