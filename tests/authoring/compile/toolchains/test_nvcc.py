"""The CUDA toolkit is found, chosen for the installed Torch, and gives its headers and libraries to every source."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cuda_toolkits import cuda_packages, cuda_toolkit

from kernels.authoring.compile.toolchains import cuda_folders, nvcc, toolkit_for
from kernels.authoring.compile.toolchains.interface import Toolkit
from kernels.authoring.compile.toolchains.nvcc import Nvcc
from kernels.errors import CompilerNotFound
from kernels.support.version import MajorMinor

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the stand-ins are shell scripts")


@pytest.fixture(autouse=True)
def _bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without CUDA: `usual` is in the place of `/usr/local`, `site` in that of this Python's packages."""
    for variable in ("NVCC", "CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "usual").mkdir()
    monkeypatch.setattr(nvcc, "_NVIDIA", tmp_path / "usual")
    monkeypatch.setattr(nvcc, "_DISTRIBUTIONS", (tmp_path / "debian",))
    monkeypatch.setattr(nvcc, "_DRIVER", (tmp_path / "lib64/libcuda.so.1", tmp_path / "driver/libcuda.so.1"))
    own = [tmp_path / "site" / "nvidia"]
    monkeypatch.setattr(cuda_folders, "package_folders", lambda beside: own if beside is None else [beside / "nvidia"])
    monkeypatch.setenv("PATH", "/usr/bin:/bin")


def _found(version: tuple[int, int] | None = None, packages: Path | None = None) -> Toolkit:
    toolkit = toolkit_for("cuda", None if version is None else MajorMinor(*version), packages)
    assert toolkit is not None
    return toolkit


def test_headers_and_libraries_are_where_nvcc_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = cuda_toolkit(tmp_path / "cuda-13.0", "13.0")
    monkeypatch.setenv("NVCC", str(command))
    target = tmp_path / "cuda-13.0/targets/x86_64-linux"
    assert _found() == Toolkit(
        name="CUDA",
        version=MajorMinor(13, 0),
        folder=tmp_path / "cuda-13.0",
        found_by="$NVCC",
        compiler=(str(command),),
        # Not /usr/include, which nvcc names too: with `-isystem` it would hide the headers of the C++ library.
        include=(target / "include", target / "include/cccl"),
        libraries=(target / "lib/stubs", target / "lib"),
    )


def test_a_wrapper_around_nvcc_leads_to_its_toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = cuda_toolkit(tmp_path / "cuda-13.0", "13.0")
    wrapper = tmp_path / "bin/nvcc"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:/usr/bin:/bin")
    assert (_found().folder, _found().found_by) == (tmp_path / "cuda-13.0", "the path")


def test_without_an_answer_the_usual_layout_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = cuda_toolkit(tmp_path / "cuda", "12.4", target="")
    command.write_text("#!/bin/sh\n[ $1 = --version ] && echo release 12.4\n")
    monkeypatch.setenv("NVCC", str(command))
    found = _found()
    assert found.include == (tmp_path / "cuda/include", tmp_path / "cuda/include/cccl")
    assert found.libraries == (tmp_path / "cuda/lib/stubs", tmp_path / "cuda/lib")


@pytest.mark.parametrize(
    ("installed", "torch", "chosen"),
    [
        (("12.6", "12.9", "13.0"), None, "13.0"),
        (("12.6", "12.9", "13.0"), (12, 9), "12.9"),
        (("12.6", "12.9", "13.0"), (12, 8), "12.6"),
        (("12.6", "12.9", "13.0"), (12, 4), "12.6"),
        (("9.2", "12.10", "12.9"), (12, 10), "12.10"),
        (("9.2", "12.10", "12.9"), None, "12.10"),
    ],
)
def test_of_several_the_one_that_fits_torch_is_taken_and_else_the_newest(
    tmp_path: Path, installed: tuple[str, ...], torch: tuple[int, int] | None, chosen: str
) -> None:
    for version in installed:
        cuda_toolkit(tmp_path / "usual" / f"cuda-{version}", version)
    found = _found(torch)
    assert (str(found.version), found.found_by) == (chosen, str(tmp_path / "usual" / f"cuda-{chosen}"))
    assert found.compiler == (str(tmp_path / "usual" / f"cuda-{chosen}" / "bin/nvcc"),)


@pytest.mark.parametrize("variable", ["NVCC", "CUDA_HOME", "CUDA_PATH"])
def test_a_variable_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    cuda_toolkit(tmp_path / "usual/cuda-13.2", "13.2")
    command = cuda_toolkit(tmp_path / "mine", "13.0")
    monkeypatch.setenv(variable, str(command if variable == "NVCC" else tmp_path / "mine"))
    found = _found((13, 2))
    assert (found.version, found.found_by) == (MajorMinor(13, 0), f"${variable}")


def test_a_variable_that_leads_nowhere_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda_toolkit(tmp_path / "usual/cuda-13.2", "13.2")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "gone"))
    with pytest.raises(CompilerNotFound, match=r"^\$CUDA_HOME is '.*/gone', which has no bin/nvcc\. Correct or unset"):
        _found()
    monkeypatch.setenv("NVCC", "no-such-nvcc")
    with pytest.raises(CompilerNotFound, match=r"^\$NVCC is no-such-nvcc, which is not a program\. Correct it"):
        _found()


