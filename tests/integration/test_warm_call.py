"""What a call of a kernel that is in the cache does not do, in a new process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from hub import TestHub

from kernels import get_kernel

READ = (".json", ".py", ".checked")

CALL = """
import json, sys, threading
opened, threads, start = [], [], threading.Thread.start
sys.addaudithook(lambda event, given: opened.append(str(given[0])) if event == "open" else None)
threading.Thread.start = lambda self: (threads.append(self.name), start(self))[1]

from kernels import get_kernel
get_kernel("acme/relu", version=1)
imported = [name for name in sys.modules if name.startswith("kernels.")]
print(json.dumps({"opened": opened, "threads": threads, "imported": imported, "torch": "torch" in sys.modules}))
"""


def test_a_warm_call_does_once_what_it_must(hub: TestHub) -> None:
    hub.make_repo("acme/relu")
    get_kernel("acme/relu", version=1)
    command = [sys.executable, "-c", CALL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ.copy())
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    # A build that is there is not waited for.
    assert [name for name in found["threads"] if "fetch" in name] == []
    assert [name for name in found["imported"] if name.startswith("kernels.backends.plugins.vendor")] == []
    if not found["torch"]:  # it reads the entry points of its extensions itself
        points = Counter(path for path in found["opened"] if path.endswith("entry_points.txt"))
        twice = [path for path, count in points.items() if count > 1]
        assert max(points.values(), default=1) <= 2
        assert [path for path in twice if ".backends]" not in Path(path).read_text(encoding="utf-8")] == []
    # What is in the cache is read once: the lists, the metadata, the record of the checks, the code. Of the last answer
    # the beginning is read before the first request as well: a mirror's is asked for with a condition.
    read = Counter(path for path in found["opened"] if "--acme--relu" in path and path.endswith(READ))
    [(answer, looks)] = [(path, count) for path, count in read.items() if count > 1]
    assert (Path(answer).name[:6], looks) == ("heads-", 2)
    assert len(read) >= 4
