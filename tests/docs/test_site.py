"""The site is built without a warning, loads nothing from another host, and has every page in its menu."""

from __future__ import annotations

import re
import shutil
import subprocess
from html import unescape
from itertools import groupby
from pathlib import Path

import pytest
from api_names import documented_names, summary


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    loaded = re.compile(
        r"""<(?:script|link|img|iframe|source|image|use|video|audio|object|embed)\b[^>]*?"""
        r"""\b(?:src|srcset|href|data|poster)=["']?(https?:)?//|\bstyle=["'][^"'>]*url\(["']?(https?:)?//"""
    )
    found = {
        page.relative_to(site).as_posix(): match[0]
        for page in site.rglob("*.html")
        for match in loaded.finditer(page.read_text(encoding="utf-8"))
        if 'rel="canonical"' not in match[0]
    }
    assert found == {}
    styles = [path for path in site.rglob("*.css") if re.search(r"url\(['\"]?(https?:)?//", path.read_text("utf-8"))]
    assert styles == []


def test_the_home_page_and_the_search_index_are_there(site: Path) -> None:
    assert "<h1" in (site / "index.html").read_text(encoding="utf-8")
    assert (site / "search" / "search_index.json").is_file()


def test_every_name_of_the_python_api_has_an_anchor_with_its_description(site: Path) -> None:
    for path, names in groupby(documented_names(), key=lambda each: each[1]):
        html = (site / "api" / f"{path.stem}.html").read_text(encoding="utf-8")
        parts = dict(re.findall(r'<h[2-6] id="([^"]+)"(.*?)(?=<h[2-6] |$)', html, flags=re.DOTALL))
        for name, _ in names:
            shown = " ".join(unescape(re.sub(r"<[^>]+>", "", parts[name])).split())
            assert summary(name).replace("`", "") in shown, name


def test_types_of_the_public_api_lead_to_what_documents_them(site: Path) -> None:
    html = (site / "api" / "get-kernels.html").read_text(encoding="utf-8")
    assert re.search(r'<a [^>]*href="backends\.html#kernels\.BackendName"', html)
    assert re.search(r'<a [^>]*href="errors\.html#kernels\.errors\.NoSuitableBuild"[^>]*><code>NoSuitableBuild', html)


def test_every_page_has_its_own_title_and_description(site: Path) -> None:
    pages = [path for folder in (".", "api", "notebooks") for path in (site / folder).glob("*.html")]
    texts = {path.name: path.read_text(encoding="utf-8") for path in pages if path.name != "404.html"}
    for tag in (r"<title>([^<]+)</title>", r'<meta name="description" content="([^"]+)">'):
        found = [re.findall(tag, text)[0] for text in texts.values()]
        assert sorted(each for each in set(found) if found.count(each) > 1) == []


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file that git knows, one that it does not, and a hidden one."""
    repository_files = pytest.importorskip("repository_files")
    folder = tmp_path / "checkout" / "examples"
    folder.mkdir(parents=True)
    for name in ("known file.py", "unknown.py", ".env"):
        (folder / name).write_text("")
    monkeypatch.setattr(repository_files, "ROOT", folder.parent)
    return folder


def _git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_a_listed_folder_has_what_git_knows(checkout: Path) -> None:
    from repository_files import _kept

    _git(checkout.parent, "init")
    _git(checkout, "add", "known file.py")
    assert _kept(checkout) == ["known file.py"]


def test_nothing_is_listed_where_git_does_not_answer(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mkdocs.exceptions import PluginError
    from repository_files import _kept

    (checkout.parent / ".git").mkdir()  # none that git would read
    with pytest.raises(PluginError, match="git"):
        _kept(checkout)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(PluginError, match="git is needed"):
        _kept(checkout)


def test_in_a_source_distribution_what_is_not_hidden_is_listed(checkout: Path) -> None:
    from repository_files import _kept

    assert _kept(checkout) == ["known file.py", "unknown.py"]
