"""Vendors' wheels: built from their sources, installed with pip into an environment of its own, without a network."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SRC = HERE.parents[1] / "src"

pytestmark = [
    pytest.mark.skipif(
        any(importlib.util.find_spec(each) is None for each in ("pip", "hatchling", "torch")),
        reason="needs pip, hatchling and torch",
    )
]

Run = Callable[..., str]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the packages of this one, and two vendors' wheels."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    found = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    scheme = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", "nt" if os.name == "nt" else "posix_prefix", vars=scheme))
    (site / "of_the_tests.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    sources = folder / "sources"
    for name in ("triton_package", "folder_package"):
        # pip and the build write beside the sources.
        shutil.copytree(HERE / name, sources / name)
    command = [
        sys.executable, "-m", "pip", "--python", str(found), "--disable-pip-version-check", "install", "--quiet",
        "--no-index", "--no-deps", "--no-build-isolation", "--no-cache-dir",
        str(sources / "triton_package"), str(sources / "folder_package"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return found


@pytest.fixture
def run(python: Path, tmp_path: Path) -> Run:
    def run(*arguments: str, **variables: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(SRC), "HF_HOME": str(tmp_path), **variables}
        done = subprocess.run(
            [str(python), *arguments], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def kernel(folder: Path, name: str, *variants: str) -> Path:
    """A kernel with builds without compiled code, whose functions say which build they are from."""
    for variant in variants:
        build = folder / name / "build" / variant
        build.mkdir(parents=True)
        (build / "__init__.py").write_text(f"def which(): return {variant!r}\n")
        metadata = {"name": name, "id": f"_{name}", "version": 1, "license": "apache-2.0", "python-depends": []}
        metadata["backend"] = {"type": variant.removeprefix("torch-")}
        (build / "metadata.json").write_text(json.dumps(metadata))
    return folder / name


def test_a_wheel_for_triton_is_a_backend(run: Run) -> None:
    shown = json.loads(run("-m", "kernels", "backends", "--json"))
    entries = {each["name"]: each for each in shown["backends"]}
    assert entries["acme"]["origin"] == {"kind": "installed", "place": "triton-acme 1.0 (triton_acme)"}
    # What Triton itself has is no vendor's.
    assert not {"nvidia", "amd"} & set(entries)
    assert shown["problems"] == []


#: A busy machine may need longer to import Torch and Triton than a probe may take.
PATIENT = """
from kernels.backends import probing
from kernels.backends.plugins import triton_backends
probing.checked_probe.__defaults__ = (240.0,)
triton_backends._QUERY_SECONDS = 240.0
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_its_driver_tells_the_target_without_torch_and_with_it(run: Run) -> None:
    code = PATIENT + textwrap.dedent("""
        import sys
        from kernels import Target
        target = Target.current()
        assert "torch" not in sys.modules
        print([(each.name, each.arch) for each in target.backend_devices("acme")], target.default_backend)
    """)
    said = run("-c", code, ACME_DEVICES="1")
    assert said == "[('acme a100x', 'a100x')] cpu\n"
    assert run("-c", code) == "[] cpu\n"
    code = code.replace("import sys", "import sys, torch, triton").replace(" not in", " in")
    code += "print(sorted(triton.backends.backends))\n"
    said = run("-c", code, ACME_DEVICES="1")
    assert said.splitlines()[1:] == ["[('acme a100x', 'a100x')] cpu", "['acme', 'amd', 'nvidia']"]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_just_in_time_kernels_are_chosen_for_it(run: Run, tmp_path: Path) -> None:
    both, universal = kernel(tmp_path, "both", "torch-acme", "torch-cuda"), kernel(tmp_path, "any", "torch-universal")
    code = PATIENT + (
        "import sys, kernels\nfor path in sys.argv[1:]: print(kernels.get_local_kernel(path, backend='acme').which())"
    )
    assert run("-c", code, str(both), str(universal), ACME_DEVICES="1").split() == ["torch-acme", "torch-universal"]
    code = PATIENT + "from kernels.cli import main\nmain()"
    explained = run("-c", code, "explain", str(both), "--backend", "acme", ACME_DEVICES="1")
    assert "Backend acme: installed by triton-acme 1.0 (triton_acme)" in explained


def test_a_wheel_with_a_folder_and_a_file_brings_notes_operators_and_configurations(run: Run) -> None:
    code = """
import torch
from kernels import get_backend, use_vendor_ops
ajax = get_backend("ajax")
print(ajax.kernel_guidance, ajax.cuda_hacks_to_strip, [each.arch for each in ajax.probe().devices])
x = torch.randn(3, 4)
wanted = x + 1, torch.softmax(x, 1)
with use_vendor_ops("ajax") as enabled:
    print(enabled.operators, [each.function for each in enabled.unused])
    torch.testing.assert_close((x + 1, torch.softmax(x, 1)), wanted)
from kernels.backend_check import checkup
found = checkup("ajax")
print(found.origins, [each.what for each in found.findings if each.step == "tuning"][0])
"""
    notes, operators, checked = run("-c", code).splitlines()
    assert notes == "Blocks of 64 by 64. ('torch.cuda.synchronize()',) ['j1']"
    assert operators == "('aten::add.Tensor', 'aten::_softmax') ['hadamard_transform']"
    origin = "installed by ajax-kernels 2.0 (ajax_kernels:make)"
    assert checked == f"{{'ajax': {origin!r}}} tune_configs.yaml: mm 1"
