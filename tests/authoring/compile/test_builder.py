"""Sources become `build/<variant>`: complete, the same bytes each time, and only when something changed."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernels import load_backends
from kernels.authoring.compile import build_kernel
from kernels.authoring.compile.frameworks import torch_installation
from kernels.authoring.own_tests.run import run_tests
from kernels.authoring.wheel import build_wheels
from kernels.backends import Backend, BackendProbe, Found, register_backend, unregister_backend
from kernels.errors import BuildError, CompilerNotFound, RequestError
from kernels.loader.load import load_variant
from kernels.models.metadata import Metadata
from kernels.support.version import MajorMinor
from kernels.trust.content import BuildContent

compiler = pytest.mark.compiler


def _metadata(variant: Path) -> dict[str, Any]:
    return json.loads((variant / "metadata.json").read_text())


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _load(variant: Path) -> Any:
    return load_variant(variant, Metadata.read_from_file(variant / "metadata.json"))


def test_a_noarch_source_becomes_one_variant_a_backend(write_source: Callable[..., Path], tmp_path: Path) -> None:
    variants = build_kernel(write_source("noarch"), tmp_path / "out")
    assert [variant.relative_to(tmp_path / "out").as_posix() for variant in variants] == [
        "build/torch-cpu",
        "build/torch-cuda",
        "build/torch-npu",
    ]
    cpu, cuda, npu = map(_metadata, variants)
    assert {key: cpu[key] for key in ("name", "version", "license", "upstream", "python-depends", "backend")} == {
        "name": "add-one",
        "version": 3,
        "license": "MIT",
        "upstream": "https://example.org/add-one",
        "python-depends": ["einops"],
        "backend": {"type": "cpu"},
    }
    assert cuda["backend"] == {"type": "cuda", "archs": ["8.0", "9.0+PTX"]}
    assert cuda["kernel-depends"] == [{"repo-id": "org/other", "version": 1}]
    assert npu["id"].startswith("_add_one_cann_")
    assert len({cpu["id"][-7:], cuda["id"][-7:], npu["id"][-7:]}) == 1
    assert sorted(_files(variants[0])) == ["__init__.py", "_ops.py", "deep/inner.py", "metadata.json"]


def test_a_build_agrees_with_its_digest_and_loads(write_source: Callable[..., Path], tmp_path: Path) -> None:
    variant = build_kernel(write_source("noarch"), tmp_path / "out", backends=["cpu"])[0]
    metadata = Metadata.read_from_file(variant / "metadata.json")
    assert metadata.digest is not None
    BuildContent(variant).check_digest(metadata.digest)
    kernel = _load(variant)
    assert kernel.one == 1
    assert kernel.add_op_namespace_prefix("relu") == f"{metadata.id}::relu"


def test_the_same_sources_give_the_same_bytes(write_source: Callable[..., Path], tmp_path: Path) -> None:
    first = build_kernel(write_source("noarch", "here"), tmp_path / "a")
    second = build_kernel(write_source("noarch", "there"), tmp_path / "b")
    assert list(map(_files, first)) == list(map(_files, second))


def test_only_what_changed_is_built_again(write_source: Callable[..., Path], tmp_path: Path) -> None:
    source, out = write_source("noarch"), tmp_path / "out"
    variant = build_kernel(source, out)[0]
    built = variant.stat().st_ino
    assert build_kernel(source, out)[0].stat().st_ino == built
    assert sorted(path.name for path in (out / "build").iterdir()) == ["torch-cpu", "torch-cuda", "torch-npu"]
    assert (out / ".kernels-build/.gitignore").read_text() == "*\n"  # stamps are not published

    before = _metadata(variant)["id"]
    (source / "torch-ext/add_one/deep/inner.py").write_text("one = 2 - 1\n")
    build_kernel(source, out)
    assert variant.stat().st_ino != built
    assert _metadata(variant)["id"] != before


@pytest.mark.parametrize("damage", ["change", "remove", "no metadata"])
def test_a_damaged_build_is_made_again(write_source: Callable[..., Path], tmp_path: Path, damage: str) -> None:
    source = write_source("noarch")
    variant = build_kernel(source, tmp_path / "out", backends=["cpu"])[0]
    good = _files(variant)
    if damage == "change":
        (variant / "deep/inner.py").write_text("one = 3\n")
    else:
        (variant / ("deep/inner.py" if damage == "remove" else "metadata.json")).unlink()
    build_kernel(source, tmp_path / "out", backends=["cpu"])
    assert _files(variant) == good


def test_hidden_files_and_bytecode_are_no_part_of_a_source(write_source: Callable[..., Path], tmp_path: Path) -> None:
    source = write_source("noarch")
    before = _metadata(build_kernel(source, tmp_path / "a")[0])["id"]
    for name in (".swp", ".hidden.py", "__pycache__/inner.cpython-312.pyc"):
        (source / "torch-ext/add_one" / name).parent.mkdir(exist_ok=True)
        (source / "torch-ext/add_one" / name).write_bytes(b"x")
    variant = build_kernel(source, tmp_path / "b")[0]
    assert _metadata(variant)["id"] == before
    assert not [name for name in _files(variant) if "pycache" in name or "swp" in name or "hidden" in name]


@pytest.mark.parametrize(
    ("link", "to", "says"),
    [
        ("secret.py", "../../../secret.py", "is a link that leads out of"),
        ("deep/secret.py", "../../../../secret.py", "is a link that leads out of"),
        ("folder", "../..", "is a link to a folder"),
        ("a\nb.py", "__init__.py", "a name that not every system allows"),
        ("a\\b.py", "__init__.py", "a name that not every system allows"),
        (os.fsdecode(b"\xff.py"), "__init__.py", "a name that not every system allows"),
    ],
    ids=["file", "deep", "folder", "newline", "backslash", "bytes"],
)
def test_a_package_that_cannot_be_published_is_not_built(
    write_source: Callable[..., Path], tmp_path: Path, link: str, to: str, says: str
) -> None:
    source = write_source("noarch")
    (source.parent / "secret.py").write_text("PASSWORD = 1")
    (source / "torch-ext/add_one" / link).symlink_to(to)
    with pytest.raises(RequestError, match=says):
        build_kernel(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("def one(:\n", 1, "invalid syntax"),
        ("one = 1\nreturn one\n", 2, "'return' outside function"),
        ("# \xff\none = '\0'\n", 1, ""),
    ],
)
def test_what_python_cannot_compile_is_not_built(
    write_source: Callable[..., Path], tmp_path: Path, text: str, line: int, says: str
) -> None:
    source = write_source("noarch", changes={"torch-ext/add_one/deep/inner.py": text})
    with pytest.raises(RequestError) as caught:
        build_kernel(source, tmp_path / "out")
    place = f"{source}/torch-ext/add_one/deep/inner.py:{line}: not valid Python: "
    assert str(caught.value).startswith(place)
    assert says in str(caught.value)
    assert not (tmp_path / "out" / "build").exists()


def test_beside_the_package_a_name_may_be_any_bytes(write_source: Callable[..., Path], tmp_path: Path) -> None:
    source = write_source("noarch")
    (source / os.fsdecode(b"\xff.txt")).write_text("")
    assert len(build_kernel(source, tmp_path / "out")) == 3


def test_folders_that_nest_without_end_are_refused(write_source: Callable[..., Path], tmp_path: Path) -> None:
    source = write_source("noarch")
    source.joinpath("torch-ext/add_one", *["d"] * 120).mkdir(parents=True)
    with pytest.raises(RequestError, match="nested deeper than 100"):
        build_kernel(source, tmp_path / "out")


@pytest.mark.parametrize("out", ["dist", "torch-ext/add_one"])
def test_builds_do_not_go_among_the_sources(write_source: Callable[..., Path], out: str) -> None:
    source = write_source("noarch")
    with pytest.raises(RequestError, match=r"`out_dir` is .* among the sources"):
        build_kernel(source, source / out)
    (source.parent / "link").symlink_to(source)
    with pytest.raises(RequestError, match=r"`out_dir` is .* among the sources"):
        build_kernel(source, source.parent / "link" / out)
    assert not list(source.rglob("metadata.json"))


def test_links_that_came_with_the_sources_lead_no_build_elsewhere(write_source: Callable[..., Path]) -> None:
    source = write_source("noarch")
    mine = source.parent / "mine"
    mine.write_text("precious")
    work = source / ".kernels-build"
    (work / "torch-cpu").mkdir(parents=True)
    for name in ("lock", "torch-cpu.stamp", "torch-cpu.log", "torch-cpu/build.ninja", "torch-cpu/made-from.json"):
        (work / name).symlink_to(mine)
    (work / ".gitignore").symlink_to(source.parent / "new")
    assert len(build_kernel(source, source)) == 3
    assert mine.read_text() == "precious"
    assert not (source.parent / "new").exists()
    shutil.rmtree(work)
    work.symlink_to(source.parent)
    with pytest.raises(RequestError, match=r"\.kernels-build is a link; delete it"):
        build_kernel(source, source)


def _git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _committed(source: Path) -> str:
    """Put a source folder, with all that is not ignored, under git; returns the commit."""
    _git(source, "init", "-q")
    _git(source, "add", ".")
    _git(source, "commit", "-qm", "all")
    return _git(source, "rev-parse", "HEAD")


def test_a_repositorys_hooks_are_not_run(write_source: Callable[..., Path], tmp_path: Path) -> None:
    source = write_source("noarch")
    _committed(source)
    hook = source / ".git/hooks/post-index-change"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch '{tmp_path}/ran'\n")
    hook.chmod(0o755)
    os.utime(source / "build.toml", (1, 1))  # the index has another time
    build_kernel(source, tmp_path / "out")
    assert not (tmp_path / "ran").exists()


def test_provenance_tells_the_commit_and_whether_the_sources_differ(
    write_source: Callable[..., Path], tmp_path: Path
) -> None:
    source = write_source("noarch")

    def built() -> Any:
        return _metadata(build_kernel(source, tmp_path / "out", backends=["cpu"])[0]).get("provenance")

    assert built() is None
    commit = _committed(source)
    assert built()["kernel"] == {"commit": commit, "dirty": False}
    (source / "torch-ext/add_one/notes.txt").write_text("changed")
    assert built()["kernel"] == {"commit": commit, "dirty": True}


def test_two_builds_of_one_commit_in_two_folders_are_the_same(
    write_source: Callable[..., Path], tmp_path: Path
) -> None:
    source = write_source("noarch")
    _committed(source)
    _git(tmp_path, "clone", "-q", "source", "clone")
    first, second = (build_kernel(folder, folder) for folder in (source, tmp_path / "clone"))
    assert list(map(_files, first)) == list(map(_files, second))
    assert _metadata(first[0])["id"] == f"_add_one_cpu_{_git(source, 'rev-parse', 'HEAD^{tree}')[:7]}"


def test_neither_the_time_nor_the_place_nor_who_builds_shows_in_a_build(
    write_source: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The kernel is a folder of a larger repository, and each clone lies elsewhere.
    source = write_source("noarch", "all/kernels/add-one")
    (tmp_path / "all" / "README.md").write_text("all kernels\n")
    _committed(tmp_path / "all")
    built = []
    for name, umask, zone, time in (("one", 0o022, "UTC", 1), ("two", 0o077, "Asia/Tokyo", 2_000_000_000)):
        before = os.umask(umask)
        try:
            monkeypatch.setenv("TZ", zone)
            monkeypatch.setenv("LC_ALL", "C" if umask == 0o077 else "C.UTF-8")
            _git(tmp_path, "clone", "-q", "all", name)
            folder = tmp_path / name / "kernels" / "add-one"
            for path in folder.rglob("*"):
                os.utime(path, (time, time))
            built.append(build_kernel(folder, tmp_path / f"out-{name}"))
        finally:
            os.umask(before)
    first, second = built
    assert list(map(_files, first)) == list(map(_files, second))
    tree = _git(source, "rev-parse", "HEAD:kernels/add-one")
    assert [_metadata(variant)["id"] for variant in first] == [
        f"_add_one_{backend}_{tree[:7]}" for backend in ("cpu", "cuda", "cann")
    ]
    # A change elsewhere in the repository is none of the kernel's.
    (tmp_path / "one" / "README.md").write_text("changed\n")
    folder = tmp_path / "one" / "kernels" / "add-one"
    assert list(map(_files, build_kernel(folder, tmp_path / "again"))) == list(map(_files, first))


def test_what_a_test_run_leaves_behind_is_no_change(write_source: Callable[..., Path], tmp_path: Path) -> None:
    source = write_source("noarch")
    _committed(source)
    before = _metadata(build_kernel(source, tmp_path / "a")[0])
    for name in ("tests/__pycache__/test_add.cpython-312.pyc", ".idea/workspace.xml", ".coverage", "old.pyc"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(b"x")
    assert _metadata(build_kernel(source, tmp_path / "b")[0]) == before
    (source / "torch-ext/add_one/new file.py").write_text("")
    assert _metadata(build_kernel(source, tmp_path / "c")[0])["id"].endswith("_dirty")
    (source / "torch-ext/add_one/new file.py").unlink()
    (source / "torch-ext/add_one/notes.txt").unlink()
    assert _metadata(build_kernel(source, tmp_path / "d")[0])["id"].endswith("_dirty")


def test_without_git_the_id_is_that_of_the_content(write_source: Callable[..., Path], tmp_path: Path) -> None:
    source = write_source("noarch")

    def unique() -> str:
        metadata = _metadata(build_kernel(source, tmp_path / "out", backends=["cpu"])[0])
        assert "provenance" not in metadata
        return metadata["id"].removeprefix("_add_one_cpu_")

    first = unique()
    assert re.fullmatch("[0-9a-f]{7}", first)
    (source / "torch-ext/add_one/deep/inner.py").write_text("one = 2\n")
    assert unique() != first
    (source / "torch-ext/add_one/deep/inner.py").write_text("one = 1\n")
    assert unique() == first


def test_architectures_stand_in_the_metadata_of_their_own_backend_and_of_no_other(
    write_source: Callable[..., Path], tmp_path: Path
) -> None:
    toml = """
