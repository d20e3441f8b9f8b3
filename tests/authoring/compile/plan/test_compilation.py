"""Every source of a kernel is compiled with the toolkit of its backend, and linked with its libraries."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from cuda_toolkits import cuda_packages, cuda_toolkit
from logged import warned

from kernels.authoring.compile import read_source
from kernels.authoring.compile.execution.compiler_steps import Compilation
from kernels.authoring.compile.frameworks import torch_installation
from kernels.authoring.compile.plan.build_plan import plan_build, source_state
from kernels.authoring.compile.toolchains import cuda_folders, nvcc
from kernels.errors import CompilerNotFound
from kernels.support.version import MajorMinor

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the stand-ins are shell scripts")

_GENERAL = '[general]\nname = "add-one"\nversion = 1\nedition = 5\nlicense = "MIT"\nbackends = ["cuda"]\n'


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Compilation]:
    """Plan a build of some files against a Torch with CUDA 13.0, on a machine with what is in `usual` and `site`."""
    for variable in ("NVCC", "CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", os.pathsep.join(("/usr/bin", "/bin")))
    monkeypatch.setattr(nvcc, "_NVIDIA", tmp_path / "usual")
    monkeypatch.setattr(nvcc, "_DISTRIBUTIONS", ())
    monkeypatch.setattr(nvcc, "_DRIVER", ())
    monkeypatch.setattr(cuda_folders, "package_folders", lambda beside: [tmp_path / "site/nvidia"])
    monkeypatch.setattr(torch_installation, "torch_builds", lambda: {"cuda": MajorMinor(13, 0)})

    def plan(*files: str) -> Compilation:
        folder = tmp_path / "source"
        section = f'[torch]\nsrc = ["binding.cpp"]\n[kernel.one]\nbackend = "cuda"\nsrc = {list(files)}\n'
        for name, text in {"build.toml": _GENERAL + section, "torch-ext/add_one/__init__.py": ""}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        for name in ("binding.cpp", *files):
            (folder / name).touch()
        source = read_source(folder)
        made = plan_build(source, source_state(source), "cuda").compilation
        assert made is not None
        return made

    return plan


def _system(command: tuple[str, ...]) -> list[str]:
    return [folder for flag, folder in pairwise(command) if flag == "-isystem"]


@pytest.mark.parametrize("files", [("one.cu", "two.cpp"), ("two.cpp",)])
def test_c_plus_plus_sources_are_compiled_with_the_toolkits_headers(
    plan: Callable[..., Compilation], tmp_path: Path, files: tuple[str, ...]
) -> None:
    command = cuda_toolkit(tmp_path / "usual/cuda-13.0", "13.0")
    cuda_toolkit(tmp_path / "usual/cuda-13.2", "13.2")
    made = plan(*files)
    include = str(tmp_path / "usual/cuda-13.0/targets/x86_64-linux/include")
    for unit in made.units:
        # nvcc knows its own, and finds them before all others.
        assert (include in _system(unit.command)) == (unit.source != "one.cu")
        assert _system(unit.command)[-2:] == [include, f"{include}/cccl"] or unit.source == "one.cu"
    # It knows where the runtime and the driver are, also if there is no source of its own.
    assert made.link == (str(command),)
    assert "-cudart=shared" in made.libraries


def test_headers_that_the_toolkit_lacks_come_from_the_packages_for_every_source(
    plan: Callable[..., Compilation], tmp_path: Path
) -> None:
    cuda_toolkit(tmp_path / "usual/cuda", "13.0")
    cuda_packages(tmp_path / "site", "cu13", "cudnn")
    made = plan("one.cu", "two.cpp")
    expected = [str(tmp_path / "site/nvidia" / name / "include") for name in ("cu13", "cudnn")]
    assert [_system(unit.command)[-2:] for unit in made.units] == [expected] * 3


def test_without_a_toolkit_device_sources_are_refused_and_c_plus_plus_is_tried(
    plan: Callable[..., Compilation],
) -> None:
    with pytest.raises(CompilerNotFound, match="nvcc was not found"):
        plan("one.cu", "two.cpp")
    with warned(r"^C\+\+ sources are compiled without the toolkit's headers and libraries: nvcc was not found"):
        assert "nvcc" not in plan("two.cpp").link[0]


def test_a_toolkit_of_another_major_version_is_refused(plan: Callable[..., Compilation], tmp_path: Path) -> None:
    cuda_toolkit(tmp_path / "usual/cuda", "12.8")
    with pytest.raises(CompilerNotFound, match=r"Torch was built with CUDA 13\.0, which CUDA 12\.8 in "):
        plan("one.cu")
