"""Write the pages of the reference that come from the code, and the schema of `build.toml`: `make reference`.

A module gives the text of each page. A test compares what is committed with it, so that a page cannot say something
else than the code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import api_names
import commands_page
import figures
import pictures
from generated_part import with_generated_part
from settings_page import settings_reference

from kernels.authoring.compile.build_toml import reference as build_toml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def _with_pictures(page: Path) -> str:
    return pictures.with_pictures(page, figures.with_figures(page) if page in figures.PAGES else None)


#: The files that are written, and what gives their text.
GENERATED: Mapping[Path, Callable[[], str]] = {
    DOCS / "build-toml.md": lambda: build_toml.write_reference(DOCS / "build-toml.md"),
    build_toml.SCHEMA_PATH: build_toml.schema_text,
    DOCS / "commands.md": commands_page.text,
    api_names.INDEX: api_names.index,
    DOCS / "settings.md": lambda: with_generated_part(DOCS / "settings.md", settings_reference()),
    **{page: partial(figures.with_figures, page) for page in figures.PAGES},
    **pictures.files(),
    **{page: partial(_with_pictures, page) for page in pictures.pages()},
}


def main() -> None:
    """Write every file that is not as it should be."""
    for path, text in GENERATED.items():
        written = text()
        if not path.is_file() or path.read_text(encoding="utf-8") != written:
            path.write_text(written, encoding="utf-8")
            print(f"written: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
