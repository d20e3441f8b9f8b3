"""Documents that cost as much as they can, each parsed under limits on time and memory. Run as a script.

Prints a line for each that took more than it may, or raised what it may not.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

from kernels.authoring.bench.messages import decode
from kernels.authoring.check.checked_variant import MAX_TEXT_BYTES, CheckedVariant, VariantFiles
from kernels.authoring.check.package_files import PackageFiles
from kernels.authoring.compile.execution.objects import keep_objects
from kernels.authoring.python_syntax import syntax_error
from kernels.authoring.spdx import license_problem
from kernels.backends.plugins.json_schema import MAX_FILE_BYTES, read_declarations
from kernels.errors import KernelsError
from kernels.models.kernel_status import MAX_STATUS_BYTES, destination
from kernels.models.lockfile import Lock
from kernels.models.metadata import MAX_METADATA_BYTES, Metadata
from kernels.models.requirement import Requirement
from kernels.resolver.target import Target
from kernels.resolver.variant import parse_variant
from kernels.support.toml import MAX_TOML_BYTES, Section, parse_toml
from kernels.support.yaml import read_yaml

MEMORY = 300 * 2**20
#: The promise is 2; the rest is for machines that are slower, or busy.
SECONDS = 4.0

Attack = tuple[str, Callable[[], object]]


def filled(start: str, part: str, end: str, size: int) -> str:
    """A text of about a size, in bytes."""
    count = max(0, size - len(start.encode()) - len(end.encode())) // len(part.encode())
    return start + part * count + end


def numbered(start: str, form: str, end: str, size: int) -> str:
    """The same of parts that differ: `form` with a number."""
    count = (size - len(start) - len(end)) // len(form % 10**6)
    return start + "".join(form % number for number in range(10**6, 10**6 + count)) + end


#: Start, part and end of texts that no JSON parser likes.
JSON = {
    "lists in lists": ("[", "[", ""),
    "objects in objects": ("", '{"a":', ""),
    "in a field": ('{"z": ', "[", ""),
    "empty objects": ("[", "{},", "{}]"),
    "empty lists": ("[", "[],", "[]]"),
    "empty objects in a field": ('{"z": [', "{},", "{}]}"),
    "digits": ('{"version": ', "9", "}"),
    "digits of a float": ('{"version": ', "9", ".5}"),
    "one string": ('{"name": "', "a", '"}'),
    "escapes": ('{"name": "', "\\\\", '"}'),
    "quotes": ('{"name": "', '\\"', '"}'),
    "strings without commas": ("", '""', ""),
    "wide characters": ('{"name": "', "\U0001f600", '"}'),
    "closing brackets": ("", "]", ""),
    "brackets that do not match": ("", "[}", ""),
    "blanks": ("", " ", "x"),
}

TOML = {
    "parts of a key": ("", "a.", "a = 1"),
    "quoted parts": ("", '"a" . ', "a = 1"),
    "literal parts": ("", "'a'.", "a = 1"),
    "parts of a heading": ("[", "a.", "a]"),
    "parts of a list's heading": ("[[", "a.", "a]]"),
    "parts in a table": ("b = {", "a.", "a = 1}"),
    "tables in tables": ("b = ", "{a=", ""),
    "lists": ("b = ", "[", ""),
    "lists and tables": ("b = ", "[{a.a=", ""),
    "behind a string that opens none": ('s = """"""\nt = "\\""\n', "a.", "a = 1"),
    "behind a comment": ("# '''\n", "a.", "a = 1"),
    "empty tables": ("b = [", "{},", "]"),
    "empty lists": ("b = [", "[],", "]"),
    "digits": ("b = ", "9", ""),
    "hexadecimal digits": ("b = 0x", "f", ""),
    "digits and underscores": ("b = ", "1_", "1"),
    "a bare key": ("", "a", " = 1"),
    "a quoted key": ('"', "a", '" = 1'),
    "a string": ('b = "', "a", '"'),
    "escapes": ('b = "', "\\\\", '"'),
    "escapes on several lines": ('b = """', '\\"', '"""'),
    "a string that has no end": ('b = """', '\\"', ""),
    "quotes": ("", '"', ""),
    "escaped quotes": ("", '\\"', ""),
    "literal quotes": ("", "'", ""),
    "line breaks": ("", "\n", ""),
    "comments": ("", "#\n", ""),
    "one comment": ("", "#", ""),
    "blanks": ("", " ", "#"),
    "headings": ("", "[[a]]\n", ""),
    "wide characters": ("b = '", "\U0001f600", "'"),
}