[general]
name = "add-one"
version = 1
edition = 5
license = "MIT"
backends = ["cpu", "cuda", "rocm", "xpu", "cann"]

[torch-noarch]
cuda_capabilities = ["8.0", "9.0a"]
rocm-archs = ["gfx90a", "gfx942"]
pyext = ["py", "json"]
"""
    changes = {"build.toml": toml, "torch-ext/add_one/deep/sizes.json": "[1]\n"}
    variants = build_kernel(write_source("noarch", changes=changes), tmp_path / "out")
    assert {variant.name: _metadata(variant)["backend"] for variant in variants} == {
        "torch-cpu": {"type": "cpu"},
        "torch-cuda": {"type": "cuda", "archs": ["8.0", "9.0a"]},
        "torch-rocm": {"type": "rocm", "archs": ["gfx90a", "gfx942"]},
        "torch-xpu": {"type": "xpu"},
        "torch-npu": {"type": "cann"},
    }
    # By the suffixes that were asked for, wherever they lie in the package.
    assert all((variant / "deep/sizes.json").read_text() == "[1]\n" for variant in variants)


def test_the_id_of_changed_sources_says_so_and_is_another_for_every_change(
    write_source: Callable[..., Path], tmp_path: Path
) -> None:
    source = write_source("noarch")
    _committed(source)
    ids = []
    for text in ("one = 2\n", "one = 3\n"):
        (source / "torch-ext/add_one/deep/inner.py").write_text(text)
        ids.append(_metadata(build_kernel(source, source)[0])["id"])
    assert len(set(ids)) == 2
    assert all(id.endswith("_dirty") for id in ids)


def test_committing_a_build_changes_nothing(write_source: Callable[..., Path]) -> None:
    source = write_source("noarch")
    _committed(source)
    before = list(map(_files, build_kernel(source, source)))
    _git(source, "add", ".")
    _git(source, "commit", "-qm", "the build")
    assert ".kernels-build" not in _git(source, "ls-files")
    shutil.rmtree(source / "build")
    assert list(map(_files, build_kernel(source, source))) == before


def test_a_backend_that_the_source_does_not_name_cannot_be_built(
    write_source: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match="`backend` is 'xpu'; add-one has"):
        build_kernel(write_source("noarch"), tmp_path / "out", backends=["xpu"])


@compiler
def test_a_compiled_source_becomes_an_extension_that_runs(compiled_once: Path) -> None:
    import torch

    (variant,) = (compiled_once / "out" / "build").iterdir()
    metadata = _metadata(variant)
    major, minor = torch.__version__.split(".")[:2]
    assert variant.name.startswith(f"torch{major}{minor}-cxx11-cpu-")
    assert sorted(_files(variant)) == sorted(["__init__.py", "_ops.py", "metadata.json", f"{metadata['id']}.abi3.so"])
    assert _load(variant).add_one(torch.tensor([1.0])).tolist() == [2.0]
    assert hasattr(getattr(torch.ops, metadata["id"]), "add_one")


@compiler
def test_what_is_compiled_already_is_not_compiled_again(compiled_once: Path) -> None:
    (variant,) = (compiled_once / "out" / "build").iterdir()
    built = variant.stat().st_ino
    assert build_kernel(compiled_once / "source", compiled_once / "out") == [variant]
    assert variant.stat().st_ino == built


@compiler
def test_compiling_in_two_places_gives_the_same_bytes(
    compiled_once: Path, write_source: Callable[..., Path], tmp_path: Path
) -> None:
    variant = build_kernel(write_source("compiled"), tmp_path / "out")[0]
    assert _files(variant) == _files(compiled_once / "out" / "build" / variant.name)


@compiler
def test_a_compilers_output_is_the_error(write_source: Callable[..., Path], tmp_path: Path) -> None:
    source = write_source("compiled", changes={"add_one.cpp": "int one = undeclared_name;\n"})
    with pytest.raises(BuildError, match=r"Building add_one\.cpp failed(.|\n)*undeclared_name") as raised:
        build_kernel(source, tmp_path / "out")
    assert not (tmp_path / "out/build").exists()
    assert not list((tmp_path / "out/.kernels-build").glob("building-*"))
    log = next((tmp_path / "out/.kernels-build").glob("*.log"))
    assert str(log) in str(raised.value)
    assert "undeclared_name" in log.read_text()


@compiler
def test_a_failed_build_leaves_the_last_one(compiled_once: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(compiled_once, tmp_path / "copy")
    good = _files(copy / "out/build")
    (copy / "source" / "add_one.cpp").write_text("#error\n")
    with pytest.raises(BuildError):
        build_kernel(copy / "source", copy / "out")
    assert _files(copy / "out/build") == good


@pytest.mark.parametrize("command", ["no-such-compiler --fast", "false"])
def test_without_a_compiler_the_error_says_so(
    write_source: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("CXX", command)
    with pytest.raises(CompilerNotFound, match=command.split()[0]):
        build_kernel(write_source("compiled"), tmp_path / "out")


def test_a_source_for_another_torch_is_left_out_unless_asked_for(
    write_source: Callable[..., Path], tmp_path: Path
) -> None:
    toml = '[general]\nname = "add-one"\nversion = 1\nedition = 5\nlicense = "MIT"\nbackends = ["neuron"]\n[torch]\n'
    source = write_source("compiled", changes={"build.toml": toml})
    assert build_kernel(source, tmp_path / "out") == []
    with pytest.raises(CompilerNotFound, match=r"Torch .* is not built for neuron"):
        build_kernel(source, tmp_path / "out", backends=["neuron"])


class Acme(Backend):
    """A third-party accelerator, whose sources the host compiler takes."""

    name = noarch_name = token = mapping_device = "acme"
    device_type = "cpu"
    dispatch_key = "CPU"

    def probe(self) -> BackendProbe:
        return BackendProbe()

    def torch_build(self, torch: Any) -> Found:
        return Found()


_DECLARED = """{"acme": {"device_string": "cpu", "vendor": "Acme", "arch_rule": "exact"}}"""

_ACME_TOML = """
[general]
name = "add-one"
version = 1
edition = 5
license = "MIT"
backends = ["acme"]
"""

_ACME_COMPILED = """
[torch]
src = ["torch-ext/binding.cpp"]

