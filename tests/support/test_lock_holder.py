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
