"""Sections are compiled as published sources expect: each with its flags, architectures and toolkit."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from pathlib import Path

import pytest
from logged import logged, warned

from kernels.authoring.compile import build_kernel, read_source
from kernels.authoring.compile.frameworks import torch_installation
from kernels.authoring.compile.plan import sections
from kernels.authoring.compile.plan.build_plan import BuildPlan, plan_build, source_state
from kernels.errors import CompilerNotFound, RequestError
from kernels.resolver.target import Target
from kernels.support.version import MajorMinor

_GENERAL = '[general]\nname = "add-one"\nversion = 1\nedition = 5\nlicense = "MIT"\nbackends = ["{backend}"]\n'

_NVCC = r"""#!/bin/sh
case "$1" in
--list-gpu-arch) printf 'compute_80\ncompute_89\ncompute_90\ncompute_100\ncompute_120\n' ;;
--version) echo 'Cuda compilation tools, release 12.6, V12.6.20' ;;
esac
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a source folder for a backend; files without a text are made."""

    def write(toml: str, backend: str = "cpu", **files: str) -> Path:
        source = tmp_path / "source"
        every = {"build.toml": _GENERAL.format(backend=backend) + toml, "torch-ext/add_one/__init__.py": ""}
        for name, text in {**every, **{name.replace("__", "/"): text for name, text in files.items()}}.items():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_text(text)
        return source

    return write


@pytest.fixture
def plan(write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., BuildPlan]:
    """Plan a build for a GPU with CUDA 12.6, by a stand-in for its compiler."""
    nvcc = tmp_path / "toolkit" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text(_NVCC)
    nvcc.chmod(0o755)
    monkeypatch.setenv("NVCC", str(nvcc))
    monkeypatch.setattr(
        torch_installation, "torch_builds", lambda: {"cuda": MajorMinor(12, 6), "rocm": MajorMinor(7, 0)}
    )

    def plan(toml: str, *files: str, backend: str = "cuda", this_gpu: bool = False) -> BuildPlan:
        source = read_source(write(toml, backend, **{name.replace("/", "__"): "" for name in files}))
        return plan_build(source, source_state(source), backend, this_gpu=this_gpu)

    return plan


def _command(made: BuildPlan, path: str) -> tuple[str, ...]:
    assert made.compilation is not None
    (unit,) = [unit for unit in made.compilation.units if unit.source == path]
    return unit.command


def _exported(variant: Path, name: str) -> int:
    """What an exported function of a build's library returns."""
    import torch  # noqa: F401  # the library needs Torch's

    (library,) = variant.glob("*.so")
    return int(getattr(ctypes.CDLL(str(library)), name)())


_EXPORT = 'extern "C" __attribute__((visibility("default"))) '


@pytest.mark.compiler
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the flags and intrinsics are those of x86-64")
def test_avx2_avx512_and_plain_code_are_one_build(write: Callable[..., Path], tmp_path: Path) -> None:
    # The way of published CPU kernels: a file that asks the processor, and one for each of its extensions.
    source = write(
        """
[torch]

[kernel.cpu]
backend = "cpu"
depends = ["torch"]
include = ["sum_cpu"]
src = ["sum_cpu/sum.cpp", "sum_cpu/sum.hpp"]

[kernel.cpu_avx2]
backend = "cpu"
cxx-flags = ["-O3", "-mavx2", "-mfma", "-mf16c", "-fopenmp"]
depends = ["torch"]
include = ["sum_cpu"]
src = ["sum_cpu/avx2/sum.cpp", "sum_cpu/sum.hpp"]

[kernel.cpu_avx512]
backend = "cpu"
cxx-flags = [
    "-fopenmp", "-mavx512f", "-mavx512bf16", "-mavx512vl", "-mavx512dq", "-mavx512bw", "-DCPU_CAPABILITY=AVX512",
]
depends = ["torch"]
include = ["sum_cpu"]
src = ["sum_cpu/avx512/sum.cpp", "sum_cpu/sum.hpp"]
""",
        **{
            "sum_cpu__sum.hpp": "#pragma once\nnamespace avx2 { int lanes(); }\nnamespace avx512 { int lanes(); }\n",
            "sum_cpu__sum.cpp": f"""
#include "sum.hpp"
#if defined(__AVX2__) || defined(__AVX512F__) || defined(_OPENMP)
#error "compiled with the flags of another section"
#endif
{_EXPORT} int lanes() {{
  return __builtin_cpu_supports("avx512bf16") ? avx512::lanes() : __builtin_cpu_supports("avx2") ? avx2::lanes() : 1;
}}
""",
            "sum_cpu__avx2__sum.cpp": """
#include <immintrin.h>
#include <omp.h>
#include "sum.hpp"
#ifdef __AVX512F__
#error "compiled with the flags of another section"
#endif
int avx2::lanes() { return sizeof(__m256) / sizeof(float) * (omp_get_max_threads() > 0); }
""",
            "sum_cpu__avx512__sum.cpp": """
#include <immintrin.h>
#include "sum.hpp"
#define NAME_OF(CAPABILITY) #CAPABILITY
#define NAME(CAPABILITY) NAME_OF(CAPABILITY)
static_assert(sizeof(NAME(CPU_CAPABILITY)) == sizeof("AVX512"), "");
int avx512::lanes() {
  int sum = 0;
#pragma omp parallel for reduction(+ : sum)
  for (int lane = 0; lane < 32; ++lane) sum += 1;
  __m512bh pair = _mm512_cvtne2ps_pbh(_mm512_set1_ps(1), _mm512_set1_ps(1));
  float added = _mm512_reduce_add_ps(_mm512_dpbf16_ps(_mm512_setzero_ps(), pair, pair));
  return added == sum ? sum : -1;
}
""",
        },
    )
    (variant,) = build_kernel(source, tmp_path / "out")
    flags = Path("/proc/cpuinfo").read_text()
    assert _exported(variant, "lanes") == (32 if "avx512_bf16" in flags else 8 if " avx2 " in flags else 1)


