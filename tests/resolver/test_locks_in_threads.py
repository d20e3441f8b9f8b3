"""Threads that read a lockfile first, all at once, as `kernelize` does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys, threading
from kernels.resolver.locks import read_lock
sys.setswitchinterval(1e-5)
barrier = threading.Barrier(8)
def work():
    barrier.wait()
    read_lock(sys.argv[1])
threads = [threading.Thread(target=work) for _ in range(8)]
for each in threads: each.start()
for each in threads: each.join()
print("done")
"""


def test_threads_may_read_a_lockfile_for_the_first_time_at_once(tmp_path: Path) -> None:
    entry = {"dependency": {"repo-id": "acme/relu", "version": 1}, "lock": {"commit": "1" * 40}}
    (tmp_path / "kernels.lock").write_text(json.dumps([entry]))
    hashes = {"format": 1, "kernels": [{"repo-id": "acme/relu", "commit": "1" * 40, "variants": {}}]}
    (tmp_path / "kernels.hashes.json").write_text(json.dumps(hashes))
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "kernels.lock")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(12)]
    done = [(each.communicate(timeout=120), each.returncode) for each in running]
    assert [(status, out) for (out, _), status in done] == [(0, b"done\n")] * 12
