"""A build becomes a wheel that pip installs and Python imports by the kernel's name."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.metadata import Metadata as CoreMetadata
from packaging.utils import parse_wheel_filename

from kernels.authoring.compile import build_kernel
from kernels.authoring.wheel import build_wheels
from kernels.errors import RequestError
from kernels.models.metadata import Metadata
from kernels.trust.content import BuildContent

compiler = pytest.mark.compiler

_GENERAL = """
[general]
name = "add-one"
version = 2
edition = 5
license = "Apache-2.0"
backends = {backends}
upstream = "https://example.org/add-one"
python-depends = ["einops"]
"""
_NOARCH = _GENERAL + "[general.cuda]\npython-depends = ['nvidia-cutlass-dsl']\n[torch-noarch]\n"
_COMPILED = _GENERAL + '[torch]\nsrc = ["torch-ext/binding.cpp"]\n[kernel.one]\nbackend = "cpu"\nsrc = ["one.cpp"]\n'

_BINDING = """
#include <torch/csrc/stable/library.h>
#include "registration.h"

int64_t one();

STABLE_TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) { ops.def("one() -> int"); }
STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CompositeExplicitAutograd, ops) {
  ops.impl("one", TORCH_BOX(&one));
}
REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
"""


def _write(folder: Path, toml: str, backends: str = '["cpu"]') -> Path:
    files = {
        "build.toml": toml.replace("{backends}", backends),
        "torch-ext/add_one/__init__.py": "from ._ops import add_op_namespace_prefix, ops\nfrom .deep import two\n",
        "torch-ext/add_one/deep.py": "two = 2\n",
        "torch-ext/binding.cpp": _BINDING,
        "one.cpp": "#include <cstdint>\nint64_t one() { return 1; }\n",
        "LICENSE": "Do what you want.\n",
        "README.md": "---\ntags: [kernels]\n---\n# Add one\n\nAnd één more.\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def _core(wheel: Path) -> CoreMetadata:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return CoreMetadata.from_email(archive.read(name))


def test_each_noarch_build_becomes_a_wheel_for_every_system(tmp_path: Path) -> None:
    source = _write(tmp_path, _NOARCH, '["cpu", "cuda"]')
    (source / "NOTICE_2").write_text("Made by others too.\n")
    cpu, cuda = build_wheels(source, build=True)
    assert [each.path.name for each in (cpu, cuda)] == [
        "add_one-2.0+cpu-py3-none-any.whl",
        "add_one-2.0+cuda-py3-none-any.whl",
    ]
    assert cuda.path.parent == source / "dist"
    assert cpu.requires == ("torch", "einops")
    assert cuda.requires == ("torch", "einops", "nvidia-cutlass-dsl")
    core = _core(cuda.path)
    assert (core.name, str(core.version), core.license_expression) == ("add-one", "2.0+cuda", "Apache-2.0")
    assert core.license_files == ["LICENSE", "NOTICE_2"]
    assert core.project_urls == {"Upstream": "https://example.org/add-one"}
    assert core.description == "# Add one\n\nAnd één more.\n"
    assert list(map(str, core.requires_dist or ())) == list(cuda.requires)
    # Wheels are no sources: the builds are still up to date.
    assert [each.path for each in build_wheels(source)] == [cpu.path, cuda.path]


def test_the_same_builds_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = _write(tmp_path / "source", _NOARCH)
    [first] = build_wheels(source, tmp_path / "first", build=True)
    (source / "build/torch-cpu/__init__.py").touch()
    [second] = build_wheels(source, tmp_path / "second")
    assert first.path.read_bytes() == second.path.read_bytes()
    assert {entry.date_time for entry in zipfile.ZipFile(first.path).infolist()} == {(2020, 2, 2, 0, 0, 0)}
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")  # before the times that ZIP knows
    [third] = build_wheels(source, tmp_path / "third")
    assert {entry.date_time for entry in zipfile.ZipFile(third.path).infolist()} == {(1980, 1, 1, 0, 0, 0)}
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(RequestError, match="`SOURCE_DATE_EPOCH` is 'yesterday'; expected a number of seconds"):
        build_wheels(source, tmp_path / "third")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kernel with one compiled build."""
    folder = _write(tmp_path_factory.mktemp("compiled"), _COMPILED)
    build_kernel(folder, folder)
    return folder


