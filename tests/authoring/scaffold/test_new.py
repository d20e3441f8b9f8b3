"""A new kernel's folder is all there or not at all, and what stands in it is in order."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest
from torch_headers import torch_headers

from kernels import load_backends, register_backend, unregister_backend
from kernels.authoring.check.audit import audit
from kernels.authoring.compile import build_kernel, read_source
from kernels.authoring.scaffold import draft_kernel, new_kernel
from kernels.authoring.scaffold.draft import TEMPLATES
from kernels.authoring.scaffold.guidance import guidance
from kernels.authoring.scaffold.render import render
from kernels.backends import Backend, BackendProbe, all_backends, get
from kernels.errors import RequestError

EVERY = [backend.name for backend in all_backends()]


def below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


COMMON = {
    ".gitignore",
    "README.md",
    "build.toml",
    "benchmarks/benchmark_rms_norm.py",
    "tests/test_rms_norm.py",
    "torch-ext/rms_norm/__init__.py",
    "torch-ext/rms_norm/layers.py",
}


@pytest.mark.parametrize(
    ("backends", "noarch", "further"),
    [
        (["cpu"], False, {"rms_norm_cpu/rms_norm.cpp"}),
        (["cpu", "cuda"], False, {"rms_norm_cpu/rms_norm.cpp", "rms_norm_cuda/rms_norm.cu"}),
        (["xpu"], False, {"rms_norm_xpu/rms_norm.cpp", "GUIDANCE.md"}),
        (["metal"], False, {"rms_norm_metal/rms_norm.metal", "rms_norm_metal/rms_norm.mm", "GUIDANCE.md"}),
        (["tpu"], False, {"rms_norm_tpu/rms_norm.cpp", "GUIDANCE.md"}),
        (["cpu"], True, set()),
        (["cpu", "rocm"], True, {"GUIDANCE.md"}),
        (["rocm"], False, {"rms_norm_rocm/rms_norm.hip", "GUIDANCE.md"}),
    ],
    ids=["cpu", "cpu and cuda", "xpu", "metal", "tpu", "noarch cpu", "noarch cpu and rocm", "rocm"],
)
def test_a_kernel_has_the_files_of_its_kind(
    tmp_path: Path, backends: list[str], noarch: bool, further: set[str]
) -> None:
    folder = new_kernel("rms-norm", tmp_path / "k", backends=backends, noarch=noarch)
    kind = {"_triton.py"} if noarch else {"torch_binding.cpp", "torch_binding.h"}
    expected = {f"torch-ext/rms_norm/{name}" if noarch else f"torch-ext/{name}" for name in kind}
    assert below(folder) == COMMON | expected | further


@pytest.mark.parametrize("noarch", [False, True])
@pytest.mark.parametrize("repo_id", [None, "org/rms-norm"])
def test_its_build_toml_says_what_was_asked_for(tmp_path: Path, noarch: bool, repo_id: str | None) -> None:
    folder = new_kernel(
        "rms-norm", tmp_path / "k", backends=EVERY, noarch=noarch, license="MIT OR Apache-2.0", repo_id=repo_id
    )
    source = read_source(folder)
    assert (source.name, source.version, source.license) == ("rms-norm", 1, "MIT OR Apache-2.0")
    assert (list(source.backends), source.compiled) == (EVERY, not noarch)
    assert [kernel.backend for kernel in source.kernels] == ([] if noarch else EVERY)
    text = (folder / "build.toml").read_text()
    assert ('\nrepo-id = "org/rms-norm"\n' in text) is (repo_id is not None)
    assert f'REPO_ID = "{repo_id or "local/rms-norm"}"' in (folder / "tests" / "test_rms_norm.py").read_text()


@pytest.mark.parametrize(
    ("backends", "listed"),
    [
        (EVERY, {"cuda": ("8.0", "9.0", "10.0", "12.0"), "rocm": ("gfx90a", "gfx942", "gfx950")}),
        (["cuda"], {"cuda": ("8.0", "9.0", "10.0", "12.0")}),
        (["cpu"], {}),
    ],
    ids=["every backend", "cuda", "cpu"],
)
def test_a_noarch_kernel_shows_how_architectures_are_listed(
    tmp_path: Path, backends: list[str], listed: dict[str, tuple[str, ...]]
) -> None:
    folder = new_kernel("rms-norm", tmp_path / "k", backends=backends, noarch=True)
    assert read_source(folder).archs == {}
    path = folder / "build.toml"
    assert not path.read_text().endswith("\n\n")
    path.write_text(re.sub(r"^# (\w+ = .*\d.*)$", r"\1", path.read_text(), flags=re.MULTILINE))
    assert read_source(folder).archs == listed


@pytest.mark.parametrize("name", ["a1", "class", "x" * 40])
@pytest.mark.parametrize("noarch", [False, True])
@pytest.mark.parametrize("line_length", [88, 120])
def test_its_python_is_clean_for_ruff(tmp_path: Path, name: str, noarch: bool, line_length: int) -> None:
    pytest.importorskip("ruff")
    new_kernel(name, tmp_path / "k", backends=EVERY, noarch=noarch)
    for command in (["check", "--select", "E,F,W,I,B,UP,SIM,RUF", "--ignore", "E501"], ["format", "--check"]):
        # From there: this project's own settings and packages are not the author's.
        ruff = [sys.executable, "-m", "ruff", *command, "--isolated", "--no-cache", f"--line-length={line_length}"]
        done = subprocess.run([*ruff, "."], capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("noarch", [False, True])
def test_nothing_of_the_templates_is_left_in_it(noarch: bool) -> None:
    for name, text in render(draft_kernel("rms-norm", backends=EVERY, noarch=noarch)).items():
        assert not re.search(r"@[A-Z_]+@", f"{name}{text}"), name
        assert text.endswith("\n")
        assert "\n\n\n" not in text or name.suffix == ".py", name
        assert text == "".join(f"{line.rstrip()}\n" for line in text.splitlines()), name
        if name.suffix == ".py":
            ast.parse(text)


def test_every_template_is_used() -> None:
    used: set[PurePosixPath] = set()
    for noarch, backends in ((False, EVERY), (True, EVERY), (True, ["cpu", "cuda"])):
        used |= set(render(draft_kernel("rms-norm", backends=backends, noarch=noarch)))
    kinds = {path.parts[0] for path in (each.relative_to(TEMPLATES) for each in TEMPLATES.rglob("*.in"))}
    assert kinds == {"common", "compiled", "noarch", "triton", "plain", "device", "fragments", "archs", "adopted"}
    for kind in ("common", "compiled", "noarch", "triton", "plain"):
        for path in (TEMPLATES / kind).rglob("*.in"):
            name = (
                path.relative_to(TEMPLATES / kind).as_posix().removesuffix(".in").replace("@PYTHON_NAME@", "rms_norm")
            )
            assert PurePosixPath(name) in used
    text = Path(sys.modules[render.__module__].__file__ or "").read_text()
    assert all(f'"{path.name.removesuffix(".in")}"' in text for path in (TEMPLATES / "fragments").iterdir())


def test_no_template_looks_like_a_source_of_this_package() -> None:
    files = [path for path in TEMPLATES.rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if path.suffix != ".in" and path.name != "by-default"] == []


@pytest.mark.compiler
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_nvcc_compiles_the_cuda_source_to_loads_of_16_bytes(tmp_path: Path) -> None:
    folder = new_kernel("rms-norm", tmp_path / "k", backends=["cuda"])
    # A header that only Torch's builds for CUDA have.
    command = [
        "nvcc",
        "-std=c++20",
        "-arch=sm_90",
        "-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE",
        "-ptx",
        "-o",
        tmp_path / "ptx",
    ]
    command += [option for path in torch_headers() for option in ("-isystem", path)]
    done = subprocess.run([*command, folder / "rms_norm_cuda" / "rms_norm.cu"], capture_output=True, text=True)
    if "host compiler" in done.stderr or "unsupported GNU version" in done.stderr:
        pytest.skip(done.stderr.splitlines()[0])
    assert (done.returncode, done.stderr) == (0, "")
    moves = set(re.findall(r"\b(?:ld|st)\.global[\w.]*\.v[248]\.[\w]+", (tmp_path / "ptx").read_text()))
    widths = {int(vector) * int(bits) for vector, bits in re.findall(r"\.v(\d)\.\w(\d+)", " ".join(moves))}
    assert widths == {128}, moves


@pytest.mark.compiler
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_the_hip_source_is_valid_in_the_place_of_hipcc_nvcc_reads_it(tmp_path: Path) -> None:
    folder = new_kernel("rms-norm", tmp_path / "k", backends=["rocm"])
    assert read_source(folder).kernels[0].archs
    # The names of ROCm's headers, with CUDA behind them: the language is the same.
    stream = "inline auto getCurrentHIPStream() { return c10::cuda::getCurrentCUDAStream(); }"
    check = "#define C10_HIP_KERNEL_LAUNCH_CHECK C10_CUDA_KERNEL_LAUNCH_CHECK"
    for name, text in {
        "hip/hip_runtime.h": "#include <cuda_runtime.h>\n",
        "c10/hip/HIPStream.h": f"#include <c10/cuda/CUDAStream.h>\nnamespace c10::hip {{ {stream} }}\n",
        "c10/hip/HIPException.h": f"#include <c10/cuda/CUDAException.h>\n{check}\n",
    }.items():
        (tmp_path / "stand-in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "stand-in" / name).write_text(text)
    command = ["nvcc", "-x", "cu", "-std=c++20", "-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE", "-ptx", "-o", tmp_path / "ptx"]
    command += [option for path in (tmp_path / "stand-in", *torch_headers()) for option in ("-isystem", path)]
    done = subprocess.run([*command, folder / "rms_norm_rocm" / "rms_norm.hip"], capture_output=True, text=True)
    if "host compiler" in done.stderr or "unsupported GNU version" in done.stderr:
        pytest.skip(done.stderr.splitlines()[0])
    assert (done.returncode, done.stderr) == (0, "")


def test_without_nvcc_the_cuda_source_is_what_it_must_be(tmp_path: Path) -> None:
    folder = new_kernel("rms-norm", tmp_path / "k", backends=["cuda"])
    text = (folder / "rms_norm_cuda" / "rms_norm.cu").read_text()
    guarded = ["CUDAGuard guard(input.device())", "getCurrentCUDAStream()", "C10_CUDA_KERNEL_LAUNCH_CHECK()"]
    checked = ["if (count == 0)", "input.contiguous()", "is_aligned(read) && is_aligned(write)", "TORCH_CHECK("]
    assert [part for part in (*guarded, *checked) if part not in text] == []
    assert [part for part in ("int count", "int32_t", "cudaDeviceSynchronize") if part in text] == []


# The folder


@pytest.mark.parametrize("there", ["file", "folder with a file", "link to nothing's place"])
def test_what_is_there_is_left_alone(tmp_path: Path, there: str) -> None:
    target = tmp_path / "k"
    if there == "file":
        target.write_text("mine")
    elif there == "folder with a file":
        target.mkdir()
        (target / ".hidden").write_text("mine")
    else:
        (tmp_path / "place").write_text("mine")
        target.symlink_to(tmp_path / "place")
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(RequestError, match="expected a new or empty folder"):
        new_kernel("rms-norm", target, backends=["cpu"])
    assert {path.name for path in tmp_path.iterdir()} == before
    assert "mine" in (target / ".hidden" if target.is_dir() else target).read_text()


def test_an_empty_folder_is_filled_and_missing_parents_are_made(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert new_kernel("rms-norm", tmp_path / "empty", backends=["cpu"]) == tmp_path / "empty"
    assert new_kernel("rms-norm", tmp_path / "a" / "b", backends=["cpu"]).is_dir()
    assert below(tmp_path / "empty") == below(tmp_path / "a" / "b")


def test_without_a_folder_it_is_made_under_its_name_where_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert new_kernel("rms-norm", backends=["cpu"]) == tmp_path / "rms-norm"
    assert [path.name for path in tmp_path.iterdir()] == ["rms-norm"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "ctrl-c"])
def test_when_writing_breaks_off_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    written: list[str] = []
    write = Path.write_bytes

    def breaks(path: Path, data: bytes) -> int:
        written.append(path.name)
        if len(written) == 4:
            raise error
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", breaks)
    with pytest.raises(type(error)):
        new_kernel("rms-norm", tmp_path / "k", backends=["cpu"])
    assert len(written) == 4
    assert list(tmp_path.iterdir()) == []


def test_who_is_quicker_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_bytes

    def writes(path: Path, data: bytes) -> int:
        (tmp_path / "k").mkdir(exist_ok=True)
        write(tmp_path / "k" / "theirs", b"theirs")
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", writes)
    with pytest.raises(RequestError, match="is not empty"):
        new_kernel("rms-norm", tmp_path / "k", backends=["cpu"])
    assert below(tmp_path) == {"k/theirs"}


def test_others_may_read_it_as_the_umask_says(tmp_path: Path) -> None:
    (tmp_path / "like").mkdir()
    folder = new_kernel("rms-norm", tmp_path / "k", backends=["cpu"])
    assert folder.stat().st_mode == (tmp_path / "like").stat().st_mode


# Backends of others


@pytest.fixture
def acme(tmp_path: Path) -> Iterator[str]:
    file = tmp_path / "acme.json"
    file.write_text(
        '{"acme": {"device_string": "acme", "vendor": "Acme", "guidance_block": "Tiles of 64 by 64.",'
        ' "kernel_guidance": "No warps. @NAME@ $x \\u2603", "dispatch_key": "PrivateUse1",'
        ' "cuda_hacks_to_strip": ["torch.cuda.is_available = lambda: True", "```"]}}'
    )
    load_backends(file)
    yield "acme"
    unregister_backend("acme")


@pytest.mark.parametrize("noarch", [False, True])
def test_the_guidance_of_a_declared_backend_lands_in_the_kernel(tmp_path: Path, acme: str, noarch: bool) -> None:
    folder = new_kernel("rms-norm", tmp_path / "k", backends=["cpu", acme], noarch=noarch)
    text = (folder / "GUIDANCE.md").read_text(encoding="utf-8")
    assert "## acme (Acme)" in text
    assert "Tiles of 64 by 64." in text
    assert "No warps. @NAME@ $x \N{SNOWMAN}" in text
    assert "\n````python\ntorch.cuda.is_available = lambda: True\n```\n````\n" in text
    assert "GUIDANCE.md" in (folder / "README.md").read_text()


def test_a_declared_backend_is_compiled_from_torchs_own_operators(tmp_path: Path, acme: str) -> None:
    folder = new_kernel("rms-norm", tmp_path / "k", backends=["cpu", acme])
    [kernel] = [kernel for kernel in read_source(folder).kernels if kernel.backend == acme]
    assert kernel.src == ("rms_norm_acme/rms_norm.cpp",)
    binding = (folder / "torch-ext" / "torch_binding.cpp").read_text()
    assert "#if defined(ACME_KERNEL)\nTORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, PrivateUse1, ops)" in binding


def test_a_registered_backends_forbidden_lines_land_even_alone(tmp_path: Path) -> None:
    class Chip(Backend):
        name = device_type = "chip"
        cuda_hacks_to_strip = ("tl.libdevice",)

        def probe(self) -> BackendProbe:
            return BackendProbe()

    register_backend(Chip())
    try:
        folder = new_kernel("rms-norm", tmp_path / "k", backends=["chip"], noarch=True)
    finally:
        unregister_backend("chip")
    assert "tl.libdevice" in (folder / "GUIDANCE.md").read_text()


def test_without_guidance_there_is_no_page(tmp_path: Path) -> None:
    assert guidance([get("cpu")]) is None
    folder = new_kernel("rms-norm", tmp_path / "k", backends=["cpu"])
    assert "GUIDANCE" not in (folder / "README.md").read_text()
    assert not os.path.lexists(folder / "GUIDANCE.md")


@pytest.mark.parametrize("noarch", [True, False], ids=["noarch", "compiled"])
@pytest.mark.parametrize("backend", EVERY)
def test_it_holds_nothing_that_its_backend_forbids(tmp_path: Path, backend: str, noarch: bool) -> None:
    folder = new_kernel("rms-norm", tmp_path / "k", backends=["cpu", backend], noarch=noarch)
    forbidden = get(backend).cuda_hacks_to_strip
    sources = [path for path in folder.rglob("*") if path.suffix in (".py", ".cpp", ".cu", ".h", ".mm", ".metal")]
    code = [path.read_text() for path in sources if path.parent.name not in ("tests", "benchmarks")]
    assert [line for line in forbidden if any(line in text for text in code)] == []
    if noarch:
        failed = [each for found in audit(_built(folder), dynamic=False) for each in found.findings if found.failed]
        assert failed == []
        has_triton = "import triton" not in forbidden
        assert (folder / "torch-ext" / "rms_norm" / "_triton.py").exists() == has_triton
        assert ("_triton.py" in (folder / "README.md").read_text()) == has_triton


def _built(folder: Path) -> Path:
    build_kernel(folder, folder)
    return folder