@pytest.mark.parametrize("place", ["debian", "conda"])
def test_distributions_have_places_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    cuda_toolkit(tmp_path / place, "12.4")
    if place == "conda":
        monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / place))
    assert _found().folder == tmp_path / place


def test_without_nvcc_the_error_says_what_to_install() -> None:
    with pytest.raises(CompilerNotFound, match=r"^nvcc was not found on the path or in the usual places\. Install the"):
        _found()


def test_another_major_version_than_torchs_is_refused_before_anything_is_compiled(tmp_path: Path) -> None:
    cuda_toolkit(tmp_path / "usual/cuda", "13.0")
    says = r"^Torch was built with CUDA 12\.8, which CUDA 13\.0 in .*/usual/cuda \(.*\) cannot compile for\. Install"
    with pytest.raises(CompilerNotFound, match=says):
        _found((12, 8))


def test_another_minor_version_than_torchs_is_mentioned(tmp_path: Path) -> None:
    cuda_toolkit(tmp_path / "usual/cuda", "13.0")
    assert _found((13, 0)).remarks == ()
    (remark,) = _found((13, 2)).remarks
    assert remark.startswith("Torch was built with CUDA 13.2; CUDA 13.0 in ")


class TestPythonPackages:
    """NVIDIA's packages, with nvcc or without it."""

    def test_they_are_a_toolkit_if_nvcc_is_among_them(self, tmp_path: Path) -> None:
        root = tmp_path / "site/nvidia/cu13"
        cuda_toolkit(root, "13.2", target="", libraries=("cudart.so.13",))
        found = _found((13, 2))
        assert (found.folder, found.found_by) == (root, "the package nvidia-cuda-nvcc")
        assert found.include == (root / "include", root / "include/cccl")
        assert found.packages == ()

    def test_those_beside_another_torch_are_its_own(self, tmp_path: Path) -> None:
        cuda_toolkit(tmp_path / "site/nvidia/cu13", "13.2", target="")
        cuda_toolkit(tmp_path / "other/nvidia/cu12", "12.9", target="")
        assert _found((12, 9), tmp_path / "other").version == MajorMinor(12, 9)

    def test_headers_of_nvcc_and_of_the_runtime_from_two_versions_are_mentioned(self, tmp_path: Path) -> None:
        root = tmp_path / "site/nvidia/cu13"
        cuda_toolkit(root, "13.5", target="")
        (root / "include/cuda_runtime_api.h").write_text("#define CUDART_VERSION  13020\n")
        (remark,) = _found().remarks
        assert remark.startswith("nvcc is of CUDA 13.5, but the headers beside it are of CUDA 13.2")
        assert "pip install 'nvidia-cuda-nvcc==13.2.*'" in remark

    @pytest.mark.parametrize(
        ("version", "packages", "used"),
        [
            ("13.0", ("cu13", "cu12", "cudnn", "cublas", "cuda_runtime"), ("cu13", "cudnn")),
            ("12.8", ("cu13", "cudnn", "cublas", "cuda_runtime"), ("cublas", "cuda_runtime", "cudnn")),
        ],
    )
    def test_they_have_what_a_small_toolkit_lacks(
        self, tmp_path: Path, version: str, packages: tuple[str, ...], used: tuple[str, ...]
    ) -> None:
        cuda_toolkit(tmp_path / "usual/cuda", version)
        site = cuda_packages(tmp_path / "site", *packages)
        found = _found(packages=site)
        assert found.packages == tuple(site / "nvidia" / name / "include" for name in used)
        assert found.libraries[2:] == tuple(site / "nvidia" / name / "lib" for name in used)
        # nvcc knows its own headers, and must be told of these.
        assert found.header_flags(device=True) == [
            flag for folder in found.packages for flag in ("-isystem", str(folder))
        ]

    def test_its_c_plus_plus_library_is_not_mixed_with_theirs(self, tmp_path: Path) -> None:
        include = cuda_toolkit(tmp_path / "usual/cuda", "13.0").parents[1] / "targets/x86_64-linux/include"
        site = cuda_packages(tmp_path / "site", "cu13")
        theirs = site / "nvidia/cu13/include"
        (theirs / "cccl/cub").mkdir(parents=True)
        assert _found().packages == (theirs, theirs / "cccl")
        (include / "cccl/cub").mkdir()
        assert _found().packages == (theirs,)

    def test_headers_of_another_major_version_are_left_alone(self, tmp_path: Path) -> None:
        cuda_toolkit(tmp_path / "usual/cuda", "12.8")
        site = cuda_packages(tmp_path / "site", "cublas", "cuda_runtime")
        header = site / "nvidia/cuda_runtime/include/cuda_runtime_api.h"
        header.write_text("#define CUDART_VERSION  11080\n")
        assert _found().packages == ()


