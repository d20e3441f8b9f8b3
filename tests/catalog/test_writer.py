"""The pages in a mirror's tree: only what has changed is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from mirror_tree import MirrorTree

from kernels.catalog import CatalogChanges, write_catalog
from kernels.catalog.listing import LIST_FILE
from kernels.mirror.stores.base import StoreChanged
from kernels.mirror.stores.folder import FolderStore
from kernels.models.mirror import MIRROR_FILE, MirrorIndex, RepositoryIndex
from kernels.models.mirror_document import MirrorDocument


class Mirror:
    """A mirror in a folder, and the repositories whose index was read for its pages."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tree = MirrorTree(root)
        self.store = FolderStore(root)
        self.asked: list[str] = []

    def index(self) -> MirrorIndex:
        return MirrorDocument.parse((self.root / MIRROR_FILE).read_bytes(), MIRROR_FILE).mirror(MIRROR_FILE)

    def read(self, repo_id: str) -> RepositoryIndex:
        self.asked.append(repo_id)
        return self.tree.indexes[repo_id]

    def update(self) -> CatalogChanges:
        self.asked.clear()
        return write_catalog(self.store, self.index(), self.read)

    def pages(self) -> dict[str, tuple[int, bytes]]:
        files = [self.root / "index.html", *(self.root / "catalog").rglob("*.*")]
        return {each.relative_to(self.root).as_posix(): (each.stat().st_mtime_ns, each.read_bytes()) for each in files}


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    found = Mirror(tmp_path / "mirror")
    found.tree.add("acme/relu")
    found.tree.add("acme/gelu")
    return found


def test_the_first_run_writes_a_page_for_each_kernel(mirror: Mirror) -> None:
    assert mirror.update() == CatalogChanges(written=2, removed=0, kept=0)
    names = set(mirror.pages())
    assert {"index.html", LIST_FILE, "catalog/acme/relu/index.html", "catalog/acme/gelu/index.html"} <= names
    assert len(names) == 6  # and the style and the script


def test_a_run_that_changes_nothing_reads_and_writes_nothing(mirror: Mirror) -> None:
    mirror.update()
    before = mirror.pages()
    assert mirror.update() == CatalogChanges(written=0, removed=0, kept=2)
    assert mirror.asked == []
    assert mirror.pages() == before


def test_only_the_page_of_a_changed_kernel_is_made_again(mirror: Mirror) -> None:
    mirror.update()
    before = mirror.pages()
    mirror.tree.add("acme/relu", version=2)
    assert mirror.update() == CatalogChanges(written=1, removed=0, kept=1)
    after = mirror.pages()
    changed = {name for name in after if after[name] != before[name]}
    assert mirror.asked == ["acme/relu"]
    assert changed == {"index.html", LIST_FILE, "catalog/acme/relu/index.html"}


def test_the_page_of_a_kernel_that_is_gone_is_removed(mirror: Mirror) -> None:
    mirror.update()
    del mirror.tree.indexes["acme/gelu"]
    mirror.tree.add("acme/relu", version=2)
    assert mirror.update() == CatalogChanges(written=1, removed=1, kept=0)
    assert not (mirror.root / "catalog/acme/gelu/index.html").exists()
    assert b"gelu" not in (mirror.root / "index.html").read_bytes()


def test_pages_of_another_version_are_made_again(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror.update()
    monkeypatch.setattr("kernels.catalog.writer.made", lambda: "another")
    mirror.update()
    assert sorted(mirror.asked) == ["acme/gelu", "acme/relu"]


@pytest.mark.parametrize("list_file", [b"", b"alert(1)", b"kernelsCatalog({})\n"])
def test_a_damaged_list_is_made_again(mirror: Mirror, list_file: bytes) -> None:
    mirror.update()
    before = {name: content for name, (_, content) in mirror.pages().items()}
    (mirror.root / LIST_FILE).write_bytes(list_file)
    mirror.update()
    assert {name: content for name, (_, content) in mirror.pages().items()} == before


def test_another_writers_list_is_continued(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror.update()
    mirror.tree.add("acme/relu", version=2)
    write, tries = mirror.store.write, []

    def contested(path: str, *args: object, **named: object) -> str:
        if path == LIST_FILE and not tries:
            tries.append(path)
            raise StoreChanged("another writer was here")
        return write(path, *args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(mirror.store, "write", contested)
    assert mirror.update().written == 1
    assert mirror.asked == ["acme/relu"]
    assert mirror.update().written == 0
