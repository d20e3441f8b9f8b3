"""Files that somebody else may have put there are read within bounds, and only regular ones."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from kernels.support.files import FileTooLarge, NotRegularFile, open_regular, read_bounded


def test_a_regular_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_bounded(path, 5) == b"12345"
    with pytest.raises(FileTooLarge):
        read_bounded(path, 4)


def test_an_empty_file_is_empty(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert read_bounded(tmp_path / "file", 0) == b""


def test_a_file_that_says_zero_bytes_is_read_whole() -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("there is no /proc")
    assert read_bounded("/proc/self/status", 1 << 20).startswith(b"Name:")
    with pytest.raises(FileTooLarge):
        read_bounded("/proc/self/status", 10)


@pytest.mark.parametrize("kind", ["fifo", "directory", "socket", "device"])
def test_what_is_not_a_regular_file_is_an_error_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "other"
    holder = socket.socket(socket.AF_UNIX)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "socket":
        holder.bind(os.path.relpath(path))
    else:
        path = Path("/dev/zero")
    found: list[BaseException] = []

    def read() -> None:
        try:
            read_bounded(path, 10)
        except OSError as error:
            found.append(error)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(30)
    holder.close()
    assert not reader.is_alive()
    assert isinstance(found[0], NotRegularFile)


def test_a_link_is_followed_unless_told_otherwise(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    (tmp_path / "link").symlink_to("file")
    assert read_bounded(tmp_path / "link", 1) == b"1"
    with pytest.raises(NotRegularFile):
        open_regular(tmp_path / "link", follow=False)


def test_a_missing_file_is_a_file_not_found_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none")
