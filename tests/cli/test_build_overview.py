"""`kernels build --list`, `--dry-run` and `--compile-commands`: what a build would do, and nothing of it done."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

compiler = pytest.mark.compiler

_GENERAL = '[general]\nname = "add-one"\nversion = 1\nedition = 5\nlicense = "MIT"\nbackends = '
_NOARCH = _GENERAL + '["cpu", "cuda"]\n[torch-noarch]\ncuda-capabilities = ["8.0"]\n'
#: Compiled without Torch's headers, which take a compiler seconds.
_PLAIN = _GENERAL + '["cpu", "neuron"]\n[torch]\n[kernel.one]\nbackend = "cpu"\nsrc = ["one.cpp", "two words.cpp"]\n'


@pytest.fixture
def source(tmp_path: Path) -> Callable[[str], Path]:
    def write(toml: str) -> Path:
        folder = tmp_path / "the source"
        (folder / "torch-ext/add_one/deep").mkdir(parents=True, exist_ok=True)
        (folder / "torch-ext/add_one/__init__.py").write_text("one = 1\n")
        (folder / "torch-ext/add_one/deep/it's.py").write_text("END = '''\nEND\n'''")
        (folder / "build.toml").write_text(toml)
        for name in ("one", "two words"):
            (folder / f"{name}.cpp").write_text(f"int {name[:3]}() {{ return 1; }}\n")
        return folder

    return write


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _states(run: Any) -> list[tuple[str | None, str, bool]]:
    assert run.exit_code == 0, run.output
    return [(each["variant"], each["state"], each["buildable"]) for each in json.loads(run.stdout)["variants"]]


def test_a_list_shows_what_is_built_and_what_is_stale(
    kernels: Callable[..., Any], source: Callable[[str], Path]
) -> None:
    folder = source(_NOARCH)
    before = _files(folder)
    assert _states(kernels("build", folder, "--list", "--json")) == [
        ("torch-cpu", "not built", True),
        ("torch-cuda", "not built", True),
    ]
    assert _files(folder) == before
    assert kernels("build", folder, "--backend", "cuda").exit_code == 0
    assert _states(kernels("build", folder, "--list", "--json", "--backend", "cuda")) == [
        ("torch-cuda", "up to date", True)
    ]
    (folder / "torch-ext/add_one/__init__.py").write_text("one = 2\n")
    run = kernels("build", folder, "--list")
    assert [line.split() for line in run.stdout.splitlines()[1:]] == [
        ["torch-cpu", "not", "built", "-", "yes"],
        ["torch-cuda", "stale", "8.0", "yes:", "the", "sources", "have", "changed"],
    ]


@compiler
def test_a_list_says_why_a_variant_cannot_be_built_here(
    kernels: Callable[..., Any], source: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = source(_PLAIN)
    other = folder / "build/torch-stable-abi29-cpu-aarch64-linux"
    assert kernels("build", folder, "--backend", "cpu").exit_code == 0
    [built] = (folder / "build").iterdir()
    shutil.copytree(built, other)
    found = json.loads(kernels("build", folder, "--list", "--json").stdout)["variants"]
    assert [(each["variant"], each["state"], each["buildable"]) for each in found] == [
        (built.name, "up to date", True),
        (None, "not built", False),
        (other.name, "up to date", False),
    ]
    assert "is not built for neuron" in found[1]["reason"]
    assert found[2]["path"] == str(other)
    assert _states(kernels("build", folder, "--list", "--variant", other.name, "--json"))[0][0] == other.name
    missing = kernels("build", folder, "--list", "--variant", "torch-cpu")
    assert "`variant` is 'torch-cpu'; this machine can build" in missing.stderr
    monkeypatch.setenv("CXX", "no-such-compiler")
    [first, *_] = json.loads(kernels("build", folder, "--list", "--json").stdout)["variants"]
    assert (first["buildable"], first["variant"]) == (False, None)
    assert "no-such-compiler" in first["reason"]


def test_the_commands_of_a_noarch_build_make_the_same_files(
    kernels: Callable[..., Any], source: Callable[[str], Path]
) -> None:
    folder = source(_NOARCH)
    before = _files(folder)
    script = kernels("build", folder, "--dry-run").stdout
    assert _files(folder) == before
    subprocess.run(["sh", "-e"], input=script, text=True, check=True, cwd="/")
    pasted = _files(folder / "build")
    shutil.rmtree(folder / "build")
    assert kernels("build", folder).exit_code == 0
    assert pasted == _files(folder / "build")


@compiler
def test_the_commands_of_a_compiled_build_make_the_same_library(
    kernels: Callable[..., Any], source: Callable[[str], Path]
) -> None:
    folder = source(_PLAIN)
    run = kernels("build", folder, "--dry-run")
    assert "# neuron is not built: Torch" in run.stdout
    assert not (folder / ".kernels-build").exists()
    assert not (folder / "compile_commands.json").exists()
    subprocess.run(["sh", "-e"], input=run.stdout, text=True, check=True, cwd="/")
    pasted = _files(folder / "build")
    shutil.rmtree(folder / "build")
    assert kernels("build", folder).exit_code == 0
    built = _files(folder / "build")
    [metadata] = [name for name in built if name.endswith("metadata.json")]
    described = json.loads(built.pop(metadata))
    del described["digest"]  # it is that of the compiled files
    assert json.loads(pasted.pop(metadata)) == described
    assert pasted == built


@compiler
def test_the_commands_as_json_are_lists_of_words(kernels: Callable[..., Any], source: Callable[[str], Path]) -> None:
    folder = source(_PLAIN)
    built, left_out = json.loads(kernels("build", folder, "--dry-run", "--json").stdout)["variants"]
    assert (left_out["variant"], left_out["commands"]) == (None, [])
    compiling = [each["argv"] for each in built["commands"] if "-c" in each["argv"]]
    assert [argv[argv.index("-c") + 1] for argv in compiling] == ["one.cpp", "two words.cpp"]
    assert built["folder"] == str(folder)
    [written] = [each for each in built["commands"] if str(each["makes"]).endswith("_ops.py")]
    assert "torch.ops." in written["content"]


@compiler
def test_a_build_tells_editors_how_each_source_is_compiled(
    kernels: Callable[..., Any], source: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = source(_PLAIN)
    assert kernels("build", folder, "--backend", "cpu").exit_code == 0
    entries = json.loads((folder / "compile_commands.json").read_text())
    assert [each["file"] for each in entries] == [str(folder / "one.cpp"), str(folder / "two words.cpp")]
    for entry in entries:
        command = [*entry["arguments"][:-1], str(tmp_path / "made.o")]
        subprocess.run(command, cwd=entry["directory"], check=True)
    # It is no source: the build is up to date, and no other folder's build writes it.
    assert _states(kernels("build", folder, "--list", "--json"))[0][1] == "up to date"
    (folder / "compile_commands.json").unlink()
    assert kernels("build", folder, "--backend", "cpu", "--out", tmp_path / "out").exit_code == 0
    assert not (folder / "compile_commands.json").exists()


@compiler
def test_the_file_for_editors_is_written_without_a_build(
    kernels: Callable[..., Any], source: Callable[[str], Path]
) -> None:
    folder = source(_PLAIN)
    run = kernels("build", folder, "--compile-commands")
    assert run.stdout == f"Wrote {folder / 'compile_commands.json'}\n"
    assert not (folder / "build").exists()
    assert not (folder / ".kernels-build").exists()
    printed = kernels("build", folder, "--compile-commands", "--json").stdout
    assert json.loads(printed) == json.loads((folder / "compile_commands.json").read_text())


def test_sources_that_are_not_compiled_have_no_file_for_editors(
    kernels: Callable[..., Any], source: Callable[[str], Path]
) -> None:
    folder = source(_NOARCH)
    run = kernels("build", folder, "--compile-commands")
    assert (run.exit_code, run.stderr) == (1, "Error: No file was written: the sources are not compiled.\n")
    assert kernels("build", folder).exit_code == 0
    assert not (folder / "compile_commands.json").exists()


@compiler
@pytest.mark.skipif(shutil.which("clangd") is None, reason="clangd is not installed")
def test_clangd_finds_every_header(kernels: Callable[..., Any], source: Callable[[str], Path]) -> None:
    folder = source(_PLAIN)
    (folder / "one.cpp").write_text("#include <torch/headeronly/macros/Macros.h>\nint one() { return 1; }\n")
    assert kernels("build", folder, "--compile-commands").exit_code == 0
    command = ["clangd", "--check=one.cpp", "--background-index=0"]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=os.environ | {"HOME": str(folder)})
    assert "All checks completed, 0 errors" in run.stderr, run.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--list", "--dry-run"), "expected one of --list, --dry-run, --compile-commands, --update"),
        (("--make-envs",), "--make-envs needs --torch"),
        (("--torch", "two"), "`torch` is 'two'; expected a version such as 2.9"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    kernels: Callable[..., Any], source: Callable[[str], Path], arguments: tuple[str, ...], says: str
) -> None:
    run = kernels("build", source(_NOARCH), *arguments)
    assert run.exit_code != 0
    assert says in run.stderr
