"""Commands that only read a folder, over sources that cost as much as they can: an answer, and little memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hub import make_repo

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")

#: Lines of a module whose parts CPython's parser joins again and again, or that our own analysis doubles.
DOTS = "import a" + ".b" * 70_000 + "\n"
STRINGS = {
    "dots of an import": DOTS,
    "texts of texts": "a0 = 'x' * 1\na0 = 'xxxxxxxxxxxxxxxx'\n"
    + "".join(f"a{each} = f'{{a{each - 1}}}{{a{each - 1}}}'\n" for each in range(1, 40)),
    "lists of lists": "a0 = ['x']\n" + "".join(f"a{n} = [{f'a{n - 1}, ' * 20}]\n" for n in range(1, 12))
    + "load_inline('n', cpp_sources=a11, functions=['f'])\n",
}  # fmt: skip

#: Runs a command, and prints the most memory of a process that it was or started, in MB.
MEASURED = """
import resource, subprocess, sys
done = subprocess.run([sys.executable, "-m", "kernels", *sys.argv[1:]], capture_output=True, text=True)
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
import json
print(json.dumps([done.returncode, done.stdout, done.stderr, peak]))
"""


def run(*arguments: object) -> tuple[int, str, int]:
    """The status of a command, what it said, and its memory in MB."""
    command = [sys.executable, "-c", MEASURED, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=True)
    status, out, errors, peak = json.loads(done.stdout)
    assert "Traceback" not in errors
    return status, out + errors, peak


@pytest.mark.parametrize("name", STRINGS)
def test_no_source_takes_much_memory(tmp_path: Path, name: str) -> None:
    kernel = make_repo(tmp_path, "evil/relu")
    build = kernel / "build" / "torch-cpu"
    for module in ("deep", "layers"):
        (build / f"{module}.py").write_text(STRINGS[name])
    (build / "__init__.py").write_text("from . import layers\nfrom .layers import *\nfrom .layers import a11\n")
    status, said, peak = run("check", kernel, "--static")
    assert "namespaces" in said
    assert peak < 2200
    if "dots" in name:
        assert status == 1
        assert "deep.py: cannot be parsed (MemoryError)" in " ".join(said.split())
    status, said, peak = run("card", kernel)
    assert status == 0
    assert peak < 2200
    (tmp_path / "given.py").write_text("import triton\n" + STRINGS[name])
    status, said, peak = run("init", "new", "--out", tmp_path / "new", "--from", tmp_path / "given.py")
    assert (status, "Error: " in said) == (1, True)
    assert peak < 2200


def test_a_build_of_such_a_source_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "relu"
    assert run("init", "relu", "--out", source, "--backends", "cpu", "--noarch")[0] == 0
    [package] = (source / "torch-ext").iterdir()
    (package / "deep.py").write_text(DOTS)
    status, said, peak = run("build", source, "--dry-run")
    assert (status, "deep.py" in said, "cannot be compiled (MemoryError)" in " ".join(said.split())) == (1, True, True)
    assert peak < 2200


def test_check_parses_each_source_once(tmp_path: Path) -> None:
    """Counted in every process that the command starts."""
    kernel = make_repo(tmp_path, "acme/relu", variants=["torch-cuda"])
    build = kernel / "build" / "torch-cuda"
    for name in ("layers", "other"):
        (build / f"{name}.py").write_text(f"name_of_{name} = 1\n")
    hook = tmp_path / "hook"
    hook.mkdir()
    log = tmp_path / "parsed"
    log.touch()
    (hook / "sitecustomize.py").write_text(
        "import os, sys\n"
        "def seen(event, arguments):\n"
        "    if event == 'compile' and isinstance(arguments[0], (str, bytes)) and 'name_of_' in str(arguments[0]):\n"
        f"        with open({os.fspath(log)!r}, 'a') as file:\n"
        "            file.write(str(arguments[0]).split('name_of_')[1].split()[0] + '\\n')\n"
        "sys.addaudithook(seen)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([os.fspath(hook), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "kernels", "check", os.fspath(kernel), "--static"]
    subprocess.run(command, env=environment, capture_output=True, timeout=300, check=False)
    assert Counter(log.read_text().split()) == {"layers": 1, "other": 1}


def test_a_template_that_takes_hours_is_one_line(tmp_path: Path) -> None:
    kernel = make_repo(tmp_path, "evil/relu")
    (kernel / "CARD.md").write_text("{{ (9 ** (9 ** 9)) % 7 }}")
    status, said, _ = run("card", kernel)
    assert status == 1
    assert "CARD.md: the template cannot be filled in: it takes more than 10 seconds" in said


@pytest.mark.parametrize("command", [["check", "--static"], ["card"], ["info"], ["explain"], ["verify"]])
def test_folders_that_are_nested_thousands_deep_are_told(tmp_path: Path, command: list[str]) -> None:
    kernel = make_repo(tmp_path, "evil/relu")
    folder = os.open(kernel / "build" / "torch-cpu", os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    try:
        status, said, _ = run(*command, kernel)
    finally:
        subprocess.run(["rm", "-rf", kernel / "build"], check=True)  # pytest cannot remove it
    assert (status, "nested" in said) == (1, True)
