"""MkDocs hook: each notebook in docs/notebooks is a page, with its outputs, a download, and how to run it.

In a clone, on GitHub and in Jupyter, pages and notebooks link to `NAME.ipynb`; on the site these links lead to pages.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
from jinja2 import DictLoader
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

FOLDER = "notebooks"

_LINK = re.compile(r"(?<=\]\()([^)\s#:]+)\.ipynb(?=[)#])")

#: What `%%writefile` writes is coloured as its kind of file, below its name.
_LANGUAGES = {".py": "python", ".toml": "toml"}

_TEMPLATE = """
{%- extends 'markdown/index.md.j2' -%}

{% block input %}
{{ cell | code_block }}
{% endblock input %}

{% block output_group %}
{%- if cell.outputs and not cell.source.startswith('%%writefile') %}
<div class="notebook-output" markdown="1">

{% for output in cell.outputs %}{% block output scoped %}{{ super() }}{% endblock output %}{% endfor %}

</div>
{%- endif %}
{% endblock output_group %}

{% block stream %}
``````text
{{ output.text.rstrip() }}
``````
{% endblock stream %}

{% block error %}
``````text
{{ output.traceback | join('\n') | strip_ansi }}
``````
{% endblock error %}

{% block data_text scoped %}
``````text
{{ output.data['text/plain'] }}
``````
{% endblock data_text %}

{% block data_png scoped %}
<img src="data:image/png;base64,{{ output.data['image/png'] | trim }}" alt="The output above as a picture">
{% endblock data_png %}

{% block data_html scoped %}
<div>
{{ output.data['text/html'] | plain_table }}
</div>
{% endblock data_html %}
"""

_RUN = """
This page is a notebook, with the outputs of a run: [download]({name}){{ download="{name}" }}. To run it in a clone of
the repository:

```console
$ make demo
$ .venv/bin/pip install jupyterlab
$ .venv/bin/jupyter lab docs/notebooks/{name}
```
"""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Let the menu name notebooks: it leads to their pages."""
    config.nav = _pages_of(config.nav)
    return config


@event_priority(50)  # before the hook for files of the repository, which reads what the pages link to
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each notebook; the notebook itself is a file of the site."""
    for path in sorted(Path(config.docs_dir, FOLDER).glob("*.ipynb")):
        files.append(File.generated(config, f"{FOLDER}/{path.stem}.md", content=page_of(path)))
    return files


@event_priority(-50)  # after that hook, which looks for the files that links name
def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point the links of a page to notebooks at their pages."""
    return markdown if page.file.src_uri.startswith(f"{FOLDER}/") else _LINK.sub(r"\1.md", markdown)


def page_of(path: Path) -> str:
    """A notebook as Markdown, with its outputs."""
    notebook = nbformat.read(path, as_version=4)
    exporter = MarkdownExporter(extra_loaders=[DictLoader({"page.md.j2": _TEMPLATE})], template_file="page.md.j2")
    exporter.register_filter("code_block", _code_block)
    exporter.register_filter("plain_table", _plain_table)
    text, _ = exporter.from_notebook_node(notebook)
    # The first paragraph says who should read it.
    title, reader, rest = _LINK.sub(r"\1.md", text.strip()).split("\n\n", 2)
    return f"{title}\n\n{reader}\n{_RUN.format(name=path.name)}\n{rest}\n"


def _pages_of(menu: Any) -> Any:
    if isinstance(menu, list):
        return [_pages_of(each) for each in menu]
    if isinstance(menu, dict):
        return {title: _pages_of(each) for title, each in menu.items()}
    return re.sub(r"\.ipynb$", ".md", menu) if isinstance(menu, str) else menu


def _code_block(cell: nbformat.NotebookNode) -> str:
    first, _, rest = cell.source.partition("\n")
    if first.startswith("%%writefile "):
        name = first.removeprefix("%%writefile ")
        return f'``````{_LANGUAGES.get(Path(name).suffix, "text")} title="{name}"\n{rest}\n``````'
    if first == "%%bash":
        return "``````console\n" + "".join(f"$ {line}\n" for line in rest.splitlines()) + "``````"
    return f"``````python\n{cell.source}\n``````"


def _plain_table(html: str) -> str:
    """A table in the site's own style, which is readable in both schemes."""
    return re.sub(r' (?:style|class)="[^"]*"', "", html)
