"""Sources for tvm-ffi become `tvm-ffi<version>-…` builds, without Torch; what is not there is named."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tvm_ffi_kernel import needs_tvm_ffi, write_tvm_ffi_source

from kernels.authoring.check.audit import audit
from kernels.authoring.compile import build_kernel, build_variants, default_backends, plan_builds, read_source
from kernels.authoring.compile.toolchains import cuda_folders
from kernels.errors import BuildError, CompilerNotFound
from kernels.models.metadata import Metadata
from kernels.resolver.target import Target
from kernels.trust.content import BuildContent

compiler = pytest.mark.compiler

#: What a user of the two versions runs, in a process that knows nothing of their sources.
USE = """
from kernels import get_kernel

import torch

one, two = (get_kernel("acme/add-one", version=version, trust_remote_code=["acme/add-one"]) for version in (1, 2))
x = torch.zeros(3)
print(one.add_one(x, torch.empty(3)).tolist(), two.add_one(x, torch.empty(3)).tolist())
print(one.ops.id() == one.__name__, two.ops.id() == two.__name__, one.__name__ != two.__name__)
print(one.add_op_namespace_prefix("add_one") == f"{one.__name__}::add_one")
try:
    one.add_one(x, torch.empty(4))
except ValueError as error:
    print(str(error).splitlines()[-1])
"""


@pytest.fixture(scope="module")
def built_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of repositories with two versions of the kernel, built where there is no Torch; leave it as it is."""
    folder = tmp_path_factory.mktemp("tvm-ffi")
    other = {"add_one.h": (write_tvm_ffi_source(folder / "1") / "add_one.h").read_text().replace("1.0f", "2.0f")}
    write_tvm_ffi_source(folder / "2", other)
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "torch", None)
        for version in (1, 2):
            source, out = folder / str(version), folder / "hub" / "acme" / "add-one" / f"v{version}"
            build_kernel(source, out, backends=["cpu"])
    return folder


def _variant(built: Path) -> Path:
    (variant,) = (built / "hub/acme/add-one/v1/build").iterdir()
    return variant


@needs_tvm_ffi
@compiler
def test_a_source_for_tvm_ffi_becomes_a_library_and_a_package(built_once: Path) -> None:
    variant = _variant(built_once)
    metadata = Metadata.read_from_file(variant / "metadata.json")
    assert variant.name.startswith("tvm-ffi0")
    assert "-cpu-" in variant.name
    suffix = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
    assert sorted(path.name for path in variant.iterdir()) == sorted(
        ["__init__.py", "_ops.py", "metadata.json", f"{metadata.id}{suffix}"]
    )
    assert metadata.id.startswith("_add_one_cpu_")
    assert metadata.digest is not None
    BuildContent(variant).check_digest(metadata.digest)


@needs_tvm_ffi
@compiler
def test_two_versions_are_found_and_loaded_together_and_take_tensors_of_torch(
    built_once: Path, tmp_path: Path, isolated_env: Path
) -> None:
    pytest.importorskip("torch")
    environment = {**os.environ, "KERNELS_HUB": str(built_once / "hub")}
    done = subprocess.run(
        [sys.executable, "-c", USE], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "[1.0, 1.0, 1.0] [2.0, 2.0, 2.0]",
        "True True True",
        "True",
        "`out` has 4 elements",
    ]


