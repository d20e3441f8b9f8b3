"""Only what changed is compiled again; a compiler's words are kept and shown; nothing is compiled twice into one."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

import kernels.authoring.compile.execution.run_compiler
from kernels.authoring.compile import build_kernel, build_variants
from kernels.authoring.compile.execution.compiler_steps import Compilation, CompileUnit, EmbeddedLibrary
from kernels.authoring.compile.execution.run_compiler import compile_extension
from kernels.errors import BuildError, RequestError

compiler = pytest.mark.compiler

_TOML = """
[general]
name = "add-one"
version = 1
edition = 5
license = "MIT"
backends = ["cpu"]

[torch]

[kernel.one]
backend = "cpu"
include = ["headers"]
src = ["one.cpp", "two words.cpp", "headers/number.h"]
"""
_PLAIN = {
    "build.toml": _TOML,
    "one.cpp": '#include "number.h"\nint one() { return number; }\n',
    "two words.cpp": "int two() { return 2; }\n",
    "headers/number.h": "constexpr int number = 1;\n",
    "torch-ext/add_one/__init__.py": "",
}


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A source that compiles without Torch's headers, which take a compiler seconds."""
    for name, text in _PLAIN.items():
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "source"


def _objects(source: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (source / ".kernels-build").rglob("*.o")}


def _library(source: Path) -> bytes:
    (variant,) = build_kernel(source, source)
    return next(variant.glob("*.so")).read_bytes()


def _without_ninja(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels.authoring.compile.execution.run_compiler, "_ninja", lambda: None)


@compiler
@pytest.mark.parametrize(
    ("changed", "text", "compiled"),
    [
        ("two words.cpp", "int two() { return 3; }\n", {"two words.cpp.o"}),
        ("headers/number.h", "constexpr int number = 4;\n", {"one.cpp.o"}),
        ("torch-ext/add_one/__init__.py", "two = 2\n", set()),
        ("one.cpp", "#error\n", None),
    ],
)
def test_only_what_a_change_touches_is_compiled(
    plain: Path, changed: str, text: str, compiled: set[str] | None
) -> None:
    build_kernel(plain, plain)
    before = _objects(plain)
    (plain / changed).write_text(text)
    if compiled is None:
        with pytest.raises(BuildError, match=r"Building one\.cpp failed"):
            build_kernel(plain, plain)
        return
    build_kernel(plain, plain)
    after = _objects(plain)
    assert {name for name in after if after[name] != before[name]} == compiled


@compiler
def test_a_source_that_is_replaced_by_an_older_file_is_compiled_again(plain: Path) -> None:
    first = _library(plain)
    (plain / "one.cpp").write_text("int one() { return 42; }\n")
    os.utime(plain / "one.cpp", (0, 0))
    second = _library(plain)
    assert second != first
    (plain / "one.cpp").write_text(_PLAIN["one.cpp"])
    os.utime(plain / "one.cpp", (0, 0))
    assert _library(plain) == first


@compiler
def test_a_new_header_that_hides_another_one_is_seen(plain: Path) -> None:
    first = _library(plain)
    (plain / "number.h").write_text("constexpr int number = 42;\n")
    assert _library(plain) != first