@pytest.mark.compiler
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the flags are those of x86-64")
@pytest.mark.parametrize("first", ["avx512", "plain"])
def test_what_two_sections_compile_of_one_header_runs_on_every_processor(
    write: Callable[..., Path], tmp_path: Path, first: str
) -> None:
    # The linker keeps one of two copies of an inline function: Torch's headers have thousands.
    header = """
#pragma once
inline __attribute__((noinline)) int lanes() {
#ifdef __AVX512F__
  return 16;
#else
  return 1;
#endif
}
"""
    section = '[kernel.{0}]\nbackend = "cpu"\nsrc = ["{0}.cpp", "lanes.h"]\ncxx-flags = [{1}]\n'
    sections = {"avx512": section.format("avx512", '"-mavx512f"'), "plain": section.format("plain", '"-O1"')}
    files = {
        "lanes.h": header,
        "avx512.cpp": '#include "lanes.h"\nint wide() { return lanes(); }\n',
        "plain.cpp": f'#include "lanes.h"\n{_EXPORT} int narrow() {{ return lanes(); }}\n',
    }
    ordered = sorted(sections, key=lambda name: name != first)
    (variant,) = build_kernel(
        write("[torch]\n" + "".join(sections[name] for name in ordered), **files), tmp_path / "out"
    )
    assert _exported(variant, "narrow") == 1


@pytest.mark.compiler
def test_a_file_of_two_sections_is_compiled_once_with_what_both_say(write: Callable[..., Path], tmp_path: Path) -> None:
    toml = """
[torch]
[kernel.a]
backend = "cpu"
cxx-flags = ["-DA=1", "-DLAST=1"]
include = ["a"]
src = ["one.cpp"]
[kernel.b]
backend = "cpu"
cxx-flags = ["-DB=2", "-ULAST"]
include = ["b"]
src = ["./a/../one.cpp", "two.cpp"]
"""
    code = f"#include <a.h>\n#include <b.h>\n#ifdef LAST\n#error\n#endif\n{_EXPORT} int sum() {{ return A + B; }}\n"
    files = {"one.cpp": code, "two.cpp": "int two() { return B; }\n", "a__a.h": "", "b__b.h": ""}
    with warned(
        r"`src` of a and of b both have one\.cpp; it is compiled once, with the flags and architectures of both"
    ):
        (variant,) = build_kernel(write(toml, **files), tmp_path / "out")
    assert _exported(variant, "sum") == 3


def test_sections_that_say_the_same_of_a_file_need_no_warning(plan: Callable[..., BuildPlan]) -> None:
    toml = '[torch]\nsrc = ["one.cpp"]\n[kernel.torch]\nbackend = "cuda"\nsrc = ["one.cpp", "one.cpp"]\n'
    with logged() as lines:
        made = plan(toml, "one.cpp")
    assert not lines
    assert made.compilation is not None
    assert len(made.compilation.units) == 1


