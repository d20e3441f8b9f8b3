"""The headers that a section depends on come from a package or a folder, in the version that it names."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kernels.authoring.compile import build_kernel
from kernels.authoring.compile.frameworks.header_dependencies import dependency_flags
from kernels.errors import CompilerNotFound


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUTLASS_PATH", "SYCL_TLA_SRC_DIR", "METAL_CPP_PATH"):
        monkeypatch.delenv(name, raising=False)


def _cutlass(root: Path, version: str) -> Path:
    """A checkout of CUTLASS, or what matters of one."""
    major, minor = version.split(".")
    text = f"#pragma once\n#define CUTLASS_MAJOR {major}\n#define CUTLASS_MINOR {minor}\n#define CUTLASS_PATCH 0\n"
    for name, content in (
        ("include/cutlass/version.h", text),
        ("include/cutlass/cutlass.h", '#pragma once\n#include "cutlass/version.h"\n'),
        ("tools/util/include/cutlass/util/host_tensor.h", "#pragma once\n"),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


def _installed(site: Path, version: str) -> None:
    """`nvidia-cutlass` as an installer leaves it: the headers are in the folder of another package."""
    _cutlass(site / "cutlass_library" / "source", version)
    metadata = site / f"nvidia_cutlass-{version}.0.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: nvidia-cutlass\nVersion: {version}.0.0\n")


@pytest.mark.parametrize("version", ["2.10", "3.6", "4.5"])
def test_cutlass_of_every_version_comes_from_the_folders_that_are_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    folders = [_cutlass(tmp_path / each, each) for each in ("4.5", "2.10", "3.6")]
    monkeypatch.setenv("CUTLASS_PATH", os.pathsep.join(["", *map(str, folders), ""]))
    root = tmp_path / version
    name = f"cutlass_{version.replace('.', '_')}"
    assert dependency_flags("one", ["torch", name]) == [
        f"-I{root / 'include'}",
        f"-I{root / 'tools/util/include'}",
    ]


def test_cutlass_comes_from_its_package_installed_or_in_a_folder_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _installed(tmp_path / "site", "4.2")
    _installed(tmp_path / "target", "3.8")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("CUTLASS_PATH", str(tmp_path / "target"))
    for folder, name in (("site", "cutlass_4_2"), ("target", "cutlass_3_8")):
        first, _ = dependency_flags("one", [name])
        assert first == f"-I{tmp_path / folder / 'cutlass_library/source/include'}"


def test_another_cutlass_is_named_with_the_place_it_was_found_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _installed(tmp_path / "site", "4.2")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("CUTLASS_PATH", str(tmp_path / "empty"))
    says = (
        r"^`kernel\.one` depends on cutlass_2_10; .*empty \(from \$CUTLASS_PATH\) has no CUTLASS; "
        r"nvidia-cutlass 4\.2\.0\.0 has version 4\.2\. Install it \(pip install 'nvidia-cutlass==2\.10\.\*'\), "
        r"or set CUTLASS_PATH to a checkout of its tag v2\.10\.0\.$"
    )
    with pytest.raises(CompilerNotFound, match=says):
        dependency_flags("one", ["cutlass_2_10"])


#: The extensions of SPIR-V that sycl_tla needs.
_SPIRV = [
    "-Xspirv-translator",
    "-spirv-ext=+SPV_INTEL_split_barrier,+SPV_INTEL_2d_block_io,+SPV_INTEL_subgroup_matrix_multiply_accumulate",
]


@pytest.mark.parametrize(
    ("name", "variable", "header", "flags"),
    [
        (
            "sycl_tla",
            "SYCL_TLA_SRC_DIR",
            "include/cutlass/cutlass.h",
            ["-I{0}/include", "-DCUTLASS_ENABLE_SYCL=1", "-DSYCL_INTEL_TARGET=1", *_SPIRV],
        ),
        (
            "cutlass_sycl",
            "SYCL_TLA_SRC_DIR",
            "include/cutlass/cutlass.h",
            ["-I{0}/include", "-DCUTLASS_ENABLE_SYCL=1", "-DSYCL_INTEL_TARGET=1", *_SPIRV],
        ),
        ("metal-cpp", "METAL_CPP_PATH", "Metal/Metal.hpp", ["-I{0}"]),
    ],
)
def test_what_no_package_has_comes_from_a_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, variable: str, header: str, flags: list[str]
) -> None:
    with pytest.raises(CompilerNotFound, match=f"depends on {name}; set {variable} to the folder of its sources"):
        dependency_flags("one", [name])
    monkeypatch.setenv(variable, str(tmp_path))
    with pytest.raises(CompilerNotFound, match=f"{variable} is '.*', which has no {header}"):
        dependency_flags("one", [name])
    (tmp_path / header).parent.mkdir(parents=True)
    (tmp_path / header).write_text("")
    assert dependency_flags("one", [name]) == [flag.format(tmp_path) for flag in flags]


@pytest.mark.compiler
def test_two_sections_are_compiled_with_two_versions_of_cutlass(
    write_source: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = _cutlass(tmp_path / "old", "2.10"), _cutlass(tmp_path / "new", "4.5")
    monkeypatch.setenv("CUTLASS_PATH", os.pathsep.join([str(new), str(old)]))
    code = (
        '#include <cutlass/cutlass.h>\nstatic_assert(CUTLASS_MAJOR == {0}, "");\nint cutlass_{0}() {{ return {0}; }}\n'
    )
    section = '[kernel.{0}]\nbackend = "cpu"\ndepends = ["torch", "cutlass_{1}"]\nsrc = ["{0}.cpp"]\n'
    general = '[general]\nname = "add-one"\nversion = 1\nedition = 5\nlicense = "MIT"\nbackends = ["cpu"]\n[torch]\n'
    toml = general + section.format("old", "2_10") + section.format("new", "4_5")
    changes = {"build.toml": toml, "old.cpp": code.format(2), "new.cpp": code.format(4)}
    assert len(build_kernel(write_source("noarch", changes=changes), tmp_path / "out")) == 1
