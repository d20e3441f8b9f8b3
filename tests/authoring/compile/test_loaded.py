"""What was compiled is loaded: a stable-ABI build, two versions in one process, headers of an installed package."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kernels.authoring.compile import build_kernel
from kernels.authoring.compile.frameworks import torch_installation
from kernels.errors import CompilerNotFound
from kernels.loader.load import load_variant
from kernels.models.metadata import Metadata

pytestmark = pytest.mark.compiler

#: What builds make of zeros, all in one process.
_USE = """
import sys
import torch
from kernels import get_local_kernel

modules = [get_local_kernel(path) for path in sys.argv[1:]]
print([module.add_one(torch.zeros(2)).tolist() for module in modules])
print(len({module.__name__ for module in modules}), "namespaces")
"""


def test_a_stable_abi_build_is_loaded_and_needs_nothing_else_of_torchs_c_plus_plus(
    write_source: Callable[..., Path], tmp_path: Path
) -> None:
    import torch

    source = write_source("compiled")
    toml = (source / "build.toml").read_text()
    (source / "build.toml").write_text(toml.replace("[torch]", '[torch]\nstable-abi = "2.10"'))
    (variant,) = build_kernel(source, tmp_path / "out")
    assert variant.name.startswith("torch-stable-abi210-cpu-")
    module = load_variant(variant, Metadata.read_from_file(variant / "metadata.json"))
    assert module.add_one(torch.zeros(2)).tolist() == [1.0, 1.0]
    (library,) = variant.glob("*.abi3.so")
    needed = subprocess.run(["nm", "-DC", "--undefined-only", library], capture_output=True, text=True, check=True)
    assert "torch_library_init_impl" in needed.stdout
    assert not [line for line in needed.stdout.splitlines() if " at::" in line or " c10::" in line]


def test_two_versions_work_in_one_process_and_one_of_them_was_built_without_python_headers(
    compiled_once: Path, write_source: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_installation.sysconfig, "get_path", lambda name: str(tmp_path / "no-headers"))
    (first,) = (compiled_once / "out" / "build").iterdir()
    # The same names of functions in both: what a library does not export is its own.
    other = write_source("compiled", changes={"headers/one.h": "constexpr float one = ONE + 41;\n"})
    (second,) = build_kernel(other, tmp_path / "out", jobs=1)
    assert second.name == first.name
    command = [sys.executable, "-c", _USE, str(first), str(second)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[[1.0, 1.0], [42.0, 42.0]]\n2 namespaces\n"


def test_an_extension_exports_its_module_and_nothing_else(compiled_once: Path) -> None:
    (library,) = (compiled_once / "out" / "build").rglob("*.abi3.so")
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", "--format=posix", library], capture_output=True, text=True, check=True
    )
    # Weak ones are instances of Torch's own templates; three are marks that linkers set.
    own = {line.split()[0] for line in listed.stdout.splitlines() if line.split()[1] not in "uVvWw"}
    assert own - {"__bss_start", "_edata", "_end"} == {f"PyInit_{library.name.removesuffix('.abi3.so')}"}


def test_cutlass_of_an_installed_package_is_compiled_against(
    write_source: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_source("compiled")
    toml = (source / "build.toml").read_text()
    (source / "build.toml").write_text(toml.replace('depends = ["torch"]', 'depends = ["torch", "cutlass_4_2"]'))
    code = (source / "add_one.cpp").read_text()
    uses = "#include <cutlass/version.h>\n#include <cute/layout.hpp>\nstatic_assert(CUTLASS_MINOR == 2 && LAYOUT);\n"
    (source / "add_one.cpp").write_text(uses + code)
    with pytest.raises(CompilerNotFound, match=r"depends on cutlass_4_2; .*pip install 'nvidia-cutlass==4\.2\.\*'"):
        build_kernel(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()

    # As an installer leaves it: the headers lie in the folder of another package.
    files = {
        "cutlass_library/source/include/cutlass/cutlass.h": "",
        "cutlass_library/source/include/cutlass/version.h": "#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 2\n",
        "cutlass_library/source/include/cute/layout.hpp": "#define LAYOUT 1\n",
        "nvidia_cutlass-4.2.0.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: nvidia-cutlass\nVersion: 4.2.0.0\n",
    }
    files["nvidia_cutlass-4.2.0.0.dist-info/RECORD"] = "".join(f"{name},,\n" for name in files)
    for name, text in files.items():
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert len(build_kernel(source, tmp_path / "out")) == 1