def test_each_section_has_its_own_architectures_and_the_metadata_has_all(plan: Callable[..., BuildPlan]) -> None:
    toml = """
[torch]
src = ["binding.cpp", "torch-ext/helper.cu"]
[kernel.sm80]
backend = "cuda"
cuda-capabilities = ["8.0", "11.8"]
cuda-flags = ["-O3", "--use_fast_math"]
cxx-flags = ["-DHOST=1"]
src = ["sm80/one.cu", "sm80/host.cpp"]
[kernel.sm90]
backend = "cuda"
cuda-capabilities = ["9.0a"]
cuda-flags = ["-O3"]
src = ["sm90/one.cu", "sm90/shared.cuh"]
[kernel.headers]
backend = "cuda"
cuda-capabilities = ["7.0", "8.9"]
src = ["sm90/shared.cuh"]
"""
    names = ("binding.cpp", "torch-ext/helper.cu", "sm80/one.cu", "sm80/host.cpp", "sm90/one.cu", "sm90/shared.cuh")
    made = plan(toml, *names)
    assert made.archs == ("8.0", "9.0a")  # 11.8 is unknown to the compiler, and headers are compiled for nothing

    def codes(path: str) -> list[str]:
        return [flag.rpartition("=")[2] for flag in _command(made, path) if flag.startswith("-gencode")]

    assert (codes("sm80/one.cu"), codes("sm90/one.cu")) == (["sm_80"], ["sm_90a"])
    assert codes("torch-ext/helper.cu") == ["sm_80", "sm_90a"]  # the framework's sections declare none
    paths = ("sm80/one.cu", "sm80/host.cpp", "sm90/one.cu", "binding.cpp")
    assert [path for path in paths if "--use_fast_math" in _command(made, path)] == ["sm80/one.cu"]
    assert [path for path in paths if "-DHOST=1" in _command(made, path)] == ["sm80/host.cpp"]
    for path in ("binding.cpp", "sm80/one.cu"):
        assert {"-DCUDA_KERNEL", "-DUSE_CUDA=1"} <= set(_command(made, path))


def test_architectures_of_cpp_sources_are_what_their_author_says(plan: Callable[..., BuildPlan]) -> None:
    toml = '[torch]\n[kernel.a]\nbackend = "cuda"\ncuda-capabilities = ["9.0"]\nsrc = ["one.cpp"]\n'
    assert plan(toml, "one.cpp").archs == ("9.0",)


_MINVER = """
[torch]
[kernel.hopper]
backend = "cuda"
cuda-capabilities = ["9.0a"]
cuda-minver = "12.0"
src = ["hopper.cu"]
[kernel.blackwell]
backend = "cuda"
cuda-capabilities = ["10.0a", "12.0a"]
cuda-minver = "12.8"
src = ["blackwell.cu"]
"""


def test_a_section_that_needs_a_newer_toolkit_is_left_out(plan: Callable[..., BuildPlan]) -> None:
    with warned(r"`kernel\.blackwell` needs cuda 12\.8; 12\.6 is installed\. The section is left out\."):
        made = plan(_MINVER, "hopper.cu", "blackwell.cu")
    assert made.compilation is not None
    assert [unit.source for unit in made.compilation.units] == ["hopper.cu"]
    assert made.archs == ("9.0a",)


def test_a_build_without_any_section_is_refused(plan: Callable[..., BuildPlan]) -> None:
    toml = _MINVER.replace('"12.0"', '"12.9"')
    with pytest.raises(CompilerNotFound, match=r"`kernel\.hopper` needs cuda 12\.9; 12\.6 is installed, and no other"):
        plan(toml, "hopper.cu", "blackwell.cu")


_ROCM = '[torch]\n[kernel.a]\nbackend = "rocm"\nrocm-archs = {}\nsrc = ["one.hip"]\n'


