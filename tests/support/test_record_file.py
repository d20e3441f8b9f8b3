"""JSON into types, from any thread."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from kernels.support.record_file import decode_json

#: Types that no thread has decoded yet, in a process that changes threads as often as it can.
FIRST_TIME = """
import sys, threading
import msgspec
from kernels.support.record_file import decode_json
sys.setswitchinterval(1e-6)
barrier = threading.Barrier(8)
fields = "".join(f"    a{i}: 'dict[str, list[int]]' = {{}}\\n" for i in range(10))
types = []
for n in range(40):
    exec(f"class Inner{n}(msgspec.Struct):\\n{fields}")
    exec(f"class Outer{n}(msgspec.Struct):\\n{fields}    b: 'dict[str, Inner{n}]' = {{}}")
    types.append(globals()[f"Outer{n}"])
def work():
    for form in types:
        barrier.wait()
        decode_json(b'{"a0": {"x": [1]}, "b": {"y": {"a1": {}}}}', form)
threads = [threading.Thread(target=work) for _ in range(8)]
for each in threads: each.start()
for each in threads: each.join()
print("done")
"""


def test_threads_may_decode_a_type_for_the_first_time_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_TIME], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_a_wrong_document_is_an_error() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_json(b"[1, ", list[int])
    with pytest.raises(msgspec.ValidationError):
        decode_json(b'["x"]', list[int])
