"""SYCL sources are compiled by Intel's compiler: the one whose runtime is Torch's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kernels.authoring.compile.toolchains import toolchain_for, toolkit_for
from kernels.errors import CompilerNotFound
from kernels.support.version import MajorMinor

Program = Callable[[str, str], Path]

#: What icpx 2025.3.2 answers to `--version`, with its folder.
_ANSWER = """cat << 'END'
Intel(R) oneAPI DPC++/C++ Compiler {release} ({release}.20260112)
Target: x86_64-unknown-linux-gnu
Thread model: posix
InstalledDir: {folder}/bin/compiler
Configuration file: {folder}/bin/compiler/../icpx.cfg
END"""


@pytest.fixture
def oneapi(tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Install releases of oneAPI's compiler."""
    for name in ("ICPX", "CMPLR_ROOT", "SYCL_ROOT", "DNNLROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ONEAPI_ROOT", str(tmp_path / "oneapi"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/usr/bin:/bin")
    monkeypatch.setattr("sys.platform", "linux")

    def install(release: str, *, folder: str = "") -> Path:
        home = tmp_path / "oneapi" / "compiler" / (folder or release.rpartition(".")[0])
        (home / "include" / "sycl").mkdir(parents=True)
        return program(str(home / "bin" / "icpx"), _ANSWER.format(release=release, folder=home))

    return install


@pytest.mark.parametrize("path", ["kernel.cpp", "kernel.sycl", "kernel.cc"])
def test_every_cpp_source_of_a_sycl_kernel_can_hold_device_code(path: str) -> None:
    toolchain = toolchain_for(path, "sycl")
    flags = toolchain.flags([], ["-DX"])
    assert toolchain.device
    assert flags[:2] == ["-x", "c++"]  # no compiler knows the suffix .sycl
    assert {"-fsycl", "-fsycl-targets=spir64", "-fhonor-nans", "-DX"} <= set(flags)
    assert not toolchain_for("kernel.cpp").device


@pytest.mark.parametrize(
    ("compiled_with", "linked"),
    [
        ([], ["-fsycl-targets=spir64"]),
        ([["-O2"], ["-DX"]], ["-fsycl-targets=spir64"]),
        (
            [["-O2", "-fsycl-targets=spir64_gen,spir64", "-Xs", "-device pvc,bmg", "-DNDEBUG"]],
            ["-fsycl-targets=spir64_gen,spir64", "-Xs", "-device pvc,bmg"],
        ),
        # Code that only one source has for a target is linked as well, for the GPUs that Torch is compiled for.
        (
            [[], ["-fsycl-targets=spir64_gen", "-fsycl-device-code-split=per_kernel"]],
            [
                "-fsycl-targets=spir64,spir64_gen",
                "-Xsycl-target-backend=spir64_gen",
                "-device pvc,xe-lpg,ats-m150",
                "-fsycl-device-code-split=per_kernel",
            ],
        ),
    ],
)
def test_the_device_code_of_all_sources_is_linked(
    monkeypatch: pytest.MonkeyPatch, compiled_with: list[list[str]], linked: list[str]
) -> None:
    monkeypatch.delenv("TORCH_XPU_ARCH_LIST", raising=False)
    flags = toolchain_for("kernel.cpp", "sycl").link_flags(None, compiled_with)
    assert flags[: len(linked) + 3] == ["-shared", "-fsycl", *linked, "-Wl,-z,noexecstack"]


def test_torchs_variable_names_gpus_to_compile_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libc10_xpu.so").touch()
    monkeypatch.setenv("TORCH_XPU_ARCH_LIST", "bmg")
    toolchain = toolchain_for("kernel.cpp", "sycl")
    assert "-fsycl-targets=spir64_gen,spir64" in toolchain.flags([], [])
    flags = toolchain.link_flags(tmp_path, [[]])
    assert flags[2:5] == ["-fsycl-targets=spir64_gen,spir64", "-Xsycl-target-backend=spir64_gen", "-device bmg"]
    assert "-lc10_xpu" in flags


def test_further_extensions_of_spirv_are_added_to_the_compilers_own(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As `icpx -###` lists the commands that it would run.
    answer = """echo '"/opt/bin/llvm-spirv" "-o" "a.spv" "-spirv-ext=-all,+SPV_KHR_expect_assume" "a.bc"' >&2"""
    monkeypatch.setenv("ICPX", str(program("icpx", answer)))
    asked = ["-Xspirv-translator", "-spirv-ext=+SPV_INTEL_split_barrier"]
    flags = toolchain_for("kernel.cpp", "sycl").link_flags(None, [asked])
    own = "-spirv-ext=-all,+SPV_KHR_expect_assume,+SPV_INTEL_split_barrier"
    assert flags[3:5] == ["-Xspirv-translator", own]
    silent = program("silent/icpx", "true")
    monkeypatch.setenv("ICPX", str(silent))
    with pytest.raises(CompilerNotFound, match="does not say which extensions of SPIR-V"):
        toolchain_for("kernel.cpp", "sycl").link_flags(None, [asked])


def test_onednn_is_found_for_kernels_that_use_it(
    oneapi: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    oneapi("2025.3.2", folder="latest")
    for name in ("include/oneapi/dnnl/dnnl.hpp", "lib/libdnnl.so"):
        (tmp_path / "dnnl" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "dnnl" / name).touch()
    monkeypatch.setenv("DNNLROOT", str(tmp_path / "dnnl"))
    toolkit = toolkit_for("sycl")
    assert toolkit is not None
    assert str(tmp_path / "dnnl/include") in toolkit.header_flags(device=True)
    flags = toolchain_for("kernel.cpp", "sycl").link_flags(None)
    assert flags[-4:] == [f"-L{tmp_path / 'dnnl/lib'}", "-Wl,--push-state,--as-needed", "-ldnnl", "-Wl,--pop-state"]


def test_the_version_and_the_headers_are_the_compilers_own(oneapi: Callable[..., Path]) -> None:
    icpx = oneapi("2025.3.2", folder="latest")
    toolkit = toolkit_for("sycl")
    assert toolkit is not None
    home = icpx.parents[1]
    assert (toolkit.version, toolkit.folder, toolkit.found_by) == (MajorMinor(2025, 3), home, "$ONEAPI_ROOT")
    assert toolkit.include == (home / "include", home / "include" / "sycl")


@pytest.mark.parametrize(
    ("installed", "wanted", "chosen"),
    [
        (["2025.2.0", "2025.3.1"], (2025, 3), "2025.3"),
        (["2025.2.0"], (2025, 3), "2025.2"),  # an older one of that year needs less of the same runtime
        (["2025.3.1"], (2025, 2), None),
        (["2026.0.1"], (2025, 3), None),
    ],
)
def test_the_compiler_is_of_the_release_that_torch_was_built_with(
    oneapi: Callable[..., Path], tmp_path: Path, installed: list[str], wanted: tuple[int, int], chosen: str | None
) -> None:
    for release in installed:
        oneapi(release)
    (tmp_path / "oneapi/compiler/latest").symlink_to(installed[-1].rpartition(".")[0])
    toolchain = toolchain_for("kernel.cpp", "sycl", MajorMinor(*wanted))
    if chosen is None:
        with pytest.raises(CompilerNotFound, match=r"built with oneAPI 2025\.\d.* is of 202\d\.\d\. Install version"):
            toolchain.command()
        return
    toolkit = toolchain.toolkit()
    assert toolkit is not None
    assert str(toolkit.version) == chosen


def test_a_compiler_that_a_variable_names_is_taken(
    oneapi: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    oneapi("2025.3.1", folder="latest")
    nightly = oneapi("2026.1.0", folder="nightly")
    monkeypatch.setenv("ICPX", f"{nightly} --gcc-toolchain=/usr")
    command = toolchain_for("kernel.cpp", "sycl", MajorMinor(2025, 3)).command()
    assert command == [str(nightly), "--gcc-toolchain=/usr"]


def test_without_the_compiler_the_error_says_where_it_is_had(oneapi: Callable[..., Path]) -> None:
    for version in (None, MajorMinor(2025, 3)):
        with pytest.raises(
            CompilerNotFound, match=r"looked for icpx\. Install Intel's oneAPI .* apt-get install intel-"
        ):
            toolchain_for("kernel.sycl", "sycl", version).command()


def test_an_answer_without_a_version_is_an_error(
    oneapi: Callable[..., Path], program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ICPX", str(program("path/clang++", "echo 'clang version 22.0.0git (https://example.org)'")))
    with pytest.raises(CompilerNotFound, match=r"has no version in its output: 'clang version 22"):
        toolkit_for("sycl")


def test_other_systems_are_told_that_it_is_for_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(CompilerNotFound, match="on Linux only"):
        toolchain_for("kernel.sycl", "sycl").command()
