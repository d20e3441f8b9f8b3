"""MkDocs hook: pages link to files of the repository outside of docs/, and the site has them as pages of its own.

A reader of the built site may have no network and no clone, so `../CONTRIBUTING.md` and `../examples/kernels/` become
pages below `repository/`: Markdown as it is, other text as one block of code, a folder as a list of its files.
"""

from __future__ import annotations

import os
import posixpath
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
FOLDER = "repository"

_LINK = re.compile(r"(?<=\]\()([^)\s#]+)((?:#[^)\s]*)?)(?=\))")

#: Sources are read from the pages that link to them; the search finds pages.
_NO_SEARCH = "---\nsearch:\n  exclude: true\n---\n\n"

#: What a block of code is coloured as.
_LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".sh": "bash", ".json": "json"}
_LANGUAGES |= {".cu": "cuda", ".cpp": "cpp", ".h": "cpp", ".conf": "nginx"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file and folder of the repository that a page links to, and for those that these link to."""
    waiting = [Path(config.docs_dir, each.src_uri) for each in files.documentation_pages()]
    while waiting:
        for target in _linked(waiting.pop()):
            page = page_of(target)
            if files.get_file_from_path(page) is None:
                files.append(File.generated(config, page, content=_content(target)))
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point the links of a page to files of the repository at their pages."""
    here = source_of(page.file.src_uri)
    folder = here if here.is_dir() else here.parent

    def moved(match: re.Match[str]) -> str:
        target = _target(match[1], folder)
        if target is None:
            return match[0]
        inside = target.is_relative_to(config.docs_dir)
        uri = target.relative_to(config.docs_dir).as_posix() if inside else page_of(target)
        if files.get_file_from_path(uri) is None:
            return match[0]
        return posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or ".") + match[2]

    return _LINK.sub(moved, markdown)


def page_of(path: Path) -> str:
    """The page that stands for a file or folder of the repository."""
    name = path.relative_to(ROOT).as_posix()
    return f"{FOLDER}/{name}" if path.suffix == ".md" else f"{FOLDER}/{name}.md"


def source_of(uri: str) -> Path:
    """The file or folder of the repository that a page stands for."""
    if not uri.startswith(f"{FOLDER}/"):
        return ROOT / "docs" / uri
    path = ROOT / uri.removeprefix(f"{FOLDER}/")
    return path if path.exists() else path.with_suffix("")


def _target(link: str, folder: Path) -> Path | None:
    """What a link leads to, if it is a file or folder of the repository."""
    if "://" in link or link.startswith(("mailto:", "/")):
        return None
    path = Path(os.path.normpath(folder / unquote(link)))
    return path if path.is_relative_to(ROOT) and path.exists() else None


def _linked(path: Path) -> list[Path]:
    """The files of the repository outside of docs/ that a page links to, and those that a folder has."""
    if path.is_dir():
        return [path / each for each in _kept(path) if _is_page(path / each)]
    if path.suffix != ".md" or not path.is_file():
        return []
    found = (_target(match[1], path.parent) for match in _LINK.finditer(path.read_text(encoding="utf-8")))
    return [target for target in found if target is not None and not target.is_relative_to(ROOT / "docs")]


def _content(path: Path) -> str:
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        return f"{_NO_SEARCH}# `{name}/`\n\n" + "".join(
            f"- [`{each}`]({each})\n" if _is_page(path / each) else f"- `{each}`\n" for each in _kept(path)
        )
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    return f"{_NO_SEARCH}# `{name}`\n\n``````{_LANGUAGES.get(path.suffix, 'text')}\n{text}``````\n"


def _kept(folder: Path) -> list[str]:
    """The files in a folder that belong to the repository; in a source distribution, all that are not hidden.

    Raises:
        PluginError: git does not say which these are. What it does not know, such as a `.env`, is not to be published.
    """
    if not (ROOT / ".git").exists():
        files = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
        return [each.as_posix() for each in files if not any(_is_left_out(part) for part in each.parts)]
    try:
        done = subprocess.run(["git", "ls-files", "-z", "."], cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        raise PluginError(f"git is needed to list {folder}: the site has only files that git knows ({error})") from None
    if done.returncode != 0:
        raise PluginError(f"git could not list {folder}: the site has only files that git knows\n{done.stderr.strip()}")
    return [each for each in done.stdout.split("\0") if each and (folder / each).is_file()]


def _is_left_out(part: str) -> bool:
    return part.startswith(".") or part == "__pycache__"


def _is_page(path: Path) -> bool:
    """Whether a file of a listed folder becomes a page: examples do; of sources and tests the list is enough."""
    if not path.is_relative_to(ROOT / "examples"):
        return False
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False
    return True
