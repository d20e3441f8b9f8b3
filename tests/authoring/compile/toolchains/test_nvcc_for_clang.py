"""Editors get nvcc's command lines without what clang does not have."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kernels.authoring.compile.toolchains.nvcc_for_clang import clang_command


@pytest.fixture
def nvcc(tmp_path: Path) -> str:
    """A compiler that says nothing about its folders, in the usual layout."""
    path = tmp_path / "cuda/bin/nvcc"
    path.parent.mkdir(parents=True)
    (tmp_path / "cuda/include").mkdir()
    path.write_text("#!/bin/sh\nexit 1\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("-std=c++20 -O3 -DA=1 -UB -Iinclude -w", "-std=c++20 -O3 -DA=1 -UB -Iinclude -w"),
        ("-D A -I include -isystem more -include first.h", "-D A -I include -isystem more -include first.h"),
        ("-Xcompiler=-fPIC,-Wall", "-fPIC -Wall"),
        ("-Xcompiler -fopenmp --compiler-options -DC,-DD", "-fopenmp -DC -DD"),
        ("-gencode=arch=compute_90a,code=sm_90a -gencode arch=compute_80,code=sm_80 -arch=sm_80 -arch sm_90", ""),
        ("--threads=0 -t 4 --expt-relaxed-constexpr --expt-extended-lambda -extended-lambda", ""),
        ("--use_fast_math -use_fast_math -ftz=true -fmad=false -maxrregcount=32 -lineinfo -G", ""),
        ("-Xptxas -v --ptxas-options=-v,--warn-on-spills -Xcudafe --diag_suppress=177 -diag-suppress 20012", ""),
        ("-ccbin g++ -rdc=true --default-stream per-thread -Werror=all-warnings -forward-unknown-to-host-compiler", ""),
    ],
)
def test_only_what_clang_has_is_left(nvcc: str, given: str, kept: str) -> None:
    command = clang_command([nvcc, *given.split(), "-c", "a.cu", "-o", "a.o"], [nvcc])
    start = command.index("-Wno-unknown-cuda-version") + 3
    assert command[:4] == ["clang++", "-x", "cuda", "--cuda-host-only"]
    assert command[start:] == [*kept.split(), "-c", "a.cu", "-o", "a.o"]


def test_the_toolkit_is_the_one_of_the_compiler(nvcc: str, tmp_path: Path) -> None:
    command = clang_command([nvcc, "-c", "a.cu"], [nvcc])
    assert f"--cuda-path={tmp_path / 'cuda'}" in command
    assert command[command.index("-isystem") + 1] == str(tmp_path / "cuda/include")
    # A compiler before the compiler, such as ccache.
    assert clang_command(["ccache", nvcc, "-DA", "-c", "a.cu"], ["ccache", nvcc])[-3:] == ["-DA", "-c", "a.cu"]


@pytest.mark.skipif(shutil.which("clang++") is None, reason="clang is not installed")
def test_clang_takes_every_option(nvcc: str, tmp_path: Path) -> None:
    (tmp_path / "a.cu").write_text("__attribute__((global)) void kernel() {}\n")
    flags = ["-std=c++20", "-O3", "--threads=0", "-Xcompiler=-fPIC", "-gencode=arch=compute_75,code=sm_75"]
    command = clang_command([nvcc, *flags, "-c", "a.cu"], [nvcc])
    # Without a whole toolkit its own headers are left out.
    run = subprocess.run([*command, "-fsyntax-only", "-nocudainc", "-nocudalib", "-Werror"], cwd=tmp_path)
    assert run.returncode == 0