YAML = {
    "flow lists": ("a: ", "[", ""),
    "flow mappings": ("a: ", "{a: ", ""),
    "lists": ("", "- ", ""),
    "keys": ("", "? ", ""),
    "a plain text": ("a: ", "b", ""),
    "a plain text of words": ("a: ", "b ", ""),
    "a quoted text": ('a: "', "\\\\", '"'),
    "line breaks": ("a: ", "\n", "b"),
    "comments": ("", "#\n", ""),
    "tags": ("a: ", "!", ""),
    "anchors": ("", "&a ", ""),
    "aliases": ("- &a b\n", "- *a\n", ""),
    "documents": ("", "---\n", ""),
    "directives": ("", "%YAML 1.1\n", ""),
    "null values": ("[", ",", "]"),
    "empty mappings": ("[", "{},", "]"),
    "quotes": ("", '"', ""),
    "colons": ("", "a:", ""),
    "digits in base 60": ("a: 1", ":1", ".5"),
}

PYTHON = {
    "brackets": ("", "(", ""),
    "signs": ("a = ", "-", "1"),
    "attributes": ("a", ".b", ""),
    "calls": ("a", "()", ""),
    "sums": ("a = 1", "+1", ""),
    "statements": ("", "a;", ""),
    "lambdas": ("a = ", "lambda:", "1"),
    "conditions": ("a = ", "1 if 1 else ", "1"),
    "digits": ("a = ", "9", ""),
    "strings": ("a = ", "''", ""),
}


def texts(table: dict[str, tuple[str, str, str]], size: int) -> Iterator[tuple[str, str]]:
    """The texts of a table, each at a size."""
    for name, (start, part, end) in table.items():
        yield name, filled(start, part, end, size)


def some_json(turn: int, size: int) -> Iterator[tuple[str, str]]:
    """The texts of JSON that nest, and one in three of the others, which are not the same for each turn."""
    for number, named in enumerate(JSON.items()):
        if number < 3 or number % 3 == turn % 3:
            yield from texts(dict([named]), size)


