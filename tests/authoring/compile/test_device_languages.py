"""Builds of SYCL and Metal kernels, and for Windows, with stand-ins for the compilers that cannot be had on Linux.

The stand-ins answer as the real compilers do, record what they are told, and start this machine's C++ compiler.
"""

from __future__ import annotations

import ctypes
import dataclasses
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from kernels.authoring.compile import BuildResult, build_variants, toolchains
from kernels.authoring.compile.frameworks import installed as framework
from kernels.authoring.compile.frameworks.torch_installation import this_torch
from kernels.authoring.compile.toolchains import msvc
from kernels.resolver.target import Target
from kernels.support.version import MajorMinor

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(sys.platform != "linux", reason="the stand-ins are shell scripts around Linux's compiler"),
]

_GENERAL = """
[general]
name = "answers"
version = 1
edition = 5
license = "MIT"
backends = ["{backend}"]

[torch]
src = ["torch-ext/binding.cpp"]
"""

#: Compiled without Torch's headers, which take a compiler seconds.
_BINDING = """
int device();
extern "C" __attribute__((visibility("default"))) int answer() { return device(); }
"""


def _write(folder: Path, backend: str, kernel: str, files: Mapping[str, str]) -> Path:
    every = {
        "build.toml": _GENERAL.format(backend=backend) + kernel,
        "torch-ext/binding.cpp": _BINDING,
        "torch-ext/answers/__init__.py": "",
        **files,
    }
    for name, text in every.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def _stand_in(path: Path, lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/usr/bin/env {sys.executable}\nimport os, sys\nwords = sys.argv[1:]\n{lines}\n")
    path.chmod(0o755)
    return path


#: What every stand-in for a compiler does: it records its words, leaves some out, and starts the C++ compiler.
_COMPILE = """
import shlex
with open({record!r}, "a") as record:
    record.write(shlex.join(words) + "\\n")
left_out, with_value = {left_out!r}, {with_value!r}
kept = []
while words:
    word = words.pop(0)
    if word in with_value:
        words.pop(0)
    elif not word.startswith(tuple(left_out)):
        kept.append(word)
os.execvp("c++", ["c++", *kept])
"""


def _compiling(record: Path, left_out: list[str], with_value: list[str]) -> str:
    return _COMPILE.format(record=str(record), left_out=left_out, with_value=with_value)


def _torch_for(
    monkeypatch: pytest.MonkeyPatch, backend: str, version: MajorMinor | None, abi: bool | None = True
) -> None:
    torch = this_torch()
    if torch is None:
        pytest.skip("needs Torch")
    changed = dataclasses.replace(torch, builds={backend: version}, cxx11_abi=abi)
    monkeypatch.setattr(framework, "this_torch", lambda: changed)


def _built(folder: Path) -> BuildResult:
    (result,) = build_variants(folder, folder)
    assert result.state == "built", (result.reason, result.detail)
    return result


def _answer(result: BuildResult, name: str) -> int:
    assert result.path is not None
    (library,) = [path for path in result.path.iterdir() if path.suffix in (".so", ".pyd")]
    copy = result.path.parent / f"{name}.so"  # a path that is loaded already would give the older library
    copy.write_bytes(library.read_bytes())
    return int(ctypes.CDLL(str(copy)).answer())


def _commands(record: Path, source: str) -> list[list[str]]:
    return [words for line in record.read_text().splitlines() if source in (words := shlex.split(line))]


_XPU = """
[kernel.device]
backend = "xpu"
depends = ["torch"]
src = ["device.cpp", "more.sycl", "device.h"]
cxx-flags = ["-DHOST=40", "-DXPU=USE_XPU"]
sycl-flags = ["-DDEVICE=2", "-fsycl-targets=spir64_gen,spir64", "-Xs", "-device pvc"]
"""


def test_a_sycl_kernel_is_compiled_and_linked_by_icpx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "record"
    version = "Intel(R) oneAPI DPC++/C++ Compiler 2025.3.0 (2025.3.0.20251010)\\nInstalledDir: /opt/x/bin/compiler"
    answering = f"if words[-1] == '--version':\n    print('{version}')\n    sys.exit()\n"
    icpx = _stand_in(tmp_path / "icpx", answering + _compiling(record, ["-fsycl", "-fno-sycl", "-fno-approx"], ["-Xs"]))
    monkeypatch.delenv("TORCH_XPU_ARCH_LIST", raising=False)
    monkeypatch.setenv("ICPX", f"{icpx} -fhonor-nans")  # options in the variable are kept
    _torch_for(monkeypatch, "xpu", MajorMinor(2025, 3))
    files = {
        "device.h": "#pragma once\nint more();\n",
        "device.cpp": '#include "device.h"\nint device() { return HOST + more() * XPU; }\n',
        "more.sycl": '#include "device.h"\nint more() { return DEVICE; }\n',
    }
    # GCC has no such options.
    icpx.write_text(icpx.read_text().replace("kept = []", "kept = []\nwords = [w for w in words if 'honor' not in w]"))
    result = _built(_write(tmp_path / "source", "xpu", _XPU, files))
    assert result.variant is not None
    assert "-xpu20253-" in result.variant
    assert _answer(result, "first") == 42
    for source in ("device.cpp", "more.sycl", "torch-ext/binding.cpp"):
        (command,) = _commands(record, source)
        assert {"-fsycl", "-DXPU_KERNEL", "-DUSE_XPU=1"} <= set(command)
    (link,) = _commands(record, "-shared")
    (compiled,) = _commands(record, "more.sycl")
    assert "-fsycl-targets=spir64_gen,spir64" in compiled
    # The binding has code for the driver alone.
    start = link.index("-fsycl-targets=spir64,spir64_gen")
    assert link[start + 1 : start + 3] == ["-Xs", "-device pvc"]


_METAL = """
[kernel.device]
backend = "metal"
depends = ["torch"]
include = ["shared"]
src = ["shaders/first.metal", "shaders/second.metal", "device.mm", "shared/number.h"]
cxx-flags = ["-DOFFSET=1"]
metal-flags = ["-ffast-math"]
"""

#: `xcrun -sdk macosx TOOL …`: a shader's object is its text with that of its header, a library is all of them.
_XCRUN = """
tool, words = words[2], words[3:]
if words == ["--version"]:
    print("Apple metal version 32023.864 (metalfe-32023.864)")
    sys.exit()
if tool == "clang++":
    words = [word for word in words if word != "objective-c++" and word != "-x"]
    if "-c" in words:
        words = ["-x", "c++", *words]
{compiling}
"""

_SHADERS = """
if tool != "clang++":
    with open({record!r}, "a") as record:
        record.write(" ".join([tool, *words]) + "\\n")
    inputs = [words[words.index("-c") + 1], "shared/number.h"] if tool == "metal" else words[: words.index("-o")]
    with open(words[words.index("-o") + 1], "w") as made:
        made.write("".join(open(name).read() for name in inputs))
    if "-MF" in words:
        with open(words[words.index("-MF") + 1], "w") as depfile:
            depfile.write(words[words.index("-o") + 1] + ": " + " ".join(inputs))
    sys.exit()
"""


def test_a_metal_kernel_embeds_the_library_of_its_shaders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "record"
    compiling = _SHADERS.format(record=str(record)) + _compiling(
        record, ["-bundle", "-mmacosx"], ["-undefined", "-framework"]
    )
    # Linux has the name of a bundle for a shared library.
    compiling = compiling.replace('["c++", *kept]', '["c++", *kept, *([] if "-c" in kept else ["-shared"])]')
    _stand_in(tmp_path / "bin/xcrun", _XCRUN.format(compiling=compiling))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/local/bin:/usr/bin:/bin")
    _torch_for(monkeypatch, "metal", None, abi=None)
    source = _write(
        tmp_path / "source",
        "metal",
        _METAL,
        {
            "shaders/first.metal": "12345",
            "shaders/second.metal": "678",
            "shared/number.h": "//\n",
            # As published sources ask for their shaders.
            "device.mm": '#include "number.h"\n#include EMBEDDED_METALLIB_HEADER\n'
            "int device() { return OFFSET + EMBEDDED_METALLIB_NAMESPACE::metallib_data_len; }\n",
        },
    )
    result = _built(source)
    assert result.variant is not None
    assert re.fullmatch(r"torch\d+-metal-\w+-linux", result.variant)
    assert _answer(result, "first") == 1 + len("12345//\n678//\n")
    (shader,) = _commands(record, "shaders/first.metal")
    assert shader[0] == "metal"
    assert {"-std=metal4.0", "-ffast-math", "-Ishared"} <= set(shader)
    assert "-DOFFSET=1" not in shader
    (link,) = _commands(record, "-bundle")
    assert link[link.index("-framework") :][:4] == ["-framework", "Foundation", "-framework", "Metal"]
    # What a shader includes changes the extension.
    (source / "shared/number.h").write_text("// longer\n")
    assert _answer(_built(source), "second") == 1 + len("12345// longer\n678// longer\n")


#: `cl /c SOURCE /FoOBJECT`, with the headers that it reads in its output, as ninja expects them.
_CL = """
import re, subprocess
with open({record!r}, "a") as record:
    import shlex
    record.write(shlex.join(["cl", *words]) + "\\n")
source, object = words[words.index("/c") + 1], next(word[3:] for word in words if word.startswith("/Fo"))
folders = [flag for word, value in zip(words, words[1:]) if word == "/external:I" for flag in ("-isystem", value)]
kept = [word for word in words if word[:2] in ("-D", "-I")]
done = subprocess.run(["c++", "-std=c++20", "-fPIC", "-c", source, "-o", object, "-H", *kept, *folders],
                      stderr=subprocess.PIPE, text=True)
print(os.path.basename(source))
for line in done.stderr.splitlines():
    match = re.match(r"(\\.+) (.*)", line)
    print("Note: including file:" + " " * len(match[1]) + os.path.abspath(match[2]) if match else line)
sys.exit(done.returncode)
"""

_LINK = """
import shlex, subprocess
with open({record!r}, "a") as record:
    record.write(shlex.join(["link", *words]) + "\\n")
if words[-1].startswith("@"):
    words = [*words[:-1], *shlex.split(open(words[-1][1:]).read())]
objects = [word for word in words if word.endswith(".obj")]
output = next(word[5:] for word in words if word.startswith("/OUT:"))
sys.exit(subprocess.run(["c++", "-shared", *objects, "-o", output]).returncode)
"""


@pytest.fixture
def windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Microsoft's compiler and linker in a developer's prompt; the file where they record what they are told."""
    record = tmp_path / "record"
    banner = "Microsoft (R) C/C++ Optimizing Compiler Version 19.44.35217 for x64"
    answering = f"if not words:\n    print('{banner}', file=sys.stderr)\n    sys.exit()\n"
    _stand_in(tmp_path / "bin/cl", answering + _CL.format(record=str(record)))
    _stand_in(tmp_path / "bin/link", _LINK.format(record=str(record)))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/local/bin:/usr/bin:/bin")
    monkeypatch.setenv("INCLUDE", "headers")
    host = msvc.Msvc()
    monkeypatch.setattr(toolchains, "_HOST", host)
    others = [each for each in toolchains._TOOLCHAINS if each.device]
    monkeypatch.setattr(toolchains, "_TOOLCHAINS", (host, *others))
    target = msgspec.structs.replace(Target.current(), os="windows")
    monkeypatch.setattr(Target, "current", lambda: target)
    return record


@pytest.mark.parametrize("long", [False, True])
def test_on_windows_microsofts_compiler_and_linker_are_told_things_in_their_manner(
    windows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long: bool
) -> None:
    if long:
        monkeypatch.setattr("kernels.authoring.compile.execution.run_compiler._LONGEST_COMMAND", 50)
    _torch_for(monkeypatch, "cpu", None, abi=None)
    kernel = '\n[kernel.device]\nbackend = "cpu"\nsrc = ["device.cpp", "number.h"]\ncxx-flags = ["-O3", "-mavx2"]\n'
    files = {"number.h": "#define NUMBER 42\n", "device.cpp": '#include "number.h"\nint device() { return NUMBER; }\n'}
    source = _write(tmp_path / "source", "cpu", kernel, files)
    result = _built(source)
    assert result.path is not None
    assert result.variant is not None
    assert re.fullmatch(r"torch\d+-cpu-\w+-windows", result.variant)  # there is no choice of a C++ ABI
    assert [path.suffix for path in result.path.iterdir() if path.name.startswith("_answers")] == [".pyd"]
    assert _answer(result, "first") == 42
    (compiled,) = _commands(windows, "device.cpp")
    assert {"/std:c++20", "/MD", "/EHsc", "/O2", "/arch:AVX2", "-DCPU_KERNEL", "/external:I"} <= set(compiled)
    assert not any(word.startswith(("-f", "-isystem", "-m")) for word in compiled)
    (linked,) = [shlex.split(line) for line in windows.read_text().splitlines() if line.startswith("link")]
    assert linked[-1].startswith("@") == long
    if not long:
        assert {"/DLL", "torch.lib", "torch_cpu.lib", "c10.lib"} <= set(linked)
    # The headers that the compiler lists are known to ninja.
    (source / "number.h").write_text("#define NUMBER 43\n")
    assert _answer(_built(source), "second") == 43


@pytest.mark.parametrize(
    ("backend", "source", "says"),
    [
        ("xpu", "device.cpp", "is not built for xpu. Compiler not found: looked for icpx. Install Intel's oneAPI"),
        ("metal", "device.metal", "is not built for metal. Metal sources are compiled on macOS, with `xcrun metal`."),
        (
            "xpu",
            "device.cu",
            "is not built for xpu. No compiler is known for device.cu; expected a source that ends in",
        ),
    ],
)
def test_without_the_compiler_one_line_says_which_and_where_it_is_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, source: str, says: str
) -> None:
    for name in ("ICPX", "CMPLR_ROOT", "SYCL_ROOT", "ONEAPI_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr("kernels.authoring.compile.toolchains.icpx._installed", lambda wanted: [])
    _torch_for(monkeypatch, "cpu", None)
    kernel = f'\n[kernel.device]\nbackend = "{backend}"\nsrc = ["{source}"]\n'
    folder = _write(tmp_path / "source", backend, kernel, {source: ""})
    (result,) = build_variants(folder, folder)
    assert result.state == "not built"
    assert says in result.reason
    assert "\n" not in result.reason