@needs_tvm_ffi
@compiler
def test_what_is_compiled_already_is_not_compiled_again(built_once: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = built_once / "1", built_once / "hub/acme/add-one/v1"

    def states() -> list[str]:
        return [outcome.state for outcome in build_variants(source, out, backends=["cpu"])]

    assert states() == ["up to date"]
    monkeypatch.setitem(sys.modules, "torch", None)  # whether there is one makes no difference
    assert states() == ["up to date"]


@needs_tvm_ffi
def test_another_tvm_ffi_is_another_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = read_source(write_tvm_ffi_source(tmp_path / "source"))

    def planned(version: str) -> tuple[str, str]:
        _installed(monkeypatch, version)
        (plan,) = plan_builds(source, ["cpu"])
        assert plan.compilation is not None
        return plan.variant.partition("-cpu")[0], plan.compilation.against

    assert planned("0.1.15.post2") == ("tvm-ffi01", "tvm-ffi 0.1.15.post2")
    assert planned("0.1.16") == ("tvm-ffi01", "tvm-ffi 0.1.16")
    assert planned("1.12.0") == ("tvm-ffi112", "tvm-ffi 1.12.0")


@needs_tvm_ffi
@compiler
@pytest.mark.skipif(sys.platform != "linux", reason="reads ELF files")
def test_a_check_finds_its_library_and_nothing_of_python_in_it(built_once: Path) -> None:
    pytest.importorskip("elftools")
    [found] = audit(_variant(built_once), dynamic=False)
    wrong = [each.what for each in found.findings if each.verdict in ("failed", "missing")]
    # tvm-ffi's headers use streams, for which the compiler of a newer system takes symbols of that system.
    assert [each for each in wrong if "needs GLIBCXX_" not in each] == []


@needs_tvm_ffi
@compiler
def test_a_compilers_output_is_the_error_and_nothing_is_left(tmp_path: Path) -> None:
    source = write_tvm_ffi_source(tmp_path / "source", {"add_one.cpp": "int one = undeclared_name;\n"})
    with pytest.raises(BuildError, match=r"Building add_one\.cpp failed(.|\n)*undeclared_name"):
        build_kernel(source, tmp_path / "out", backends=["cpu"])
    assert not (tmp_path / "out/build").exists()


# What follows needs neither tvm-ffi nor a compiler: planning reads where its files are, and asks for versions.


@pytest.fixture
def tvm_ffi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed tvm-ffi: the folder of its package."""
    folder = tmp_path / "site" / "tvm_ffi"
    for name in ("include/tvm/ffi/c_api.h", "lib/libtvm_ffi.so", "__init__.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    find_spec = importlib.util.find_spec
    spec = importlib.machinery.ModuleSpec("tvm_ffi", None, origin=str(folder / "__init__.py"), is_package=True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == "tvm_ffi" else find_spec(name))
    _installed(monkeypatch, "0.1.15")
    return folder


def _installed(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    target = msgspec.structs.replace(Target.parse("cpu-x86_64-linux"), tvm_ffi=version)
    monkeypatch.setattr(Target, "current", lambda: target)


def _nvcc(folder: Path, monkeypatch: pytest.MonkeyPatch, version: str = "release 13.0, V13.0.48") -> None:
    path = folder / "nvcc"
    path.write_text(f"#!/bin/sh\n[ $1 = --list-gpu-arch ] && printf 'compute_80\\ncompute_90\\n' || echo '{version}'\n")
    path.chmod(0o755)
    monkeypatch.setenv("NVCC", str(path))
    monkeypatch.setattr(cuda_folders, "package_folders", lambda beside: [])


def test_cuda_is_built_with_the_version_and_the_architectures_of_its_compiler(
    tvm_ffi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _nvcc(tmp_path, monkeypatch)
    (plan,) = plan_builds(read_source(write_tvm_ffi_source(tmp_path / "source")), ["cuda"])
    assert plan.variant == "tvm-ffi01-cu130-x86_64-linux"
    assert plan.archs == ("8.0", "9.0+PTX")
    assert plan.extension_file == f"{plan.id}.so"
    assert plan.compilation is not None
    binding, device = (unit.command for unit in plan.compilation.units)
    assert device[0] == plan.compilation.link[0] == str(tmp_path / "nvcc")
    assert {"-DCUDA_KERNEL", str(tvm_ffi / "include")} <= {*binding} & {*device}
    assert f"-DTVM_FFI_EXTENSION_NAME={plan.id}" in binding
    # Who loads it may have no Torch, which would bring the shared runtime.
    assert plan.compilation.libraries == (f"-L{tvm_ffi / 'lib'}", "-ltvm_ffi", "-shared", "-cudart=static")
    assert not [part for part in (*binding, *device) if "torch" in part.lower() or "Py_LIMITED" in part]


def test_a_compiler_that_is_not_here_leaves_its_backend_out(
    tvm_ffi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = read_source(write_tvm_ffi_source(tmp_path / "source"))
    monkeypatch.setenv("NVCC", "no-such-nvcc")
    assert default_backends(source) == ("cpu",)
    with pytest.raises(CompilerNotFound, match="no-such-nvcc"):
        plan_builds(source, ["cuda"])
    _nvcc(tmp_path, monkeypatch)
    assert default_backends(source) == ("cpu", "cuda")


@pytest.mark.parametrize("version", [None, "nightly"])
@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda source: plan_builds(source, ["cpu"]), id="a backend"),
        pytest.param(lambda source: plan_builds(source), id="all"),
    ],
)
def test_without_tvm_ffi_the_error_says_what_to_install(
    tvm_ffi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., Any], version: str | None
) -> None:
    _installed(monkeypatch, version)
    source = read_source(write_tvm_ffi_source(tmp_path / "source"))
    with pytest.raises(CompilerNotFound, match=r"tvm-ffi.*: pip install apache-tvm-ffi$"):
        call(source)
    outcomes = list(build_variants(source.folder, tmp_path / "out"))
    assert [(outcome.backend, outcome.state) for outcome in outcomes] == [("cpu", "not built"), ("cuda", "not built")]
    assert all("pip install apache-tvm-ffi" in outcome.reason for outcome in outcomes)


@pytest.mark.parametrize("lost", ["include/tvm/ffi/c_api.h", "lib/libtvm_ffi.so"])
def test_an_installation_without_headers_or_libraries_is_named(tvm_ffi: Path, tmp_path: Path, lost: str) -> None:
    (tvm_ffi / lost).unlink()
    with pytest.raises(CompilerNotFound, match="without its headers or libraries: pip install --force-reinstall"):
        plan_builds(read_source(write_tvm_ffi_source(tmp_path / "source")), ["cpu"])


@pytest.mark.parametrize(
    ("backend", "section", "says"),
    [
        ("cuda", '[kernel.two]\nbackend = "cuda"\nsrc = ["add_one.cpp"]\n', "has no device sources for cuda"),
        ("cuda", "", "has no device sources for cuda"),
        ("cuda", '[general.cuda]\nminver = "13.1"\n', r"cuda 13\.0, from .*nvcc, is older than the oldest"),
        ("cuda", '[general.cuda]\nmaxver = "12.9"\n', r"newer than the newest that `general.cuda` allows: 12\.9"),
        ("metal", '[kernel.two]\nbackend = "metal"\nsrc = ["two.mm"]\n', "This machine cannot build for metal"),
        ("xpu", '[kernel.two]\nbackend = "xpu"\nsrc = ["two.mm"]\n', r"No compiler is known for two\.mm"),
    ],
)
def test_what_cannot_be_compiled_here_is_told_and_the_rest_is_planned(
    tvm_ffi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, section: str, says: str
) -> None:
    _nvcc(tmp_path, monkeypatch)
    general = (
        f'[general]\nname = "add-one"\nversion = 1\nedition = 5\nlicense = "MIT"\nbackends = ["cpu", "{backend}"]\n'
    )
    cuda = '[kernel.one]\nbackend = "cuda"\nsrc = ["add_one.cu"]\n' if section.startswith("[general") else ""
    toml = {"build.toml": f"{general}{section}{cuda}[tvm-ffi]\n", "two.mm": ""}
    source = read_source(write_tvm_ffi_source(tmp_path / "source", toml))
    with pytest.raises(CompilerNotFound, match=says):
        plan_builds(source, [backend])
    assert [plan.backend.name for plan in plan_builds(source)] == ["cpu"]


def test_a_compiler_that_does_not_say_its_version_is_named(
    tvm_ffi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _nvcc(tmp_path, monkeypatch, version="a compiler")
    with pytest.raises(CompilerNotFound, match=r"nvcc --version` has no version in its output: 'a compiler'"):
        plan_builds(read_source(write_tvm_ffi_source(tmp_path / "source")), ["cuda"])


def test_where_devices_are_named_as_hips_its_compiler_takes_cuda_sources_too(
    tvm_ffi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hipcc = tmp_path / "hipcc"
    hipcc.write_text("#!/bin/sh\necho 'HIP version: 7.0.51831-a3e329ad8'\n")
    hipcc.chmod(0o755)
    monkeypatch.setenv("HIPCC", str(hipcc))
    general = '[general]\nname = "add-one"\nversion = 1\nedition = 5\nlicense = "MIT"\nbackends = ["rocm"]\n[tvm-ffi]\n'
    toml = f'{general}[kernel.one]\nbackend = "rocm"\nsrc = ["add_one.cu"]\nrocm-archs = ["gfx942"]\n'
    (plan,) = plan_builds(read_source(write_tvm_ffi_source(tmp_path / "source", {"build.toml": toml})))
    assert (plan.variant, plan.archs) == ("tvm-ffi01-rocm70-x86_64-linux", ("gfx942",))
    assert plan.compilation is not None
    assert plan.compilation.libraries[-1] == "-lamdhip64"


def test_its_package_says_where_it_is_built_for(tvm_ffi: Path, tmp_path: Path) -> None:
    (plan,) = plan_builds(read_source(write_tvm_ffi_source(tmp_path / "source")), ["cpu"])
    from kernels.authoring.compile.write_variant import write_package

    write_package(plan, tmp_path)
    said = json.loads((tmp_path / "metadata.json").read_text())
    assert (said["backend"], said["id"]) == ({"type": "cpu"}, plan.id)
    assert f'"{plan.id}.so"' in (tmp_path / "_ops.py").read_text()
