"""The compiler is found by the source's suffix and called in its own manner."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.authoring.compile.execution.compiler_steps import Compilation, CompileUnit
from kernels.authoring.compile.execution.run_compiler import compile_extension
from kernels.authoring.compile.toolchains import compiler_version, toolchain_for, toolkit_for
from kernels.errors import BuildError, CompilerNotFound


def _program(folder: Path, name: str, lines: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)
    return path


def test_an_unknown_suffix_lists_those_that_can_be_compiled() -> None:
    with pytest.raises(
        BuildError, match=r"kernel\.f90; expected a source that ends in \.c, \.cc, \.cpp, \.cu, \.cxx, \.hip"
    ):
        toolchain_for("kernel.f90")


def test_device_code_is_made_for_the_architectures_that_the_build_declares() -> None:
    flags = toolchain_for("kernel.cu").flags(["8.0", "9.0a", "10.0f", "12.0+PTX"], ["-lineinfo"])
    assert [flag for flag in flags if flag.startswith("-gencode")] == [
        "-gencode=arch=compute_80,code=sm_80",
        "-gencode=arch=compute_90a,code=sm_90a",
        "-gencode=arch=compute_100f,code=sm_100f",
        "-gencode=arch=compute_120,code=sm_120",
        "-gencode=arch=compute_120,code=compute_120",
    ]
    assert flags[-1] == "-lineinfo"
    # Two sections of one file: what both ask for is compiled once.
    both = [flag for flag in toolchain_for("kernel.cu").flags(["9.0", "9.0+PTX"], []) if flag.startswith("-gencode")]
    assert both == ["-gencode=arch=compute_90,code=sm_90", "-gencode=arch=compute_90,code=compute_90"]


def test_an_architecture_of_another_family_is_refused() -> None:
    with pytest.raises(BuildError, match="'gfx942'"):
        toolchain_for("kernel.cu").flags(["gfx942"], [])


def _nvcc(folder: Path) -> Path:
    """A compiler that knows three capabilities."""
    known = r"compute_80\ncompute_90\ncompute_120\n"
    return _program(folder, "nvcc", f"[ \"$1\" = --list-gpu-arch ] && printf '{known}'")


@pytest.mark.parametrize(
    ("asked", "compiled"),
    [
        (["8.0", "9.0a", "13.0"], ("8.0", "9.0a")),
        (["12.0+PTX"], ("12.0+PTX",)),
        ([], ("8.0", "9.0", "12.0+PTX")),  # PTX: for devices that are newer than the compiler
    ],
)
def test_device_code_is_made_for_what_the_compiler_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str], compiled: tuple[str, ...]
) -> None:
    monkeypatch.setenv("NVCC", str(_nvcc(tmp_path)))
    assert toolchain_for("a.cu").compiled_archs(asked) == compiled


def test_architectures_that_the_compiler_does_not_know_are_listed_with_those_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVCC", str(_nvcc(tmp_path)))
    with pytest.raises(CompilerNotFound, match=r"supports none of 7\.0, 13\.0; it supports 8\.0, 9\.0, 12\.0"):
        toolchain_for("a.cu").compiled_archs(["7.0", "13.0"])


@pytest.mark.parametrize("path", ["kernel.hip", "kernel.cu"])
def test_where_torch_is_hips_device_code_is_hips_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    hipcc = _program(tmp_path, "rocm/bin/hipcc", "echo hipcc")
    monkeypatch.delenv("HIPCC", raising=False)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    toolchain = toolchain_for(path, "hip")
    assert toolchain.command() == [str(hipcc)]
    flags = toolchain.flags(toolchain.compiled_archs(["gfx90a", "gfx942"]), ["-O2"])
    assert flags[:2] == ["-x", "hip"]
    assert {"-DUSE_ROCM=1", "-DHIPBLAS_V2", "-DHIP_ENABLE_WARP_SYNC_BUILTINS=1"} <= {*flags}  # as Torch's own builds
    assert flags[-3:] == ["--offload-arch=gfx90a", "--offload-arch=gfx942", "-O2"]
    (tmp_path / "libc10_hip.so").touch()
    assert toolchain.link_flags(tmp_path) == ["-shared", "-lc10_hip", "-lamdhip64"]


def test_hip_code_needs_architectures_of_its_own_family() -> None:
    with pytest.raises(BuildError, match=r"hipcc cannot compile for '9\.0'"):
        toolchain_for("kernel.hip").compiled_archs(["9.0"])


def test_compilers_come_from_the_environment_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = _program(tmp_path, "fast-cxx", "echo fast 1.0")
    monkeypatch.setenv("CXX", f"{fast} --cache")
    assert toolchain_for("a.cpp").command() == [str(fast), "--cache"]
    assert compiler_version(str(fast)) == "fast 1.0\n"

    nvcc = _program(tmp_path, "toolkit/bin/nvcc", "echo nvcc")
    monkeypatch.delenv("NVCC", raising=False)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    assert toolchain_for("a.cu").command() == [str(nvcc)]
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "gone"))
    with pytest.raises(CompilerNotFound, match="CUDA toolkit"):
        toolchain_for("a.cu").command()


def test_the_hosts_compiler_belongs_to_no_toolkit() -> None:
    assert toolkit_for("") is toolkit_for("no such language") is None


def test_only_the_openmp_runtime_that_torch_brings_is_linked(tmp_path: Path) -> None:
    assert toolchain_for("a.cpp").link_flags(tmp_path) == ["-shared", "-fopenmp"]
    runtime = tmp_path / "libgomp-1234.so.1"
    runtime.touch()
    assert toolchain_for("a.cpp").link_flags(tmp_path) == ["-shared", str(runtime)]


def test_the_commands_that_run_are_part_of_the_fingerprint(tmp_path: Path) -> None:
    compiler = str(_program(tmp_path, "cxx", "echo cxx 7"))
    compilation = Compilation(
        tmp_path, (CompileUnit("a.cpp", (compiler, "-O2")),), (compiler,), ("-lm",), (), "torch 9.0"
    )
    commands = [f"{compiler} -O2 a.cpp", f"{compiler} -lm"]
    assert compilation.fingerprint() == [*commands, "torch 9.0", f"{compiler}: cxx 7\n"]


def test_a_compiler_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    broken = tmp_path / "cxx"
    broken.write_text("not a program")
    compilation = Compilation(tmp_path, (CompileUnit("a.cpp", (str(broken),)),), (str(broken),), ())
    with pytest.raises(CompilerNotFound, match="--version` failed"):
        compile_extension(compilation, tmp_path / "a.so", tmp_path / "objects", tmp_path / "log")