def _environment(folder: Path) -> Path:
    """An environment that sees the packages of this one."""
    venv.create(folder, symlinks=True)
    [packages] = folder.glob("lib/python*/site-packages")
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    (packages / "others.pth").write_text(f"{Path(str(spec.origin)).parents[1]}\n")
    return folder / "bin/python"


@compiler
@pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="pip is not installed")
@pytest.mark.skipif(sys.platform != "linux", reason="the wheel's name is Linux's")
def test_a_compiled_build_is_installed_with_pip_and_imported_by_its_name(compiled: Path, tmp_path: Path) -> None:
    import torch

    [wheel] = build_wheels(compiled, tmp_path / "dist")
    minor = ".".join(torch.__version__.split(".")[:2])
    assert (wheel.version, wheel.requires[0]) == (f"2.0+torch{minor.replace('.', '')}.cpu", f"torch=={minor}.*")
    assert re.fullmatch(r"cp310-abi3-manylinux_2_[0-9]{2}_(x86_64|aarch64)", wheel.tag)
    assert str(_core(wheel.path).requires_python) == ">=3.10"
    name, version, _, tags = parse_wheel_filename(wheel.path.name)
    assert (name, str(version), [str(tag) for tag in tags]) == ("add-one", wheel.version, [wheel.tag])

    python = _environment(tmp_path / "env")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "-q", "--no-index", "--no-deps", str(wheel.path)], check=True)
    program = """
import importlib.metadata, add_one, add_one.deep
print(add_one.ops.one(), add_one.two, add_one.__file__, add_one.ops.name, importlib.metadata.version("add-one"))
"""
    run = subprocess.run([python, "-c", program], capture_output=True, text=True, cwd="/")
    assert run.returncode == 0, run.stderr
    one, two, file, id, version = run.stdout.split()
    metadata = Metadata.read_from_file(Path(file).with_name("metadata.json"))
    assert (one, two, id, version) == ("1", "2", metadata.id, wheel.version)
    assert metadata.digest is not None
    BuildContent(Path(file).parent).check_digest(metadata.digest)  # what pip installed is what was built
    assert Path(file).is_relative_to(tmp_path)


def test_a_record_lists_every_file(tmp_path: Path) -> None:
    [wheel] = build_wheels(_write(tmp_path, _NOARCH), build=True)
    with zipfile.ZipFile(wheel.path) as archive:
        names = archive.namelist()
        rows = [line.split(",") for line in archive.read(names[-1]).decode().splitlines()]
        assert names[-1] == "add_one-2.0+cpu.dist-info/RECORD"
        assert [row[0] for row in rows] == names
        assert [int(row[2]) for row in rows[:-1]] == [archive.getinfo(name).file_size for name in names[:-1]]
    assert {name.split("/")[0] for name in names} == {"add_one", "add_one-2.0+cpu.dist-info"}
    assert {"add_one/metadata.json", "add_one-2.0+cpu.dist-info/licenses/LICENSE"} <= set(names)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"version": "3.1"}, r"`version` is '3\.1'; expected a version of Python packages that begins with 2"),
        ({"version": "2.1+mine"}, "expected a version of Python packages"),
        ({"version": "two"}, "expected a version of Python packages"),
        ({"variant": "torch-xpu"}, "`variant` is 'torch-xpu'; there are torch-cpu, torch-cuda"),
        ({"backends": ["xpu"]}, "`backend` is 'xpu'; the builds are for cpu, cuda"),
        ({"local": False}, "The wheels of torch-cpu and torch-cuda would both be add_one-2.0-py3-none-any.whl"),
    ],
)
def test_what_makes_no_wheel_is_refused(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    source = _write(tmp_path, _NOARCH, '["cpu", "cuda"]')
    with pytest.raises(RequestError, match=says):
        build_wheels(source, build=True, **options)
    assert not (source / "dist").exists()


def test_builds_of_older_sources_are_refused(tmp_path: Path) -> None:
    source = _write(tmp_path, _NOARCH)
    build_wheels(source, build=True)
    (source / "torch-ext/add_one/deep.py").write_text("two = 3\n")
    with pytest.raises(RequestError, match="the sources have changed since this build"):
        build_wheels(source)


def test_a_kernel_that_needs_other_kernels_is_refused(tmp_path: Path) -> None:
    depends = "kernel-depends = [{ repo-id = 'org/other', version = 1 }]"
    toml = _NOARCH.replace('python-depends = ["einops"]', depends)
    with pytest.raises(RequestError, match="it depends on the kernels org/other, which `get_kernel` loads"):
        build_wheels(_write(tmp_path, toml), build=True)
