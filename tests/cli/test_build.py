"""`kernels build` tells of every variant what became of it, and ends with 1 when one failed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernels.backends import Backend, BackendProbe, register_backend, unregister_backend

compiler = pytest.mark.compiler

_GENERAL = '[general]\nname = "add-one"\nversion = 1\nedition = 5\nlicense = "MIT"\nbackends = '
_NOARCH = _GENERAL + '["cpu", "cuda"]\n[torch-noarch]\n'
#: Compiled without Torch's headers, which take a compiler seconds.
_PLAIN = _GENERAL + '["cpu", "neuron"]\n[torch]\n[kernel.one]\nbackend = "cpu"\nsrc = ["one.cpp", "two.cpp"]\n'


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(toml: str, **sources: str) -> Path:
        folder = tmp_path / "source"
        (folder / "torch-ext/add_one").mkdir(parents=True, exist_ok=True)
        (folder / "torch-ext/add_one/__init__.py").write_text("one = 1\n")
        (folder / "build.toml").write_text(toml)
        for name in ("one", "two"):
            (folder / f"{name}.cpp").write_text(sources.get(name, f"int {name}() {{ return 1; }}\n"))
        return folder

    return write


def _variants(run: Any) -> list[tuple[str | None, str]]:
    return [(each["variant"], each["state"]) for each in json.loads(run.stdout)["variants"]]


def test_every_noarch_variant_is_built_beside_its_sources(
    kernels: Callable[..., Any], write: Callable[..., Path]
) -> None:
    source = write(_NOARCH)
    run = kernels("build", source)
    assert run.exit_code == 0, run.output
    assert [line.split()[:2] for line in run.stdout.splitlines()[1:]] == [
        ["torch-cpu", "built"],
        ["torch-cuda", "built"],
    ]
    assert (source / "build/torch-cuda/metadata.json").is_file()
    again = kernels("build", source, "--json")
    assert _variants(again) == [("torch-cpu", "up to date"), ("torch-cuda", "up to date")]


def test_the_current_folder_is_built_where_none_is_given(
    kernels: Callable[..., Any], write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write(_NOARCH))
    assert kernels("build", "--backend", "cpu").exit_code == 0
    assert [path.name for path in Path("build").iterdir()] == ["torch-cpu"]


def test_one_variant_goes_where_it_is_told(
    kernels: Callable[..., Any], write: Callable[..., Path], tmp_path: Path
) -> None:
    source = write(_NOARCH)
    run = kernels("build", source, "--variant", "torch-cuda", "--out", tmp_path / "out", "--json")
    assert _variants(run) == [("torch-cuda", "built")]
    assert [path.name for path in (tmp_path / "out/build").iterdir()] == ["torch-cuda"]
    assert not (source / "build").exists()


@compiler
def test_what_this_machine_cannot_build_is_told_and_is_no_failure(
    kernels: Callable[..., Any], write: Callable[..., Path]
) -> None:
    source = write(_PLAIN)
    run = kernels("build", source)
    assert run.exit_code == 0, run.output
    assert "(neuron)" in run.stdout
    assert "is not built for neuron" in run.stdout
    only = kernels("build", source, "--backend", "neuron")
    assert only.exit_code == 1
    assert "Error: neuron: Torch" in only.stderr


def test_a_build_of_nothing_is_an_error(kernels: Callable[..., Any], write: Callable[..., Path]) -> None:
    run = kernels("build", write(_GENERAL + '["neuron"]\n[torch]\n'))
    assert run.exit_code == 1
    assert "this machine can build none of the variants" in run.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--backend", "xpu"), "`backend` is 'xpu'; add-one has cpu, cuda."),
        (("--variant", "torch-xpu"), "`variant` is 'torch-xpu'; this machine can build torch-cpu, torch-cuda."),
    ],
)
def test_what_the_source_does_not_have_is_refused(
    kernels: Callable[..., Any], write: Callable[..., Path], arguments: tuple[str, ...], says: str
) -> None:
    run = kernels("build", write(_NOARCH), *arguments)
    assert run.exit_code == 1
    assert says in run.stderr


@compiler
def test_a_compilers_output_is_shown_for_the_first_file_that_failed(
    kernels: Callable[..., Any], write: Callable[..., Path]
) -> None:
    source = write(_PLAIN, one="int one = first_unknown;\n", two="int two = second_unknown;\n")
    run = kernels("build", source, "--backend", "cpu", "--jobs", "1")
    assert run.exit_code == 1
    assert "failed" in run.stdout
    assert "one.cpp:1:11: error: " in run.stderr
    assert "second_unknown" not in run.stderr
    log = next((source / ".kernels-build").glob("*.log"))
    assert str(log) in run.stderr
    assert not (source / "build").exists()


@compiler
def test_an_interrupt_leaves_what_was_there(
    kernels: Callable[..., Any], write: Callable[..., Path], tmp_path: Path
) -> None:
    source = write(_PLAIN)
    assert kernels("build", source, "--backend", "cpu").exit_code == 0
    variant = next((source / "build").iterdir())
    before = {path.name: path.read_bytes() for path in variant.iterdir()}
    slow = tmp_path / "slow-cxx"
    slow.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exec echo 1\ntouch {tmp_path}/started\nexec sleep 60\n')
    slow.chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, "-m", "kernels", "build", str(source), "--backend", "cpu"],
        env=os.environ | {"CXX": str(slow)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        for _ in range(600):
            if (tmp_path / "started").exists():
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, output
    assert {path.name: path.read_bytes() for path in variant.iterdir()} == before
    assert not list((source / ".kernels-build").glob("building-*"))


def test_a_full_disk_is_an_error_and_leaves_no_half_a_variant(write: Callable[..., Path]) -> None:
    source = write(_NOARCH)
    (source / "torch-ext/add_one/large.py").write_text("#" * 100_000)
    # Of a file that grows beyond its limit the system says what it says of a disk without room.
    program = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
sys.argv = ["kernels", "build", *sys.argv[1:]]
runpy.run_module("kernels", run_name="__main__")
"""
    command = [sys.executable, "-B", "-c", program, str(source)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 1, run.stderr
    assert "torch-cpu could not be written; the previous build is unchanged: [Errno 27]" in run.stderr
    assert not (source / "build").exists()
    assert not list((source / ".kernels-build").glob("building-*"))


@compiler
def test_a_build_with_nothing_to_do_imports_no_torch(kernels: Callable[..., Any], write: Callable[..., Path]) -> None:
    source = write(_PLAIN)
    assert kernels("build", source).exit_code == 0
    program = """
import sys
from kernels.authoring.compile import build_variants
print([each.state for each in build_variants(sys.argv[1], sys.argv[1])], "torch" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", program, str(source)], capture_output=True, text=True, timeout=120)
    assert run.stdout == "['up to date', 'not built'] False\n", run.stderr


class Acme(Backend):
    """A stranger's accelerator."""

    name = device_type = "acme"

    def probe(self) -> BackendProbe:
        return BackendProbe()


@pytest.fixture
def acme() -> Iterator[None]:
    register_backend(Acme())
    yield
    unregister_backend("acme")


@pytest.mark.usefixtures("acme")
def test_a_vendors_noarch_variant_is_built_like_any_other(
    kernels: Callable[..., Any], write: Callable[..., Path]
) -> None:
    source = write(_GENERAL + '["cpu", "acme"]\n[torch-noarch]\nacme-archs = ["a1"]\n')
    assert _variants(kernels("build", source, "--json")) == [("torch-cpu", "built"), ("torch-acme", "built")]
    metadata = json.loads((source / "build/torch-acme/metadata.json").read_text())
    assert metadata["backend"] == {"type": "acme", "archs": ["a1"]}


def test_an_older_file_is_written_back(kernels: Callable[..., Any], write: Callable[..., Path]) -> None:
    source = write('[general]\nname = "add-one"\nlicense = "MIT" # ours\nbackends = ["cpu"]\n')
    assert "is updated" in kernels("build", source, "--update").stdout
    assert "edition = 5" in (source / "build.toml").read_text()
    assert "# ours" in (source / "build.toml").read_text()
    assert json.loads(kernels("build", source, "--update", "--json").stdout) == {"updated": False}
    assert not (source / "build").exists()
