"""A mirror in a folder: what only a file system has."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kernels.errors import HubUnavailable, StoreError
from kernels.mirror.stores import folder
from kernels.mirror.stores.base import EntryNotFound
from kernels.mirror.stores.folder import FolderStore


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "mirror")


def names(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*"))


def test_only_what_was_written_lies_in_the_folder(store: FolderStore) -> None:
    etag = store.write("api/kernels/org/relu/refs", b"one", expect="new")
    store.write("api/kernels/org/relu/refs", b"two", expect=etag)
    store.write("archives/0a/x", b"x", immutable=True)
    assert names(store.root) == [
        *("api", "api/kernels", "api/kernels/org", "api/kernels/org/relu", "api/kernels/org/relu/refs"),
        *("archives", "archives/0a", "archives/0a/x"),
    ]
    store.delete("archives/0a/x")
    store.delete("api/kernels/org/relu/refs")
    assert names(store.root) == []


def test_a_missing_folder_is_said(store: FolderStore) -> None:
    with pytest.raises(EntryNotFound, match="does not exist"):
        store.read("mirror.json", 10)


@pytest.mark.parametrize("linked", ["api", "api/refs"])
def test_links_are_not_followed(store: FolderStore, tmp_path: Path, linked: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "refs").write_bytes(b"outside")
    link = store.root / linked
    link.parent.mkdir(parents=True)
    link.symlink_to(outside if linked == "api" else outside / "refs")
    with pytest.raises(HubUnavailable, match=r"link|not a regular file"):
        store.read("api/refs", 100)
    with pytest.raises(HubUnavailable), store.stream("api/refs", 7) as pieces:
        list(pieces)
    assert list(store.entries()) == []
    if linked == "api":
        with pytest.raises(StoreError, match="is a link"):
            store.write("api/refs", b"new")
        with pytest.raises(StoreError, match="is a link"):
            store.delete("api/refs")
        with pytest.raises(HubUnavailable, match="is a link"):
            list(store.entries("api"))
    else:
        store.write("api/refs", b"new")  # in place of the link
        assert not link.is_symlink()
    assert (outside / "refs").read_bytes() == b"outside"
    assert os.listdir(outside) == ["refs"]


def test_the_root_may_be_a_link(store: FolderStore, tmp_path: Path) -> None:
    store.write("a/b", b"one")
    (tmp_path / "link").symlink_to(store.root)
    found = FolderStore(tmp_path / "link").read("a/b", 10)
    assert found is not None
    assert found.content == b"one"


def test_a_fifo_is_refused_without_waiting_for_it(store: FolderStore) -> None:
    store.root.mkdir()
    os.mkfifo(store.root / "mirror.json")
    with pytest.raises(HubUnavailable, match="not a regular file"):
        store.read("mirror.json", 10)
    assert list(store.entries()) == []
    assert store.size("mirror.json") is None


@pytest.mark.parametrize(("there", "path"), [("api", "api/kernels/refs"), ("api/kernels/refs/x", "api/kernels")])
def test_a_file_in_the_way_is_named(store: FolderStore, there: str, path: str) -> None:
    store.write(there, b"x")
    with pytest.raises(StoreError, match=rf"Cannot write {store.root}/{path}: (Not|Is) a directory"):
        store.write(path, b"y")
    assert [entry.path for entry in store.entries()] == [there]
    assert not (store.root / ".incoming").exists()


def test_a_file_as_the_root_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    store = FolderStore(tmp_path / "file")
    with pytest.raises(StoreError, match="Cannot write"):
        store.write("mirror.json", b"{}")
    with pytest.raises(EntryNotFound):
        store.read("mirror.json", 10)
    assert (tmp_path / "file").read_bytes() == b"x"


class FullDisk(io.RawIOBase):
    def write(self, data: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_said_and_nothing_is_left(store: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write("mirror.json", b"before")
    monkeypatch.setattr(FolderStore, "_new", lambda self, temporary: FullDisk())
    with pytest.raises(StoreError, match=r"No space left on device\. Free some space"):
        store.write("mirror.json", b"after")
    assert names(store.root) == ["mirror.json"]
    assert (store.root / "mirror.json").read_bytes() == b"before"


@pytest.mark.skipif(os.geteuid() == 0 and sys.platform != "linux", reason="needs a user without rights")
def test_a_read_only_folder_is_read_and_a_write_is_refused(store: FolderStore) -> None:
    etag = store.write("mirror.json", b"{}")
    store.root.chmod(0o555)
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from kernels.mirror.stores.folder import FolderStore\n"
        "store = FolderStore(Path(sys.argv[1]))\n"
        "print(store.read('mirror.json', 10).content, [each.path for each in store.entries()])\n"
        "try:\n"
        "    store.write('mirror.json', b'x', expect=sys.argv[2])\n"
        "except OSError as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    unprivileged = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [*unprivileged, sys.executable, "-c", code, str(store.root), etag], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == [
        "b'{}' ['mirror.json']",
        f"StoreError Cannot write {store.root}/mirror.json: Permission denied. Name another folder for the mirror.",
    ], done.stderr


def test_what_a_killed_process_left_is_removed_and_no_entry(store: FolderStore) -> None:
    left, fresh = store.root / ".incoming" / "1.tmp", store.root / ".incoming" / "2.tmp"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    fresh.write_bytes(b"half")
    long_ago = time.time() - 2 * folder._ABANDONED_SECONDS
    os.utime(left, (long_ago, long_ago))
    assert list(store.entries()) == []
    store.write("mirror.json", b"{}")
    assert names(store.root) == [".incoming", ".incoming/2.tmp", "mirror.json"]


def test_writers_and_deleters_of_one_folder_do_not_disturb_each_other(store: FolderStore) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from kernels.mirror.stores.base import StoreChanged\n"
        "from kernels.mirror.stores.folder import FolderStore\n"
        "store = FolderStore(Path(sys.argv[1]))\n"
        "for number in range(20):\n"
        "    store.write(f'a/b/{sys.argv[2]}', b'x', expect='new')\n"
        "    while True:\n"
        "        found = store.read('count', 100)\n"
        "        try:\n"
        "            store.write('count', b'%d' % (int(found.content) + 1), expect=found.etag)\n"
        "            break\n"
        "        except StoreChanged:\n"
        "            pass\n"
        "    store.delete(f'a/b/{sys.argv[2]}')\n"
    )
    store.write("count", b"0")
    writers = [subprocess.Popen([sys.executable, "-c", code, str(store.root), str(number)]) for number in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert (store.root / "count").read_bytes() == b"60"
    assert names(store.root) == ["count"]
