"""What a source asks of Torch, of its toolkit and of other packages is there, or the error names it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernels.authoring.compile import build_kernel, plan_builds, read_source
from kernels.errors import CompilerNotFound, RequestError
from kernels.resolver.target import Target
from kernels.support.version import MajorMinor

_GENERAL = '[general]\nname = "add-one"\nversion = 1\nedition = 5\nlicense = "MIT"\nbackends = ["cpu"]\n'
_KERNEL = '[kernel.one]\nbackend = "cpu"\nsrc = ["one.cpp"]\n'


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(toml: str, code: str = "int one() { return 1; }\n") -> Path:
        for name, text in {
            "build.toml": _GENERAL + toml,
            "one.cpp": code,
            "torch-ext/add_one/__init__.py": "",
        }.items():
            (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "source" / name).write_text(text)
        return tmp_path / "source"

    return write


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ('[torch]\nminver = "9.0"\n' + _KERNEL, r"Torch .* is older than the oldest that `torch` allows: 9\.0"),
        ('[torch]\nmaxver = "1.0"\n' + _KERNEL, r"Torch .* is newer than the newest that `torch` allows: 1\.0"),
        ('[torch]\nstable-abi = "9.0"\n' + _KERNEL, r"Torch .* is older than the oldest that `torch.stable-abi`"),
        ("[torch]\n" + _KERNEL + 'depends = ["cutlass_4_0"]\n', r"pip install 'nvidia-cutlass==4\.0\.\*'"),
        ("[torch]\n" + _KERNEL + 'depends = ["sycl_tla"]\n', "depends on sycl_tla; set SYCL_TLA_SRC_DIR to the folder"),
    ],
)
def test_what_cannot_be_compiled_here_is_told_before_anything_runs(
    write: Callable[..., Path], toml: str, says: str
) -> None:
    with pytest.raises(CompilerNotFound, match=says):
        plan_builds(read_source(write(toml)), ["cpu"])


@pytest.mark.compiler
def test_a_stable_abi_build_is_named_for_it_and_sees_only_what_that_torch_has(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    code = 'static_assert(TORCH_TARGET_VERSION == ((2ULL << 56) | (9ULL << 48)), "");\nint one() { return 1; }\n'
    (variant,) = build_kernel(write('[torch]\nstable-abi = "2.9"\n' + _KERNEL, code), tmp_path / "out")
    assert variant.name.startswith("torch-stable-abi29-cpu-")


def _device_source(write: Callable[..., Path], listed: str) -> Any:
    folder = write(f'[torch]\n[kernel.one]\nbackend = "cuda"\nsrc = ["one.cu"]\ncuda-capabilities = {listed}\n')
    (folder / "one.cu").write_text("")
    toml = (folder / "build.toml").read_text()
    (folder / "build.toml").write_text(toml.replace('["cpu"]', '["cuda"]'))
    return read_source(folder)


@pytest.mark.parametrize(
    ("listed", "archs"),
    [("[]", ("8.0", "9.0+PTX")), ('["8.0", "9.0a", "12.0"]', ("8.0", "9.0a")), ('["9.0+PTX"]', ("9.0+PTX",))],
)
@pytest.mark.parametrize("this_gpu", [False, True])
def test_a_device_build_declares_what_was_compiled(
    write: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    listed: str,
    archs: tuple[str, ...],
    this_gpu: bool,
) -> None:
    from kernels.authoring.compile.frameworks import torch_installation
    from kernels.authoring.compile.plan import build_plan, sections

    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\n[ $1 = --list-gpu-arch ] && printf 'compute_80\\ncompute_90\\n' || echo release 13.0\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("NVCC", str(nvcc))
    source = _device_source(write, listed)
    monkeypatch.setattr(torch_installation, "torch_builds", lambda: {"cuda": MajorMinor(13, 0)})
    target = Target.parse("torch2.13-cu130-x86_64-linux+sm_90")
    monkeypatch.setattr(sections.Target, "current", lambda: target)
    made = build_plan.plan_build(source, build_plan.source_state(source), "cuda", this_gpu=this_gpu)
    expected = tuple(arch for arch in archs if arch[:3] == "9.0") if this_gpu else archs
    if this_gpu and listed == "[]":
        expected = ("9.0",)
    assert made.archs == expected
    assert made.compilation is not None
    flags = [flag for flag in made.compilation.units[0].command if "code=sm_" in flag]
    assert [flag[-len(arch.replace(".", "").split("+")[0]) :] for flag, arch in zip(flags, expected, strict=True)] == [
        arch.replace(".", "").split("+")[0] for arch in expected
    ]


@pytest.mark.parametrize(
    ("listed", "target", "says"),
    [
        ('["8.0"]', "torch2.13-cu130-x86_64-linux+sm_90", r"lists 8\.0, none of which covers 9\.0"),
        ("[]", "torch2.13-cu130-x86_64-linux", "no device of cuda is visible"),
    ],
)
def test_this_gpu_needs_a_device_that_the_sources_cover(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, listed: str, target: str, says: str
) -> None:
    from kernels.authoring.compile.frameworks import torch_installation
    from kernels.authoring.compile.plan import build_plan, sections

    source = _device_source(write, listed)
    monkeypatch.setattr(torch_installation, "torch_builds", lambda: {"cuda": MajorMinor(13, 0)})
    described = Target.parse(target)
    monkeypatch.setattr(sections.Target, "current", lambda: described)
    with pytest.raises(RequestError, match=says):
        build_plan.plan_build(source, build_plan.source_state(source), "cuda", this_gpu=True)
