"""The pages of a mirror that is written from a Hub."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hub import TestHub

from kernels.catalog import CatalogChanges
from kernels.errors import MissingPythonDependency, RequestError
from kernels.mirror.stores.folder import FolderStore
from kernels.operations.mirroring.pages import write_pages
from kernels.operations.mirroring.prune import plan_mirror_prune, prune_mirror
from kernels.operations.mirroring.request import MirrorRequest, MirrorResult
from kernels.operations.mirroring.run import mirror

SVG = '<svg xmlns="http://www.w3.org/2000/svg"/>'
CARD = "# ReLU\n\nA fast ReLU.\n\n![Times](media/relu.svg) ![No](media/gone.svg)\n"


def run(place: Path, *repositories: str, html: bool = False, dry_run: bool = False) -> MirrorResult:
    return mirror(MirrorRequest(str(place), repositories=repositories, html=html, dry_run=dry_run))


@pytest.fixture
def place(tmp_path: Path, hub: TestHub) -> Path:
    hub.make_repo("acme/relu", variants=["torch-cpu"], files={"README.md": CARD, "media/relu.svg": SVG})
    hub.make_repo("acme/gelu", variants=["torch-cpu"])
    return tmp_path / "mirror"


def test_pages_are_written_where_they_are_wanted(place: Path) -> None:
    assert run(place, "acme/relu").pages is None
    assert not (place / "index.html").exists()
    assert run(place, "acme/relu", html=True).pages == CatalogChanges(written=1)
    html = (place / "catalog/acme/relu/index.html").read_text()
    assert "A fast ReLU." in html
    assert '<img alt="Times" src="data:image/svg+xml;base64,' in html
    assert "[image not shown: No]" in html
    assert "acme/relu" in (place / "index.html").read_text()


def test_pages_are_written_for_a_mirror_that_is_there(place: Path) -> None:
    run(place, "acme/relu", "acme/gelu")
    assert write_pages(str(place)) == CatalogChanges(written=2)
    assert write_pages(str(place)) == CatalogChanges(kept=2)


def test_a_place_without_a_mirror_has_no_pages(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"is not a mirror: it has no mirror\.json"):
        write_pages(str(tmp_path / "nothing"))


def test_a_mirror_with_pages_keeps_them_up_to_date(place: Path) -> None:
    run(place, "acme/relu", html=True)
    assert run(place, "acme/relu").pages is None  # nothing has changed
    assert run(place, "acme/gelu").pages == CatalogChanges(written=1, kept=1)
    assert (place / "catalog/acme/gelu/index.html").is_file()


def test_pages_of_what_is_pruned_are_removed(place: Path) -> None:
    run(place, "acme/relu", "acme/gelu", html=True)
    store = FolderStore(place)
    prune_mirror(store, plan_mirror_prune(store, remove=["acme/gelu"]))
    assert not (place / "catalog/acme/gelu/index.html").exists()
    assert "acme/gelu" not in (place / "index.html").read_text()


def test_a_dry_run_writes_no_pages(place: Path) -> None:
    assert run(place, "acme/relu", html=True, dry_run=True).pages is None
    assert not place.exists()


def test_without_jinja2_pages_that_are_wanted_are_an_error(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingPythonDependency, match="pip install jinja2"):
        run(place, "acme/relu", html=True)


def test_without_jinja2_old_pages_are_no_error(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run(place, "acme/relu", html=True)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert run(place, "acme/gelu").pages is None
    assert "were not brought up to date" in caplog.text