def attacks(folder: Path) -> Iterator[Attack]:
    """Every parser's texts, at the largest size that it reads; metadata gets all of JSON, the others a share each."""
    asked = Requirement("org/old", version=1)
    for name, text in texts(TOML, MAX_STATUS_BYTES):
        yield f"kernel-status.toml, {name}", lambda text=text: destination(text.encode(), asked)
    yield "kernel-status.toml, 64 KB", lambda: destination(b"a." * 32_000 + b"a = 1", asked)

    keys = numbered("[general]\n", "k%d = 1\n", "", MAX_TOML_BYTES)
    deep = numbered("", ".".join("abcdefghijklmnopqrstuvwxyz") + ".k%d = 1\n", "", MAX_TOML_BYTES)
    for name, text in [*texts(TOML, MAX_TOML_BYTES), ("keys", keys), ("deep keys", deep)]:
        yield f"TOML, {name}", lambda text=text: parse_toml(text, Path("a.toml"))
    few = numbered("[general]\n", "naem%d = 1\n", "", MAX_TOML_BYTES // 2)

    def missing() -> object:
        file = parse_toml(few, Path("a.toml"))
        raise Section(file, ("general",), file.data["general"]).missing("naem1234567", "a name")

    yield "TOML, keys like a missing one", missing

    head = '{"name": "relu", "id": "_a", "backend": {"type": "cpu"}, '
    own = {
        "files": numbered(head + '"digest": {"algorithm": "sha256", "files": {', '"%d": "",', '"a": ""}}}', 4 << 20),
        "depends": filled(head + '"python-depends": [', '"",', '""]}', 4 << 20),
        "kernels": filled(head + '"kernel-depends": [', '{"repo-id":"a/b","version":1},', "0]}", 4 << 20),
        "unknown": filled(head + '"z": [', '{"a":[0,0]},', "0]}", 4 << 20),
    }
    for name, text in [*texts(JSON, MAX_METADATA_BYTES), *own.items()]:
        yield f"metadata, {name}", lambda text=text: Metadata.from_bytes(text.encode())

    commit = "1" * 40
    pin = '{"dependency":{"repo-id":"a/%d","version":1},"lock":{"commit":"' + commit + '"}},'
    pins = numbered("[", pin, "", 2**21)
    older = numbered("[", '{"repo_id":"a/%d","sha":"' + "1" * 40 + '"},', "", 2**21)
    for name, text in [*some_json(0, 2**21), ("pins", pins[:-1] + "]"), ("older", older[:-1] + "]")]:
        yield f"lock, {name}", lambda text=text: Lock.from_bytes(text.encode())

    lock, beside = folder / "kernels.lock", folder / "kernels.hashes.json"
    lock.write_bytes(b"[]")
    entry = '{"repo-id":"a/%d","commit":"' + "1" * 40 + '","variants":{}},'
    kernels = numbered('{"format": 1, "kernels": [', entry, "", 2**23 - 10)[:-1] + "]}"
    variant = '"%d": {"hash": "sha256-' + "1" * 64 + '", "hash-type": "sha256sum"},'
    one = '{"format": 1, "kernels": [{"repo-id": "a/b", "commit": "' + "1" * 40 + '", "variants": {'
    variants = numbered(one, variant, "", 2**23 - 10)[:-1] + "}}]}"
    for name, text in [*some_json(1, 2**23), ("kernels", kernels), ("variants", variants)]:
        beside.write_text(text)
        yield f"hashes, {name}", lambda: Lock.read(lock)

    yaml = folder / "a.yaml"
    merges = (
        "a: &a {"
        + ", ".join(f"k{number}: 1" for number in range(2000))
        + "}\n"
        + "".join(f"b{number}: {{<<: *a}}\n" for number in range(1000))
    )
    laughs = "a: &a [1]\n"
    for before, name in pairwise("abcdefghijkl"):
        laughs += f"{name}: &{name} [{f'*{before},' * 9}1]\n"
    named = {"merges": merges, "aliases of aliases": laughs, "base 60": "a: 1" + ":1" * 400 + ".5"}
    for name, text in [*texts(YAML, 2**17), *named.items()]:
        yaml.write_text(text)
        yield f"YAML, {name}", lambda: read_yaml(yaml)

    declared = folder / "a.json"
    paths = "[" * 31 + filled("", "0,", "0", MAX_FILE_BYTES - 70) + "]" * 31
    twice = numbered("{", '"a":1,"k%d":{"a":1,"a":1},', '"a":1}', MAX_FILE_BYTES - 100)
    for name, text in [*some_json(3, MAX_FILE_BYTES), ("paths", paths), ("twice", twice)]:
        declared.write_text(text)
        yield f"declaration, {name}", lambda: read_declarations(declared)

    for name, text in some_json(4, 4 << 20):
        yield f"target, {name}", lambda text=text: Target.from_json(text)
    for name, text in some_json(5, 1 << 20):
        yield f"message, {name}", lambda text=text: decode(text.encode())
    kept = folder / "objects"
    for name, text in some_json(6, 16 << 20):
        kept.mkdir(exist_ok=True)
        (kept / "made-from.json").write_text(text)
        yield f"objects, {name}", lambda: keep_objects(kept, folder, {}, [])
    yield "target, devices", lambda: Target.parse("torch2.9-cu128-x86_64-linux" + "+9999xsm_90" * 80)
    yield "target, text", lambda: Target.parse("a" * 10**6)
    yield "variant, text", lambda: parse_variant("torch-" + "a" * 10**6)
    yield "repository, text", lambda: Requirement("a/" + "a-" * 10**6)
    yield "revision, text", lambda: Requirement("a/b", revision="a" * 10**6)
    for text in ("(" * 10**6, "MIT OR " * 10**5 + "MIT", "(" * 400 + "MIT" + ")" * 400, "LicenseRef-a+"):
        yield f"license, {text[:10]}", lambda text=text: license_problem(text)

    for name, text in texts(PYTHON, MAX_TEXT_BYTES):
        yield f"Python, {name}", lambda text=text: syntax_error(text.encode(), "a.py")
        yield f"audit, {name}", lambda text=text: audited(folder, text)


def audited(folder: Path, text: str) -> object:
    """A variant's source, as an audit parses it."""
    (folder / "a.py").write_text(text)
    checked = CheckedVariant(folder, VariantFiles({"a.py": len(text)}))
    return PackageFiles(checked).module("a.py")


def resident(what: str) -> int:
    """Bytes of memory, as the kernel counts them: `VmRSS` now, `VmHWM` at most."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what)]
    return int(line.split()[1]) * 1024


def main() -> None:
    """Try them all; `-v` prints what each took."""
    warnings.simplefilter("ignore")
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    gc.collect()
    gc.freeze()  # what was imported need not be gone through before each
    with tempfile.TemporaryDirectory() as folder:
        for name, attack in attacks(Path(folder)):
            gc.collect()
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + 2 * MEMORY, hard))
            Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here (proc(5))
            before = resident("VmRSS")
            begun, fault = time.process_time(), ""
            try:
                attack()
            except (KernelsError, ValueError, TypeError):
                pass
            except BaseException as error:  # noqa: BLE001 - what is looked for
                fault = f"{type(error).__name__}: {str(error)[:200]}"
            took = time.process_time() - begun
            resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
            grown = resident("VmHWM") - before
            if fault or took > SECONDS or grown > MEMORY:
                print(f"{name}: {took:.1f} s, {grown >> 20} MB {fault}", flush=True)
            elif "-v" in sys.argv:
                print(f"# {name}: {took:.2f} s, {grown >> 20} MB", flush=True)
    print(json.dumps("done"))


if __name__ == "__main__":
    main()