[kernel.add_one]
backend = "acme"
src = ["add_one.cpp", "headers/one.h"]
include = ["headers"]
cxx-flags = ["-DONE=1"]
acme-archs = ["a1", "a2"]
"""


@pytest.fixture(params=["registered", "declared"])
def acme(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    if request.param == "registered":
        register_backend(Acme())
    else:
        (tmp_path / "acme.json").write_text(_DECLARED)
        load_backends(tmp_path / "acme.json")
    yield
    unregister_backend("acme")


@compiler
@pytest.mark.usefixtures("acme")
def test_a_third_party_backend_is_compiled_for_like_any_other(
    write_source: Callable[..., Path], tmp_path: Path
) -> None:
    import torch

    # Other sources for each way to join: a process takes the operators of one build once.
    changes = {"build.toml": _ACME_TOML + _ACME_COMPILED, "which.txt": tmp_path.name}
    source = write_source("compiled", changes=changes)
    text = (source / "add_one.cpp").read_text()
    (source / "add_one.cpp").write_text(text.replace("CPU_KERNEL", "ACME_KERNEL"))
    (variant,) = build_kernel(source, tmp_path / "out")
    assert "-cxx11-acme-" in variant.name
    assert _metadata(variant)["backend"] == {"type": "acme", "archs": ["a1", "a2"]}
    assert _metadata(variant)["id"].startswith("_add_one_acme_")
    assert _load(variant).add_one(torch.tensor([1.0])).tolist() == [2.0]


@pytest.mark.usefixtures("acme")
def test_a_third_party_noarch_build_is_made_like_any_other(write_source: Callable[..., Path], tmp_path: Path) -> None:
    toml = _ACME_TOML.replace('"acme"', '"acme", "cpu"') + '[torch-noarch]\nacme-archs = ["a1"]\n'
    acme, cpu = build_kernel(write_source("noarch", changes={"build.toml": toml}), tmp_path / "out")
    assert (acme.name, cpu.name) == ("torch-acme", "torch-cpu")
    assert _metadata(acme)["backend"] == {"type": "acme", "archs": ["a1"]}
    assert _metadata(cpu)["backend"] == {"type": "cpu"}
    metadata = Metadata.read_from_file(acme / "metadata.json")
    assert metadata.digest is not None
    BuildContent(acme).check_digest(metadata.digest)
    assert _files(acme).keys() == _files(cpu).keys()


def test_an_interrupt_between_two_renames_brings_back_what_was_there(
    write_source: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_source("noarch")
    variant = build_kernel(source, tmp_path / "out", backends=["cpu"])[0]
    before = _files(variant)
    (source / "torch-ext/add_one/deep/inner.py").write_text("one = 2\n")
    rename = Path.rename

    def interrupted(path: Path, target: Path) -> Path:
        if path.name == "files":
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_kernel(source, tmp_path / "out", backends=["cpu"])
    assert _files(variant) == before


def test_only_the_packages_own_operators_module_is_the_builders(
    write_source: Callable[..., Path], tmp_path: Path
) -> None:
    source = write_source("noarch", changes={"torch-ext/add_one/deep/_ops.py": "two = 2\n"})
    variant = build_kernel(source, tmp_path / "out", backends=["cpu"])[0]
    assert (variant / "deep" / "_ops.py").read_text() == "two = 2\n"
    assert "add_op_namespace_prefix" in (variant / "_ops.py").read_text()


def test_a_build_that_is_killed_while_it_takes_its_place_loses_nothing(
    write_source: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = write_source("noarch"), tmp_path / "out"
    variant = build_kernel(source, out, backends=["cpu"])[0]
    built = variant.stat().st_ino
    (source / "torch-ext/add_one/deep/inner.py").write_text("one = 2 - 1\n")
    script = """
