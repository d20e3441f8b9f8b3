"""JSON into types, from any thread: msgspec crashes where two threads use a type for the first time at once."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import kernels
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


#: What decodes into a type without `record_file`: a decoder that is made at an import, by one thread; and a type that
#: each call makes anew, whose inner one was learned before.
ALONE = {("server/commit_lines.py", "Decoder"), ("backends/plugins/json_schema.py", "convert")}


def decoded_into_types(path: Path) -> Iterator[str]:
    """The calls of msgspec in a file that use a type to decode."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called = ast.unparse(node.func)
            typed = called.endswith(("convert", "Decoder")) or len(node.args) > 1 or node.keywords
            if called.startswith("msgspec.") and called.endswith(("convert", "decode", "Decoder")) and typed:
                yield node.func.attr


def test_every_type_is_used_first_by_one_thread() -> None:
    root = Path(kernels.__file__).parent
    files = [path for path in root.rglob("*.py") if path != root / "support" / "record_file.py"]
    found = {(path.relative_to(root).as_posix(), call) for path in files for call in decoded_into_types(path)}
    assert found == ALONE
    assert list(decoded_into_types(root / "support" / "record_file.py"))
