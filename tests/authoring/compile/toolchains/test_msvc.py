"""On Windows Microsoft's compiler is found as a developer's prompt or vswhere has it, and told things in its manner."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kernels.authoring.compile import toolchains
from kernels.authoring.compile.toolchains import msvc
from kernels.authoring.compile.toolchains.commands import compiler_version
from kernels.authoring.compile.toolchains.cuda_folders import nvcc_folders
from kernels.authoring.compile.toolchains.msvc import Msvc
from kernels.authoring.compile.toolchains.spelling import MSVC
from kernels.errors import CompilerNotFound

Program = Callable[[str, str], Path]

#: What cl 19.44 says without arguments, on the error stream.
_BANNER = """cat >&2 << 'END'
Microsoft (R) C/C++ Optimizing Compiler Version 19.44.35217 for x64
Copyright (C) Microsoft Corporation.  All rights reserved.

usage: cl [ option... ] filename... [ /link linkoption... ]
END"""


@pytest.fixture(autouse=True)
def no_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/usr/bin:/bin")
    monkeypatch.setenv("PROGRAMFILES(X86)", str(tmp_path / "programs"))
    monkeypatch.delenv("INCLUDE", raising=False)
    msvc._developers_environment.cache_clear()


def test_a_developers_prompt_has_everything_set(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    cl = program("path/cl", _BANNER)
    monkeypatch.setenv("INCLUDE", "headers")
    toolchain = Msvc()
    assert toolchain.command() == [str(cl)]
    assert toolchain.linker() == [str(cl.with_name("link"))]
    assert toolchain.environment() == {"VSLANG": "1033"}
    assert "Version 19.44.35217 for x64" in compiler_version(str(cl), asked=MSVC.version_arguments)


def test_elsewhere_the_variables_of_visual_studio_are_read(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cl = program("studio/bin/cl", _BANNER)
    where = "programs/Microsoft Visual Studio/Installer/vswhere.exe"
    program(where, f'echo "$@" > {tmp_path}/asked; printf "{tmp_path}/studio\\r\\n"')
    # `cmd /u` writes UTF-16.
    answer = f"INCLUDE=C:\\headers\r\nLIB=C:\\lib\r\nPath={cl.parent}\r\nHOME=unchanged\r\n"
    (tmp_path / "answer").write_bytes(answer.encode("utf-16-le"))
    monkeypatch.setenv("COMSPEC", str(program("cmd", f'echo "$@" > {tmp_path}/run; cat {tmp_path}/answer')))
    monkeypatch.setenv("HOME", "unchanged")
    toolchain = Msvc()
    found = {"INCLUDE": "C:\\headers", "LIB": "C:\\lib", "Path": str(cl.parent)}
    assert toolchain.environment() == {**found, "VSLANG": "1033"}
    assert toolchain.command() == [str(cl)]
    assert "VC.Tools.x86.x64 -property installationPath" in (tmp_path / "asked").read_text()
    assert "studio/VC/Auxiliary/Build/vcvars64.bat" in (tmp_path / "run").read_text()


@pytest.mark.parametrize(
    ("vswhere", "says"),
    [(None, "looked for cl, and vswhere"), ("true", r"without a C\+\+ compiler"), ("exit 87", "failed")],
)
def test_without_it_the_error_says_what_to_install(program: Program, vswhere: str | None, says: str) -> None:
    if vswhere is not None:
        program("path/vswhere", vswhere)
    with pytest.raises(CompilerNotFound, match=rf"{says}(.|\n)*Install the C\+\+ build tools of Visual Studio"):
        Msvc().command()


def test_python_and_libraries_are_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libs").mkdir()
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    assert Msvc().link_flags(None) == ["/nologo", "/DLL", f"/LIBPATH:{tmp_path / 'libs'}"]


@pytest.mark.parametrize(
    ("flags", "microsofts"),
    [
        ("-DA=1 -Iown -isystem one -isystemtwo", "-DA=1 -Iown /external:I one /external:I two"),
        ("-std=gnu++17 -O3 -fopenmp -mavx2 -mfma", "/std:c++17 /O2 /openmp:experimental /arch:AVX2"),
        ("-fPIC -fvisibility=hidden -Wall -Wno-unused -Wl,--as-needed", ""),
        ("-shared -cudart=shared -Lfolder -lc10_cuda", "cudart.lib /LIBPATH:folder c10_cuda.lib"),
        ("/arch:AVX512 -include first.h", "/arch:AVX512 /FI first.h"),
    ],
)
def test_flags_are_translated(flags: str, microsofts: str) -> None:
    assert MSVC.arguments(flags.split()) == microsofts.split()


def test_files_are_named_in_its_manner() -> None:
    assert MSVC.compiled("a.cpp", Path("a.obj")) == ["/c", "a.cpp", "/Foa.obj"]
    assert MSVC.linked(Path("a.pyd")) == ["/OUT:a.pyd"]
    assert (MSVC.listing_headers(Path("a.obj")), MSVC.ninja_deps("a.d")) == (["/showIncludes"], ["deps = msvc"])


def test_cudas_libraries_for_windows_are_where_nvcc_says(program: Program, tmp_path: Path) -> None:
    library, headers = tmp_path / "lib" / "x64", tmp_path / "include"
    library.mkdir(parents=True)
    headers.mkdir()
    # As nvcc 12.4 on Windows answers to `--dryrun`.
    said = f'#$ TOP={tmp_path}/bin/..\n#$ INCLUDES="-I{headers}"\n#$ LIBRARIES=  "/LIBPATH:{library}"\n'
    (tmp_path / "said").write_text(said)
    nvcc = program("bin/nvcc", f"cat {tmp_path}/said >&2")
    found = nvcc_folders((str(nvcc),))
    assert (found.include, found.libraries) == ((headers,), (library,))


def test_a_cuda_extension_is_linked_by_microsofts_linker(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cl = program("path/cl", _BANNER)
    monkeypatch.setenv("INCLUDE", "headers")
    (tmp_path / "lib" / "x64").mkdir(parents=True)
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "c10_cuda.lib").touch()
    answer = "Cuda compilation tools, release 13.0, V13.0.48"
    nvcc = program("bin/nvcc", f'[ "$1" = --version ] && echo "{answer}"')
    monkeypatch.setenv("NVCC", str(nvcc))
    monkeypatch.setattr(toolchains, "_HOST", Msvc())
    linking = toolchains.link_extension(
        [Msvc(), toolchains.toolchain_for("kernel.cu")], ["-Lfolder", "-lc10"], tmp_path / "torch"
    )
    assert linking.command == (str(cl.with_name("link")),)
    assert {"/DLL", "/LIBPATH:folder", "c10.lib", "c10_cuda.lib", "cudart.lib"} <= set(linking.arguments)
    assert f"/LIBPATH:{tmp_path / 'lib' / 'x64'}" in linking.arguments
    assert not [word for word in linking.arguments if word.startswith("-")]
    assert ("VSLANG", "1033") in linking.environment