import os, pathlib, sys
from kernels.authoring.compile import build_kernel
rename = pathlib.Path.rename
pathlib.Path.rename = lambda path, to: os._exit(9) if path.name == "files" else rename(path, to)
build_kernel(sys.argv[1], sys.argv[2], backends=["cpu"])
"""
    assert subprocess.run([sys.executable, "-c", script, str(source), str(out)], check=False).returncode == 9
    assert not variant.exists()

    rename = Path.rename

    def full(path: Path, to: Path) -> Path:
        if path.name == "files":
            raise OSError(errno.ENOSPC, "no space left")
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(BuildError, match="the previous build is unchanged"):
        build_kernel(source, out, backends=["cpu"])
    assert variant.stat().st_ino == built


@compiler
def test_build_options_of_other_commands_build_what_this_machine_can(
    write_source: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = '[kernel.cuda]\nbackend = "cuda"\nsrc = ["one.cu"]\n'
    source = write_source("compiled")
    toml = (source / "build.toml").read_text().replace('["cpu"]', '["cpu", "cuda"]') + cuda
    source = write_source(
        "compiled", changes={"build.toml": toml, "one.cu": "", "tests/test_it.py": "import add_one\n"}
    )
    monkeypatch.setattr(torch_installation, "torch_builds", lambda: {"cpu": None, "cuda": MajorMinor(13, 0)})
    monkeypatch.setenv("NVCC", str(tmp_path / "nothing"))
    [wheel] = build_wheels(source, build=True)
    assert "cpu" in wheel.variant
    assert run_tests(source, ["-q"], build=True) == 5
