"""ROCm is found, chosen for the installed Torch, and gives its headers and libraries to every source."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from logged import logged, warned

from kernels.authoring.compile.toolchains import hipcc, link_extension, toolchain_for, toolkit_for
from kernels.authoring.compile.toolchains.interface import Toolkit
from kernels.errors import CompilerNotFound
from kernels.support.version import MajorMinor

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the stand-ins are shell scripts")


@pytest.fixture(autouse=True)
def _bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without ROCm: `opt` is in the place of `/opt`."""
    for variable in ("HIPCC", "ROCM_PATH", "ROCM_HOME", "HIP_PATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(hipcc, "_AMD", tmp_path / "opt")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    if Path("/usr/bin/hipcc").exists():
        pytest.skip("this machine has ROCm")


def _rocm(folder: Path, version: str, *, path: Path | None = None) -> Path:
    """A stand-in for ROCm: its answers are recorded from hipcc and hipconfig."""
    for name in ("bin", "include/hip", "lib"):
        (folder / name).mkdir(parents=True)
    for name, answer in {
        "hipcc": f"HIP version: {version}.51831-a3e329ad8\nAMD clang version 19.0.0git",
        "hipconfig": str(path or folder),
    }.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\nprintf '{answer}'\n")
        (folder / "bin" / name).chmod(0o755)
    return folder


def _found(version: tuple[int, int] | None = None, packages: Path | None = None) -> Toolkit:
    toolkit = toolkit_for("hip", None if version is None else MajorMinor(*version), packages)
    assert toolkit is not None
    return toolkit


def test_c_plus_plus_sources_are_compiled_with_its_headers_for_amds_gpus(tmp_path: Path) -> None:
    folder = _rocm(tmp_path / "opt/rocm-7.0.2", "7.0")
    (tmp_path / "opt/rocm").symlink_to(folder)
    found = _found((7, 0))
    assert found.header_flags() == ["-D__HIP_PLATFORM_AMD__=1", "-DHIPBLAS_V2", "-isystem", str(folder / "include")]
    assert found.header_flags(device=True) == []  # its own compiler knows them
    assert (found.folder, found.libraries) == (folder, (folder / "lib",))


def test_it_compiles_for_amds_gpus_where_nvcc_is_installed_too(tmp_path: Path) -> None:
    # hipcc of Debian compiles for NVIDIA's GPUs where it finds nvcc and no `clang++`.
    _rocm(tmp_path / "opt/rocm", "7.0")
    linking = link_extension([toolchain_for("a.hip", "hip")], [], None)
    assert linking.environment == (("HIP_PLATFORM", "amd"),)


def test_its_folder_is_the_one_that_hipconfig_says(tmp_path: Path) -> None:
    _rocm(tmp_path / "real", "7.0")
    _rocm(tmp_path / "opt/rocm", "7.0", path=tmp_path / "real")
    assert _found().folder == tmp_path / "real"
    (tmp_path / "opt/rocm/bin/hipconfig").unlink()
    assert _found().folder == tmp_path / "opt/rocm"


@pytest.mark.parametrize(("torch", "chosen"), [(None, "7.1"), ((7, 0), "7.0"), ((6, 4), "6.4"), ((6, 3), "6.4")])
def test_of_several_the_one_that_fits_torch_is_taken_and_else_the_newest(
    tmp_path: Path, torch: tuple[int, int] | None, chosen: str
) -> None:
    for version in ("6.4", "7.0", "7.1"):
        _rocm(tmp_path / "opt" / f"rocm-{version}.1", version)
    assert str(_found(torch).version) == chosen


def test_a_python_package_is_found_beside_torch(tmp_path: Path) -> None:
    _rocm(tmp_path / "site/_rocm_sdk_devel", "7.0")
    found = _found((7, 0), tmp_path / "site")
    assert (found.folder, found.found_by) == (tmp_path / "site/_rocm_sdk_devel", "the package rocm-sdk-devel")


@pytest.mark.parametrize("variable", ["HIPCC", "ROCM_PATH", "ROCM_HOME", "HIP_PATH"])
def test_a_variable_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    _rocm(tmp_path / "opt/rocm", "7.1")
    mine = _rocm(tmp_path / "mine", "7.0")
    monkeypatch.setenv(variable, str(mine / "bin/hipcc" if variable == "HIPCC" else mine))
    found = _found((7, 1))
    assert (found.folder, found.found_by) == (mine, f"${variable}")
    assert found.remarks[0].startswith("Torch was built with ROCm 7.1; ROCm 7.0 in ")


def test_another_major_version_than_torchs_is_refused(tmp_path: Path) -> None:
    _rocm(tmp_path / "opt/rocm", "7.0")
    with pytest.raises(CompilerNotFound, match=r"built with ROCm 6\.4, which ROCm 7\.0 in .* or set ROCM_PATH to it"):
        _found((6, 4))


def test_without_it_the_error_says_what_to_install() -> None:
    with pytest.raises(CompilerNotFound, match=r"^hipcc was not found .* Install ROCm, or set ROCM_PATH to its folder"):
        _found()


#: What clang 15 and, the last one, clang 20 say of processors that they do not know.
_COMPLAINS = r"""#!/bin/sh
[ "$HIP_PLATFORM" = amd ] || exit
for each; do
    case $each in
    --offload-arch=gfx1201) echo "clang: error: invalid target ID 'gfx1201'; format is a processor name" >&2 ;;
    --offload-arch=gfx940) echo "clang: error: invalid target ID 'gfx940'; format is a processor name" >&2 ;;
    --offload-arch=gfx942:fast+) echo "clang: error: invalid target ID 'gfx942:fast+'; format is" >&2 ;;
    --offload-arch=gfx9999) echo "error: unsupported HIP gpu architecture: gfx9999" >&2 ;;
    esac
done
"""


@pytest.fixture
def complains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "hipcc"
    program.write_text(_COMPLAINS)
    program.chmod(0o755)
    monkeypatch.setenv("HIPCC", str(program))


@pytest.mark.usefixtures("complains")
def test_processors_that_it_does_not_know_are_left_out() -> None:
    toolchain = toolchain_for("a.hip", "hip")
    with warned(r"/hipcc does not support gfx940, gfx942:fast\+, gfx9999: left out of the build\."):
        found = toolchain.compiled_archs(["gfx940", "gfx942:xnack+", "gfx942:fast+", "gfx950", "gfx9999"])
    assert found == ("gfx942:xnack+", "gfx950")
    with pytest.raises(CompilerNotFound, match=r"/hipcc supports none of gfx940, gfx9999\."):
        toolchain.compiled_archs(["gfx940", "gfx9999"])


@pytest.mark.usefixtures("complains")
def test_without_a_list_those_of_torch_are_compiled_that_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTORCH_ROCM_ARCH", raising=False)
    toolchain = toolchain_for("a.hip", "hip")
    with logged() as lines:
        found = toolchain.compiled_archs([])
    assert {"gfx90a", "gfx942", "gfx1100", "gfx1200"} <= {*found}
    assert "gfx1201" not in found
    assert lines == []  # nobody asked for it

    monkeypatch.setenv("PYTORCH_ROCM_ARCH", "gfx90a;gfx942:xnack-, gfx940")  # as Torch's own builds of extensions
    with warned("does not support gfx940"):
        assert toolchain.compiled_archs([]) == ("gfx90a", "gfx942:xnack-")
