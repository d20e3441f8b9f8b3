"""A user's file of heuristics may wait for what other threads import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys, threading
from kernels.tuning import get_heuristics
sys.path.insert(0, sys.argv[1])
import events

def importing():
    import helper  # asks for heuristics, while it is imported
def asking():
    events.importing.wait(20)
    get_heuristics("mm", backend="cpu")  # the file imports `helper`
threads = [threading.Thread(target=each, daemon=True) for each in (importing, asking)]
for each in threads: each.start()
for each in threads: each.join(30)
print([each.is_alive() for each in threads])
"""


def test_a_module_that_asks_while_it_is_imported_and_a_file_that_imports_it(tmp_path: Path) -> None:
    (tmp_path / "events.py").write_text("import threading\nimporting, in_file = threading.Event(), threading.Event()\n")
    (tmp_path / "helper.py").write_text(
        "import events\nfrom kernels.tuning import get_heuristics\nevents.importing.set()\n"
        "events.in_file.wait(20)\nget_heuristics('mm', backend='cpu')\n"
    )
    (tmp_path / "heuristics_config_utils.py").write_text(
        "import events\nevents.in_file.set()\nimport helper\nHEURISTICS_CONFIGS = {'mm': {'BLOCK': lambda args: 16}}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "KERNELS_TUNE_PATH": str(tmp_path)},
    )
    assert done.stdout == "[False, False]\n", done.stderr
