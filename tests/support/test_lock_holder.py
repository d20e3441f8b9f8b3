"""Who holds a lock."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from filelock import FileLock

from kernels.support.lock_holder import lock_holder


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="only Linux lists locks")
def test_the_process_that_holds_it_is_named_with_its_command(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "work.lock")
    assert lock_holder(tmp_path / "work.lock") == "another process"
    with lock:
        said = lock_holder(tmp_path / "work.lock")
    if said != "another process":  # a container may not see its own locks
        assert said.startswith(f"process {os.getpid()} (")


def test_a_lock_on_a_file_of_another_disk_is_another_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "work.lock"
    path.touch()
    facts = path.stat()
    devices = {"this": facts.st_dev, "other": facts.st_dev + 1}
    said = {}
    for name, device in devices.items():
        file = f"{os.major(device):02x}:{os.minor(device):02x}:{facts.st_ino}"
        line = f"1: FLOCK  ADVISORY  WRITE {os.getpid()} {file} 0 EOF\n"
        monkeypatch.setattr(Path, "read_text", lambda self, line=line: line)
        said[name] = lock_holder(path)
    assert said["this"].startswith(f"process {os.getpid()}")
    assert said["other"] == "another process"