@compiler
def test_without_ninja_the_same_bytes_are_built(plain: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = _library(plain)
    _without_ninja(monkeypatch)
    (variant,) = build_kernel(plain, tmp_path / "out")
    assert next(variant.glob("*.so")).read_bytes() == first


#: A compiler that waits until another one is at work as well.
_SOCIABLE = """#!/bin/sh
case " $* " in
*" -c "*)
    touch {folder}/at-work.$$
    tries=0
    while [ "$(ls {folder}/at-work.* | wc -l)" -lt 2 ]; do
        tries=$((tries + 1))
        [ $tries -gt 600 ] && echo "alone" >&2 && exit 1
        sleep 0.05
    done ;;
esac
exec c++ "$@"
"""


@compiler
@pytest.mark.parametrize("ninja", [True, False])
def test_sources_are_compiled_side_by_side(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ninja: bool
) -> None:
    if not ninja:
        _without_ninja(monkeypatch)
    sociable = tmp_path / "sociable"
    sociable.write_text(_SOCIABLE.format(folder=tmp_path))
    sociable.chmod(0o755)
    monkeypatch.setenv("CXX", str(sociable))
    (variant,) = build_kernel(plain, tmp_path / "out", jobs=2)
    assert list(variant.glob("*.abi3.so"))
    assert len(list(tmp_path.glob("at-work.*"))) == 2


@compiler
@pytest.mark.parametrize("ninja", [True, False])
def test_a_long_output_is_shortened_around_its_first_error(
    plain: Path, monkeypatch: pytest.MonkeyPatch, ninja: bool
) -> None:
    if not ninja:
        _without_ninja(monkeypatch)
    warnings = "".join(f'#warning "number {number}"\n' for number in range(100))
    (plain / "one.cpp").write_text(warnings + "int x = unknown;\n" + "".join(f"int y{i} = z{i};\n" for i in range(100)))
    with pytest.raises(BuildError) as raised:
        build_kernel(plain, plain)
    text = str(raised.value)
    assert "one.cpp:101:9: error:" in text
    assert "lines left out)" in text
    assert "more lines)" in text
    log = next((plain / ".kernels-build").glob("*.log")).read_text()
    assert "number 0" in log
    assert "y99" in log


@compiler
def test_a_library_that_does_not_link_is_named(plain: Path) -> None:
    (plain / "one.cpp").write_text("int two() { return 1; }\n")
    with pytest.raises(BuildError, match=r"Building _add_one_cpu_.*\.abi3\.so failed(.|\n)*multiple definition"):
        build_kernel(plain, plain)


@compiler
@pytest.mark.parametrize("flag", ["-DA=1\\n", "-DA=1\\r", "\\u0000"], ids=["newline", "return", "null"])
def test_a_flag_with_a_line_break_is_refused(plain: Path, flag: str) -> None:
    (plain / "build.toml").write_text(_TOML + f'cxx-flags = ["{flag}"]\n')
    with pytest.raises(RequestError, match=r"A path or a flag for one\.cpp has a line break or a null byte"):
        build_kernel(plain, plain)


@compiler
@pytest.mark.parametrize("name", ["-x.cpp", "@x.cpp", "a|b.cpp", "a$b: 'c\\" + '".cpp', "a;touch b.cpp"])
def test_a_source_may_have_any_name(plain: Path, name: str) -> None:
    (plain / "one.cpp").rename(plain / name)
    (plain / "build.toml").write_text(_TOML.replace('"one.cpp"', json.dumps(name)))
    first = _library(plain)
    assert (first, _library(plain)) == (first, first)
    (plain / name).write_text('#include "number.h"\nint one() { return number + 1; }\n')
    assert _library(plain) != first


@compiler
def test_what_a_shell_would_read_is_passed_as_it_is(plain: Path, tmp_path: Path) -> None:
    (plain / "build.toml").write_text(_TOML + f"cxx-flags = ['-DTEXT=\"$HOME;touch {tmp_path}/touched `id`\"']\n")
    (plain / "one.cpp").write_text("static_assert(TEXT[0] == '$' && TEXT[1] == 'H', \"\");\n")
    build_kernel(plain, plain)
    assert not (tmp_path / "touched").exists()


_HOLDER = """
import pathlib, subprocess, sys
log, ended = map(pathlib.Path, sys.argv[1:])
from kernels.authoring.compile.execution.run_compiler import open_log
with open_log(log) as out:
    # What a build that was killed leaves running: a process that has the log open, and waits.
    code = "import sys, pathlib; sys.stdin.read(); pathlib.Path(sys.argv[1]).touch()"
    subprocess.Popen([sys.executable, "-c", code, str(ended)], stdout=out)
    print("there", flush=True)
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)
"""


@compiler
@pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")
def test_compilers_that_outlive_a_killed_build_are_waited_for(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _library(plain)
    (log,) = (plain / ".kernels-build").glob("*.log")
    ended, seen = tmp_path / "ended", []
    command = [sys.executable, "-c", _HOLDER, str(log), str(ended)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as killed:
        assert killed.stdout is not None
        assert killed.stdin is not None
        assert killed.stdout.readline() == b"there\n"
        keep = kernels.authoring.compile.execution.run_compiler.keep_objects
        monkeypatch.setattr(
            kernels.authoring.compile.execution.run_compiler,
            "keep_objects",
            lambda *arguments: (seen.append(ended.exists()), keep(*arguments)),
        )
        (plain / "one.cpp").write_text("int one() { return 11; }\n")
        building = Thread(target=_library, args=(plain,))
        building.start()
        building.join(0.5)
        killed.stdin.close()
        building.join()
    assert seen == [True]


def test_outcomes_come_one_by_one(write_source: Callable[..., Path], tmp_path: Path) -> None:
    outcomes = build_variants(write_source("noarch"), tmp_path / "out")
    assert next(outcomes).variant == "torch-cpu"
    assert [path.name for path in (tmp_path / "out/build").iterdir()] == ["torch-cpu"]
    assert [each.variant for each in outcomes] == ["torch-cuda", "torch-npu"]


#: A compiler for a device: its object is the source in capitals, with the header that it includes.
_SHADER_COMPILER = """#!/bin/sh
case " $* " in *" --version "*) echo "shader compiler 3"; exit ;; esac
while [ $# -gt 0 ]; do
    case "$1" in
    -c) source="$2"; shift ;;
    -o) object="$2"; shift ;;
    -MF) echo "$object: $source shaders/one.inc" > "$2"; shift ;;
    esac
    shift
done
grep -q wrong "$source" && echo "$source: error: wrong" && exit 1
cat "$source" shaders/one.inc | tr a-z A-Z > "$object"
"""

#: It puts the objects together.
_SHADER_LINKER = """#!/bin/sh
while [ "$1" != -o ]; do objects="$objects $1"; shift; done
cat $objects > "$2"
"""


@pytest.fixture
def embedding(tmp_path: Path) -> tuple[Compilation, Path]:
    """A source that embeds a library of two shaders, and the folder of the sources."""
    folder = tmp_path / "source"
    files = {
        "main.cpp": '#include EMBEDDED\nextern "C" const unsigned char* bytes() { return made_here::metallib_data; }\n'
        'extern "C" long size() { return made_here::metallib_data_len; }\n',
        "shaders/a.shader": "first ",
        "shaders/b.shader": "second ",
        "shaders/one.inc": "one ",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for name, text in {"shader-compiler": _SHADER_COMPILER, "shader-linker": _SHADER_LINKER}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    shader_compiler = (str(tmp_path / "shader-compiler"),)
    shaders = tuple(CompileUnit(f"shaders/{name}.shader", shader_compiler) for name in "ab")
    embedded = EmbeddedLibrary(shaders, (str(tmp_path / "shader-linker"),), "made.lib", "made.h", "made_here")
    main = CompileUnit("main.cpp", ("c++", "-fPIC", '-DEMBEDDED="made.h"'))
    return Compilation(folder, (main,), ("c++", "-shared"), (), embedded=embedded), folder


def _embedded_text(compilation: Compilation, folder: Path, name: str) -> str:
    library = folder.parent / f"{name}.so"  # the same path twice would be the library that is loaded already
    compile_extension(compilation, library, folder.parent / "objects", folder.parent / "log")
    loaded = ctypes.CDLL(str(library))
    loaded.bytes.restype = ctypes.c_void_p
    return ctypes.string_at(loaded.bytes(), loaded.size()).decode()


@compiler
@pytest.mark.parametrize("ninja", [True, False])
def test_a_device_library_is_made_first_and_embedded(
    embedding: tuple[Compilation, Path], monkeypatch: pytest.MonkeyPatch, ninja: bool
) -> None:
    if not ninja:
        _without_ninja(monkeypatch)
    compilation, folder = embedding
    assert _embedded_text(compilation, folder, "first") == "FIRST ONE SECOND ONE "
    assert f"{folder.parent}/shader-compiler: shader compiler 3\n" in compilation.versions()
    # A changed file that a shader includes changes the library, its header, and the source that embeds it.
    (folder / "shaders/one.inc").write_text("1 ")
    assert _embedded_text(compilation, folder, "second") == "FIRST 1 SECOND 1 "


@compiler
def test_a_shader_that_does_not_compile_is_named(embedding: tuple[Compilation, Path]) -> None:
    compilation, folder = embedding
    (folder / "shaders/b.shader").write_text("wrong")
    with pytest.raises(BuildError, match=r"Building shaders/b\.shader failed(.|\n)*error: wrong"):
        _embedded_text(compilation, folder, "broken")


@compiler
@pytest.mark.parametrize("ninja", [True, False])
def test_a_long_command_is_passed_in_a_file(plain: Path, monkeypatch: pytest.MonkeyPatch, ninja: bool) -> None:
    if not ninja:
        _without_ninja(monkeypatch)
    monkeypatch.setattr(kernels.authoring.compile.execution.run_compiler, "_LONGEST_COMMAND", 100)
    _library(plain)
    (written,) = (plain / ".kernels-build").rglob("*.rsp") if not ninja else [None]
    assert written is None or "two words.cpp.o" in written.read_text()