@pytest.fixture
def link(tmp_path: Path) -> Callable[..., list[str]]:
    torch_lib = tmp_path / "torch/lib"
    torch_lib.mkdir(parents=True)
    (torch_lib / "libc10_cuda.so").touch()
    return lambda torch=True: Nvcc().link_flags(torch_lib if torch else None)


def test_the_runtime_is_linked_as_it_is_installed(tmp_path: Path, link: Callable[..., list[str]]) -> None:
    assert link() == ["-shared", "-cudart=shared", "-lc10_cuda"]
    root = tmp_path / "site/nvidia/cu13"
    cuda_toolkit(root, "13.2", target="", libraries=("cudart.so.13", "cublas.so.13"))
    # The packages have no libcudart.so, which `-cudart=shared` would look for.
    assert link()[:5] == ["-shared", "-cudart=none", "-Xlinker", str(root / "lib/libcudart.so.13"), "-lc10_cuda"]
    assert link(torch=False)[:2] == ["-shared", "-cudart=static"]
    cuda_toolkit(tmp_path / "usual/cuda", "13.0")
    assert link()[:3] == ["-shared", "-cudart=shared", "-lc10_cuda"]


def test_libraries_that_a_kernel_calls_are_linked_and_no_other(tmp_path: Path, link: Callable[..., list[str]]) -> None:
    cuda_toolkit(tmp_path / "usual/cuda", "13.0", libraries=("cudart.so", "cublas.so", "cublas.so.13"))
    cuda_packages(tmp_path / "site", "cu13")
    nvrtc = tmp_path / "site/nvidia/cu13/lib/libnvrtc.so.13"
    nvrtc.touch()
    lib = tmp_path / "usual/cuda/targets/x86_64-linux/lib"
    assert [flag for flag in link() if flag != "-Xlinker"][3:] == [
        "--push-state",
        "--as-needed",
        str(lib / "stubs/libcuda.so"),
        str(nvrtc),
        str(lib / "libcublas.so"),
        "--pop-state",
    ]


@pytest.mark.parametrize("folder", ["driver", "searched"])
def test_without_a_stub_the_drivers_own_library_is_linked(
    tmp_path: Path, link: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    root = tmp_path / "site/nvidia/cu13"
    cuda_toolkit(root, "13.2", target="")
    shutil.rmtree(root / "lib/stubs")
    driver = tmp_path / folder / "libcuda.so.1"
    driver.parent.mkdir()
    driver.touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path / 'none'}:{tmp_path / 'searched'}")
    assert str(driver) in link()


@pytest.mark.parametrize(("version", "knows"), [("12.6", False), ("12.8", True), ("13.0", True)])
def test_a_flag_that_an_older_nvcc_does_not_know_is_left_out(tmp_path: Path, version: str, knows: bool) -> None:
    cuda_toolkit(tmp_path / "usual/cuda", version)
    stub = "static-global-template-stub"
    for given in ([f"-{stub}=false"], [f"--{stub}=true"], [f"-{stub}", "false"]):
        flags = Nvcc().flags(["9.0"], ["-O2", *given, f"-DX={stub}"])
        assert flags[flags.index("-O2") :] == ["-O2", *(given if knows else []), f"-DX={stub}"]