def test_a_processors_features_are_compiled_and_its_name_is_declared(
    plan: Callable[..., BuildPlan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hipcc = tmp_path / "hipcc"
    hipcc.write_text("#!/bin/sh\necho 'HIP version: 7.0.51831-a3e329ad8'\n")
    hipcc.chmod(0o755)
    monkeypatch.setenv("HIPCC", str(hipcc))
    listed = '["gfx942:sramecc+:xnack-", "gfx942:xnack+", "gfx950"]'
    made = plan(_ROCM.format(listed), "one.hip", backend="rocm")
    assert made.archs == ("gfx942", "gfx950")
    offload = [flag for flag in _command(made, "one.hip") if flag.startswith("--offload-arch=")]
    assert offload == [f"--offload-arch={arch}" for arch in ("gfx942:sramecc+:xnack-", "gfx942:xnack+", "gfx950")]

    monkeypatch.setattr(sections.Target, "current", lambda: Target.parse("torch2.13-rocm70-x86_64-linux+gfx950"))
    assert plan(_ROCM.format(listed), "one.hip", backend="rocm", this_gpu=True).archs == ("gfx950",)
    with pytest.raises(RequestError, match=r"'gfx942:fast\+', an unknown architecture of rocm"):
        plan(_ROCM.format('["gfx942:fast+"]'), "one.hip", backend="rocm")


@pytest.mark.compiler
def test_sources_that_a_script_makes_are_compiled_in_dozens(write: Callable[..., Path], tmp_path: Path) -> None:
    # Instantiations of a template, one file each, as a generator of the author's writes them before the build.
    sizes = range(32, 32 + 12)
    names = [f"csrc/instantiations/fwd_{size}.cpp" for size in sizes]
    calls = " + ".join(f"fwd<{size}>()" for size in sizes)
    declared = "".join(f"extern template int fwd<{size}>();\n" for size in sizes)
    files = {
        name.replace("/", "__"): f"#include <fwd.h>\ntemplate int fwd<{size}>();\n"
        for name, size in zip(names, sizes, strict=True)
    }
    files["csrc__fwd.h"] = "#pragma once\ntemplate <int size> int fwd() { return size; }\n"
    files["csrc__api.cpp"] = f'#include "fwd.h"\n{declared}{_EXPORT} int sum() {{ return {calls}; }}\n'
    listed = ", ".join(f'"{name}"' for name in ["csrc/api.cpp", *names])
    source = write(f'[torch]\n[kernel.a]\nbackend = "cpu"\nsrc = [{listed}]\n', **files)
    (variant,) = build_kernel(source, tmp_path / "out")
    assert _exported(variant, "sum") == sum(sizes)


@pytest.mark.compiler
def test_c_is_compiled_as_c(write: Callable[..., Path], tmp_path: Path) -> None:
    toml = '[torch]\n[kernel.a]\nbackend = "cpu"\ncxx-flags = ["-std=c++20"]\nsrc = ["log.c", "one.cpp", "log.h"]\n'
    header = '#ifdef __cplusplus\nextern "C"\n#endif\nint length(void);\n'
    # C++ converts no void pointer.
    code = '#include "log.h"\n#include <stdlib.h>\nint length(void) { int* new = malloc(4); free(new); return 4; }\n'
    cpp = f'#include "log.h"\n{_EXPORT} int twice() {{ return 2 * length(); }}\n'
    (variant,) = build_kernel(write(toml, **{"log.c": code, "log.h": header, "one.cpp": cpp}), tmp_path / "out")
    assert _exported(variant, "twice") == 8


_TWO = """[torch]
[kernel.hopper]
backend = "cuda"
src = ["hopper.cu"]
cuda-capabilities = ["8.0", "9.0a"]
[kernel.blackwell]
backend = "cuda"
src = ["blackwell.cu"]
cuda-capabilities = ["10.0a", "12.0"]
"""


def test_this_gpu_leaves_a_section_for_other_devices_as_it_is(
    plan: Callable[..., BuildPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The extension calls the functions of both sections: without one of them it could not be loaded.
    monkeypatch.setattr(sections.Target, "current", lambda: Target.parse("torch2.13-cu126-x86_64-linux+sm_90"))
    made = plan(_TWO, "hopper.cu", "blackwell.cu", this_gpu=True)
    assert made.archs == ("9.0a", "10.0a", "12.0")
    compiled = {
        path: [flag[-5:] for flag in _command(made, path) if "code=sm_" in flag]
        for path in ("hopper.cu", "blackwell.cu")
    }
    assert compiled == {"hopper.cu": ["m_90a"], "blackwell.cu": ["_100a", "m_120"]}

    monkeypatch.setattr(sections.Target, "current", lambda: Target.parse("torch2.13-cu126-x86_64-linux+sm_75"))
    with pytest.raises(RequestError, match=r"`kernel\.hopper` lists 8\.0, 9\.0a, `kernel\.blackwell` .* covers 7\.5"):
        plan(_TWO, "hopper.cu", "blackwell.cu", this_gpu=True)


def test_as_many_compilers_run_as_there_are_jobs(plan: Callable[..., BuildPlan]) -> None:
    # With `--threads`, each nvcc would start more of them.
    made = plan(_TWO, "hopper.cu", "blackwell.cu")
    assert not [part for part in _command(made, "hopper.cu") if part.startswith(("--threads", "-t"))]
